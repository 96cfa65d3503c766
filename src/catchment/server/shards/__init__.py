"""Other shards: calls to and from them, and forwarding to a tenant's primary."""

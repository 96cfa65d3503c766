"""Names of gRPC headers, and the user name under which shards log in to each other."""

AUTHORIZATION = "authorization"
# The user whose statement a shard forwards: a role and a tenant.
ON_BEHALF = "catchment-on-behalf"
# A trailer that names the class of an error, for Catchment's own clients.
ERROR_HEADER = "catchment-error"
# User name of shards, and of processes that move tenants, on a shard's server.
SHARD = "shard"

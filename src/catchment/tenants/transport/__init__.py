"""Calls to shards on other servers: the gRPC client and the messages."""

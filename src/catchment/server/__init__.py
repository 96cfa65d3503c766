"""Flight SQL server: the endpoint for clients with standard drivers."""

from catchment.foundation.settings import default_variable

# gRPC reads this setting when it is imported. With gRPC's own fork handlers, a few in a hundred
# child processes of a server in use were aborted before they could exec; Spark's JVM is such a
# child.
default_variable("GRPC_ENABLE_FORK_SUPPORT", "0")

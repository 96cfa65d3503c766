"""The Flight SQL server: what people reach with the drivers they have."""

from catchment.foundation.settings import default_variable

# gRPC reads it when it is imported. With its own way of forking, a few in a hundred children of a server that is in
# use were aborted before they became anything, and Spark's JVM is one of them.
default_variable("GRPC_ENABLE_FORK_SUPPORT", "0")

"""Sizes of Flight messages that servers and shards agree on."""

from catchment.foundation.settings import MIB

# The largest message that a server, or a shard's client, accepts: it is decoded in memory. ADBC's
# driver sends at most 16 MiB.
MESSAGE_BYTES_MAX = 64 * MIB

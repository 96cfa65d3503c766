SELECT producer, epoch, seq FROM {lake}._catchment.producers WHERE list_contains(?::VARCHAR[], producer)

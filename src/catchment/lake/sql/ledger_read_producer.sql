SELECT epoch, seq FROM {lake}._catchment.producers WHERE row(producer) = row(?)

"""The evaluation: settings, shards that are planned, read, scored and kept, and the conclusion over all queries; studies of several conditions."""

"""The evaluation: settings, inputs, shards that are planned, read and scored, and the conclusion over all queries; studies of several conditions."""

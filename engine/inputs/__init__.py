"""The inputs of an evaluation: read, checked against each other, and cut into shards of whole queries."""

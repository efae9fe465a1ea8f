"""A name that nobody gives to a measure, a metric, an annotator or a reader."""

UNKNOWN_NAME = "no-such-name"

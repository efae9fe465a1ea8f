"""The evaluation: inputs and settings, prepare, read, assess; and studies of several conditions."""

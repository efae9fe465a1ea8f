"""A user's files recomputed with the reference implementations."""

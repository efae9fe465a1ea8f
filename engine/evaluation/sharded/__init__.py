"""Evaluations too large for one process: cut into shards on disk, read and judged shard by shard."""

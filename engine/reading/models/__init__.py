"""The models behind readers: loading, batching, attention and decoding, by architecture."""

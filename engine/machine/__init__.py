"""The machine below reading and retrieval: devices, memory, batches, Ray, and the files of models."""

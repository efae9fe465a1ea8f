"""Doors by which answers come (servers, own loops, vLLM, functions), each with the same kinds of faults."""

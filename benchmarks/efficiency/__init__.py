"""End-to-end evaluation against eRAG in time and memory: a grid of cells, a process each."""

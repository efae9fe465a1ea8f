"""Query coverage: which parts of what users ask an evaluation leaves out."""

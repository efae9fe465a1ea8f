"""Traces of agents: searches of a query in steps, and the answer."""

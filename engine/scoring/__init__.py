"""Downstream metrics: how good an output is against its reference answers."""

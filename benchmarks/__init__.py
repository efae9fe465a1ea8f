"""Measured comparisons with other implementations: each module prints ratios and writes JSON."""

"""Results as people read them, as tables, and as JSON; comparisons of several results folders."""

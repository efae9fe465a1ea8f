"""Results as people read them, and as JSON."""

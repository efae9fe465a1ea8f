"""Statistics over queries: correlations, comparisons, intervals, and the choice of a run."""

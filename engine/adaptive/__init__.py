"""Choosers: which passages are labelled next, and which queries are read next, by the labels and scores so far."""

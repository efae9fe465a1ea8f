"""Files in and out, in any layout; data sets by name; the bundled articles and questions."""

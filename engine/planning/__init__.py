"""Plans of evaluations: how many reads, how long, and what they cost, before they are done."""

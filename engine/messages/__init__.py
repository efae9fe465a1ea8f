"""What the engine says to a user: errors, notes, packages that are missing, and the words of all of them."""

"""Reading: what a read is, planning reads, doing them here or on Ray, and keeping them."""

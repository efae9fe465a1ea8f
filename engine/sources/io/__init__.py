"""Files and addresses: opening, streaming, writing atomically, fingerprints, and tolerated bad records."""

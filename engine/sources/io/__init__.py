"""Files and addresses: opening, streaming, atomic writing, fingerprints, and bad records."""

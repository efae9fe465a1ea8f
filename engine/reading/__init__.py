"""Reading: plan of the reads, the read store, execution in this process or on Ray Data, repetition."""

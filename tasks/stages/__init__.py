"""The fifteen stages, one file each: what a stage reads, computes and writes. A stage imports no other stage."""

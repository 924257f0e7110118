"""The benchmark of the reading side: `make bench-spark`."""

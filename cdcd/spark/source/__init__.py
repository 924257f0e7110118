"""Batches of records that end on a PostgreSQL commit: progress records, positions, cuts, ranges of offsets."""

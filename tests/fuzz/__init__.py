"""Fuzzing of the pure core: targets, their corpus, and what runs them (`python -m tests.fuzz`, `make fuzz`)."""

"""Fuzzing of the pure core: targets, their corpus, and the runner (`python -m tests.fuzz`, `make fuzz`)."""

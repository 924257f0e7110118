"""The oracle's assertions, one file for each subject; each assertion is a function on plain data."""

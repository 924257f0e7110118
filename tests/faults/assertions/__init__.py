"""The oracle's assertions, one subject a file; each is a function on plain data."""

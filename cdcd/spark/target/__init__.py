"""The target of a mirror: its versions, its commit log, its owner."""

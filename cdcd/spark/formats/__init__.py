"""The open table formats of a mirror: Delta and Iceberg."""

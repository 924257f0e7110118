"""A running mirror: from the start over its sessions and batches to its metrics, and its verification."""

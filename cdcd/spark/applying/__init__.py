"""Changes of a user's own frame into a Delta table: `apply_changes`, and the change feed of one table."""

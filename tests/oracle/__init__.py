"""PostgreSQL judges the content of the topics: every type, read by an independent reader and cast back."""

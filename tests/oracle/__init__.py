"""PostgreSQL judges what stands in the topics: every type, read by an independent reader and cast back."""

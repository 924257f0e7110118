"""`cdcd verify` judged: planted differences are found, and changes under load are no differences."""

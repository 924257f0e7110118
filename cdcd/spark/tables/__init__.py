"""The files of a mirror's tables: a batch is planned, folded, written, and merged with earlier files."""

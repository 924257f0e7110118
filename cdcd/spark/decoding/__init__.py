"""Avro records to typed columns: schemas by id, the columns of a frame, the two engines."""

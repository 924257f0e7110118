"""Decode framed Avro records of any schema versions into the columns of one Arrow schema.

In: a binary Arrow column of Kafka values or keys, and a function that returns the schema of an id.
Out: a struct array with a row for each record, the schema ids, and the records that cannot be decoded.
Invariant: a row has the place of its record; a null record, and one that cannot be decoded, is a null row.
Must not: cache a schema that the function could not return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import pyarrow as pa

from cdcd.columnar.fallback import ColumnsInPython
from cdcd.columnar.faults import BadRecord, Fault
from cdcd.columnar.layout import columns_of
from cdcd.columnar.program import compile_program
from cdcd.errors import CdcdError
from cdcd.extensions import extension

SchemaOf = Callable[[int], Any]
_extension = extension("cdcd.columnar._arrow")
Columns: Any = ColumnsInPython if _extension is None else _extension.Columns


class DecodedRows(NamedTuple):
    """`rows`: a struct array; `schema_ids`: int64, null where the row is null; `bad`: in the order of the rows."""

    rows: pa.StructArray
    schema_ids: pa.Int64Array
    bad: Sequence[BadRecord]


class RecordDecoder:
    """Decodes records into the columns of a schema. It compiles each writer schema once."""

    def __init__(
        self,
        wanted: pa.Schema,
        schema_of: SchemaOf,
        columns_class: Any = None,
        *,
        schema_faults: tuple[type[CdcdError], ...] = (),
    ) -> None:
        """`schema_faults`: the errors of a schema that make its records bad, instead of being raised."""
        self._columns = columns_of(pa.struct(list(wanted)))
        self._schema_faults = schema_faults
        self._schema_of = schema_of
        self._store = (columns_class or Columns)(self._columns)

    def decode(self, records: pa.Array) -> DecodedRows:
        """Decode all records of a binary or large_binary array.

        Raises what `schema_of` raises, and SparkReadError for a schema that does not fit the columns, except for the
        `schema_faults`; the decoder then begins again with no rows.
        """
        bad: list[BadRecord] = []
        try:
            self._decode(records, bad)
        except BaseException:
            self._store.take()
            raise
        rows, ids = self._store.take()
        return DecodedRows(rows, ids, bad)

    def _decode(self, records: pa.Array, bad: list[BadRecord]) -> None:
        row = 0
        problems: dict[int, str] = {}  # of this batch: the next one asks for the schemas again
        while row < len(records):
            row, fault, schema_id = self._store.decode(records, row)
            if not fault and row < len(records):
                if schema_id not in problems and self._has_program(schema_id, problems):
                    continue
                fault = Fault.SCHEMA
            if fault:
                known = None if schema_id < 0 else schema_id
                bad.append(BadRecord(row, Fault(fault), known, problems.get(schema_id, "")))
                self._store.append_null()
                row += 1

    def _has_program(self, schema_id: int, problems: dict[int, str]) -> bool:
        """Compile the program of a schema, or store its problem."""
        try:
            program = compile_program(self._schema_of(schema_id), self._columns)
        except self._schema_faults as error:
            problems[schema_id] = problem_of(error)
            return False
        self._store.add_program(schema_id, program)
        return True


def problem_of(error: CdcdError) -> str:
    """Return what is wrong with a schema, as the `problem` of its records."""
    names = ", ".join(f"{name} {value}" for name, value in error.context.items())
    return error.message + (f" ({names})" if names else "")

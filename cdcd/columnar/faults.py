"""What can be wrong with a record's bytes.  The numbers are those of the C extension, which has further ones."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Fault(enum.IntEnum):
    """Why a record cannot be decoded."""

    HEADER = 1
    TRUNCATED = 2
    NUMBER = 3
    LENGTH = 4
    BRANCH = 5
    BOOLEAN = 6
    TEXT = 7
    DECIMAL = 8
    COUNT = 9
    TRAILING = 10
    TOO_LARGE = 11
    SCHEMA = 14
    """Not a fault of the bytes: `RecordDecoder` has it, the C extension does not. 12 and 13 are its own."""


REASONS = {
    Fault.HEADER: "it is not framed as 0x00, schema id, Avro",
    Fault.TRUNCATED: "it ends within a value",
    Fault.NUMBER: "a number has more bits than its type",
    Fault.LENGTH: "a length is negative or exceeds the record",
    Fault.BRANCH: "a union has no branch of this number",
    Fault.BOOLEAN: "a boolean is neither 0 nor 1",
    Fault.TEXT: "a string is not UTF-8",
    Fault.DECIMAL: "a decimal has more digits than its type",
    Fault.COUNT: "a block has more items than the record has bytes",
    Fault.TRAILING: "bytes follow the last value",
    Fault.SCHEMA: "its schema cannot be read",
    Fault.TOO_LARGE: "its columns need more memory than a batch may have",
}


class BadRecord(NamedTuple):
    """A record that cannot be decoded. `row`: its place in the input; `schema_id`: None without a valid header.

    `problem`: what is wrong with its schema, where the fault is SCHEMA.
    """

    row: int
    fault: Fault
    schema_id: int | None
    problem: str = ""

    @property
    def reason(self) -> str:
        """What is wrong with the record, without any of its bytes."""
        return self.problem or REASONS[self.fault]

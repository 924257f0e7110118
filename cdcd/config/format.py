"""Options of the records' shape: defaults, and rules for some tables and columns.

Comes in: the `format` mapping.  Goes out: `Format`, and the pure core's `Policies`.
Invariant: a rule knows the same options as the defaults do, under the same names, because it is made from them.
Must not: know what an option means to the bytes.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo

from cdcd.config.values import Names, Room, Whole, refuse
from cdcd.schema.policy import FlatNames, Policies, Policy, Rule

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def compiled(pattern: str) -> re.Pattern[str]:
    """Return a pattern of names, in which `.` is any character: a name may have line ends."""
    return re.compile(pattern, re.DOTALL)


def _pattern(value: str) -> str:
    try:
        compiled(value)
    except re.error as error:
        refuse(f"is not a regular expression: {error}", r"write for example public\.orders")
    return value


def _avro_name(value: str) -> str:
    if not _AVRO_NAME.fullmatch(value):
        refuse("is not a name in Avro", "letters, digits and _, not beginning with a digit")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
AvroName = Annotated[str, AfterValidator(_avro_name)]


class Columns(Room):
    """What can be chosen for a column."""

    numeric_as: Literal["exact", "string", "double", "variable_scale"] = Field(
        default="exact",
        description="exact: a decimal where precision and scale are declared, else a string; double loses digits",
    )
    money_as: Literal["decimal", "string"] = Field(
        default="decimal", description="decimal: as many fraction digits as lc_monetary has"
    )
    interval_as: Literal["iso_8601", "fields", "microseconds"] = Field(
        default="iso_8601",
        description="fields: months, days, microseconds; microseconds alone loses the calendar",
    )
    json_as: Literal["json", "string"] = Field(
        default="json", description="json: a string that Connect readers know as JSON"
    )
    special: Literal["separate", "halt", "string"] = Field(
        default="separate",
        description="values the Avro type cannot hold: in source.special, halt, or all of the column as string",
    )
    max_value_bytes: Whole = Field(
        default=0, ge=0, description="the longest text of a value; 0: what Kafka takes"
    )
    oversized: Literal["halt", "omit"] = Field(
        default="halt", description="a longer value: halt, or null and named in source.special"
    )
    placeholder: str = Field(
        default="",
        description="stands in string and bytes columns for a TOASTed value that was not sent; none: null",
    )


class Tables(Room):
    """What can be chosen for a table."""

    value: Literal["envelope", "flat"] = Field(
        default="envelope",
        description="shape of a value; flat: the row with a few fields more, no row before",
    )
    tombstones: bool = Field(default=True, description="write a record with a null value after each delete")
    key_columns: Names = Field(default=(), description="key of a table that PostgreSQL gives none")
    keyless: Literal["one_partition", "row"] = Field(
        default="one_partition",
        description="without such a key: null, in one partition, or (REPLICA IDENTITY FULL) the whole row as its key",
    )


_CHOICES = {**Tables.model_fields, **Columns.model_fields}


class Flat(Room):
    """Names of the fields that the flat format adds to a row."""

    op: AvroName = Field(default="__op", description="c, u, d, r or t")
    deleted: AvroName = Field(default="__deleted", description="whether the row was deleted")
    timeline: AvroName = Field(default="__timeline", description="timeline of the commit")
    commit_lsn: AvroName = Field(default="__commit_lsn", description="LSN of the commit")
    tx_seq: AvroName = Field(default="__tx_seq", description="number of the change in its transaction")
    ts_ms: AvroName = Field(default="__ts_ms", description="time of the commit")
    special: AvroName = Field(default="__special", description="values that a column's type cannot hold")
    unchanged: AvroName = Field(default="__unchanged", description="columns whose TOASTed value was not sent")

    @model_validator(mode="after")
    def _each_once(self) -> Flat:
        names = list(self.model_dump().values())
        if len(set(names)) < len(names):
            refuse("two of the fields have one name")
        return self


def _without_null(schema: dict[str, Any]) -> None:
    """Leave in an override's JSON Schema what may be written: a key is there with a value, or not at all."""
    for one in schema["properties"].values():
        kinds = [kind for kind in one.pop("anyOf", ()) if kind != {"type": "null"}]
        if kinds:
            del one["default"]
            one.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


class _Matching(Room):
    """Which tables, or which of their columns, a rule is for."""

    model_config = ConfigDict(json_schema_extra=_without_null)

    table: Pattern = Field(description="regular expression that matches all of SCHEMA.TABLE")
    column: Pattern | None = Field(
        default=None, description="regular expression that matches all of a column's name"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: Any) -> Any:
        if value is None:  # a key with nothing after it would undo what it seems to leave alone
            refuse("expected a value, found nothing", "leave the key out for what holds otherwise")
        return value

    @model_validator(mode="after")
    def _fits(self) -> _Matching:
        given = self.model_fields_set - {"table", "column"}
        if not given:
            refuse("changes nothing", f"set one of {', '.join(_CHOICES)}")
        if self.column is not None and (of_tables := sorted(given & set(Tables.model_fields))):
            refuse(f"{', '.join(of_tables)} cannot be set for a column", "leave `column` out")
        return self


def _or_none(field: FieldInfo) -> Any:
    """Return a field that may be left out, with the same checks."""
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    return annotation | None, Field(default=None, description=field.description)


_OPTIONAL: dict[str, Any] = {name: _or_none(field) for name, field in _CHOICES.items()}
Override: Any = create_model("Override", __base__=_Matching, **_OPTIONAL)
"""One rule: a pattern of tables, perhaps one of columns, and the options that are otherwise for them."""


class Format(Columns, Tables):
    """The shape of the records."""

    transactions: bool = Field(
        default=False,
        description="write each transaction's BEGIN and END, with counts, and its block into every change",
    )
    flat: Flat = Field(default_factory=Flat, description="names of the fields that the flat format adds")
    overrides: tuple[Override, ...] = Field(
        default=(),
        description="what is otherwise for some tables, or columns of them; a later one goes before an earlier one",
        examples=[
            [
                {"table": r"audit\..*", "tombstones": False},
                {"table": "public.item", "column": "price", "special": "halt"},
            ]
        ],
    )

    def policies(self) -> Policies:
        """Return what the pure core goes by."""
        return Policies(
            Policy(**{name: getattr(self, name) for name in _CHOICES}),
            tuple(_rule(one) for one in self.overrides),
            FlatNames(**self.flat.model_dump()),
        )


def _rule(override: Any) -> Rule:
    changes = {name: getattr(override, name) for name in override.model_fields_set & set(_CHOICES)}
    column = None if override.column is None else compiled(override.column)
    return Rule(compiled(override.table), column, changes)

"""Options of the records' format: defaults, and rules for some tables and columns.

Comes in: the `format` mapping.  Goes out: `Format`, and the pure core's `Policies`.
Invariant: a rule knows the same options as the defaults do, under the same names, because it is made from them.
Must not: apply an option to a value; `EFFECTS` only describes the options.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, create_model, field_validator, model_validator
from pydantic.fields import FieldInfo

from cdcd.config.values import Names, Room, Whole, refuse
from cdcd.schema.policy import FlatNames, Policies, Policy, Rule

_AVRO_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def compile_pattern(pattern: str) -> re.Pattern[str]:
    """Return the compiled pattern of names; `.` matches any character, because a name may have line ends."""
    return re.compile(pattern, re.DOTALL)


def _pattern(value: str) -> str:
    try:
        compile_pattern(value)
    except re.error as error:
        refuse(f"is not a regular expression: {error}", r"write for example public\.orders")
    return value


def _avro_name(value: str) -> str:
    if not _AVRO_NAME.fullmatch(value):
        refuse("is not a name in Avro", "use letters, digits and _, not beginning with a digit")
    return value


Pattern = Annotated[str, AfterValidator(_pattern)]
AvroName = Annotated[str, AfterValidator(_avro_name)]


class Columns(Room):
    """Options of a column."""

    numeric_as: Literal["exact", "string", "double", "variable_scale"] = Field(
        default="exact",
        description="exact: a decimal if precision and scale are declared, otherwise a string; double loses digits",
    )
    money_as: Literal["decimal", "string"] = Field(
        default="decimal", description="decimal: as many fraction digits as lc_monetary defines"
    )
    interval_as: Literal["iso_8601", "fields", "microseconds"] = Field(
        default="iso_8601",
        description="fields: months, days, microseconds; microseconds: one number for all three",
    )
    json_as: Literal["json", "string"] = Field(
        default="json", description="json: a string that Kafka Connect recognizes as JSON"
    )
    special: Literal["separate", "halt", "string"] = Field(
        default="separate",
        description="values outside the Avro type's range: in source.special, halt, or the whole column as string",
    )
    max_value_bytes: Whole = Field(
        default=0, ge=0, description="maximum length of a value's text; 0: Kafka's limit"
    )
    oversized: Literal["halt", "omit"] = Field(
        default="halt", description="a longer value: halt, or null and named in source.special"
    )
    placeholder: str = Field(
        default="",
        description="the text in string and bytes columns for a TOASTed value that was not sent; none: null",
    )


_AS_ABOVE = "as in the table above"

EFFECTS: Mapping[str, Mapping[str, str]] = {
    "numeric_as": {
        "exact": _AS_ABOVE,
        "string": "every numeric is the server's text",
        "double": "every numeric is the nearest double, with NaN and infinities; **loses digits**, so that two "
        "different keys may become equal (the log event is `key_not_exact`); a value that PostgreSQL's own cast "
        "refuses as out of range is special",
        "variable_scale": "numerics without a decimal type are Debezium's record of scale and unscaled value; NaN "
        "and infinities are special",
    },
    "money_as": {
        "decimal": _AS_ABOVE,
        "string": "the amount as a decimal number, independent of the locale",
    },
    "interval_as": {
        "iso_8601": _AS_ABOVE,
        "fields": "record `cdcd.Interval` of `months`, `days`, `us`; infinities are special",
        "microseconds": "long, as in Debezium: a month is 365.25/12 days; **loses the distinction between "
        "months and days**, so that two different keys may become equal; infinities and values out of range are "
        "special",
    },
    "json_as": {
        "json": _AS_ABOVE,
        "string": "a string without the connect.name",
    },
    "special": {
        "separate": "the field of such a value is null, and `source.special` has the server's text",
        "halt": "such a value halts cdcd with table, column, type and LSN, never with the value",
        "string": "the whole column is a string of the server's text, for each type that may have such a value: see "
        "the third column of the table above, which has every array and every composite, too",
    },
    "max_value_bytes": {
        "a number": "the longest text of a value, in bytes; 0: Kafka's limit",
    },
    "oversized": {
        "halt": "a value whose text is longer than `max_value_bytes` halts cdcd, and the error has its size",
        "omit": "its field is null, and `source.special` has the number of bytes under `after.<field>.omitted_bytes` "
        "(a field's name has no dot); a key halts",
    },
    "placeholder": {
        "a text": "the content of string and bytes columns for a TOASTed value that was not sent; the column is in "
        "`source.unchanged` as well",
    },
}
"""The effect of each choice of `Columns`, for docs/types.md; an option without choices has the kind of its value.

The descriptions of the fields are shorter, because the sample and the JSON Schema have them.
"""


class Tables(Room):
    """Options of a table."""

    value: Literal["envelope", "flat"] = Field(
        default="envelope",
        description="format of a value; flat: the new row with additional fields, without the row before",
    )
    tombstones: bool = Field(default=True, description="write a record with a null value after each delete")
    key_columns: Names = Field(default=(), description="key columns of a table without a key in PostgreSQL")
    keyless: Literal["one_partition", "row"] = Field(
        default="one_partition",
        description="key of the records of a table without a key: null, all in one partition; row: the whole "
        "row (needs REPLICA IDENTITY FULL)",
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
            refuse("two of the fields have the same name")
        return self


def without_null(schema: dict[str, Any]) -> None:
    """Remove null from an override's JSON Schema: a key has a value, or is absent."""
    for one in schema["properties"].values():
        kinds = [kind for kind in one.pop("anyOf", ()) if kind != {"type": "null"}]
        if kinds:
            del one["default"]
            one.update(kinds[0] if len(kinds) == 1 else {"anyOf": kinds})


class _Matching(Room):
    """The tables, or columns of them, that a rule applies to."""

    model_config = ConfigDict(json_schema_extra=without_null)

    table: Pattern = Field(description="regular expression that matches all of SCHEMA.TABLE")
    column: Pattern | None = Field(
        default=None, description="regular expression that matches all of a column's name"
    )

    @field_validator("*", mode="before")
    @classmethod
    def _is_given(cls, value: Any) -> Any:
        if value is None:  # a key without a value would override the default that it seems to leave unchanged
            refuse("expected a value, found nothing", "remove the key to use the default")
        return value

    @model_validator(mode="after")
    def _fits(self) -> _Matching:
        given = self.model_fields_set - {"table", "column"}
        if not given:
            refuse("changes nothing", f"set one of {', '.join(_CHOICES)}")
        if self.column is not None and (of_tables := sorted(given & set(Tables.model_fields))):
            refuse(f"{', '.join(of_tables)} cannot be set for a column", "remove `column`")
        return self


def _or_none(field: FieldInfo) -> Any:
    """Return the field as an optional one, with the same checks."""
    annotation: Any = field.annotation
    if field.metadata:
        annotation = Annotated[annotation, *field.metadata]
    return annotation | None, Field(default=None, description=field.description)


_OPTIONAL: dict[str, Any] = {name: _or_none(field) for name, field in _CHOICES.items()}
Override: Any = create_model("Override", __base__=_Matching, **_OPTIONAL)
"""One rule: a pattern of tables, an optional pattern of columns, and the options that differ for them."""


class Format(Columns, Tables):
    """The format of the records."""

    transactions: bool = Field(
        default=False,
        description="write BEGIN and END of each transaction, with counts, and a transaction block in each change",
    )
    flat: Flat = Field(default_factory=Flat, description="names of the fields that the flat format adds")
    overrides: tuple[Override, ...] = Field(
        default=(),
        description="options for some tables, or columns of them; a later rule overrides an earlier one",
        examples=[
            [
                {"table": r"audit\..*", "tombstones": False},
                {"table": "public.item", "column": "price", "special": "halt"},
            ]
        ],
    )

    def policies(self) -> Policies:
        """Return the options as the pure core needs them."""
        return Policies(
            Policy(**{name: getattr(self, name) for name in _CHOICES}),
            tuple(_rule(one) for one in self.overrides),
            FlatNames(**self.flat.model_dump()),
        )


def _rule(override: Any) -> Rule:
    changes = {name: getattr(override, name) for name in override.model_fields_set & set(_CHOICES)}
    column = None if override.column is None else compile_pattern(override.column)
    return Rule(compile_pattern(override.table), column, changes)

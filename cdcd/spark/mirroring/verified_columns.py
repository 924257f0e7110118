"""The columns of a topic's records under their current names, for the comparison of a mirror with its topic.

In: the last change under each schema of the topic, the schemas.  Out: the schemas and the names as they are now.
Invariant: which columns are the same is decided by `same_columns`, as in the mirror; what the rows are is not.
Must not: do I/O except by the given function.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812 - the usual name

from cdcd.spark.decoding.decode import Decoding
from cdcd.spark.decoding.events import BEGINNING, Sequence
from cdcd.spark.decoding.frame import column_name
from cdcd.spark.decoding.schemas import Schema
from cdcd.spark.decoding.special import renamed_keys
from cdcd.spark.mirroring.sql_fold import At
from cdcd.spark.tables.same_columns import as_current, continued_columns, fields_of, of_newest_table
from cdcd.spark.target.versions import TableEntry


@dataclass(frozen=True, slots=True)
class CurrentNames:
    """The schemas of a topic under the names of the newest.

    `shown`: the Avro names in the newest schema with PostgreSQL's. `renames`: by schema id, former names with
    PostgreSQL's current ones.
    `left`: the last change of a former table of the same name, None without one.
    """

    shown: Mapping[str, str]
    schemas: Mapping[int, Schema]
    renames: Mapping[int, Mapping[str, str]]
    left: At | None

    def began(self, last: Mapping[int, At], names: Iterable[str]) -> dict[str, At]:
        """Return the last change under a schema without the column, for each column that such a change precedes."""
        written = {number: self._written(number) for number in last}
        began = {
            name: max((at for number, at in last.items() if name not in written[number]), default=None)
            for name in names
        }
        return {name: at for name, at in began.items() if at is not None}

    def _written(self, number: int) -> set[str]:
        """Return the current names of the columns that a schema has."""
        return {self.shown.get(name, name) for name in fields_of(self.schemas[number])}

    def decoding(self, decoding: Decoding) -> Decoding:
        """Return the decoding with the current names of the columns."""
        texts = {number: json.dumps(self.schemas[number]) for number in self.renames}
        return replace(decoding, schemas=replace(decoding.schemas, texts={**decoding.schemas.texts, **texts}))

    def renamed(self, changes: DataFrame) -> DataFrame:
        """Return decoded changes with the current names in `unchanged` and in the keys of `special`."""
        names = _by_schema(self.renames)
        keys = _by_schema({number: renamed_keys(one) for number, one in self.renames.items()})
        return changes.withColumn(
            "unchanged", F.transform("unchanged", lambda name: _replaced(names, name))
        ).withColumn("special", F.transform_keys("special", lambda key, _: _replaced(keys, key)))


def _by_schema(names: Mapping[int, Mapping[str, str]]) -> Column:
    pairs = [(f"{number}:{old}", new) for number, one in names.items() for old, new in one.items()]
    return F.create_map(*(F.lit(text) for pair in pairs for text in pair))


def _replaced(names: Column, name: Column) -> Column:
    return F.coalesce(F.element_at(names, F.concat_ws(":", F.col("schema_id"), name)), name)


def current_names(topic: str, last: Mapping[int, At], schema_of: Callable[[int], Schema]) -> CurrentNames:
    """Return the names. `last`: the last change under each schema, at least one."""
    order = sorted(last, key=lambda number: last[number])
    schemas = {number: schema_of(number) for number in order}
    sequences = {number: Sequence(*at) for number, at in last.items()}
    entry, order, left = of_newest_table(TableEntry(topic), order, schemas, sequences)
    newest = {name: column_name(one) for name, one in fields_of(schemas[order[-1]]).items()}
    found, renames = as_current(schemas, continued_columns(entry, order, schemas))
    shown = {
        number: {old: newest.get(new, new) for old, new in one.items()} for number, one in renames.items()
    }
    return CurrentNames(newest, found, shown, None if left == BEGINNING else _at(left))


def _at(sequence: Sequence) -> At:
    return sequence.timeline, sequence.commit_lsn, sequence.phase, sequence.tx_seq

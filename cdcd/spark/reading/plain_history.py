"""The query of the history of a table (SCD type 2) in the files of a mirror, for an engine without cdcd.

In: a mirror as of one version, a table, a dialect of SQL.  Out: SQL.
Invariant: the rows are those of `row_history.history` with all columns tracked: `__start_at`, `__end_at` and their
times; a value that PostgreSQL did not send is that of the line before.
Must not: execute a statement; read rows: of the files it reads the columns' names and types.

Inside the query a line has its columns by number (`c7`), the texts of values outside their types `s`, the key `k`,
its operation `op`, its position `place`, the time of its commit `us`, the numbers of the columns without a value `u`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pyarrow as pa

from cdcd.spark.decoding.columns import arrow_type
from cdcd.spark.decoding.events import BEGUN_ANEW, ENDS, SNAPSHOT, TRUNCATES
from cdcd.spark.reading.plain_query import TableQuery, types_of, united
from cdcd.spark.target.shape import SPECIAL, Field

__all__ = ["ADDED", "HistoryQuery"]

ADDED = ("__start_at", "__end_at", "__start_time", "__end_time")
_CHANGE = "(d).op AS op, (d).at AS place, (d).commit_us AS us, (d).unsent AS u"
_SHOWN_POSITION = ("timeline", "commit_lsn", "tx_seq")
_BY_KEY = "PARTITION BY k ORDER BY place"


class HistoryQuery(TableQuery):
    """The query of one table's history."""

    def text(self) -> str:
        """Return the query. Raises NoSuchView, MirrorInconsistent for a file that cannot be decoded."""
        if not self._entry.history:
            types = self._dialect.types(self._types())
            return f"SELECT {', '.join(self.null(*one) for one in types.items())} WHERE false"
        steps = {
            "ends": self._ends(),
            "seen": self._seen(),
            "runs": self._runs(),
            "filled": self._filled(),
            "compared": self._compared(),
            "numbered": self._numbered(),
            "versions": self._versions(),
        }
        parts = [united("lines", [*self._lines()])]
        parts += [f"{name} AS (\n  {query}\n)" for name, query in steps.items()]
        return f"WITH {', '.join(parts)}\n{self._shown()}"

    def _types(self) -> pa.Schema:
        """Return the columns of a history without a line."""
        position = pa.struct([(name, pa.int64()) for name in _SHOWN_POSITION])
        added = zip(ADDED, (position, position, *[pa.timestamp("us", "UTC")] * 2), strict=True)
        return pa.schema([*types_of(self._fields), *(pa.field(*one) for one in added)])

    def _lines(self) -> Iterator[str]:
        for one in self.opened_files(self._entry.history):
            for relation in self._dialect.files([one.path]):
                yield self.select(one, relation, f"k, {_CHANGE}")

    def _ends(self) -> str:
        """Return the changes that end all rows, as one list in their order.

        Without the TRUNCATEs of copies that another copy followed too soon: see `row_history`.
        """
        is_copy = f"(op IN ({_listed(TRUNCATES)}) AND (place).phase = {SNAPSHOT})"
        ends = f"SELECT op, place, us, {is_copy} AS is_copy FROM lines WHERE op IN ({_listed(ENDS)})"
        next_op = "lead(op) OVER (PARTITION BY is_copy ORDER BY place) AS next_op"
        end = self._dialect.struct({name: name for name in ("place", "us", "is_copy")})
        return (
            f"SELECT {self._dialect.sorted_list(end)} AS ends FROM (SELECT *, {next_op} FROM ({ends}) AS e) AS f"
            f" WHERE coalesce(next_op <> '{BEGUN_ANEW}', true)"
        )

    def _seen(self) -> str:
        """Return the lines of rows with the position of the one before."""
        previous = f"lag(place) OVER ({_BY_KEY}) AS previous"
        is_row = f"op NOT IN ({_listed(ENDS)})"
        return f"SELECT lines.*, ends, {previous} FROM lines CROSS JOIN ends WHERE {is_row}"

    def _ends_between(self, condition: str = "true") -> str:
        """Return the number of ends between a line and the line before."""
        between = f"e.place > previous AND e.place < place AND {condition}"
        return f"coalesce({self._dialect.length(self._dialect.filtered('ends', between))}, 0)"

    def _passes(self) -> str:
        """Return whether no end is before a line, or only that of the copy whose row it is. See `row_history`."""
        of_copy = f"{self._ends_between()} = 1 AND {self._ends_between('e.is_copy')} = 1"
        return f"({self._ends_between()} < 1 OR (op <> 'c' AND {of_copy}))"

    def _runs(self) -> str:
        """Return the lines with the number of the run of updates since the row was there."""
        begins = f"op <> 'u' OR previous IS NULL OR {self._ends_between()} > 0"
        run = f"sum(CASE WHEN {begins} THEN 1 ELSE 0 END) OVER ({_BY_KEY}) AS run"
        return f"SELECT *, {run} FROM seen"

    def _filled(self) -> str:
        """Return the lines with the values that were not sent: `f7` has `value` and `text`, null if not known."""
        window = "PARTITION BY k, run ORDER BY place ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW"
        values = []
        for one in self._fields:
            text = self._dialect.entry("s", one.name)
            own = self._dialect.struct({"value": f"c{one.number}", "text": text})
            is_unsent = f"coalesce({self._dialect.contains('u', str(one.number))}, false)"
            sent = f"CASE WHEN NOT {is_unsent} THEN {own} END"
            values.append(f"{self._dialect.last_known(sent, window)} AS f{one.number}")
        return f"SELECT k, op, place, us, ends, previous, {', '.join(values)} FROM runs"

    def _compared(self) -> str:
        """Return the lines with `known`, and whether they continue the version of the line before."""
        known = " AND ".join(f"f{one.number} IS NOT NULL" for one in self._fields)
        before = ", ".join(
            f"lag({name}) OVER ({_BY_KEY}) AS before_{name}"
            for name in ("op", "known", *(f"f{one.number}" for one in self._fields))
        )
        of_known = f"SELECT *, ({known}) AS known FROM filled"
        same = [
            "op <> 'd' AND before_op <> 'd' AND known = before_known",
            self._passes(),
            *(self._same(one) for one in self._fields),
        ]
        with_before = f"SELECT *, {before} FROM ({of_known}) AS of_known"
        goes_on = f"coalesce({' AND '.join(same)}, false) AS goes_on"
        return f"SELECT *, {goes_on} FROM ({with_before}) AS with_before"

    def _same(self, field: Field) -> str:
        now, before = (f"({name}f{field.number})" for name in ("", "before_"))
        type_ = arrow_type(field.avro)
        value = self._dialect.comparable
        return (
            f"{value(f'{now}.value', type_)} IS NOT DISTINCT FROM {value(f'{before}.value', type_)}"
            f" AND {now}.text IS NOT DISTINCT FROM {before}.text"
        )

    def _numbered(self) -> str:
        """Return the lines with the number of their version, the change after them, and the next end of all rows.

        `was_there` of the change after them: the row was there until then, also if one copy began in between.
        """
        version = f"sum(CASE WHEN goes_on THEN 0 ELSE 1 END) OVER ({_BY_KEY}) AS version"
        change = self._dialect.struct({"place": "place", "us": "us", "was_there": self._passes()})
        next_one = f"lead({change}) OVER ({_BY_KEY}) AS next_one"
        later = self._dialect.first(self._dialect.filtered("ends", "e.place > place"))
        return f"SELECT *, {version}, {next_one}, {later} AS later FROM compared"

    def _versions(self) -> str:
        """Return the last line of each version, with its first change and the one that ended it."""
        of_version = "PARTITION BY k, version ORDER BY place"
        by_end = "(next_one).place IS NULL OR NOT (next_one).was_there"
        ended = {
            f"ended_{name}": f"CASE WHEN {by_end} THEN (later).{name} ELSE (next_one).{name} END"
            for name in ("place", "us")
        }
        began = {
            f"began_{name}": f"first_value({name}) OVER ({of_version})" for name in ("op", "place", "us")
        }
        named = ", ".join(f"{value} AS {name}" for name, value in (began | ended).items())
        last = "row_number() OVER (PARTITION BY k, version ORDER BY place DESC) AS from_the_last"
        return f"SELECT *, {named}, {last} FROM numbered"

    def _shown(self) -> str:
        dialect = self._dialect
        values = [f"(f{one.number}).value AS {dialect.identifier(one.name)}" for one in self._fields]
        texts = {one.name: f"(f{one.number}).text" for one in self._fields}
        added = zip(
            ADDED,
            (
                *(self._position(f"{name}_place") for name in ("began", "ended")),
                *(dialect.time_of(f"{name}_us") for name in ("began", "ended")),
            ),
            strict=True,
        )
        columns = [
            *values,
            f"{dialect.texts(texts)} AS {dialect.identifier(SPECIAL)}",
            *(f"{value} AS {dialect.identifier(name)}" for name, value in added),
        ]
        condition = "from_the_last = 1 AND began_op <> 'd' AND known"
        return f"SELECT {', '.join(columns)} FROM versions\nWHERE {condition}"

    def _position(self, place: str) -> str:
        parts = self._dialect.struct({name: f"({place}).{name}" for name in _SHOWN_POSITION})
        return f"CASE WHEN {place} IS NOT NULL THEN {parts} END"


def _listed(texts: Iterable[str]) -> str:
    return ", ".join(f"'{one}'" for one in texts)

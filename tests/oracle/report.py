"""The oracle's results, as lines.

In: an `Outcome`.  Out: a table, a line for each type; the failures, a line each.
"""

from __future__ import annotations

from tests.oracle.run import Outcome, Verdict

MADE = {
    "v": "types by themselves", "a": "arrays", "d": "domains", "e": "arrays of domains", "o": "domains over arrays",
    "n": "arrays of domains over arrays", "c": "composite types", "h": "arrays of composite types", "r": "ranges",
    "s": "arrays of ranges",
    "m": "multiranges", "u": "arrays of multiranges",
}  # fmt: skip
FOOTNOTES = (
    "* read as text: binary has no exact reading of the type",
    "specials: in source.special (text/binary). own text: PostgreSQL itself does not read the text as the same value",
)
HEAD = ("type", "distinct", "columns", "text", "binary", "specials", "own text", "mismatches")


def table_of(outcome: Outcome) -> str:
    """Return the counts by type: distinct values, columns of the type, values compared in each format."""
    lines = [_line(HEAD), *(_line(_cells(one)) for one in outcome.verdicts)]
    sums = [sum(one.sum(mode, what) for one in outcome.verdicts) for mode, what in _SUMS]
    distinct = sum(one.distinct for one in outcome.verdicts)
    columns = sum(len(one.counts["text"]) for one in outcome.verdicts)
    pairs = (f"{sums[2]}/{sums[3]}", f"{sums[4]}/{sums[5]}")
    total = ("all", distinct, columns, *sums[:2], *pairs, sums[6] + sums[7])
    made = [_line(cells) for name in MADE if (cells := _of_column(outcome, name))[2]]
    return "\n".join([*lines, _line(total), *made, *FOOTNOTES])


def _of_column(outcome: Outcome, name: str) -> tuple[object, ...]:
    found = {
        mode: [one.counts[mode][name] for one in outcome.verdicts if name in one.counts.get(mode, {})]
        for mode in ("text", "binary")
    }
    values, specials, own = (
        [sum(getattr(one, what) for one in found[mode]) for mode in found] for what in _WHATS[:3]
    )
    mismatches = sum(len(one.mismatches) for mode in found for one in found[mode])
    pairs = (f"{specials[0]}/{specials[1]}", f"{own[0]}/{own[1]}")
    return f"all {MADE[name]}", "", len(found["text"]), *values, *pairs, mismatches


def failures(outcome: Outcome) -> list[str]:
    """Return the mismatches, the values needlessly in `source.special`, and the types without values."""
    found = [one for verdict in outcome.verdicts for one in verdict.mismatches]
    for verdict in outcome.verdicts:
        for mode in verdict.counts:
            needless = verdict.sum(mode, "needless")
            found += [f"{verdict.type_name}: {needless} needlessly special in {mode}"] if needless else []
    return found + [
        f"{name}: no column has this type, and no reason for it is recorded" for name in outcome.uncovered
    ]


_WHATS = ("values", "specials", "as_their_text", "mismatches")
_SUMS = [(mode, what) for what in _WHATS for mode in ("text", "binary")]


def _cells(one: Verdict) -> tuple[object, ...]:
    binary = f"{one.sum('binary', 'values')}{'*' if one.by_text else ''}"
    pairs = [f"{one.sum('text', what)}/{one.sum('binary', what)}" for what in _WHATS[1:3]]
    columns = len(one.counts["text"])
    return (
        one.type_name,
        one.distinct,
        columns,
        one.sum("text", "values"),
        binary,
        *pairs,
        len(one.mismatches),
    )


def _line(cells: tuple[object, ...]) -> str:
    name, *numbers = map(str, cells)
    return f"{name:36}" + "".join(f"{number:>12}" for number in numbers)

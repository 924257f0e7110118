"""Does a change name its row? Asked where a partition's replica identity may lack the record's key (F78).

In: a plan with `old_tuples`, the raw old row or None.  Out: nothing, or IdentityShort.
Invariant: a key is built only from values that are there; an UPDATE without an old tuple left the columns of the
partition's identity alone, and says nothing of other columns of the key.
"""

from __future__ import annotations

from cdcd.avro.plan import RelationPlan
from cdcd.avro.tuple_data import Row
from cdcd.errors import IdentityShort
from cdcd.schema.identity import full_identity_sql


def check_names_its_row(plan: RelationPlan, old: Row | None) -> None:
    """Raise IdentityShort where the row before the change is not known by its key, or, without one, by any column."""
    short = () if plan.old_tuples is None else plan.old_tuples.short
    if not short:
        return
    if old is not None:
        is_there = [old[i] is not None for i in plan.key_indexes or range(len(old))]
        if all(is_there) if plan.key_indexes else any(is_there):
            return
    key = ", ".join(plan.columns[i].name for i in plan.key_indexes)
    lacks = f"does not include the key ({key})" if key else "is not FULL, and the records have no key"
    raise IdentityShort(
        f"an UPDATE or DELETE does not name its row: the replica identity of partition {', '.join(short)} {lacks}",
        hint=_hint(plan, short),
    )


def _hint(plan: RelationPlan, short: tuple[str, ...]) -> str:
    named = "" if plan.key_indexes else "; or name the columns of a key in format.key_columns"
    return (
        f"{full_identity_sql(short)}{named}. Changes that are in the WAL already stay as they are: "
        "`cdcd resnapshot` copies the tables again and goes on behind them"
    )

"""Check that a change identifies its row, for replica identities that may lack the record's key (F78).

In: a plan with `old_tuples`, the raw old row or None.  Out: nothing, or ReplicaIdentityIncomplete.
Invariant: a key is built only from values that the server sent. An UPDATE without an old tuple did not change the
columns of the partition's identity; other columns of the key are unknown.
"""

from __future__ import annotations

from cdcd.avro.plan import RelationPlan
from cdcd.avro.tuple_data import Row
from cdcd.errors import ReplicaIdentityIncomplete
from cdcd.schema.identity import OldTuples, full_identity_sql

_NAMED = "; or name the columns of a key in format.key_columns"


def check_names_its_row(plan: RelationPlan, old: Row | None) -> None:
    """Raise ReplicaIdentityIncomplete where the old row lacks its key, or, in a table without a key, every column."""
    lacking = plan.old_tuples
    if lacking is None or (not lacking.short and (lacking.is_sure or old is None)):
        return
    if old is not None:
        is_there = [old[i] is not None for i in plan.key_indexes or range(len(old))]
        if all(is_there) if plan.key_indexes else any(is_there):
            return
    key = ", ".join(plan.columns[i].name for i in plan.key_indexes)
    lacks = f"does not include the key ({key})" if key else "is not FULL, and the records have no key"
    whose = ", ".join(lacking.short) or "one of its partitions, as it was then,"
    raise ReplicaIdentityIncomplete(
        f"an UPDATE or DELETE does not identify its row: the replica identity of {whose} {lacks}",
        hint=_hint(plan, lacking),
    )


def _hint(plan: RelationPlan, lacking: OldTuples) -> str:
    by_hand = "set REPLICA IDENTITY FULL on each partition whose replica identity does not include the key"
    named = "" if plan.key_indexes or not any(lacking.partial) else _NAMED
    return (
        f"{full_identity_sql(lacking.short) or by_hand}{named}. Neither affects changes already in the WAL: "
        "`cdcd resnapshot` copies the tables again and continues after those changes"
    )

from collections.abc import Callable, Mapping
from typing import Any

from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.model import Record, RowBatch, TransactionBatch

class CompiledPlan:
    plan: RelationPlan
    def __init__(self, plan: RelationPlan) -> None: ...

def take_fallback_counts() -> tuple[int, int]: ...
def encode_batch(
    batch: RowBatch,
    plans: Mapping[int, RelationPlan],
    tx: TransactionContext,
    batch_fallback: Callable[..., list[Record]],
    row_fallback: Callable[..., None],
) -> list[Record]: ...
def encode_transaction_batch(
    transactions: TransactionBatch,
    plans: Mapping[int, RelationPlan],
    new_context: Callable[[int, int, int], TransactionContext],
    first: TransactionContext,
    written_commit_lsn: int,
    row_fallback: Callable[..., None],
) -> tuple[Any, ...] | int | None: ...

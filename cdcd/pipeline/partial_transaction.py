"""Drop the changes written already when a transaction that was written in parts is sent again.

In: the part that the progress record names, the transactions of the next session.
Out: the changes to drop because they are durable, by their number in the transaction.
Invariant: a transaction numbers its changes in the same way on every replay, streamed or not, so exactly the changes
written already are dropped. If the transaction is not sent again, or has changed, or a table has another key since,
that is an error, because readers have its beginning and would never see its end.
Must not: do I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from cdcd.avro.encode import encode_batch
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.config import Config
from cdcd.errors import PartialTransactionMissing
from cdcd.lsn import Lsn
from cdcd.model import PartPosition, RowBatch
from cdcd.txn.frames import count_operations, single_rows

_NUMBERS_OF_A_ROW = 2  # an update that changes the key is a delete and an insert (F47)


def numbered_by(config: Config) -> str:
    """Return a hash of the options that determine the numbers of the changes in a transaction."""
    policies = config.format.policies()
    keys: list[Any] = [_keys_of(asdict(policies.default))]
    keys += [
        [rule.table.pattern, _keys_of(rule.changes)] for rule in policies.rules if _keys_of(rule.changes)
    ]
    protocol = config.source.protocol
    reported = [sorted(config.source_settings().publications), protocol.messages, protocol.origin, keys]
    return hashlib.sha256(json.dumps(reported).encode()).hexdigest()[:16]


def _keys_of(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that decide whether an update changes the key, and so takes two numbers (F47)."""
    return {name: policy[name] for name in ("key_columns", "keyless") if name in policy}


def check_numbers(part: PartPosition | None, now: str) -> None:
    """Raise PartialTransactionMissing if the present configuration, `now`, numbers the changes of a part differently.

    Changes not written yet would be dropped, or changes written already would be repeated, even if the numbers fit.
    """
    if part is not None and part.numbered_by not in ("", now):
        raise PartialTransactionMissing(
            "a transaction is written in part, and the configuration numbers the rest of it differently",
            commit_lsn=part.commit_lsn,
            tx_seq=part.tx_seq,
        )


class KeysUsed:
    """The keys of one transaction's tables, as far as they come from the catalog, which may have another key later.

    A key that is exactly the columns that the table's description flags is the same on every replay.
    """

    def __init__(self) -> None:
        self._seen: set[tuple[int, tuple[int, ...]]] = set()
        self._of_catalog: set[tuple[int, tuple[int, ...]]] = set()
        self._hash = ""

    def note(self, relids: Iterable[int], plans: Mapping[int, RelationPlan]) -> None:
        """Note that rows of these relations were encoded."""
        for relid in relids:
            plan = plans.get(relid)  # without one the encoder raises RelationUnknown
            if plan is None or (relid, plan.key_indexes) in self._seen:
                continue
            self._seen.add((relid, plan.key_indexes))
            flagged = {at for at, column in enumerate(plan.relation.columns) if column.is_key}
            if flagged != set(plan.key_indexes):
                self._of_catalog.add((relid, plan.key_indexes))
                self._hash = ""

    def identified(self) -> str:
        """Return a hash of the keys, "" if there are none."""
        if self._of_catalog and not self._hash:
            self._hash = hashlib.sha256(repr(sorted(self._of_catalog)).encode()).hexdigest()[:16]
        return self._hash


class PartialTransaction:
    """`pending`: the part that waits for the rest of its transaction. `tx_seq`: the last number written already.

    `keys`: those of the present transaction.
    """

    def __init__(self, pending: PartPosition | None) -> None:
        self.pending = pending
        self.tx_seq = 0
        self.keys = KeysUsed()

    def began(self, commit_lsn: Lsn) -> None:
        """Begin a transaction that is not durable as a whole. Raises PartialTransactionMissing."""
        self.tx_seq = 0
        self.keys = KeysUsed()
        if self.pending is None or commit_lsn < self.pending.commit_lsn:
            return
        if commit_lsn > self.pending.commit_lsn:
            raise self._missing("the server sent a later transaction instead")
        self.tx_seq = self.pending.tx_seq

    def ended(self, tx_seq: int) -> None:
        """End the transaction; `tx_seq` is its last number. Raises PartialTransactionMissing."""
        if tx_seq < self.tx_seq:
            raise self._missing(
                "the server sent fewer changes of the transaction than cdcd has written already"
            )
        if self.tx_seq:
            self.pending, self.tx_seq = None, 0

    def passed(self, lsn: Lsn) -> None:
        """Note that everything committed up to `lsn` was received. Raises PartialTransactionMissing."""
        if self.pending is not None and lsn > self.pending.commit_lsn:
            raise self._missing("the server has passed the transaction's commit LSN")

    def covers(self, tx_seq: int) -> bool:
        """Return whether the change with this number is written already; has to be called for every change."""
        if tx_seq == self.tx_seq:
            self._check_keys()
        return tx_seq <= self.tx_seq

    def unwritten_rows(
        self, batch: RowBatch, plans: Mapping[int, RelationPlan], tx: TransactionContext
    ) -> RowBatch | None:
        """Return the rows of a batch that are not written yet; encode the others for their numbers, and drop them."""
        if tx.tx_seq + _NUMBERS_OF_A_ROW * batch.count <= self.tx_seq:
            self._drop(batch, plans, tx)
            return None
        rows = single_rows(batch)
        left = batch.count
        for row in rows:
            self._drop(row, plans, tx)
            left -= 1
            if tx.tx_seq >= self.tx_seq:
                break
        if tx.tx_seq > self.tx_seq:
            raise self._missing(
                "the transaction's changes have other numbers than the changes written already"
            )
        frames = b"".join(row.frames for row in rows)
        return RowBatch(frames, left, batch.xid) if left else None

    def _drop(self, batch: RowBatch, plans: Mapping[int, RelationPlan], tx: TransactionContext) -> None:
        self.keys.note((relid for relid, _ in count_operations(batch)), plans)
        encode_batch(batch, plans, tx)
        if tx.tx_seq >= self.tx_seq:
            self._check_keys()

    def _check_keys(self) -> None:
        """Compare the keys of the part's tables with those of the part. Raises PartialTransactionMissing."""
        if self.pending is not None and self.pending.keys not in ("", self.keys.identified()):
            raise self._missing(
                "a table has other keys than when the part was written, which number the changes differently"
            )

    def _missing(self, why: str) -> PartialTransactionMissing:
        assert self.pending is not None
        return PartialTransactionMissing(
            f"a transaction is written in part, and the rest of it is missing: {why}",
            commit_lsn=self.pending.commit_lsn,
            tx_seq=self.pending.tx_seq,
        )

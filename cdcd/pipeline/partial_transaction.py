"""What is written already of a transaction that goes to Kafka in parts, when it comes again.

In: the part that the progress record names, the transactions of the session that follows.
Out: which changes are dropped because they are durable, by their number in the transaction.
Invariant: the same transaction numbers its changes the same on every replay, streamed or not, so that what is
dropped is exactly what was written; a transaction that does not come again, or is another than it was, is an error,
because readers have its beginning and would never see its end.
Must not: do I/O.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from cdcd.avro.encode import encode_batch
from cdcd.avro.plan import RelationPlan
from cdcd.avro.transaction import TransactionContext
from cdcd.config import Config
from cdcd.errors import PartialTransactionMissing
from cdcd.lsn import Lsn
from cdcd.model import PartPosition, RowBatch
from cdcd.txn.frames import single_rows

_NUMBERS_OF_A_ROW = 2  # an update that changes the key is a delete and an insert (F47)


def numbered_by(config: Config) -> str:
    """Return what tells configurations apart under which the changes of a transaction have other numbers."""
    policies = config.format.policies()
    keys: list[Any] = [_keys_of(asdict(policies.default))]
    keys += [
        [rule.table.pattern, _keys_of(rule.changes)] for rule in policies.rules if _keys_of(rule.changes)
    ]
    protocol = config.source.protocol
    reported = [sorted(config.source_settings().publications), protocol.messages, protocol.origin, keys]
    return hashlib.sha256(json.dumps(reported).encode()).hexdigest()[:16]


def _keys_of(policy: Mapping[str, Any]) -> dict[str, Any]:
    """Return what decides whether an update changes the key, and so takes two numbers (F47)."""
    return {name: policy[name] for name in ("key_columns", "keyless") if name in policy}


def check_numbers(part: PartPosition | None, now: str) -> None:
    """Raise PartialTransactionMissing for a part whose changes the configuration of `now` numbers otherwise.

    What is not written yet would be taken for written, and the other way round, also where the numbers happen to fit.
    """
    if part is not None and part.numbered_by not in ("", now):
        raise PartialTransactionMissing(
            "a transaction is written in part, and the configuration numbers the rest of it otherwise",
            commit_lsn=part.commit_lsn,
            tx_seq=part.tx_seq,
        )


class PartialTransaction:
    """`pending`: the part that waits for the rest of its transaction. `tx_seq`: what is read is written up to it."""

    def __init__(self, pending: PartPosition | None) -> None:
        self.pending = pending
        self.tx_seq = 0

    def began(self, commit_lsn: Lsn) -> None:
        """A transaction that is not durable as a whole begins. Raises PartialTransactionMissing."""
        self.tx_seq = 0
        if self.pending is None or commit_lsn < self.pending.commit_lsn:
            return
        if commit_lsn > self.pending.commit_lsn:
            raise self._missing("another transaction came in its place")
        self.tx_seq = self.pending.tx_seq

    def ended(self, tx_seq: int) -> None:
        """The transaction that is read is complete: the last number in it. Raises PartialTransactionMissing."""
        if tx_seq < self.tx_seq:
            raise self._missing("it came with fewer changes than are written of it")
        if self.tx_seq:
            self.pending, self.tx_seq = None, 0

    def passed(self, lsn: Lsn) -> None:
        """All that was committed up to `lsn` has come. Raises PartialTransactionMissing."""
        if self.pending is not None and lsn > self.pending.commit_lsn:
            raise self._missing("the server is beyond it")

    def covers(self, tx_seq: int) -> bool:
        """Return whether the change that was given this number is written; it must be asked about each."""
        return tx_seq <= self.tx_seq

    def unwritten_rows(
        self, batch: RowBatch, plans: Mapping[int, RelationPlan], tx: TransactionContext
    ) -> RowBatch | None:
        """Return what of a batch is not written yet; the rest is encoded for its numbers and dropped."""
        if tx.tx_seq + _NUMBERS_OF_A_ROW * batch.count <= self.tx_seq:
            encode_batch(batch, plans, tx)
            return None
        rows = single_rows(batch)
        left = batch.count
        for row in rows:
            encode_batch(row, plans, tx)
            left -= 1
            if tx.tx_seq >= self.tx_seq:
                break
        if tx.tx_seq > self.tx_seq:
            raise self._missing("its changes have other numbers than those that are written")
        frames = b"".join(row.frames for row in rows)
        return RowBatch(frames, left, batch.xid) if left else None

    def _missing(self, why: str) -> PartialTransactionMissing:
        assert self.pending is not None
        return PartialTransactionMissing(
            f"a transaction is written in part, and its rest does not come: {why}",
            commit_lsn=self.pending.commit_lsn,
            tx_seq=self.pending.tx_seq,
        )

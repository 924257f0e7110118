"""Bugs planted in the samples of the lag metrics of a good run: assertion (k) has to find each. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from tests.faults.facts import Block, Lag

MIB = 1 << 20


def no_lag_samples(block: Block) -> Block:
    return replace(block, lags=())


def _later(lag: Lag, by_s: float, **other: Any) -> Lag:
    return replace(lag, said_s=lag.said_s + by_s, until_s=lag.until_s + by_s, **other)


def lag_stuck_at_zero(block: Block) -> Block:
    """Kafka has accepted nothing for 20 seconds."""
    middle, ends = block.progress[len(block.progress) // 2], block.transactions[-1].end_lsn
    last = replace(block.lags[-1], flushed_lsn=ends, received_lsn=ends)
    behind = _later(last, 20, lag_s=0.0, end_offset=middle.offset + 1)
    return replace(block, lags=(*block.lags, behind))


def lag_zero_while_nothing_is_received(block: Block) -> Block:
    """PostgreSQL has sent nothing for 20 seconds; the first of two samples already has the flushed LSN."""
    middle, ends = block.progress[len(block.progress) // 2], block.transactions[-1].end_lsn
    behind = replace(
        block.lags[-1], lag_s=0.0, received_lsn=middle.end_lsn, flushed_lsn=ends, end_offset=middle.offset + 1
    )
    return replace(block, lags=(*block.lags, *(_later(behind, by_s) for by_s in (1, 21))))


def lag_absent_while_it_streams(block: Block) -> Block:
    return replace(block, lags=(*block.lags, _later(block.lags[-1], 1, lag_s=None, state="streaming")))


def lag_never_falls(block: Block) -> Block:
    last = block.lags[-1]
    return replace(block, lags=(*block.lags, _later(last, 1, lag_s=30.0, confirmed_lsn=last.inserted_lsn)))


def lag_of_bytes_stuck_at_zero(block: Block) -> Block:
    """16 MiB are written, and nothing is confirmed for a minute."""
    last = block.lags[-1]
    more = replace(
        last,
        slot_lsn=None,
        flushed_lsn=last.flushed_lsn + 16 * MIB,
        inserted_lsn=last.inserted_lsn + 16 * MIB,
        lag_bytes=0,
    )
    return replace(block, lags=(*block.lags, *(_later(more, by_s) for by_s in (1, 61, 62))))


def lag_of_bytes_from_the_beginning(block: Block) -> Block:
    """The metric is what it would be if nothing had ever been confirmed."""
    last = block.lags[-1]
    more = [_later(last, by_s, slot_lsn=None, lag_bytes=last.flushed_lsn) for by_s in (60, 61)]
    return replace(block, lags=(*block.lags, *more))


def confirmed_metric_ahead(block: Block) -> Block:
    last = block.lags[-1]
    more = [_later(last, by_s, slot_lsn=last.inserted_lsn + MIB) for by_s in (60, 61)]
    return replace(block, lags=(*block.lags, *more))


LAG_PLANTS: tuple[Callable[[Block], Block], ...] = (
    no_lag_samples,
    lag_stuck_at_zero,
    lag_zero_while_nothing_is_received,
    lag_absent_while_it_streams,
    lag_never_falls,
    lag_of_bytes_stuck_at_zero,
    lag_of_bytes_from_the_beginning,
    confirmed_metric_ahead,
)

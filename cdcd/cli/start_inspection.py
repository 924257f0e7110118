"""What a start would meet, asked from beside it: the daemon's own looks, by a command.

Comes in: a configuration.  Goes out: what the looks of `cdcd.session.start_checks` find.
Invariant: nobody is fenced and nothing is held, so a daemon that runs is not disturbed; its state is no complaint.
No lock of a user's table is waited for longer than `LOCK_PATIENCE_MS`.
Must not: create, drop or advance anything.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from cdcd.cli.output import say
from cdcd.cli.publication_changes import compared
from cdcd.cli.published_topics import LOCK_PATIENCE_MS, asking_settings
from cdcd.config import Config
from cdcd.errors import (
    CdcdError,
    PartialTransactionMissing,
    ResumeRefused,
    Retry,
    SinkUnavailable,
    TopicMissing,
)
from cdcd.findings import Finding, refusal
from cdcd.model import Progress
from cdcd.recovery.start_decision import Resume, Snapshot
from cdcd.registry.confluent import Registry
from cdcd.session.start_checks.checks import START_CHECKS, asked, each
from cdcd.session.start_checks.context import PATIENCE_S, StartContext
from cdcd.session.start_checks.position import OF_THE_POSITION, OF_THE_SLOT, position
from cdcd.session.start_checks.topics import ownership_of
from cdcd.sink.reader import peek
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topic_ownership import TopicOwnership
from cdcd.sink.topics import Topics

_TIMEOUT_S = 60.0


@contextlib.contextmanager
def known_of(
    config: Config, *, create_slot: bool | None = None, timeout_s: float = 10.0
) -> Iterator[StartContext]:
    """What a command begins to look with. `create_slot`: as the configuration has it unless it is given."""

    def open_sink() -> tuple[SinkSettings, Topics, TopicOwnership]:
        sink = asking_settings(config, timeout_s=timeout_s)
        return sink, Topics(sink, config.topic_settings()), ownership_of(config, sink)

    registry = Registry(config.registry_settings()) if config.schema_topic is None else None

    def compare(identities: TopicIdentities, is_anew: bool, connection: Any) -> list[Finding]:
        return [] if is_anew else compared(config, identities, connection)

    known = StartContext(
        config,
        config.source_settings(),
        open_sink,
        registry,
        compare,
        may_run=True,
        lock_patience_ms=LOCK_PATIENCE_MS,
        create_slot=config.source.slot.create if create_slot is None else create_slot,
        report=_say_how_far,
    )
    try:
        yield known
    finally:
        known.close()
        if registry is not None:
            registry.close()


def _say_how_far(done: int, topics: int) -> None:
    say([f"schemas: {done} of {topics} topics looked at"], sys.stderr)


def looked(known: StartContext) -> list[Finding]:
    """Return what all looks find, in their order. Does not raise."""
    looks = [replace(look, ask=partial(_guarded, look.ask)) for look in START_CHECKS]
    return [finding for _, findings in each(known, looks) for finding in findings]


def _guarded(ask: Callable[[StartContext], list[Finding]], known: StartContext) -> list[Finding]:
    """Ask; what a client library meets unforeseen is a finding too, because the others are still to be asked."""
    try:
        return ask(known)
    except CdcdError:
        raise
    except Exception as error:
        # A client library's text may repeat a value it was given, so only its class is said.
        message = f"a client refused its settings or failed: {type(error).__name__}"
        raise CdcdError(message, hint="look through the options of this room") from error


def ask(config: Config, *, create_slot: bool) -> Resume | Snapshot:
    """Return the verdict of a start now. Raises what the start would, and what asking met."""
    with known_of(config, create_slot=create_slot) as known:
        for look in START_CHECKS:
            if look.name in ("server", "kafka", "position"):
                findings, _ = asked(look, known)
                error = refusal(findings)
                if error is not None:
                    raise error
        if known.verdict is None:
            raise SinkUnavailable("another producer's open transaction in the progress topic is in the way")
        return known.verdict


def refuse_unready(config: Config) -> None:
    """Raise ResumeRefused where a start that copies the tables again would be refused (F79).

    Once it is written that they are to be copied, there is no way back to the position that was stored.
    """
    with known_of(config, create_slot=True, timeout_s=_TIMEOUT_S) as known:
        looks = [replace(look, ask=_anew if look.name == "position" else look.ask) for look in START_CHECKS]
        for look in looks:
            if look.name == "spill folder":  # the daemon's, which may run on another machine
                continue
            findings, _ = asked(look, known)
            error = refusal(findings)
            if error is not None and error.retry is Retry.AUTO:
                raise error
            if error is not None:
                raise ResumeRefused(
                    f"a start that copies the tables would be refused: {error.code}: {error.message}",
                    hint=error.advice or "correct this first",
                )


def _anew(known: StartContext) -> list[Finding]:
    """Look at the position as if a new snapshot had been asked for; what that mends is no refusal."""
    with contextlib.suppress(*OF_THE_SLOT, *OF_THE_POSITION, PartialTransactionMissing):
        position(known)
    known.verdict = Snapshot(drop_slot=known.slot is not None, begun_topics=())
    known.identities = TopicIdentities()
    return []


def peeked(config: Config) -> tuple[Progress | None, bool]:
    """Return the slot's last committed progress, and whether nothing later can be committed. Raises Sink errors."""
    try:
        return peek(asking_settings(config), PATIENCE_S)
    except TopicMissing:
        return None, True

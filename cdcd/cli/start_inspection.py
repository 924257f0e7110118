"""Run the daemon's start checks from a command.

Comes in: a configuration.  Goes out: the findings of `cdcd.session.start_checks`.
Invariant: no producer is fenced and no lock is held, so a running daemon is not disturbed, and its state is no
problem. No query waits longer than `LOCK_TIMEOUT_MS` for the lock of a user's table.
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
from cdcd.cli.publication_changes import compare_publication
from cdcd.cli.published_topics import LOCK_TIMEOUT_MS, command_settings
from cdcd.config import Config
from cdcd.errors import (
    CdcdError,
    PartialTransactionMissing,
    ResumeRefused,
    Retry,
    SinkUnavailable,
)
from cdcd.findings import Finding, refusal
from cdcd.model import Progress
from cdcd.recovery.start_decision import Resume, Snapshot
from cdcd.registry.confluent import Registry
from cdcd.session.start_checks.checks import START_CHECKS, each, run_check
from cdcd.session.start_checks.context import StartContext
from cdcd.session.start_checks.position import OF_THE_POSITION, OF_THE_SLOT, peek_listed, position
from cdcd.session.start_checks.topics import ownership_of
from cdcd.sink.settings import SinkSettings
from cdcd.sink.topic_identity import TopicIdentities
from cdcd.sink.topic_ownership import TopicOwnership
from cdcd.sink.topics import Topics

_TIMEOUT_S = 60.0


@contextlib.contextmanager
def known_of(
    config: Config, *, create_slot: bool | None = None, timeout_s: float = 10.0
) -> Iterator[StartContext]:
    """Open the context of a command's start checks. `create_slot`: default `source.slot.create`."""

    def open_sink() -> tuple[SinkSettings, Topics, TopicOwnership]:
        sink = command_settings(config, timeout_s=timeout_s)
        return sink, Topics(sink, config.topic_settings()), ownership_of(config, sink)

    registry = Registry(config.registry_settings()) if config.schema_topic is None else None

    def compare(identities: TopicIdentities, is_anew: bool, connection: Any) -> list[Finding]:
        return [] if is_anew else compare_publication(config, identities, connection)

    known = StartContext(
        config,
        config.source_settings(),
        open_sink,
        registry,
        compare,
        may_run=True,
        lock_timeout_ms=LOCK_TIMEOUT_MS,
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
    say([f"schemas: {done} of {topics} topics checked"], sys.stderr)


def inspect_start(known: StartContext) -> list[Finding]:
    """Return the findings of all start checks, in order. Does not raise."""
    looks = [replace(look, ask=partial(_guarded, look.ask)) for look in START_CHECKS]
    return [finding for _, findings in each(known, looks) for finding in findings]


def _guarded(ask: Callable[[StartContext], list[Finding]], known: StartContext) -> list[Finding]:
    """Run a check. An unexpected error of a client library becomes a CdcdError, so that other checks still run."""
    try:
        return ask(known)
    except CdcdError:
        raise
    except Exception as error:
        # A client library's text may repeat a value of an option, so only the error's class is shown.
        message = f"a client refused its settings or failed: {type(error).__name__}"
        raise CdcdError(message, hint="check the options of this client") from error


def ask(config: Config, *, create_slot: bool) -> Resume | Snapshot:
    """Return the verdict of a start now. Raises the errors of the start, and of the checks themselves."""
    with known_of(config, create_slot=create_slot) as known:
        for look in START_CHECKS:
            if look.name in ("server", "kafka", "position"):
                findings, _ = run_check(look, known)
                error = refusal(findings)
                if error is not None:
                    raise error
        if known.verdict is None:
            raise SinkUnavailable(
                "another producer's open transaction in the progress topic hides the stored position"
            )
        return known.verdict


def refuse_unready(config: Config) -> None:
    """Raise ResumeRefused if a start that copies the tables again would be refused (F79).

    Once the request for a copy is written, the stored position cannot be restored.
    """
    with known_of(config, create_slot=True, timeout_s=_TIMEOUT_S) as known:
        looks = [replace(look, ask=_anew if look.name == "position" else look.ask) for look in START_CHECKS]
        for look in looks:
            if look.name == "spill folder":  # the daemon's, which may run on another machine
                continue
            findings, _ = run_check(look, known)
            error = refusal(findings)
            if error is not None and error.retry is Retry.AUTO:
                raise error
            if error is not None:
                raise ResumeRefused(
                    f"a start that copies the tables would be refused: {error.code}: {error.message}",
                    hint=error.advice or "correct this first",
                )


def _anew(known: StartContext) -> list[Finding]:
    """Check the position as for a requested snapshot: ignore errors that a new snapshot resolves."""
    with contextlib.suppress(*OF_THE_SLOT, *OF_THE_POSITION, PartialTransactionMissing):
        position(known)
    known.verdict = Snapshot(drop_slot=known.slot is not None, begun_topics=())
    known.identities = TopicIdentities()
    return []


def peek_progress(config: Config) -> tuple[Progress | None, bool]:
    """Return the slot's last committed progress, and whether no later commit is possible. Raises Sink errors."""
    settings = command_settings(config)
    return peek_listed(settings, Topics(settings, config.topic_settings()))

"""What a start looks at before it changes anything: one judgement for the daemon, `cdcd check` and `cdcd init`.

In: `StartContext`: the configuration, who asks, and what the looks before have found.  Out: findings of each look.
Invariant: a look changes nothing and fences nobody (F79). What one look finds out the others use. The daemon raises
the first finding that fails, a check goes on to the next look and shows all of them: a look whose `needs` have failed
is "unknown", never left out. A daemon of this configuration that runs is no complaint: slot, stored position and
server are then read in the order in which they move, because what a daemon confirms is stored first (F3), and what
it stores the server has written first.
A new question is a function of `StartContext`, a row in `START_CHECKS`, and the same name in `start_order.ORDER`.
Everything here blocks and belongs in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cdcd.errors import CdcdError
from cdcd.findings import Finding, failure
from cdcd.session.start_checks.context import CORRECT_FIRST, StartContext
from cdcd.session.start_checks.position import OF_THE_POSITION, OF_THE_SLOT, check_position
from cdcd.session.start_checks.schemas import check_registry, check_schemas
from cdcd.session.start_checks.server import (
    check_publications,
    check_published,
    check_server,
    check_setup,
    check_tables,
)
from cdcd.session.start_checks.topics import check_kafka, check_owners, check_topics, check_transactions
from cdcd.source.locks import is_lock_timeout, lock_holders, set_lock_timeout
from cdcd.source.preflight import connection_failure
from cdcd.source.publication_catalog import LOCK_PATIENCE_MS
from cdcd.spill.preflight import check_folder
from cdcd.waits import Kind


@dataclass(frozen=True, slots=True)
class StartCheck:
    """One question. `needs`: the looks without whose answers it cannot be asked.

    `server`: what is waited for meanwhile, besides PostgreSQL. `answers`: the waits that are over once it does not
    refuse.
    """

    name: str
    ask: Callable[[StartContext], list[Finding]]
    needs: tuple[str, ...] = ()
    server: Kind | None = None
    answers: tuple[Kind, ...] = ("source",)


def each(
    known: StartContext, looks: Sequence[StartCheck] | None = None
) -> Iterator[tuple[StartCheck, list[Finding]]]:
    """Yield the findings of each look, in order; what a look meets is its finding. Does not raise cdcd's errors."""
    failed: dict[str, str] = {}
    for look in START_CHECKS if looks is None else looks:
        missing = next((failed[need] for need in look.needs if need in failed), None)
        if missing is not None:
            failed[look.name] = missing
            yield (
                look,
                [Finding("unknown", look.name, f"not looked at, because of: {missing}", CORRECT_FIRST)],
            )
            continue
        findings, has_answer = asked(look, known)
        if not has_answer:
            failed[look.name] = next(one.subject for one in findings if one.level == "fail")
        yield look, findings


def asked(look: StartCheck, known: StartContext) -> tuple[list[Finding], bool]:
    """Return the findings of one look, and whether it has found out what others need."""
    try:
        return look.ask(known), True
    except CdcdError as error:
        if is_lock_timeout(error):
            return [_locked(look, known, error)], True
        return [_met(look, error)], False


def _met(look: StartCheck, error: CdcdError) -> Finding:
    if look.name == "server":
        return connection_failure(error)
    if isinstance(error, OF_THE_SLOT):
        return failure("slot", error)
    if isinstance(error, OF_THE_POSITION) and look.name in ("position", "published"):
        return failure("stored position", error)
    return failure(look.name, error)


def _locked(look: StartCheck, known: StartContext, error: CdcdError) -> Finding:
    holders = lock_holders(known.sql()) or f"{error.message}; nobody holds a lock any more"
    hint = "have whoever runs that transaction end it, or wait for it, then look again"
    message = f"could not be looked at within {known.lock_patience_ms} ms: {holders}"
    # Whoever holds one for that long is not waited for as long by each look that follows.
    known.lock_patience_ms = min(known.lock_patience_ms, LOCK_PATIENCE_MS)
    set_lock_timeout(known.sql(), known.lock_patience_ms)
    return Finding("unknown", look.name, message, hint)


def check_spill(known: StartContext) -> list[Finding]:
    """Whether the folder for open transactions can be written to."""
    return [check_folder(known.config.spill_settings())]


START_CHECKS: tuple[StartCheck, ...] = (
    StartCheck("server", check_server),
    StartCheck("publications", check_publications, ("server",)),
    StartCheck("kafka", check_kafka, server="kafka", answers=("kafka",)),
    StartCheck("position", check_position, ("server", "kafka"), "kafka", ("slot_held", "promotion")),
    StartCheck("setup", check_setup, ("server",)),
    StartCheck("published", check_published, ("position",)),
    StartCheck("tables", check_tables, ("server",)),
    StartCheck("owners", check_owners, ("kafka",), "kafka"),
    StartCheck("topics", check_topics, ("kafka",), "kafka"),
    StartCheck("transactional id", check_transactions, ("kafka",), "kafka"),
    StartCheck("registry", check_registry, (), "registry", ("registry",)),
    StartCheck("schemas", check_schemas, ("tables", "registry"), "registry", ("registry",)),
    StartCheck("spill folder", check_spill),
)
"""All of them, in the order of `start_order.ORDER`."""

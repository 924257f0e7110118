"""The list of the checks of a start, which the daemon, `cdcd check` and `cdcd init` share.

In: `StartContext`: the configuration, the caller, and the results of the checks before.  Out: findings of each check.
Invariant: a check changes nothing and fences no producer (F79). Later checks use the results of earlier ones. The
daemon raises the first failure; `cdcd check` runs all checks and shows every finding. A check whose `needs` have
failed is "unknown", never left out. A running daemon of this configuration is not a failure. Slot, stored position
and server are then read in this order, because a daemon stores a position before it confirms the position (F3), and
the server writes the WAL before the daemon stores its position.
A new check is a function of `StartContext`, a row in `START_CHECKS`, and the same name in tests/docs/start_order.py.
All checks block, and belong in a thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from cdcd.errors import CdcdError
from cdcd.findings import CORRECT_FIRST, Finding, failure
from cdcd.session.start_checks.context import StartContext
from cdcd.session.start_checks.position import OF_THE_POSITION, OF_THE_SLOT, check_position
from cdcd.session.start_checks.schemas import check_registry, check_schemas
from cdcd.session.start_checks.server import (
    check_publications,
    check_published,
    check_server,
    check_setup,
    check_tables,
)
from cdcd.session.start_checks.standby import check_standby
from cdcd.session.start_checks.topics import check_kafka, check_owners, check_topics, check_transactions
from cdcd.source.locks import is_lock_timeout, lock_holders, set_lock_timeout
from cdcd.source.preflight import connection_failure
from cdcd.source.publication_catalog import LOCK_TIMEOUT_MS
from cdcd.spill.preflight import check_folder
from cdcd.waits import WaitKind


@dataclass(frozen=True, slots=True)
class StartCheck:
    """One check. `needs`: the checks that have to succeed before this check can run.

    `server`: the server that the check waits for, in addition to PostgreSQL. `answers`: the waits that end when the
    check succeeds.
    """

    name: str
    ask: Callable[[StartContext], list[Finding]]
    needs: tuple[str, ...] = ()
    server: WaitKind | None = None
    answers: tuple[WaitKind, ...] = ("source",)


def each(
    known: StartContext, checks: Sequence[StartCheck] | None = None
) -> Iterator[tuple[StartCheck, list[Finding]]]:
    """Yield the findings of each check, in order. A CdcdError of a check becomes a finding and is not raised."""
    failed: dict[str, str] = {}
    for check in START_CHECKS if checks is None else checks:
        missing = next((failed[need] for need in check.needs if need in failed), None)
        if missing is not None:
            failed[check.name] = missing
            yield (
                check,
                [
                    Finding(
                        "unknown", check.name, f"not checked, because this failed: {missing}", CORRECT_FIRST
                    )
                ],
            )
            continue
        findings, has_answer = run_check(check, known)
        if not has_answer:
            failed[check.name] = next(one.subject for one in findings if one.level == "fail")
        yield check, findings


def run_check(check: StartCheck, known: StartContext) -> tuple[list[Finding], bool]:
    """Return the findings of one check, and whether the checks that need its result can run."""
    try:
        return check.ask(known), True
    except CdcdError as error:
        if is_lock_timeout(error):
            return [_locked(check, known, error)], True
        return [_met(check, error)], False


def _met(check: StartCheck, error: CdcdError) -> Finding:
    if check.name == "server":
        return connection_failure(error)
    if isinstance(error, OF_THE_SLOT):
        return failure("slot", error)
    if isinstance(error, OF_THE_POSITION) and check.name in ("position", "published"):
        return failure("stored position", error)
    return failure(check.name, error)


def _locked(check: StartCheck, known: StartContext, error: CdcdError) -> Finding:
    holders = lock_holders(known.sql()) or f"{error.message}; no session holds the lock any more"
    hint = "end that transaction, or wait until it has ended, then run `cdcd check` again"
    message = f"could not be checked within {known.lock_timeout_ms} ms: {holders}"
    # The next checks wait for the same lock for less time.
    known.lock_timeout_ms = min(known.lock_timeout_ms, LOCK_TIMEOUT_MS)
    set_lock_timeout(known.sql(), known.lock_timeout_ms)
    return Finding("unknown", check.name, message, hint)


def check_spill(known: StartContext) -> list[Finding]:
    """Check that the folder for open transactions can be written to."""
    return [check_folder(known.config.spill_settings())]


START_CHECKS: tuple[StartCheck, ...] = (
    StartCheck("server", check_server),
    StartCheck("publications", check_publications, ("server",)),
    StartCheck("kafka", check_kafka, server="kafka", answers=("kafka",)),
    StartCheck("position", check_position, ("server", "kafka"), "kafka", ("slot_held", "promotion")),
    StartCheck("setup", check_setup, ("server",)),
    StartCheck("published", check_published, ("position",)),
    StartCheck("tables", check_tables, ("server",)),
    StartCheck("standby", check_standby, ("server",), "snapshot_standby", ("snapshot_standby",)),
    StartCheck("owners", check_owners, ("kafka",), "kafka"),
    StartCheck("topics", check_topics, ("kafka",), "kafka"),
    StartCheck("transactional id", check_transactions, ("kafka",), "kafka"),
    StartCheck("registry", check_registry, (), "registry", ("registry",)),
    StartCheck("schemas", check_schemas, ("tables", "registry"), "registry", ("registry",)),
    StartCheck("spill folder", check_spill),
)
"""All checks, in the order of docs/recovery.md."""

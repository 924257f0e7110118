"""`cdcd check`: run all checks of a start at once.

Comes in: a configuration.  Goes out: findings, and their text with the SQL or command for each.
Invariant: the checks are those of a start (`cdcd.session.start_checks`), so a start refuses what fails here, with the
same code. Each check has a line: ok, warn, fail, or unknown if it could not be made, which is a failure of the
command. This module adds checks of this machine and of the cluster's settings. Nothing is changed anywhere.
Must not: repeat a decision of the start's checks.
"""

from __future__ import annotations

import stat
from collections.abc import Mapping, Sequence

from cdcd.cli.admin_port import check_admin_port
from cdcd.cli.start_inspection import inspect_start, known_of
from cdcd.config import Config
from cdcd.errors.commands import typeable
from cdcd.findings import Finding, Level
from cdcd.redaction import clean, escape
from cdcd.session.start_checks.context import StartContext
from cdcd.session.start_checks.topics import written_topics
from cdcd.sink.transactional_id import check_by_another_id

_VERIFYING = ("verify-ca", "verify-full")
_LOCAL_HOSTS = ("", "localhost", "127.0.0.1", "::1")
_LEVELS: tuple[Level, ...] = ("ok", "warn", "fail")


def check(config: Config) -> list[Finding]:
    """Return the findings: of this machine, then in the order of a start. Does not raise."""
    with known_of(config) as known:
        found = [
            *_files(config),
            *unverified_servers(config),
            *check_admin_port(config),
            *inspect_start(known),
            *_cluster(known),
        ]
    return list(dict.fromkeys(found))


def has_failed(findings: Sequence[Finding]) -> bool:
    """Return whether a start would fail, or a check could not be made."""
    return any(finding.level in ("fail", "unknown") for finding in findings)


def as_text(findings: Sequence[Finding]) -> str:
    """Return an aligned list with the hint below each problem, and a last line with the counts.

    A hint of several consecutive findings is printed once, below the last of them.
    """
    width = max((len(escape(finding.subject)) for finding in findings), default=0)
    levels = max((len(finding.level) for finding in findings), default=0)
    levels = max(levels, len("fail"))
    lines = []
    for finding, following in zip(findings, [*findings[1:], None], strict=True):
        lines.append(f"{finding.level:<{levels}}  {escape(finding.subject):<{width}}  {finding.message}")
        if following is None or following.hint != finding.hint:
            lines += [
                f"{'':<{levels}}  {'':<{width}}  -> {line}" for line in typeable(finding.hint).splitlines()
            ]
    return "\n".join(map(clean, [*lines, _counts(findings)]))


def _counts(findings: Sequence[Finding]) -> str:
    numbers = {level: sum(finding.level == level for finding in findings) for level in (*_LEVELS, "unknown")}
    unknown = f", {numbers['unknown']} could not be checked" if numbers["unknown"] else ""
    return "{ok} ok, {warn} warn, {fail} fail".format(**numbers) + unknown


def _files(config: Config) -> list[Finding]:
    return [
        Finding("warn", f"file {path}", "every user of this machine can read this secret", f"chmod o= {path}")
        for path in config.secret_files
        if path.stat().st_mode & stat.S_IROTH
    ]


def unverified_servers(config: Config) -> list[Finding]:
    """Return a warning for each server of PostgreSQL on another machine whose certificate is not verified."""
    message = (
        "the server's certificate is not verified, so an attacker on the network can read and change the data"
    )
    dsns = {"source.dsn": config.source.dsn, "snapshot.from": config.snapshot.standby}
    return [
        Finding("warn", option, message, "add sslmode=verify-full")
        for option, dsn in dsns.items()
        if dsn is not None and not _is_safe(dsn.parameters)
    ]


def _is_safe(parameters: Mapping[str, str]) -> bool:
    hosts = parameters.get("host", "").split(",")
    is_local = all(host in _LOCAL_HOSTS or host.startswith("/") for host in hosts)
    return is_local or parameters.get("sslmode") in _VERIFYING


def _cluster(known: StartContext) -> list[Finding]:
    """Return findings about the brokers' durability settings; none if the brokers have not answered."""
    if known.metadata is None or known.topics is None or known.sink is None:
        return []
    names = written_topics(known)
    findings = known.topics.checks.acls(known.metadata, names)
    findings += known.topics.checks.durability(known.metadata, names)
    if known.sink.is_exactly_once and not known.is_transaction_known:
        findings.append(check_by_another_id(known.sink))
    return findings

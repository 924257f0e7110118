"""`cdcd wait`: wait until commits are durable in Kafka, and visible in a mirror.

In: a configuration, an LSN, a time.  Out: a line.
Invariant: a line is printed only after the daemon, or the mirror's own commit log, has said so. The mirror has to
reach the LSN with the daemon's slot, on the timeline that the daemon has named. A daemon that does not answer may be
restarting, so it is asked again until the time is over.
Must not: connect to PostgreSQL or Kafka.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from cdcd.cli.daemon_port import Answer, NoAnswer, PortUnknown, ask_daemon
from cdcd.cli.spark_extra import imports_of_spark
from cdcd.config import Config
from cdcd.errors import CdcdError, NotDurableYet
from cdcd.lsn import Lsn, format_lsn
from cdcd.redaction import clean

__all__ = ["Durable", "wait_durable", "wait_mirrored"]

_NOT_DURABLE = "not all commits below the LSN are durable in Kafka"
_OK, _TIMED_OUT, _BUSY = 200, 504, 503
_LONGEST_S = 300.0
"""The maximum wait of one request."""
_ANSWER_WITHIN_S = 10.0
"""The time of an answer beyond that of its wait."""
_ASK_AGAIN_S = 0.5


class Durable(NamedTuple):
    """All commits below `lsn` are durable. The others are the LSN's; a daemon of an earlier version sends none."""

    lsn: str
    timeline: int | None
    system_identifier: str | None

    @property
    def line(self) -> str:
        """The line to print."""
        return f"durable in Kafka: all commits below {self.lsn}"


def wait_durable(
    config: Config, lsn: Lsn, timeout_s: float, *, pause: Callable[[float], None] = time.sleep
) -> Durable:
    """Wait until the daemon says that all commits below an LSN are durable. Raises NotDurableYet."""
    deadline_s, problem = time.monotonic() + timeout_s, _NOT_DURABLE
    why: dict[str, str] = {
        "reason": NoAnswer.problem,
        "port": str(config.admin.port),
    }
    while (left_s := deadline_s - time.monotonic()) > 0:
        try:
            answer = _asked(config, lsn, min(left_s, _LONGEST_S))
        except PortUnknown as none:
            raise NotDurableYet(none.problem, hint=none.hint) from None
        except NoAnswer:
            pause(min(_ASK_AGAIN_S, left_s))
            continue
        page = _page(answer)
        if answer.status == _OK and isinstance(page.get("durable_lsn"), str):
            return _durable(page)
        if answer.status not in (_TIMED_OUT, _BUSY):
            raise _refused(config, answer, page)
        if answer.status == _TIMED_OUT and isinstance(page.get("message"), str):
            problem = clean(page["message"], 300)
        shown = ("state", "reason", "durable_lsn") if answer.status == _TIMED_OUT else ("message",)
        why = {name: clean(str(page[name]), 300) for name in shown if page.get(name)}
        pause(max(0.0, min(_ASK_AGAIN_S, deadline_s - time.monotonic())))
    raise NotDurableYet(problem, lsn=format_lsn(lsn), **why)


def _asked(config: Config, lsn: Lsn, wait_s: float) -> Answer:
    query = {"lsn": format_lsn(lsn), "timeout_ms": str(max(1, int(wait_s * 1000)))}
    return ask_daemon(config, "GET", "/wait", query=query, timeout_s=wait_s + _ANSWER_WITHIN_S)


def _durable(page: Mapping[str, Any]) -> Durable:
    timeline, system = page.get("timeline"), page.get("system_identifier")
    return Durable(
        clean(page["durable_lsn"], 40),
        timeline if isinstance(timeline, int) else None,
        clean(system, 40) if isinstance(system, str) else None,
    )


def _page(answer: Answer) -> dict[str, Any]:
    try:
        page = json.loads(answer.body)
    except (ValueError, RecursionError):
        return {}
    return page if isinstance(page, dict) else {}


def _refused(config: Config, answer: Answer, page: Mapping[str, Any]) -> CdcdError:
    message = page.get("message")
    return NotDurableYet(
        clean(message, 300)
        if isinstance(message, str)
        else "the program at the admin port has no page /wait",
        hint="run this command on the daemon's machine, with its configuration and its version of cdcd",
        port=config.admin.port,
        status=answer.status,
    )


def wait_mirrored(
    target: str, options: Mapping[str, str], lsn: Lsn, timeout_s: float, *, slot: str, durable: Durable
) -> str:
    """Wait until a mirror has all commits of a slot up to an LSN, which the daemon has made durable.

    Raises MirrorBehind, TablesParked if it has those of some tables only, StorageError, ConfigError.
    """
    with imports_of_spark():
        from cdcd.spark.reading.mirror import wait
    opened = wait(
        target,
        lsn,
        timeout_s=timeout_s,
        target_options=options,
        timeline=durable.timeline,
        slot=slot,
        system_identifier=durable.system_identifier,
    )
    return f"visible in the mirror: all commits up to {format_lsn(opened.reached_lsn(slot))}"

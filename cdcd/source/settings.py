"""The settings of the source package, and the protocol options that a server supports.

In: plain values from the configuration.  Out: frozen settings and `StreamOptions` for START_REPLICATION.
Invariant: an option that the server's version does not support is never sent. If the user set it, it is an error; an
omitted default (logical messages) is reported.
Must not: read files or the environment; a password is read through `read_password` at each connect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

from cdcd.errors import SourceSetup

Streaming = Literal["off", "on", "parallel"]
Origin = Literal["any", "none"]


def _no_password() -> str | None:
    return None


@dataclass(frozen=True, slots=True)
class SourceSettings:
    """One slot of one database.

    `dsn` is a libpq URL or keyword string and may hold a password; it never appears in a repr.
    `read_password` and `read_ssl_password` (the passphrase of sslkey) are called at each connect.
    `failover` and `two_phase` are options for the creation of a slot.
    `silence_timeout_s` is how long a server may be silent although a reply was requested (F16); None derives it from
    the server's wal_sender_timeout.
    `option`: the option that has the DSN. `instance`: the start of the server that every SQL connection has to lead
    to (Unix epoch, microseconds), where the DSN may lead to several servers; None: any.
    """

    dsn: str = field(repr=False)
    read_password: Callable[[], str | None] = field(repr=False)
    slot: str
    publications: tuple[str, ...]
    application_name: str
    connect_timeout_s: int = 10
    failover: bool = False
    two_phase: bool = False
    silence_timeout_s: float | None = None
    read_ssl_password: Callable[[], str | None] = field(default=_no_password, repr=False)
    option: str = "source.dsn"
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The pgoutput options of one START_REPLICATION."""

    protocol_version: int
    streaming: Streaming = "off"
    binary: bool = False
    messages: bool = False
    origin: Origin = "any"
    two_phase: bool = False


PROTOCOL_SINCE_MAJOR = {1: 10, 2: 14, 3: 15, 4: 16}
"""The first major version of PostgreSQL that supports each protocol version."""

_STREAMING_OF: dict[int, Streaming] = {2: "on", 3: "on", 4: "parallel"}
"""The highest streaming mode of each protocol version."""

FAILOVER_SINCE_MAJOR = 17


@dataclass(frozen=True, slots=True)
class Shortfall:
    """A configured option that the server or the protocol version does not support, and the version that does.

    `is_left_out`: the stream starts without the option; otherwise the start is refused.
    """

    wish: str
    option: str
    why: str
    hint: str
    is_left_out: bool = False


def highest_protocol(server_version_num: int) -> int:
    """Return the highest pgoutput protocol version that a server of this version supports."""
    major = server_version_num // 10_000
    return max(version for version, since in PROTOCOL_SINCE_MAJOR.items() if since <= max(major, 10))


def wanted_options(
    server_version_num: int,
    *,
    version: int | Literal["auto"] = "auto",
    streaming: Streaming | Literal["auto"] = "auto",
    binary: bool = False,
    messages: bool = True,
    origin: Origin = "any",
    two_phase: bool = False,
) -> StreamOptions:
    """Return the configured options with `auto` resolved for this server version, which may not support them.

    `streaming="auto"` is the highest mode of server and protocol version: without streaming the server stores each
    large transaction on its own disk until the commit (F25). "parallel" adds the time of an abort, which shows
    whether a rollback to a savepoint happened before its rows were decoded.
    """
    highest = highest_protocol(server_version_num)
    chosen = highest if version == "auto" else version
    automatic: Streaming = _STREAMING_OF.get(min(chosen, highest), "off")
    wanted = automatic if streaming == "auto" else streaming
    return StreamOptions(chosen, wanted, binary, messages, origin, two_phase)


def granted_options(
    server_version_num: int, options: StreamOptions, *, failover: bool = False
) -> StreamOptions:
    """Return these options for a server of this version. Raises SourceSetup for an unsupported option.

    Logical messages are left out before PostgreSQL 14 (`shortfalls` reports it): they are on by default, and no such
    server sends them. `failover` is refused even if the slot exists: no such server can synchronise it.
    """
    missing = shortfalls(server_version_num, options, failover=failover)
    refused = [one for one in missing if not one.is_left_out]
    if refused:
        what = "; ".join(f"{one.wish} is not possible: {one.why}" for one in refused)
        hints = dict.fromkeys(one.hint for one in refused)
        raise SourceSetup(what, hint="; ".join(hints), server_major=server_version_num // 10_000)
    return replace(options, messages=False) if missing else options


def shortfalls(server_version_num: int, options: StreamOptions, *, failover: bool = False) -> list[Shortfall]:
    """Return the options that a server of this version does not support, each with the version that does.

    `failover`: the slot has to be synchronised to standbys.
    """
    major, asked = server_version_num // 10_000, options.protocol_version
    if asked not in PROTOCOL_SINCE_MAJOR:
        why = f"the versions are 1 to {max(PROTOCOL_SINCE_MAJOR)}"
        return [
            Shortfall(
                f"protocol version {asked}",
                "source.protocol.version",
                why,
                "set it to auto, and restart cdcd",
            )
        ]
    wishes = (
        (True, f"protocol version {asked}", "protocol.version", PROTOCOL_SINCE_MAJOR[asked], 1),
        (options.streaming == "on", "streaming on", "protocol.streaming", 14, 2),
        (options.streaming == "parallel", "streaming parallel", "protocol.streaming", 16, 4),
        (options.binary, "binary", "protocol.binary", 14, 1),
        (options.messages, "messages", "protocol.messages", 14, 1),
        (options.origin != "any", f"origin {options.origin}", "protocol.origin", 16, 1),
        (options.two_phase, "two_phase", "protocol.two_phase", 15, 3),
        (failover, "failover", "slot.failover", FAILOVER_SINCE_MAJOR, 1),
    )
    return [
        _shortfall(wish, f"source.{option}", since, version, major)
        for is_wanted, wish, option, since, version in wishes
        if is_wanted and (major < since or asked < version)
    ]


_GRANTED_EVERYWHERE = {
    "source.protocol.version": "auto",
    "source.protocol.streaming": "auto",
    "source.protocol.binary": "false",
    "source.protocol.messages": "false",
    "source.protocol.origin": "any",
    "source.protocol.two_phase": "false",
    "source.slot.failover": "false",
}
"""For each option, the value that a server of any version supports."""


def _shortfall(wish: str, option: str, since_major: int, since_protocol: int, major: int) -> Shortfall:
    if major < since_major:
        why = f"it needs PostgreSQL {since_major}, the server is {major}"
        hint = f"set {option}: {_GRANTED_EVERYWHERE[option]}, and restart cdcd"
        return Shortfall(wish, option, why, hint, is_left_out=wish == "messages")
    why = f"it needs protocol version {since_protocol}"
    return Shortfall(wish, option, why, "set source.protocol.version: auto, and restart cdcd")

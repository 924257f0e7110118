"""What the source room has to be told, and which protocol options a server can be asked for.

In: plain values from the configuration.  Out: frozen settings and `StreamOptions` for START_REPLICATION.
Invariant: an option that the server's version does not know is never sent; one that the user asked for by
name and cannot have is an error, never silently left out.
Must not: read files or the environment; a password is read through `read_password` at each connect.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
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
    `read_password` and `read_ssl_password` (the passphrase of sslkey) are asked at each connect.
    `silence_timeout_s` is how long a stream may say nothing although asked (F16); None derives it from the
    server's wal_sender_timeout.
    """

    dsn: str = field(repr=False)
    read_password: Callable[[], str | None] = field(repr=False)
    slot: str
    publications: tuple[str, ...]
    application_name: str
    connect_timeout_s: int = 10
    failover: bool = False
    silence_timeout_s: float | None = None
    read_ssl_password: Callable[[], str | None] = field(default=_no_password, repr=False)


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The pgoutput options of one START_REPLICATION."""

    protocol_version: int
    streaming: Streaming = "off"
    binary: bool = False
    messages: bool = False
    origin: Origin = "any"
    two_phase: bool = False


def highest_protocol(server_version_num: int) -> int:
    """Return the highest pgoutput protocol version that a server of this version speaks."""
    major = server_version_num // 10_000
    return 4 if major >= 16 else 3 if major == 15 else 2 if major == 14 else 1


def choose_options(
    server_version_num: int,
    *,
    version: int | Literal["auto"] = "auto",
    streaming: Streaming | Literal["auto"] = "auto",
    binary: bool = False,
    messages: bool = True,
    origin: Origin = "any",
    two_phase: bool = False,
) -> StreamOptions:
    """Return the options for a server of this version; raises SourceSetup for a wish it cannot grant.

    `streaming="auto"` is "off": a server that keeps big transactions until their commit lets rows flow
    through cdcd in constant memory. Logical messages exist from PostgreSQL 14 on.
    """
    highest = highest_protocol(server_version_num)
    chosen = highest if version == "auto" else version
    wanted: Streaming = "off" if streaming == "auto" else streaming
    major = server_version_num // 10_000
    _require(1 <= chosen <= highest, f"protocol version {chosen}", f"the server speaks 1 to {highest}", major)
    _require(not binary or major >= 14, "binary", "it needs PostgreSQL 14", major)
    _require(wanted == "off" or chosen >= 2, f"streaming {wanted}", "it needs protocol version 2", major)
    _require(wanted != "parallel" or chosen >= 4, "streaming parallel", "it needs protocol version 4", major)
    _require(origin == "any" or major >= 16, f"origin {origin}", "it needs PostgreSQL 16", major)
    _require(not two_phase or chosen >= 3, "two_phase", "it needs protocol version 3", major)
    return StreamOptions(
        protocol_version=chosen,
        streaming=wanted,
        binary=binary,
        messages=messages and major >= 14,
        origin=origin,
        two_phase=two_phase,
    )


def _require(granted: bool, wish: str, why: str, major: int) -> None:
    if not granted:
        raise SourceSetup(f"{wish} is not possible: {why}", hint="change source.protocol", server_major=major)

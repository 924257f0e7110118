"""Options of the source: the server, the slot, the publication and the protocol.

Comes in: the `source` mapping.  Goes out: `Source`, with `read_password` for each connection.
Invariant: an unsupported value is refused here with the key's name, so no option is silently ignored.
Must not: connect, or import a PostgreSQL client.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import pairwise
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, model_validator

from cdcd.config.dsn import Dsn
from cdcd.config.values import (
    Names,
    Room,
    Secret,
    SecretFile,
    Size,
    Whole,
    derived,
    format_size,
    refuse,
    secret_reader,
)

SLOT_NAME_LIMIT = 63  # NAMEDATALEN - 1
SHORTEST_INTERVAL_MS = 1000
_SLOT_NAME = re.compile(r"[a-z0-9_]{1,63}")
FIRST_VERSION_STREAMING = 2
FIRST_VERSION_PARALLEL = 4
FIRST_VERSION_TWO_PHASE = 3


def _slot_name(name: str) -> str:
    if not _SLOT_NAME.fullmatch(name):
        refuse("a slot's name is 1 to 63 of a-z, 0-9 and _")
    return name


SlotName = Annotated[str, AfterValidator(_slot_name)]


def _identifiers(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not name or len(name.encode()) > SLOT_NAME_LIMIT or "\0" in name:
            refuse("a publication's name has 1 to 63 bytes")
    if not names:
        refuse("must name at least one publication")
    if len(set(names)) != len(names):
        refuse("names a publication twice")
    return names


def _tables(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        schema, separator, table = name.partition(".")
        if not (schema and separator and table):
            refuse(f"table {name!r} has no schema", "write SCHEMA.TABLE")
    return names


def _zero_or_interval(value: int) -> int:
    if 0 < value < SHORTEST_INTERVAL_MS:
        refuse(f"must be 0, or at least {SHORTEST_INTERVAL_MS}")
    return value


def _version(value: Any) -> Any:
    if value == "auto":
        return value
    if isinstance(value, str) and value.isdigit():
        value = int(value)
    if isinstance(value, bool) or value not in (1, 2, 3, 4):
        refuse("expected auto, 1, 2, 3 or 4")
    return value


def _switch(value: Any) -> Any:
    """Return on or off for true or false, as a boolean of YAML or the text of a variable."""
    return {"true": "on", "false": "off"}.get(str(value).lower(), value)


class Slot(Room):
    """The replication slot; one configuration file is one slot."""

    name: SlotName = Field(
        default="",
        description="name of the slot; default: cdcd_ and `name`",
        json_schema_extra=derived,
    )
    create: bool = Field(default=True, description="create the slot at the first start")
    failover: bool = Field(
        default=False, description="create the slot so that it is synchronized to standbys (PostgreSQL 17+)"
    )


class Publication(Room):
    """The publication: the tables whose changes the server sends."""

    names: Annotated[Names, AfterValidator(_identifiers)] = Field(
        default=(),
        description=(
            "names of the publications to read; default: cdcd_ and `name`; in a variable: one,two or, "
            'for names with commas, ["one", "t,w,o"]'
        ),
        json_schema_extra=derived,
    )
    create: bool = Field(
        default=False, description="let `cdcd init` create the publication; the role must own the tables"
    )
    tables: Annotated[Names, AfterValidator(_tables)] = Field(
        default=(),
        description="SCHEMA.TABLE names for the created publication; none: every table (superuser only)",
    )
    table_removed: Literal["warn", "halt"] = Field(
        default="warn",
        description="when a table leaves a publication, also while cdcd is stopped: warn (log, metric) or halt",
    )

    @model_validator(mode="after")
    def _creation(self) -> Publication:
        if self.tables and not self.create:
            refuse(
                "tables applies only to a publication that cdcd creates", "set create: true or remove tables"
            )
        if self.create and len(self.names) > 1:
            refuse("create: true needs exactly one name in names")
        return self


class WalGuard(Room):
    """Limits of the WAL that the slot retains on the server."""

    warn: Size = Field(
        default=8 << 30, description="from this size on, warn in the log, a metric and /status"
    )
    critical: Size = Field(default=32 << 30, description="from this size on, log an error")
    drop_slot: Size | None = Field(
        default=None,
        description="from this size on, halt and drop the slot, to protect the primary's disk; cdcd loses the "
        "unconfirmed changes; default: never",
        examples=["200GiB"],
    )

    @model_validator(mode="after")
    def _rising(self) -> WalGuard:
        given = [
            (name, value)
            for name, value in (
                ("warn", self.warn),
                ("critical", self.critical),
                ("drop_slot", self.drop_slot),
            )
            if value is not None
        ]
        for (lower, less), (upper, more) in pairwise(given):
            if more <= less:
                refuse(f"{upper} ({format_size(more)}) must be more than {lower} ({format_size(less)})")
        return self


class Protocol(Room):
    """The version and options of pgoutput's protocol."""

    version: Annotated[
        Literal["auto"] | int,
        BeforeValidator(_version),
        WithJsonSchema({"enum": ["auto", 1, 2, 3, 4]}),
    ] = Field(
        default="auto",
        description="protocol version: auto, 1, 2, 3 or 4; auto: the highest that the server supports",
    )
    streaming: Annotated[
        Literal["auto", "off", "on", "parallel"],
        BeforeValidator(_switch),
        WithJsonSchema({"enum": ["auto", "off", "on", "parallel", True, False]}),
    ] = Field(
        default="auto",
        description="receive large transactions before they commit; auto: on from PostgreSQL 14, "
        "parallel from 16",
    )
    two_phase: bool = Field(
        default=False,
        description="receive prepared transactions at PREPARE and store them until COMMIT or ROLLBACK PREPARED "
        "(PostgreSQL 15+); false: receive them at COMMIT PREPARED",
    )
    binary: bool = Field(
        default=False,
        description="receive values in PostgreSQL's binary format instead of text; cdcd uses text if the type "
        "of a published column has no exact conversion from binary",
    )
    messages: bool = Field(
        default=True,
        description="receive logical messages, which pg_logical_emit_message writes (PostgreSQL 14+)",
    )
    origin: Literal["any", "none"] = Field(
        default="any",
        description="none: omit rows that replication wrote to the source (PostgreSQL 16+)",
    )

    @model_validator(mode="after")
    def _streaming_needs_version(self) -> Protocol:
        needed = {"on": FIRST_VERSION_STREAMING, "parallel": FIRST_VERSION_PARALLEL}.get(self.streaming, 1)
        if isinstance(self.version, int) and self.version < needed:
            refuse(
                f"streaming: {self.streaming} needs protocol version {needed}",
                f"use version: {needed} or auto",
            )
        return self

    @model_validator(mode="after")
    def _two_phase_needs_version(self) -> Protocol:
        if self.two_phase and isinstance(self.version, int) and self.version < FIRST_VERSION_TWO_PHASE:
            refuse(
                f"two_phase needs protocol version {FIRST_VERSION_TWO_PHASE}",
                f"use version: {FIRST_VERSION_TWO_PHASE} or auto",
            )
        return self


class Source(Room):
    """The PostgreSQL server that is read."""

    dsn: Dsn = Field(
        description="connection string of libpq: a URL or key=value pairs",
        examples=["postgresql://cdcd@db.example.com:5432/shop?sslmode=verify-full"],
    )
    password: Secret | None = Field(
        default=None,
        description="the role's password; password_file is safer",
        examples=["set-me-in-CDCD_SOURCE__PASSWORD"],
    )
    password_file: SecretFile | None = Field(
        default=None,
        description="file with the role's password, read again at each connection",
        examples=["/etc/cdcd/secrets/postgres-password"],
    )
    ssl_password_file: SecretFile | None = Field(
        default=None,
        description="file with the passphrase of the client's key (sslkey in dsn), read again at each connection",
        examples=["/etc/cdcd/secrets/postgres-key-passphrase"],
    )
    slot: Slot = Field(default_factory=Slot, description="the replication slot")
    publication: Publication = Field(default_factory=Publication, description="the published tables to read")
    protocol: Protocol = Field(default_factory=Protocol, description="version and options of pgoutput")
    wal_guard: WalGuard = Field(
        default_factory=WalGuard, description="limits of the WAL that the slot retains on the server"
    )
    silence_timeout_ms: Annotated[Whole, AfterValidator(_zero_or_interval)] = Field(
        default=0,
        ge=0,
        description="reconnect after this time without a message, even a keepalive reply, from the server; "
        "0: twice the server's wal_sender_timeout, at least 60000",
    )
    heartbeat_interval_ms: Annotated[Whole, AfterValidator(_zero_or_interval)] = Field(
        default=0,
        ge=0,
        description="interval of heartbeats written to the source while streaming; 0: never",
    )

    @model_validator(mode="after")
    def _one_password(self) -> Source:
        given = (self.password is not None, self.password_file is not None, self.dsn.password is not None)
        if sum(given) > 1:
            refuse("the password is set more than once", "keep one of dsn, password, password_file")
        if self.ssl_password_file is not None and "sslpassword" in self.dsn.parameters:
            refuse("the key's passphrase is set more than once", "keep ssl_password_file")
        return self

    @property
    def read_password(self) -> Callable[[], str | None]:
        """A function that returns the password at each connection, or None if libpq has to find it."""
        return secret_reader(self.password or self.dsn.password, self.password_file)

    @property
    def read_ssl_password(self) -> Callable[[], str | None]:
        """A function that returns the passphrase of the client's key at each connection, or None without one."""
        return secret_reader(None, self.ssl_password_file)

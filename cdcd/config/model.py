"""The root of the configuration: one nested model per section, and their conversion into the packages' settings.

Comes in: the merged tree of file and environment (`cdcd.config.load`).
Goes out: `Config`, frozen; `source_settings()`, `sink_settings()`, `topic_settings()`, `registry_settings()`.
Invariant: every option is here exactly once, with its default and a one-line description; the sample and
the JSON Schema are generated from these models. Names that derive from `name` are set before validation.
Must not: read the file or the environment, open a connection.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, field_validator, model_validator
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from cdcd.ack.group import NO_LIMITS, GroupLimits, LargeLimits
from cdcd.config.format import Format
from cdcd.config.sink import SNAPSHOT_ROWS, STREAM_ROWS, RegistryOption, Sink, short_form
from cdcd.config.snapshot import Snapshot
from cdcd.config.source import SLOT_NAME_LIMIT, Source
from cdcd.config.values import Names, Room, Size, Whole, refuse, secret_reader
from cdcd.property_names import FILE_PROPERTIES
from cdcd.registry.settings import RegistrySettings
from cdcd.sink.names import own_topics, progress_topic
from cdcd.sink.settings import SinkSettings, TopicSettings
from cdcd.source.settings import SourceSettings, StreamOptions, wanted_options
from cdcd.spill.settings import SpillSettings

ENVIRONMENT_PREFIX = "CDCD_"
ENVIRONMENT_DELIMITER = "__"
NAME_LIMIT = 100
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]*(\.[A-Za-z][A-Za-z0-9_-]*)*")

_HOST_NAME = re.compile(r"[A-Za-z0-9._-]{1,255}")


_OWN_PASSWORD = ("passfile", "service", "servicefile")
"""Parameters of a DSN by which libpq may find its password."""

_PLAIN_NAME = re.compile(r"[a-z][a-z0-9_]*")
_DERIVED_PREFIX = "cdcd_"


class _Ambiguous(str):
    """A name whose derived names another name derives too. `unset`: the options that have to be given."""

    unset: tuple[str, ...] = ()


def _refuse_ambiguous(value: Any) -> Any:
    """Refuse a name if another name derives the same slot and publication (F80)."""
    if isinstance(value, _Ambiguous):
        was = _derived(value)
        refuse(
            f"slot and publication cannot be named after {str(value)!r}: other names would also give {was}, "
            "because a slot's name has only a-z, 0-9 and _, 63 at most",
            f"set {' and '.join(value.unset)}; earlier versions used {was}",
        )
    return value


def _derived(name: str) -> str:
    """Return the default name of slot and publication: unique for a plain `name`."""
    return (_DERIVED_PREFIX + re.sub(r"[^a-z0-9_]", "_", name.lower()))[:SLOT_NAME_LIMIT]


def _is_plain(name: str) -> bool:
    """Return whether no other name derives the same names."""
    return bool(_PLAIN_NAME.fullmatch(name)) and len(_DERIVED_PREFIX + name) <= SLOT_NAME_LIMIT


def _name(value: str) -> str:
    if not _NAME.fullmatch(value) or len(value) > NAME_LIMIT:
        refuse("must begin with a letter and have only letters, digits, '_', '-' and '.', 100 at most")
    return value


Name = Annotated[str, AfterValidator(_name)]
"""The first part of every topic's name."""


def _host_names(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not _HOST_NAME.fullmatch(name):
            refuse("a host's name has letters, digits, '-', '_' and '.', and no port")
    return names


class Buffer(Room):
    """The buffers between the source and the sink."""

    memory: Size = Field(
        default=32 << 20,
        description="half of it for open transactions, an eighth for rows that wait for the Kafka client (the "
        "client's own queue is additional)",
    )
    spill_dir: Path | None = Field(
        default=None,
        description="folder for open transactions that do not fit in memory; default: the system's temporary folder",
        examples=["/var/lib/cdcd/spill"],
    )
    spill: Size = Field(
        default=20 << 30,
        description="maximum size of buffer.spill_dir; when the folder is full, reading pauses, then cdcd halts",
    )


class Admin(Room):
    """The HTTP port for probes, metrics and status."""

    host: str = Field(
        default="127.0.0.1", min_length=1, description="address to listen on; 0.0.0.0 in a container"
    )
    port: Whole = Field(
        default=8080,
        ge=0,
        le=65535,
        description="port to listen on; 0: any free port, which `cdcd resume`, `snapshot` and `wait` cannot find",
    )
    host_names: Annotated[Names, AfterValidator(_host_names)] = Field(
        default=(),
        description="additional values of the Host header that the port accepts; not needed for an address, a "
        "name without a dot and names inside a cluster",
        examples=[["cdcd.example.com"]],
    )


class Log(Room):
    """The log on standard error."""

    level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="lowest level that is logged"
    )
    format: Literal["json", "console"] = Field(
        default="json", description="json: one object per line; console: for people"
    )


class Config(BaseSettings):
    """The whole configuration of one daemon; one file is one slot."""

    model_config = SettingsConfigDict(
        extra="forbid",
        frozen=True,
        hide_input_in_errors=True,
        env_prefix=ENVIRONMENT_PREFIX,
        env_nested_delimiter=ENVIRONMENT_DELIMITER,
    )

    name: Annotated[Name, BeforeValidator(_refuse_ambiguous)] = Field(
        description="first part of every topic's name; slot and publication are named after it",
        examples=["shop"],
    )
    source: Source = Field(description="the PostgreSQL server that is read")
    sink: Sink = Field(description="the Kafka cluster that is written to")
    registry: RegistryOption = Field(
        description="the schema registry, Confluent's interface", json_schema_extra=short_form
    )
    format: Format = Field(default_factory=Format, description="the format of the records")
    snapshot: Snapshot = Field(
        default_factory=Snapshot, description="the copy of the tables before the stream"
    )
    buffer: Buffer = Field(default_factory=Buffer, description="the buffers between the source and the sink")
    admin: Admin = Field(default_factory=Admin, description="the HTTP port for probes, metrics and status")
    log: Log = Field(default_factory=Log, description="the log on standard error")
    shutdown_timeout_ms: Whole = Field(
        default=30000,
        ge=1000,
        description="maximum time from SIGTERM to the end of the daemon; set it below the pod's grace period",
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Use only the tree that `load_config` has merged: only `load_config` has the origin of each value."""
        return (init_settings,)

    @model_validator(mode="before")
    @classmethod
    def _names_after_name(cls, tree: Any) -> Any:
        return with_derived_names(tree)

    @field_validator("snapshot")
    @classmethod
    def _signals_have_a_topic_of_their_own(cls, snapshot: Snapshot, info: ValidationInfo) -> Snapshot:
        topic = snapshot.signals.topic
        if topic in own_topics(str(info.data.get("name"))):
            refuse(f"signals.topic: {topic} is written by cdcd itself", "choose another topic")
        return snapshot

    @property
    def progress_topic(self) -> str:
        """The topic of the progress records, one for all slots under this name."""
        return progress_topic(self.name)

    @property
    def schema_topic(self) -> str | None:
        """The topic of the schemas, one for all slots under this name; None with a registry."""
        return f"{self.name}.__schemas" if self.registry.is_none else None

    @property
    def dead_letter_topic(self) -> str | None:
        """The topic of dead letters, one for all slots under this name; None: cdcd halts instead."""
        return f"{self.name}.__dead_letters" if self.sink.too_large == "dead_letter" else None

    @property
    def secret_files(self) -> tuple[Path, ...]:
        """Every file that holds a secret."""
        source, registry = self.source, self.registry
        single = (source.password_file, source.ssl_password_file, registry.password_file, registry.token_file)
        named = (*self.sink.secret_files.values(), *registry.secret_files.values())
        return (*(path for path in single if path is not None), *named)

    @property
    def sink_files(self) -> tuple[Path, ...]:
        """Every file that a Kafka client reads when it is created: secrets, keys and certificates."""
        named = (self.sink.properties.get(name) for name in FILE_PROPERTIES)
        return (*self.sink.secret_files.values(), *(Path(name) for name in named if name))

    def source_settings(self) -> SourceSettings:
        """Return the settings of the source package."""
        return SourceSettings(
            dsn=self.source.dsn.text,
            read_password=self.source.read_password,
            silence_timeout_s=self.source.silence_timeout_ms / 1000 or None,
            read_ssl_password=self.source.read_ssl_password,
            slot=self.source.slot.name,
            publications=self.source.publication.names,
            application_name=f"cdcd-{self.source.slot.name}"[:SLOT_NAME_LIMIT],
            failover=self.source.slot.failover,
            two_phase=self.source.protocol.two_phase,
        )

    def standby_settings(self) -> SourceSettings | None:
        """Return the settings of the standby that the initial snapshot is read from, None without one.

        The passwords of `source` apply to it too, because a standby has the roles of its primary, unless its DSN
        names another password, or another role.
        """
        dsn = self.snapshot.standby
        if dsn is None:
            return None
        source = self.source_settings()
        read_password = source.read_password
        has_own = dsn.password is not None or not dsn.parameters.keys().isdisjoint(_OWN_PASSWORD)
        if has_own or dsn.parameters.get("user") != self.source.dsn.parameters.get("user"):
            read_password = secret_reader(dsn.password, None)
        has_own_key = "sslpassword" in dsn.parameters
        return replace(
            source,
            dsn=dsn.text,
            option="snapshot.from",
            read_password=read_password,
            read_ssl_password=secret_reader(None, None) if has_own_key else source.read_ssl_password,
            failover=False,
            two_phase=False,
        )

    def wanted_options(self, server_version_num: int) -> StreamOptions:
        """Return the configured stream options for this server version; the server may not support all of them."""
        protocol = self.source.protocol
        return wanted_options(
            server_version_num,
            version=protocol.version,
            streaming=protocol.streaming,
            binary=protocol.binary,
            messages=protocol.messages,
            origin=protocol.origin,
            two_phase=protocol.two_phase,
        )

    def sink_settings(self) -> SinkSettings:
        """Return the settings of the sink package; secret files are read now. Raises SecretUnreadable."""
        return SinkSettings(
            bootstrap_servers=self.sink.bootstrap_servers,
            delivery=self.sink.delivery,
            transactional_id=self.sink.transactional_id,
            client_id=self.sink.transactional_id,
            properties=self.sink.read_properties(),
            progress_topic=self.progress_topic,
            slot=self.source.slot.name,
            transaction_timeout_ms=self.sink.transaction_timeout_ms,
        )

    def large_limits(self) -> LargeLimits:
        """Return the size limits of a Kafka transaction; without Kafka transactions there are none."""
        if self.sink.delivery != "exactly_once":
            return NO_LIMITS
        large = self.sink.large_transactions
        max_time_ms = large.max_time_ms or self.sink.transaction_timeout_ms * 2 // 3
        return LargeLimits(
            large.max_rows, large.max_bytes, max_time_ms * 1000, allows_parts=large.policy == "parts"
        )

    def group_limits(self) -> GroupLimits:
        """Return the limits at which a Kafka transaction ends."""
        commit = self.sink.commit
        stream, snapshot = STREAM_ROWS, SNAPSHOT_ROWS
        if commit.max_rows is not None:
            stream = snapshot = commit.max_rows
        return GroupLimits(stream, commit.max_bytes, commit.max_wait_ms * 1000, self.large_limits(), snapshot)

    def topic_settings(self) -> TopicSettings:
        """Return the settings for the creation of topics."""
        topics = self.sink.topics
        return TopicSettings(
            create=topics.create,
            partitions=topics.partitions,
            replication_factor=topics.replication_factor,
            properties=topics.properties,
        )

    def spill_settings(self) -> SpillSettings:
        """Return the settings of the spill package."""
        return SpillSettings(below=self.buffer.spill_dir, disk_bytes=self.buffer.spill)

    def registry_settings(self) -> RegistrySettings:
        """Return the settings of the registry package."""
        registry = self.registry
        return RegistrySettings(
            url=registry.url,
            auto_register=registry.auto_register,
            compatibility=registry.compatibility,
            registers_incompatible=registry.incompatible == "register_with_none",
            normalize=registry.normalize,
            username=registry.username,
            read_password=registry.read_password,
            read_token=registry.read_token,
            read_properties=registry.read_properties,
        )


def with_derived_names(tree: Any) -> Any:
    """Return the tree with slot, publication and transactional id named after `name` unless given.

    A name that is not plain is marked if a slot or publication would be named after it, so that `name` refuses it.
    """
    if not isinstance(tree, dict) or not isinstance(tree.get("name"), str):
        return tree
    name = tree["name"]
    if not _is_plain(name) and _NAME.fullmatch(name):
        tree = {**tree, "name": _marked(name, tree)}
    default = _derived(name)
    if "source" in tree:  # a missing section is reported as missing, not as incomplete
        tree = _with_default(tree, _SLOT, default)
        tree = _with_default(tree, _PUBLICATION, [default])
    if "sink" in tree:
        tree = _with_default(tree, ("sink", "transactional_id"), f"cdcd-{_at(tree, _SLOT) or default}")
    return tree


_SLOT, _PUBLICATION = ("source", "slot", "name"), ("source", "publication", "names")


def _marked(name: str, tree: Any) -> str:
    """Return the name, marked as ambiguous if slot or publication are not given."""
    unset = tuple(".".join(path) for path in (_SLOT, _PUBLICATION) if _at(tree, path) is None)
    if not unset:
        return name
    marked = _Ambiguous(name)
    marked.unset = unset
    return marked


def _at(tree: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        tree = tree.get(key) if isinstance(tree, dict) else None
    return tree


def _with_default(tree: Any, path: tuple[str, ...], value: object) -> Any:
    """Return a copy of `tree` with `value` at `path`, unless `path` is set or leads through a non-mapping."""
    if not isinstance(tree, dict):
        return tree
    key, *rest = path
    if not rest:
        return tree if key in tree else {**tree, key: value}
    return {**tree, key: _with_default(tree.get(key, {}), tuple(rest), value)}

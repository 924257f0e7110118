"""Options of the sink (Kafka) and of the schema registry.

Comes in: the `sink` and `registry` mappings.  Goes out: `Sink`, `Registry`.
Invariant: a property that delivery depends on (F63, F64) cannot be set, so no configuration disables exactly-once
by accident; a secret given as a file is read at each use.
Must not: connect, or import a Kafka client.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from cdcd.config.values import (
    Names,
    Properties,
    PropertyMap,
    Room,
    Secret,
    SecretFile,
    Size,
    SizeOrNone,
    Whole,
    derived,
    refuse,
    secret_reader,
)
from cdcd.secret_files import read_secret_file
from cdcd.sink.settings import FORCED_PROPERTIES

MIB = 1 << 20
OWNED_PROPERTIES = {**FORCED_PROPERTIES, "transaction.timeout.ms": "set sink.transaction_timeout_ms"}
OWNED_REGISTRY_PROPERTIES = {
    "url": "set registry.url",
    "basic.auth.user.info": "set registry.username and registry.password_file",
}
NO_REGISTRY = "none"
"""`registry.url` of a daemon that stores its schemas in a topic."""
_SERVER = re.compile(r"(?:[A-Za-z][A-Za-z0-9_]*://)?(?:\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):(\d{1,5})")
_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_PLACEHOLDERS = ("name", "schema", "table")


def _servers(value: str) -> str:
    for number, server in enumerate(value.split(","), start=1):
        match = _SERVER.fullmatch(server.strip())
        if match is None or not 0 < int(match[1]) < 65536:
            refuse(f"server {number} is not HOST:PORT", "write HOST:PORT,HOST:PORT")
    return ",".join(server.strip() for server in value.split(","))


def _transactional_id(value: str) -> str:
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,249}", value):
        refuse("a transactional id is 1 to 249 of letters, digits, '.', '_' and '-'")
    return value


def _template(value: str) -> str:
    found = _PLACEHOLDER.findall(value)
    for name in found:
        if name not in _PLACEHOLDERS:
            refuse(f"unknown placeholder {{{name}}}", "use {name}, {schema} and {table}")
    for name in ("schema", "table"):
        if name not in found:
            refuse(f"lacks {{{name}}}, so that two tables could share a topic")
    if not re.fullmatch(r"[A-Za-z0-9._-]*", _PLACEHOLDER.sub("", value)):
        refuse("has a character, outside placeholders, other than letters, digits, '.', '_' and '-'")
    return value


def _free_sink_property(name: str) -> str:
    if name in OWNED_PROPERTIES:
        refuse("cannot be set here", OWNED_PROPERTIES[name])
    return name


def _free_registry_property(name: str) -> str:
    if name in OWNED_REGISTRY_PROPERTIES:
        refuse("cannot be set here", OWNED_REGISTRY_PROPERTIES[name])
    return name


def _refuse_twice(properties: Mapping[str, str], secret_files: Mapping[str, Path]) -> None:
    twice = sorted(set(properties) & set(secret_files))
    if twice:
        refuse(f"{', '.join(twice)} is set both in properties and in secret_files", "keep one")


def _with_secrets(properties: Mapping[str, str], secret_files: Mapping[str, Path]) -> Properties:
    secrets = {name: read_secret_file(path) for name, path in secret_files.items()}
    return Properties({**properties, **secrets})


def _slots(names: tuple[str, ...]) -> tuple[str, ...]:
    for name in names:
        if not re.fullmatch(r"[a-z0-9_]{1,63}", name):
            refuse("names no slot: a slot's name is 1 to 63 of a-z, 0-9 and _")
    return names


SinkProperty = Annotated[str, AfterValidator(_free_sink_property)]
RegistryProperty = Annotated[str, AfterValidator(_free_registry_property)]


class Topics(Room):
    """The topics that rows are written to."""

    template: Annotated[str, AfterValidator(_template)] = Field(
        default="{name}.{schema}.{table}", description="template of the name of a table's topic"
    )
    create: bool = Field(default=True, description="create topics that are missing")
    partitions: Whole = Field(
        default=6, ge=1, description="partitions of a created topic; never change it afterwards"
    )
    replication_factor: Whole = Field(default=3, ge=1, le=32767, description="replicas of a created topic")
    properties: PropertyMap[str] = Field(
        default_factory=Properties,
        description="topic settings of a created topic, under Kafka's names",
        examples=[{"min.insync.replicas": "2"}],
    )
    shared_with: Annotated[Names, AfterValidator(_slots)] = Field(
        default=(),
        description="slots of other daemons whose topics this daemon may write to as well; none: it halts instead",
    )


STREAM_ROWS, SNAPSHOT_ROWS = 30_000, 60_000
"""Rows of a Kafka transaction. Nobody waits for one row of a snapshot, and each commit has a cost."""


class Commit(Room):
    """When a Kafka transaction ends: at the first limit, always at the end of a source transaction."""

    max_rows: Whole | None = Field(
        default=None,
        ge=1,
        description="end a Kafka transaction at this number of rows, at the end of a source transaction; "
        f"default: {STREAM_ROWS}, of an initial snapshot {SNAPSHOT_ROWS}",
        examples=[STREAM_ROWS],
    )
    max_bytes: Size = Field(
        default=16 * MIB,
        description="end a Kafka transaction at this number of bytes, at the end of a source transaction",
    )
    max_wait_ms: Whole = Field(
        default=0, ge=0, le=60000, description="wait at least this long for more rows before a commit"
    )


class LargeTransactions(Room):
    """The handling of a PostgreSQL transaction that is too large for one Kafka transaction."""

    policy: Literal["halt", "parts"] = Field(
        default="halt",
        description="parts: several Kafka transactions; readers may see the first before the last is committed",
    )
    max_rows: Whole = Field(default=0, ge=0, description="rows of one Kafka transaction; 0: no limit")
    max_bytes: SizeOrNone = Field(default=0, description="bytes of one Kafka transaction; 0: no limit")
    max_time_ms: Whole = Field(
        default=0,
        ge=0,
        description="maximum open time of one Kafka transaction; 0: two thirds of sink.transaction_timeout_ms",
    )


class Sink(Room):
    """The Kafka cluster that is written to."""

    bootstrap_servers: Annotated[str, AfterValidator(_servers)] = Field(
        description="brokers for the first connection: HOST:PORT,HOST:PORT",
        examples=["kafka-0.example.com:9092,kafka-1.example.com:9092"],
    )
    delivery: Literal["exactly_once", "at_least_once"] = Field(
        default="exactly_once", description="at_least_once: no Kafka transactions; a restart repeats rows"
    )
    transactional_id: Annotated[str, AfterValidator(_transactional_id)] = Field(
        default="",
        description="id of the transactional producer; default: cdcd- and the slot's name",
        json_schema_extra=derived,
    )
    transaction_timeout_ms: Whole = Field(
        default=900000,
        ge=10000,
        description="the broker aborts a transaction after this time; at most its transaction.max.timeout.ms",
    )
    topics: Topics = Field(default_factory=Topics, description="the topics that rows are written to")
    commit: Commit = Field(default_factory=Commit, description="when a Kafka transaction ends")
    large_transactions: LargeTransactions = Field(
        default_factory=LargeTransactions,
        description="transactions that are too large for one Kafka transaction",
    )
    too_large: Literal["halt", "dead_letter"] = Field(
        default="halt",
        description="a row above Kafka's size limit: halt; or dead_letter: write a marker instead of the row, "
        "and a record in the topic of dead letters",
    )
    properties: PropertyMap[SinkProperty] = Field(
        default_factory=Properties,
        description="properties of librdkafka, under its own names",
        examples=[{"security.protocol": "SASL_SSL", "compression.type": "zstd"}],
    )
    secret_files: dict[SinkProperty, SecretFile] = Field(
        default_factory=dict,
        description="properties of librdkafka whose values are in files, read at each connection",
        examples=[{"sasl.password": "/etc/cdcd/secrets/kafka-password"}],
    )

    @model_validator(mode="after")
    def _each_property_once(self) -> Sink:
        _refuse_twice(self.properties, self.secret_files)
        return self

    @model_validator(mode="after")
    def _within_the_timeout(self) -> Sink:
        if self.delivery != "exactly_once":
            return self
        timeout_ms = self.transaction_timeout_ms
        if self.large_transactions.max_time_ms >= timeout_ms:
            refuse(f"large_transactions.max_time_ms has to be below transaction_timeout_ms, {timeout_ms}")
        if self.commit.max_wait_ms * 2 > timeout_ms:
            refuse(f"commit.max_wait_ms has to be at most half of transaction_timeout_ms, {timeout_ms}")
        return self

    def read_properties(self) -> Properties:
        """Return librdkafka's properties with the secret files read now. Raises SecretUnreadable."""
        return _with_secrets(self.properties, self.secret_files)


# --- registry -----------------------------------------------------------------------------------------------


def registry_or_none(value: Any) -> Any:
    """Return the mapping for the short form `registry: none`, any other value unchanged."""
    return {"url": NO_REGISTRY} if value == NO_REGISTRY else value


def short_form(schema: dict[str, Any]) -> None:
    """Allow `registry: none` in the JSON Schema."""
    whole = {key: schema.pop(key) for key in ("$ref", "allOf") if key in schema}
    schema["anyOf"] = [whole, {"const": NO_REGISTRY}]


def _urls(value: str) -> str:
    if value == NO_REGISTRY:
        return value
    return ",".join(_url(one.strip()) for one in value.split(","))


def _url(value: str) -> str:
    try:
        parts = urlsplit(value)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        usable = False
    if not usable:
        refuse("is not an http or https URL", "write https://HOST:PORT, or none to use no registry")
    if "@" in parts.netloc:
        refuse("has credentials in it", "use username and password_file")
    if parts.query or parts.fragment:
        refuse("must not have a query or a fragment")
    return value.rstrip("/")


class Registry(Room):
    """The schema registry, Confluent's interface."""

    url: Annotated[str, AfterValidator(_urls)] = Field(
        description="base URL, or several with commas between them; none: schemas are stored in a topic",
        examples=["https://registry.example.com"],
    )
    auto_register: bool = Field(
        default=True, description="register schemas; false: they must be registered already"
    )
    subjects: Literal["topic_name", "record_name", "topic_record_name"] = Field(
        default="topic_name", description="how subjects are named: Confluent's strategies of these names"
    )
    normalize: bool = Field(
        default=False, description="let the registry normalize a schema before a lookup or registration"
    )
    compatibility: Literal[
        "BACKWARD", "BACKWARD_TRANSITIVE", "FORWARD", "FORWARD_TRANSITIVE", "FULL", "FULL_TRANSITIVE", "NONE"
    ] = Field(default="BACKWARD_TRANSITIVE", description="compatibility set on a subject when it is created")
    incompatible: Literal["halt", "new_topic", "register_with_none"] = Field(
        default="halt",
        description="an incompatible schema: halt, continue in <topic>.v2, or register it while the "
        "compatibility is NONE",
    )
    username: str | None = Field(default=None, description="user for basic authentication", examples=["cdcd"])
    password: Secret | None = Field(
        default=None,
        description="the user's password; password_file is safer",
        examples=["set-me-in-CDCD_REGISTRY__PASSWORD"],
    )
    password_file: SecretFile | None = Field(
        default=None,
        description="file with the user's password",
        examples=["/etc/cdcd/secrets/registry-password"],
    )
    token_file: SecretFile | None = Field(
        default=None,
        description="file with a bearer token; for OAuth set properties of the client",
        examples=["/etc/cdcd/secrets/registry-token"],
    )
    properties: PropertyMap[RegistryProperty] = Field(
        default_factory=Properties,
        description="further properties of the registry client, under its own names",
        examples=[{"ssl.ca.location": "/etc/cdcd/tls/ca.crt"}],
    )

    secret_files: dict[RegistryProperty, SecretFile] = Field(
        default_factory=dict,
        description="properties of the registry client whose values are in files, read at each connection",
        examples=[{"ssl.key.password": "/etc/cdcd/secrets/registry-key-password"}],
    )

    @model_validator(mode="after")
    def _a_subject_for_each_topic(self) -> Registry:
        if self.incompatible == "new_topic" and self.subjects == "record_name":
            refuse(
                "incompatible: new_topic needs subjects that are named after topics",
                "set subjects: topic_name",
            )
        if self.incompatible != "halt" and not self.auto_register:
            refuse(
                f"incompatible: {self.incompatible} registers schemas, but auto_register is false",
                "change one",
            )
        return self

    @model_validator(mode="after")
    def _each_property_once(self) -> Registry:
        _refuse_twice(self.properties, self.secret_files)
        return self

    @model_validator(mode="after")
    def _credentials(self) -> Registry:
        if self.password is not None and self.password_file is not None:
            refuse("the password is set more than once", "keep one of password, password_file")
        has_password = self.password is not None or self.password_file is not None
        if has_password != (self.username is not None):
            refuse("username and a password go together", "set username and password_file")
        if has_password and self.token_file is not None:
            refuse("both a password and a token are set", "keep one of password_file, token_file")
        named = {*self.properties, *self.secret_files} & {
            "bearer.auth.token",
            "bearer.auth.credentials.source",
        }
        if self.token_file is not None and named:
            refuse(f"both {', '.join(sorted(named))} and token_file are set", "keep one")
        return self

    @model_validator(mode="after")
    def _nothing_for_none(self) -> Registry:
        if self.is_none and (given := sorted(self.model_fields_set & _OF_A_SERVER)):
            refuse(f"{', '.join(given)} applies to a registry, but url is none", "omit it")
        return self

    @property
    def is_none(self) -> bool:
        """Whether there is no registry, so that the schemas are stored in a topic."""
        return self.url == NO_REGISTRY

    @property
    def read_password(self) -> Callable[[], str | None]:
        """A function that returns the password at each use, or None without authentication."""
        return secret_reader(self.password, self.password_file)

    @property
    def read_token(self) -> Callable[[], str | None]:
        """A function that returns the bearer token at each use, or None."""
        return secret_reader(None, self.token_file)

    def read_properties(self) -> Properties:
        """Return the client's properties with the secret files read now. Raises SecretUnreadable."""
        return _with_secrets(self.properties, self.secret_files)


_OF_A_SERVER = frozenset(Registry.model_fields) - {"url", "compatibility", "incompatible", "subjects"}
RegistryOption = Annotated[Registry, BeforeValidator(registry_or_none)]

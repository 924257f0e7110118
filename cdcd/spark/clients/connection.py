"""One description of a connection for all of cdcd.spark: Kafka, the prefix of the topics, the source of the schemas.

In: options (`connection_options`), among them the path of the daemon's own configuration.  Out: a `Connection`.
Invariant: a connection is an immutable value that may be pickled, shown, logged and used as a key: it has references
to secrets, never a secret. The code that creates a client reads the secrets: `read_properties` or `settings`.
Must not: connect, cache a secret.

The configuration is checked, and the registry's client made, by the daemon's code (`cdcd.config`, `cdcd.registry`): a
reader has to connect wherever the daemon does.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cdcd.property_names import (
    EXTENSIONS,
    FILE_PROPERTIES,
    has_user,
    is_of_a_producer,
    is_secret_property,
)
from cdcd.registry.settings import RegistrySettings
from cdcd.spark.clients.secret_reference import ResolvedProperties, SecretReference, UserInfo, Value, resolve

if TYPE_CHECKING:
    from cdcd.config import LoadedReader
    from cdcd.config.sink import Registry

Pairs = tuple[tuple[str, Value], ...]
SCHEMAS_SUFFIX = ".__schemas"
NO_REGISTRY = "none"
USER_INFO, TOKEN = "basic.auth.user.info", "bearer.auth.token"
_MAY_HAVE_SECRET = (EXTENSIONS, "url", "proxy", "username")


@dataclass(frozen=True, slots=True)
class RegistryAccess:
    """A registry: one URL or several with commas between them, and properties under its client's names."""

    url: str
    properties: Pairs = ()

    def settings(self) -> RegistrySettings:
        """Return the client's settings; the secrets are read now. Raises SecretUnreadable."""
        properties = resolve(self.properties, "schema.registry.")
        user, _, password = properties.pop(USER_INFO, "").partition(":")
        token = properties.pop(TOKEN, None)
        return RegistrySettings(
            self.url,
            username=user or None,
            read_password=lambda: password,
            read_token=lambda: token,
            read_properties=lambda: properties,
        )


@dataclass(frozen=True, slots=True)
class TopicAccess:
    """The schema topic of a daemon without a registry."""

    brokers: str
    topic: str
    properties: Pairs = ()

    def read_properties(self) -> ResolvedProperties:
        """Return librdkafka's properties; the secrets are read now. Raises SecretUnreadable."""
        return resolve(self.properties, "kafka.")


@dataclass(frozen=True, slots=True)
class GivenAccess:
    """Schemas that are given, for tests without a registry: texts by id, ids by subject with the oldest first."""

    texts: tuple[tuple[int, str], ...]
    subjects: tuple[tuple[str, tuple[int, ...]], ...]


SchemaAccess = RegistryAccess | TopicAccess | GivenAccess


@dataclass(frozen=True, slots=True)
class Connection:
    """Where the topics of one daemon are. `registry` None: not given; "none": the schemas are in a topic."""

    brokers: str
    prefix: str
    properties: Pairs = ()
    registry: RegistryAccess | GivenAccess | None | str = None

    def read_properties(self) -> ResolvedProperties:
        """Return librdkafka's properties; the secrets are read now. Raises SecretUnreadable."""
        return resolve(self.properties, "kafka.")

    @property
    def schemas(self) -> SchemaAccess | None:
        """The source of the schemas, None if none was given."""
        if isinstance(self.registry, str):
            return TopicAccess(self.brokers, self.prefix + SCHEMAS_SUFFIX, self.properties)
        return self.registry

    def options(self) -> dict[str, str]:
        """Return the connection as options for Spark, with references in place of secrets."""
        options = {"brokers": self.brokers, "prefix": self.prefix}
        options |= {f"kafka.{name}": str(value) for name, value in self.properties}
        if isinstance(self.registry, RegistryAccess):
            options["registry"] = self.registry.url
            options |= {f"schema.registry.{name}": str(value) for name, value in self.registry.properties}
        elif isinstance(self.registry, str):
            options["registry"] = self.registry
        return options


def is_secret(name: str, value: str) -> bool:
    """Return whether a property must not be shown: by its name, or because its value has a secret."""
    return (
        is_secret_property(name)
        or has_user(name, value)
        or (name.endswith(EXTENSIONS) and _has_secret(value))
    )


def may_have_secret(name: str) -> bool:
    """Return whether a property may be a reference: some value of it is a secret, or it is the user of a login."""
    return is_secret_property(name) or name.endswith(_MAY_HAVE_SECRET)


def _has_secret(extensions: str) -> bool:
    """Return whether one of these extensions of a login, NAME=VALUE with commas, has the name of a secret."""
    return any(is_secret_property(one.partition("=")[0]) for one in extensions.split(","))


@dataclass(frozen=True, slots=True)
class Parts:
    """A connection's parts in the daemon's configuration, before other options override them."""

    brokers: str
    prefix: str
    properties: dict[str, Value]
    registry: str
    registry_properties: dict[str, Value]


def parts_of(path: str, environ: Mapping[str, str]) -> Parts:
    """Return the parts that the daemon's configuration has, with absolute paths. Raises ConfigError."""
    from cdcd.config import load_reader  # the import takes a second, only for readers with a configuration

    path = os.path.abspath(path)
    loaded = load_reader(path, environ)
    sink, registry = loaded.config.sink, loaded.config.registry
    properties = _referred(path, "sink/properties", sink.properties)
    properties |= {name: _file(file) for name, file in sink.secret_files.items()}
    of_registry: dict[str, Value] = _referred(path, "registry/properties", registry.properties)
    of_registry |= {name: _file(file) for name, file in registry.secret_files.items()}
    password = _password(path, registry, loaded)
    if registry.username is not None and password is not None:
        of_registry[USER_INFO] = UserInfo(registry.username, password)
    if registry.token_file is not None:
        of_registry[TOKEN] = _file(registry.token_file)
    return Parts(
        brokers=sink.bootstrap_servers,
        prefix=loaded.config.name,
        properties={name: value for name, value in properties.items() if _is_of_a_reader(name)},
        registry=NO_REGISTRY if registry.is_none else registry.url,
        registry_properties=of_registry,
    )


def _is_of_a_reader(name: str) -> bool:
    """Return whether a reader takes this property of the daemon's Kafka clients.

    `message.max.bytes` limits requests: librdkafka refuses it to a consumer whose fetches are smaller.
    """
    return name != "message.max.bytes" and not is_of_a_producer(name)


def _password(path: str, registry: Registry, loaded: LoadedReader) -> SecretReference | None:
    if registry.password_file is not None:
        return _file(registry.password_file)
    if registry.password is None:
        return None
    variable = loaded.variables.get(("registry", "password"))
    if variable is not None:
        return SecretReference("env", variable)
    return SecretReference("config", f"{path}#registry/password")


def _referred(path: str, section: str, properties: Mapping[str, str]) -> dict[str, Value]:
    """Return the properties of a section with references to the secrets among them."""
    return {
        name: SecretReference("config", f"{path}#{section}/{name}")
        if is_secret(name, value)
        else os.path.abspath(value)
        if name in FILE_PROPERTIES and value != "probe"
        else value
        for name, value in properties.items()
    }


def _file(path: os.PathLike[str]) -> SecretReference:
    """Return the reference to a file; executors have other working directories."""
    return SecretReference("file", os.path.abspath(path))

"""A reference to a secret, and the secret itself, read when a client is created.

In: "file:PATH", "env:NAME", or "config:PATH#KEY/KEY" (a value in cdcd's configuration).  Out: the text of the secret.
Invariant: a reference may be pickled, shown and used as a key, because it has no secret; what was read is never
pickled or shown. Driver and executors read at their own hosts, so an error names the host as well as the file.
Must not: cache a secret, because the next client has to get a rotated one.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn, get_args

from cdcd.errors import ConfigError, SecretUnreadable
from cdcd.property_names import FILE_PROPERTIES, has_user, is_secret_property
from cdcd.redaction import STRUCK_OUT, add_secret, add_user_of
from cdcd.secret_files import read_secret_file

ReferenceKind = Literal["file", "env", "config"]
KINDS: tuple[ReferenceKind, ...] = get_args(ReferenceKind)
FORMS = "file:PATH or env:NAME"
_HINT = (
    "the driver and each executor read the file on their own hosts: put it there, readable for Spark's user, or name "
    "another file or variable (file:PATH, env:NAME, secret_files in cdcd's configuration)"
)


@dataclass(frozen=True, slots=True, repr=False)
class SecretReference:
    """The place of a secret; `str` is its form in an option."""

    kind: ReferenceKind
    place: str

    def __str__(self) -> str:
        return f"{self.kind}:{self.place}"

    __repr__ = __str__

    def read(self) -> str:
        """Return the secret. Raises SecretUnreadable, which names the place and this host."""
        if self.kind == "env":
            return self._noted(_variable(self.place))
        try:
            return (
                read_secret_file(Path(self.place)) if self.kind == "file" else self._noted(self._configured())
            )
        except SecretUnreadable as error:
            raise SecretUnreadable(error.message, hint=_HINT, **error.context, host=_host()) from error

    def _noted(self, secret: str) -> str:
        add_secret(secret, renews=str(self))
        return secret

    def _configured(self) -> str:
        from cdcd.config import value_at  # takes a second, which no other reference costs

        path, _, key = self.place.rpartition("#")
        try:
            return value_at(path, os.environ, tuple(key.split("/")))
        except ConfigError as error:
            why = "; ".join(error.problems) or error.message
            raise SecretUnreadable(
                f"a value of cdcd's configuration cannot be read ({why})", file=path
            ) from error


@dataclass(frozen=True, slots=True, repr=False)
class UserInfo:
    """A user of a registry, and the place of the password: USER:file:PATH."""

    user: str
    password: SecretReference

    def __str__(self) -> str:
        return f"{self.user}:{self.password}"

    __repr__ = __str__

    def read(self) -> str:
        """Return USER:PASSWORD. Raises SecretUnreadable."""
        return f"{self.user}:{self.password.read()}"


Value = str | SecretReference | UserInfo
"""The value of a property: a text that may be shown, or a reference."""


def reference_in(text: str) -> SecretReference | None:
    """Return the parsed reference, None for any other text."""
    for kind in KINDS:
        place = text.removeprefix(f"{kind}:")
        if place not in ("", text):
            return SecretReference(kind, place)
    return None


class ResolvedProperties(dict[str, str]):
    """Properties for a client library, with secrets: never shown, never pickled. `referred`: those of references."""

    def __init__(self, properties: Mapping[str, str], referred: Set[str] = frozenset()) -> None:
        super().__init__(properties)
        self._referred = frozenset(referred)

    def __repr__(self) -> str:
        return repr({name: STRUCK_OUT if self._is_secret(name) else one for name, one in self.items()})

    def _is_secret(self, name: str) -> bool:
        return name in self._referred or is_secret_property(name)

    __str__ = __repr__

    def __reduce_ex__(self, _protocol: object) -> NoReturn:
        raise TypeError("secrets are not serialised: send the connection, which has references")


def resolve(properties: tuple[tuple[str, Value], ...], of: str) -> ResolvedProperties:
    """Return the properties with their secrets read now. `of` is the prefix of the options' names, for an error.

    Raises SecretUnreadable, also for a file that the client would read.
    """
    read = {name: one if isinstance(one, str) else one.read() for name, one in properties}
    for name, value in read.items():
        if has_user(name, value):
            add_user_of(value)
    for name in FILE_PROPERTIES:
        path = read.get(name)
        if path not in (None, "probe") and not os.access(
            path, os.R_OK
        ):  # librdkafka looks for authorities itself
            raise SecretUnreadable(
                f"a file that {of}{name} names does not exist or cannot be read",
                hint=_HINT,
                file=path,
                host=_host(),
            )
    return ResolvedProperties(read, referred_in(properties))


def referred_in(properties: Iterable[tuple[str, Value]]) -> frozenset[str]:
    """Return the names of properties whose values are references."""
    return frozenset(name for name, one in properties if not isinstance(one, str))


def _variable(name: str) -> str:
    secret = os.environ.get(name)
    if not secret:
        raise SecretUnreadable(
            "an environment variable that has a secret is not set, or empty",
            hint="set it in the environment in which Spark's driver and executors are started (Spark shows the "
            "values of spark.executorEnv in its UI); or name a file: file:PATH",
            variable=name,
            host=_host(),
        )
    return secret


def _host() -> str:
    return socket.gethostname()

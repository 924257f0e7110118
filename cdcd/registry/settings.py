"""What the registry's client must be told, as plain values.

In: values that config has read.  Out: the client's properties.
Invariant: password and properties are read anew whenever a client is made, so that a rotated one is picked up.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

__all__ = ["RegistrySettings", "client_properties"]


def _no_password() -> str | None:
    return None


def _no_properties() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where the registry is and how schemas get there.

    `url` is the base of Confluent's interface (for Apicurio it ends in `/apis/ccompat/v7`). `compatibility`
    is set on a subject when cdcd creates it. `read_properties` gives the client's own names, passed on; it is
    asked whenever a client is made, as `read_password` is.
    """

    url: str
    auto_register: bool = True
    compatibility: str = "BACKWARD_TRANSITIVE"
    username: str | None = None
    read_password: Callable[[], str | None] = field(default=_no_password, repr=False)
    read_properties: Callable[[], Mapping[str, str]] = field(default=_no_properties, repr=False)
    request_timeout_s: float = 10.0


def client_properties(settings: RegistrySettings) -> dict[str, object]:
    """Return the client's properties: bounded requests, one repetition; the caller does the waiting."""
    properties: dict[str, object] = {
        "timeout": settings.request_timeout_s,
        "max.retries": 1,
        "retries.wait.ms": 100,
        **settings.read_properties(),
        "url": settings.url,
    }
    password = settings.read_password()
    if settings.username is not None:
        properties["basic.auth.user.info"] = f"{settings.username}:{password or ''}"
    return properties

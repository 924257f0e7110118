"""What the registry's client must be told, as plain values.

In: values that config has read.  Out: the client's properties.
Invariant: secrets and properties are read again whenever a client is made, so that a rotated one is picked up.
Must not: do I/O.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from cdcd.errors import ConfigError
from cdcd.redaction import add_credentials, add_secret

__all__ = ["RegistrySettings", "client_properties"]

_SOURCE = "bearer.auth.credentials.source"
_CLUSTER = "bearer.auth.logical.cluster"
_NUMBERS = frozenset(
    {
        "cache.capacity",
        "cache.latest.ttl.sec",
        "max.retries",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "timeout",
    }
)
_SECRETS = frozenset({"bearer.auth.client.secret", "bearer.auth.token", "ssl.key.password"})


def _no_secret() -> str | None:
    return None


def _no_properties() -> Mapping[str, str]:
    return {}


@dataclass(frozen=True, slots=True)
class RegistrySettings:
    """Where the registry is and how schemas get there.

    `url` is the base of Confluent's interface (for Apicurio it ends in `/apis/ccompat/v7`), or several of one
    registry with commas between them: the client asks the next when one does not answer. `compatibility` is set
    on a subject when cdcd creates it. `read_properties` gives the client's own names, passed on; it is asked
    whenever a client is made, as `read_password` and `read_token` (a bearer token) are.
    """

    url: str
    auto_register: bool = True
    compatibility: str = "BACKWARD_TRANSITIVE"
    normalize: bool = False
    registers_incompatible: bool = False
    """Whether cdcd itself may set a subject's level to NONE for a moment."""
    username: str | None = None
    read_password: Callable[[], str | None] = field(default=_no_secret, repr=False)
    read_token: Callable[[], str | None] = field(default=_no_secret, repr=False)
    read_properties: Callable[[], Mapping[str, str]] = field(default=_no_properties, repr=False)
    request_timeout_s: float = 10.0


def client_properties(settings: RegistrySettings) -> dict[str, object]:
    """Return the client's properties: bounded requests, one repetition; the caller does the waiting.

    Raises ConfigError for a property that is not the number it has to be.
    """
    properties: dict[str, object] = {
        "timeout": settings.request_timeout_s,
        "max.retries": 1,
        "retries.wait.ms": 100,
        **{name: _typed(name, value) for name, value in settings.read_properties().items()},
        "url": settings.url,
    }
    password, token = settings.read_password(), settings.read_token()
    if settings.username is not None:
        properties["basic.auth.user.info"] = f"{settings.username}:{password or ''}"
        add_credentials(settings.username, password or "", renews="registry.password")
    for name in _SECRETS & properties.keys():
        add_secret(str(properties[name]), renews=name)
    if "bearer.auth.client.secret" in properties:  # which the issuer is sent as basic authentication
        add_credentials(
            str(properties.get("bearer.auth.client.id", "")),
            str(properties["bearer.auth.client.secret"]),
            renews="bearer.auth.client.secret",
        )
    if token is not None:
        add_secret(token, renews="registry.token")
        properties |= {_SOURCE: "STATIC_TOKEN", "bearer.auth.token": token}
    if _SOURCE in properties:
        # The client insists on it, and only Confluent's own cloud has such a thing.
        properties.setdefault(_CLUSTER, "")
    return properties


def _typed(name: str, value: str) -> str | float:
    if name not in _NUMBERS:
        return value
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        raise ConfigError(f"registry.properties.{name}: expected a number") from None

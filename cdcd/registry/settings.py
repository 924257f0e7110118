"""The settings of the registry's client, as plain values.

In: values that config has read.  Out: the client's properties.
Invariant: secrets and properties are read again whenever a client is created, so that a rotated one takes effect.
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
    """The address of the registry and how schemas are registered there.

    `url` is the base of Confluent's interface (for Apicurio it ends in `/apis/ccompat/v7`), or a comma-separated list
    of addresses of one registry: the client tries the next one when one does not answer. `compatibility` is set on a
    subject when cdcd creates it. `read_properties` returns properties under the client's names, which are passed to
    it; it is called whenever a client is created, as are `read_password` and `read_token` (a bearer token).
    """

    url: str
    auto_register: bool = True
    compatibility: str = "BACKWARD_TRANSITIVE"
    normalize: bool = False
    registers_incompatible: bool = False
    """Whether cdcd may temporarily set a subject's level to NONE."""
    username: str | None = None
    read_password: Callable[[], str | None] = field(default=_no_secret, repr=False)
    read_token: Callable[[], str | None] = field(default=_no_secret, repr=False)
    read_properties: Callable[[], Mapping[str, str]] = field(default=_no_properties, repr=False)
    request_timeout_s: float = 10.0


def client_properties(settings: RegistrySettings) -> dict[str, object]:
    """Return the client's properties: limited requests with one retry; the caller implements longer retries.

    Raises ConfigError for a property that must be a number and is not.
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
    if "bearer.auth.client.secret" in properties:  # the client sends it to the issuer as basic authentication
        add_credentials(
            str(properties.get("bearer.auth.client.id", "")),
            str(properties["bearer.auth.client.secret"]),
            renews="bearer.auth.client.secret",
        )
    if token is not None:
        add_secret(token, renews="registry.token")
        properties |= {_SOURCE: "STATIC_TOKEN", "bearer.auth.token": token}
    if _SOURCE in properties:
        # Confluent's client requires it, although only Confluent Cloud has logical clusters.
        properties.setdefault(_CLUSTER, "")
    return properties


def _typed(name: str, value: str) -> str | float:
    if name not in _NUMBERS:
        return value
    try:
        return float(value) if "." in value else int(value)
    except ValueError:
        raise ConfigError(f"registry.properties.{name}: expected a number") from None

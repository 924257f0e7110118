"""Options of format("cdcd") and of the mirror, by Kafka's and Confluent's usual names, to a `Connection`.

In: names (in any case) and values; `config` names the daemon's own file, which the other options override.
Out: a `Connection`, or one ConfigError that has every problem, with the nearest known name of an unknown option.
Invariant: a secret in clear is refused, also one that Spark's own redaction would hide: Spark shows the options of a
query in its plan, its event log and its UI.
Must not: connect, read a secret.

A problem never has the form "NAME: text" or "NAME=text": that would be struck out as the value of a secret.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from urllib.parse import urlsplit

from cdcd.errors import ConfigError
from cdcd.spark.clients.client_errors import unknown_properties
from cdcd.spark.clients.connection import (
    NO_REGISTRY,
    USER_INFO,
    Connection,
    Parts,
    RegistryAccess,
    is_secret,
    may_have_secret,
    parts_of,
)
from cdcd.spark.clients.secret_reference import FORMS, UserInfo, Value, reference_in

_KAFKA, _REGISTRY = "kafka.", "schema.registry."
_SERVERS, _URL, _SOURCE = "kafka.bootstrap.servers", "schema.registry.url", "basic.auth.credentials.source"
_AUTHENTICATION = ("basic.auth.", "bearer.auth.")
OWN = frozenset({"config", "brokers", "prefix", "registry", _SERVERS, _URL})
OF_REGISTRY = frozenset(
    {
        _SOURCE,
        USER_INFO,
        "bearer.auth.client.id",
        "bearer.auth.client.secret",
        "bearer.auth.credentials.source",
        "bearer.auth.identity.pool.id",
        "bearer.auth.issuer.endpoint.url",
        "bearer.auth.logical.cluster",
        "bearer.auth.scope",
        "bearer.auth.token",
        "max.retries",
        "proxy",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "timeout",
    }
)
"""Properties of the registry's client; the first is of Java's client."""
_FORCED = {
    "isolation.level": "readers get committed records only",
    "enable.auto.commit": "the positions are in Spark's checkpoint",
    "enable.auto.offset.store": "the positions are in Spark's checkpoint",
    "enable.partition.eof": "the reader finds the end of a range by it",
    "auto.offset.reset": "removed records are an error, not a jump",
}
_RUNS_CODE = frozenset(
    {"plugin.library.paths", "ssl.engine.location", "ssl.providers", "sasl.kerberos.kinit.cmd"}
)
"""Who sets the options may be a user of SQL. In the daemon's configuration these are allowed."""
_USUAL_NAMES = """
    security.protocol sasl.mechanism sasl.mechanisms sasl.username sasl.password sasl.oauthbearer.method
    sasl.oauthbearer.client.id sasl.oauthbearer.client.secret sasl.oauthbearer.token.endpoint.url
    sasl.oauthbearer.scope sasl.oauthbearer.extensions sasl.kerberos.keytab sasl.kerberos.principal
    sasl.kerberos.service.name ssl.ca.location ssl.certificate.location ssl.key.location ssl.key.password
    ssl.keystore.location ssl.keystore.password ssl.crl.location ssl.endpoint.identification.algorithm
    ssl.cipher.suites client.id client.rack group.id socket.timeout.ms socket.keepalive.enable
    broker.address.family fetch.wait.max.ms fetch.max.bytes fetch.message.max.bytes fetch.min.bytes
    max.partition.fetch.bytes queued.min.messages queued.max.messages.kbytes
"""
_USUAL = _USUAL_NAMES.split()
"""Usual properties of librdkafka, only to find the nearest name."""
_INSTEAD = {
    "kafka.sasl.jaas.config": "kafka.sasl.username and kafka.sasl.password",
    "kafka.sasl.login.callback.handler.class": "kafka.sasl.oauthbearer.method: oidc",
    "kafka.ssl.truststore.location": "kafka.ssl.ca.location, a PEM file",
    "kafka.ssl.truststore.certificates": "kafka.ssl.ca.location, a PEM file",
    "kafka.ssl.truststore.password": "kafka.ssl.ca.location, a PEM file, which needs no password",
    "kafka.ssl.truststore.type": "kafka.ssl.ca.location, a PEM file",
    "kafka.ssl.keystore.type": "kafka.ssl.keystore.location, a PKCS#12 file",
    "schema.registry.ssl.truststore.location": "schema.registry.ssl.ca.location, a PEM file",
    "schema.registry.ssl.truststore.password": "schema.registry.ssl.ca.location, a PEM file, which needs no password",
    "schema.registry.ssl.keystore.location": "schema.registry.ssl.certificate.location, a PEM file",
    "schema.registry.ssl.keystore.password": "schema.registry.ssl.key.password",
    "subscribe": "topics",
    "maxoffsetspertrigger": "maxRows",
}
"""Names of Java's clients and of Spark's Kafka source."""


def connection_from(
    options: Mapping[str, str],
    others: Iterable[str] = (),
    *,
    found: Iterable[str] = (),
    environ: Mapping[str, str] = os.environ,
) -> Connection:
    """Return the connection. Raises ConfigError.

    `others` are further options that the caller accepts, `found` the problems that it has found in them.
    """
    given = {name.lower(): value for name, value in options.items()}
    problems = [*_unknown(given, frozenset(others)), *found, *_in_clear(given), *_twice(given)]
    parts = _configured(given, environ, problems)
    if parts is None:
        raise _unusable(problems)
    brokers = given.get(_SERVERS) or given.get("brokers") or parts.brokers
    prefix = given.get("prefix") or parts.prefix
    problems += [
        f"option {name} is required, or config with the path of the daemon's configuration"
        for name, value in (("brokers", brokers), ("prefix", prefix))
        if not value
    ]
    properties = parts.properties | _of_kafka(given)
    registry = _registry(given, parts, properties, problems)
    if problems:
        raise _unusable(problems)
    return Connection(brokers, prefix, tuple(sorted(properties.items())), registry)


def _configured(given: Mapping[str, str], environ: Mapping[str, str], problems: list[str]) -> Parts | None:
    """Return the parts of the daemon's configuration, empty ones without it, None where it has problems."""
    if "config" not in given:
        return Parts("", "", {}, "", {})
    try:
        return parts_of(given["config"], environ)
    except ConfigError as error:
        problems += error.problems or [error.message]
        return None


def _unusable(problems: list[str]) -> ConfigError:
    return ConfigError(
        "the options cannot be used: " + "; ".join(problems),
        tuple(problems),
        hint="correct each one; docs/spark/connect.md has a table of the options",
    )


# --- names ---------------------------------------------------------------------------------------------------


def _unknown(given: Mapping[str, str], others: frozenset[str]) -> Iterator[str]:
    known = OWN | others
    foreign = unknown_properties(
        name.removeprefix(_KAFKA)
        for name in given
        if name.startswith(_KAFKA) and name not in _INSTEAD and name != _SERVERS
    )
    lowered = {name.lower() for name in known}
    for name in given:
        bare = name.removeprefix(_KAFKA)
        if name in lowered or _registry_name(name) in OF_REGISTRY:
            continue
        if bare != name and bare in _RUNS_CODE:
            yield f"option {name} cannot be set - it makes each executor run a program or a library"
        elif bare != name and bare in _FORCED:
            yield f"option {name} cannot be set - {_FORCED[bare]}"
        elif bare == name or bare in foreign or name in _INSTEAD:
            yield (
                "load() takes no path: name the tables in the option table"
                if name.lower() == "path"
                else f"option {name} is unknown{_nearest(name, known)}"
            )


def _registry_name(name: str) -> str | None:
    """Return the name of a property of the registry's client, without the prefix that some have."""
    if name.startswith(_REGISTRY):
        return name.removeprefix(_REGISTRY)
    return name if name.startswith(_AUTHENTICATION) else None


def _nearest(name: str, known: frozenset[str]) -> str:
    instead = _INSTEAD.get(name)
    if instead is None:
        names = [*known, *(_KAFKA + one for one in _USUAL), *(_REGISTRY + one for one in OF_REGISTRY)]
        names += [one for one in OF_REGISTRY if one.startswith(_AUTHENTICATION)]
        shown = {one.lower(): one for one in names}
        close = difflib.get_close_matches(name, shown, n=1, cutoff=0.6)
        instead = shown[close[0]] if close else None
    return "" if instead is None else f" - did you mean {instead}?"


def _twice(given: Mapping[str, str]) -> Iterator[str]:
    for name, usual in (("brokers", _SERVERS), ("registry", _URL)):
        if given.get(name, given.get(usual)) != given.get(usual, given.get(name)):
            yield f"options {name} and {usual} are the same option, but have different values - keep one"


# --- values --------------------------------------------------------------------------------------------------


def _in_clear(given: Mapping[str, str]) -> Iterator[str]:
    for name, value in given.items():
        if name in (_URL, "registry") and "@" in value:
            yield f"option {name} has credentials in it - set {USER_INFO} to USER:file:PATH or USER:env:NAME"
        elif name in (_SERVERS, "brokers") and "@" in value:
            yield f"option {name} has credentials in it - set kafka.sasl.username and kafka.sasl.password"
        elif _is_in_clear(name, value):
            user = "USER:" if _registry_name(name) == USER_INFO else ""
            forms = " or ".join(user + form for form in FORMS.split(" or "))
            yield (
                f"option {name} is a secret in clear, which Spark would show in its plans and UI - write {forms}; "
                "if it was in a statement of SQL, Spark may have logged it: change the secret"
            )


def _is_in_clear(name: str, value: str) -> bool:
    is_property = name.startswith(_KAFKA) or _registry_name(name) is not None
    return (
        is_property
        and name not in _INSTEAD
        and is_secret(name, value)
        and isinstance(_value(name, value), str)
    )


def _value(name: str, text: str) -> Value:
    """Return the value of a property; only one that may have a secret may be a reference."""
    if not may_have_secret(name):
        return text
    reference = reference_in(text)
    if reference is None and _registry_name(name) == USER_INFO:
        user, _, password = text.partition(":")
        referred = reference_in(password)
        return text if referred is None or not user else UserInfo(user, referred)
    return text if reference is None else reference


def _of_kafka(given: Mapping[str, str]) -> dict[str, Value]:
    return {
        name.removeprefix(_KAFKA): _value(name, value)
        for name, value in given.items()
        if name.startswith(_KAFKA) and name != _SERVERS
    }


# --- the registry --------------------------------------------------------------------------------------------


def _registry(
    given: Mapping[str, str], parts: Parts, kafka: Mapping[str, Value], problems: list[str]
) -> RegistryAccess | str | None:
    url = given.get(_URL) or given.get("registry") or parts.registry
    mine = {
        bare: _value(name, value)
        for name, value in given.items()
        if (bare := _registry_name(name)) in OF_REGISTRY and bare is not None
    }
    if not url or url == NO_REGISTRY:
        problems += [
            f"option {name} applies to a registry, but no registry is set - set {_URL}" for name in mine
        ]
        return url or None
    problems += [f"option {_URL} {why}" for one in url.split(",") if (why := _no_url(one.strip()))]
    properties = dict(parts.registry_properties)
    for method in _AUTHENTICATION:  # one way to authenticate replaces the other
        if any(name.startswith(method) for name in mine):
            properties = {
                name: one for name, one in properties.items() if not name.startswith(_AUTHENTICATION)
            }
    properties |= mine
    properties |= _inherited(properties, kafka, problems)
    properties.pop(_SOURCE, None)
    return RegistryAccess(
        ",".join(one.strip().rstrip("/") for one in url.split(",")), tuple(sorted(properties.items()))
    )


def _inherited(
    properties: Mapping[str, Value], kafka: Mapping[str, Value], problems: list[str]
) -> dict[str, Value]:
    """Return the credentials that `basic.auth.credentials.source` names, where they are not in `user.info`."""
    source = properties.get(_SOURCE, "USER_INFO")
    if source == "SASL_INHERIT":
        user, password = kafka.get("sasl.username"), kafka.get("sasl.password")
        if isinstance(user, str) and password is not None and not isinstance(password, str | UserInfo):
            return {USER_INFO: UserInfo(user, password)}
        problems.append(f"option {_SOURCE} SASL_INHERIT needs kafka.sasl.username and kafka.sasl.password")
    elif source == "USER_INFO" and _SOURCE in properties and USER_INFO not in properties:
        problems.append(f"option {_SOURCE} USER_INFO needs {USER_INFO}")
    elif source not in ("USER_INFO", "SASL_INHERIT"):
        problems.append(f"option {_SOURCE} has to be USER_INFO or SASL_INHERIT")
    return {}


def _no_url(url: str) -> str:
    """Return why a text is no URL of a registry, "" if it is one."""
    try:
        parts = urlsplit(url)
        if parts.query or parts.fragment:
            return (
                "has a query or a fragment, which no registry needs and which may be a secret - write only "
                "https://HOST:PORT"
            )
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_url = False
    return (
        ""
        if is_url
        else "is not an http or https URL - write https://HOST:PORT, or none: cdcd has no registry"
    )

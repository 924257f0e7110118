"""librdkafka's errors in the words of a reader: which option to correct.

In: errors that a client reported, or raised when it was created; names of properties.  Out: cdcd's errors; the names
that librdkafka does not have.
Invariant: no value of a property is in a message, unless librdkafka's own text has it and it is not a secret.
Must not: decide whether a request is repeated.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

from confluent_kafka import Consumer, KafkaError, KafkaException

from cdcd.errors import ConfigError, SinkAuthorization

_UNKNOWN = re.compile(r'No such configuration property: "([^"]*)"')
_QUOTED = re.compile(r'"([^"]*)"')
_CALLBACKS = frozenset({"error_cb", "log_cb", "logger", "oauth_cb", "stats_cb", "throttle_cb", "on_commit"})
_LOADED = "plugin.library.paths"
_WHERE = "in cdcd's configuration sink.properties and sink.secret_files"
_CREDENTIALS = (
    f"correct kafka.sasl.mechanism, kafka.sasl.username and kafka.sasl.password ({_WHERE}); the secret is read again "
    "at each start"
)
_RIGHTS = "grant the principal Read and Describe on the topics of the prefix, also on <prefix>.__progress"
TLS_HINT = (
    "correct kafka.security.protocol, kafka.ssl.ca.location and the other kafka.ssl options "
    f"({_WHERE}), or the names in the brokers' certificates"
)
_HINTS = {
    KafkaError._AUTHENTICATION: _CREDENTIALS,
    KafkaError.SASL_AUTHENTICATION_FAILED: _CREDENTIALS,
    KafkaError.UNSUPPORTED_SASL_MECHANISM: _CREDENTIALS,
    KafkaError.ILLEGAL_SASL_STATE: _CREDENTIALS,
    KafkaError.TOPIC_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: _RIGHTS,
    KafkaError._SSL: TLS_HINT,
}


def refusal(
    reported: Iterable[KafkaError], refused: str, topic: str | None = None
) -> SinkAuthorization | None:
    """Return the first error that requires a correction of the options; `refused` is the failed request."""
    for error in reported:
        hint = _HINTS.get(error.code())
        if hint is not None:
            named = {} if topic is None else {"topic": topic}
            return SinkAuthorization(f"{refused}: {error.str()}", hint=hint, kafka=error.name(), **named)
    return None


def cause_of(reported: Iterable[KafkaError]) -> str | None:
    """Return the last errors of the connections, if they say more than that no broker answers."""
    texts = [error.str() for error in reported if error.code() != KafkaError._ALL_BROKERS_DOWN]
    return texts[-1] if texts else None


def is_about_tls(cause: str | None) -> bool:
    """Return whether a broker that does not answer expects another protocol, or a certificate."""
    return cause is not None and any(
        word in cause.lower() for word in ("security.protocol", "ssl", "certificate")
    )


@contextmanager
def making_client() -> Iterator[None]:
    """Translate librdkafka's error about the properties of a client that is created inside the block."""
    try:
        yield
    except KafkaException as failure:
        raise ConfigError(
            f"librdkafka refuses the connection's properties: {failure.args[0].str()}",
            hint=f"correct the option kafka.NAME ({_WHERE})",
        ) from failure


def unknown_properties(names: Iterable[str]) -> set[str]:
    """Return the names that librdkafka refuses. The installed librdkafka answers, because its versions differ."""
    left = dict.fromkeys(name for name in names if name != _LOADED)
    unknown = left.keys() & _CALLBACKS
    left = {name: None for name in left if name not in unknown}
    while left:
        try:
            Consumer({**left, "group.id": "unused", "log_level": 0}).close()
            break
        except KafkaException as failure:
            text = failure.args[0].str()
            found = _UNKNOWN.search(text)
            if found:
                unknown |= {found[1]}
            known = [
                name for name in _QUOTED.findall(text) if name in left
            ]  # librdkafka has the property, and refuses the empty value
            if not known:
                break
            del left[known[0]]
    return unknown

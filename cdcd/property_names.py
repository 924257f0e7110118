"""What the names of the client libraries' properties say: a secret, a file, an address, a producer's own.

In: the name of a property of librdkafka or of the registry's client.  Out: its kind.
Invariant: a property whose name is not known is a secret if one of its words is a secret's.
Must not: know the value of a property, except whether an address has a user.

The daemon (`cdcd.config`, `cdcd.sink`) and the readers of its topics (`cdcd.spark`) need the same answers, and
`cdcd.spark` must not import the sink: therefore this module is below both.
"""

from __future__ import annotations

import re

__all__ = [
    "ADDRESSES",
    "EXTENSIONS",
    "FILE_PROPERTIES",
    "NO_SECRETS",
    "SECRET_WORDS",
    "URL_USER",
    "has_user",
    "is_of_a_producer",
    "is_secret_property",
]

FILE_PROPERTIES = (
    "ssl.ca.location",
    "ssl.certificate.location",
    "ssl.crl.location",
    "ssl.key.location",
    "ssl.keystore.location",
    "https.ca.location",
    "sasl.kerberos.keytab",
    "sasl.oauthbearer.assertion.jwt.template.file",
    "sasl.oauthbearer.assertion.private.key.file",
)
"""Properties that name a file (ssl.ca.location also a directory). librdkafka reads it when it creates a client."""

SECRET_WORDS = (
    "pass",
    "word",
    "pwd",
    "secret",
    "key.pem",
    "token",
    "credential",
    "user.info",
    "oauthbearer.config",
    "jaas",
    "scram_",
)
"""A property with one of them in its name, in any case, is a secret; `scram_` is of libpq's keys."""
NO_SECRETS = ("location", "endpoint.url", "credentials.source", ".client.id")
"""The ends of names of properties that are no secrets although they have such a word."""
ADDRESSES = ("endpoint", "proxy", "uri", "url")
"""The ends of names of properties whose values are addresses, with or without a scheme."""
URL_USER = r"://[^/@\s]*@"
"""The regular expression of a user in a URL, perhaps with a password."""
EXTENSIONS = "sasl.oauthbearer.extensions"
"""A property whose value has names and values of its own: NAME=VALUE, with commas."""
_PRODUCER_PREFIXES = ("batch.", "compression.", "queue.buffering.", "sticky.partitioning.")
_PRODUCER = frozenset(
    {
        "linger.ms",
        "compression.codec",
        "compression.type",
        "delivery.timeout.ms",
        "message.timeout.ms",
        "request.timeout.ms",
        "message.copy.max.bytes",
    }
)


def is_secret_property(name: str) -> bool:
    """Return whether a client library's property of this name is a secret."""
    lowered = name.lower()
    return any(word in lowered for word in SECRET_WORDS) and not lowered.endswith(NO_SECRETS)


def has_user(name: str, value: str) -> bool:
    """Return whether a value is an address with a user, perhaps a password: a URL, or a proxy, as user@host."""
    return re.search(URL_USER, value) is not None or ("@" in value and name.lower().endswith(ADDRESSES))


def is_of_a_producer(name: str) -> bool:
    """Return whether only a producer of librdkafka has this property."""
    return name in _PRODUCER or name.startswith(_PRODUCER_PREFIXES)

"""Schemas from a registry with the Confluent API, with the daemon's own client: several URLs, every authentication.

In: a `RegistryAccess`, an id or a subject.  Out: schemas, as registered.
Invariant: an outage is logged and waited for, a limited time, because a registry (without one: cdcd's admin port) may
be restarted. An error that requires a correction (credentials, certificates, a wrong address) is raised at once, with
a hint. After a refusal the secrets are read again.
Must not: register anything; only the daemon registers.
"""

from __future__ import annotations

import contextlib
import logging
import ssl
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from cdcd.errors import CdcdError, ConfigError, RegistryRefused, RegistryUnavailable
from cdcd.redaction import clean
from cdcd.registry.client import is_transport, new_client
from cdcd.registry.rest import Client, RegisteredSchema, RegistryErrorAnswer, TokenUnavailable
from cdcd.registry.settings import client_properties
from cdcd.spark.clients.connection import RegistryAccess
from cdcd.spark.decoding.schema_source import Version

log = logging.getLogger("cdcd.spark.registry")
RETRY_TIMEOUT_S = 120.0
PAUSE_S = 1.0
_T = TypeVar("_T")
_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND, SCHEMA_NOT_FOUND = 40401, 40402, 40403
_AGAIN = frozenset({408, 425, 429})
_UNAUTHORISED = frozenset({401, 403})
_BROKEN_OFF = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
_MOST_CHARACTERS = 500
_CREDENTIALS_HINT = (
    "correct basic.auth.user.info or bearer.auth.token (in cdcd's configuration registry.username and password_file, "
    "or token_file), or grant the user the right to read"
)
_ADDRESS_HINT = (
    "correct the registry's URL and its path (schema.registry.url; in cdcd's configuration registry.url)"
)
_TLS_HINT = (
    "let schema.registry.ssl.ca.location name the authority of the registry's certificate, and the URL a host that "
    "the certificate names; a registry that asks for a certificate needs schema.registry.ssl.certificate.location "
    "and ssl.key.location (in cdcd's configuration registry.properties)"
)
_LOST_HINT = (
    "read from the registry that cdcd writes to (registry.url in its configuration): this one does not belong to the "
    "topics, or has lost its schemas"
)
_AWAY_HINT = "start the registry, or correct schema.registry.url and the network; then start the query again"


class RegistrySchemas:
    """A `SchemaSource`. Errors: RegistryUnavailable, RegistryRefused, ConfigError, SecretUnreadable."""

    def __init__(self, access: RegistryAccess) -> None:
        self._access = access
        self._client: Client | None = None
        self._lock = threading.Lock()

    def by_id(self, number: int) -> str:
        """Return the text of the schema with this id."""
        return _avro(self._ask(lambda client: client.by_id(number), schema_id=number), schema_id=number)

    def newest(self, subject: str) -> Version | None:
        """Return the newest version of a subject, None if the registry does not have the subject."""
        try:
            found = self._ask(lambda client: client.version(subject, None), subject=subject)
            number = self._ask(lambda client: client.versions(subject), subject=subject)[-1]
        except RegistryRefused as refused:
            if refused.context.get("error_code") in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND):
                return None
            raise
        return self._version(found, subject, number)

    def versions(self, subject: str) -> list[Version]:
        """Return the versions of a subject, the oldest first; none if the registry does not have the subject."""
        try:
            numbers = self._ask(lambda client: client.versions(subject), subject=subject)
        except RegistryRefused as refused:
            if refused.context.get("error_code") == _SUBJECT_NOT_FOUND:
                return []
            raise
        return [self._numbered(subject, number) for number in sorted(numbers)]

    def _numbered(self, subject: str, number: int) -> Version:
        found = self._ask(lambda client: client.version(subject, number), subject=subject)
        return self._version(found, subject, number)

    def _version(self, found: RegisteredSchema, subject: str, number: int) -> Version:
        if found.schema_id is None:
            raise _no_registry(self._access, subject=subject)
        return Version(subject, number, found.schema_id, _avro(found, subject=subject))

    # --- requests ---

    def _ask(self, request: Callable[[Client], _T], **context: object) -> _T:
        deadline_s = time.monotonic() + RETRY_TIMEOUT_S
        is_waiting = False
        while True:
            was_connected = self._client is not None
            try:
                return self._once(request, context)
            except RegistryUnavailable as error:
                if time.monotonic() > deadline_s:
                    raise
                if not is_waiting:
                    log.warning("trying again for %.0f s: %s", RETRY_TIMEOUT_S, error)
                is_waiting = True
            except RegistryRefused as refused:
                if refused.context.get("status") not in _UNAUTHORISED or not was_connected:
                    raise
                continue  # the secret may have been rotated since the client was made
            time.sleep(PAUSE_S)

    def _once(self, request: Callable[[Client], _T], context: dict[str, object]) -> _T:
        client = self._connected()
        try:
            return request(client)
        except RegistryErrorAnswer as answer:
            if answer.status in _UNAUTHORISED:
                self._close()
            raise _refusal(answer, self._access, context) from answer
        except TokenUnavailable as error:
            self._close()
            raise RegistryUnavailable(
                "the issuer gave no OAuth token",
                hint="check bearer.auth.issuer.endpoint.url, and the client's id and secret",
            ) from error
        except Exception as error:
            raise _failure(error, self._access, context) from error

    def _connected(self) -> Client:
        with self._lock:
            if self._client is None:
                properties = client_properties(self._access.settings())
                try:
                    self._client = new_client(properties)
                except (OSError, TypeError, ValueError) as error:
                    raise ConfigError(
                        f"the registry's client refuses its properties: {_shown(error)}",
                        hint="correct the option schema.registry.NAME (in cdcd's configuration registry.properties)",
                    ) from error
            return self._client

    def _close(self) -> None:
        with self._lock:
            client, self._client = self._client, None
        if client is not None:
            with contextlib.suppress(OSError):
                client.close()


# --- errors --------------------------------------------------------------------------------------------------


def _refusal(answer: RegistryErrorAnswer, access: RegistryAccess, context: dict[str, object]) -> CdcdError:
    status, code, words = answer.status, answer.code, clean(answer.message, _MOST_CHARACTERS)
    shown = {**context, "status": status, "url": access.url}
    if status >= 500 or status in _AGAIN:
        return RegistryUnavailable(f"the registry fails: {words}", hint=_AWAY_HINT, **shown)
    shown["error_code"] = code
    if status in _UNAUTHORISED:
        return RegistryRefused(f"the registry refuses the login: {words}", hint=_CREDENTIALS_HINT, **shown)
    if code == SCHEMA_NOT_FOUND:
        return RegistryRefused("the registry has no schema with this id", hint=_LOST_HINT, **shown)
    if code in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND):
        return RegistryRefused("the registry has no such subject", hint=_LOST_HINT, **shown)
    return _no_registry(access, **context, status=status)


def _no_registry(access: RegistryAccess, **context: object) -> RegistryRefused:
    return RegistryRefused(
        "the server at the registry's URL does not answer as a schema registry",
        hint=_ADDRESS_HINT,
        **context,
        url=access.url,
    )


def _failure(error: Exception, access: RegistryAccess, context: dict[str, object]) -> Exception:
    """Return cdcd's error for one that a client raised without a reply, or the error itself if it is a defect."""
    refused = _tls_refusal(error)
    if refused is not None:
        return RegistryRefused(
            f"no TLS connection with the registry: {_shown(refused)}",
            hint=_TLS_HINT,
            **context,
            url=access.url,
        )
    if is_transport(error):
        return RegistryUnavailable(
            f"the registry cannot be reached: {_shown(error)}", hint=_AWAY_HINT, **context, url=access.url
        )
    if isinstance(error, KeyError | RecursionError | TypeError | ValueError):
        return _no_registry(access, **context)
    return error


def _tls_refusal(error: BaseException | None) -> ssl.SSLError | None:
    """Return the TLS error among the causes that the same attempt would meet again."""
    seen = 0
    while error is not None and seen < 10:
        if isinstance(error, ssl.SSLError) and not isinstance(error, _BROKEN_OFF):
            return error
        error, seen = error.__cause__ or error.__context__, seen + 1
    return None


def _shown(error: Exception) -> str:
    return clean(f"{type(error).__name__}: {error}", _MOST_CHARACTERS)


def _avro(found: RegisteredSchema, **context: object) -> str:
    if found.kind != "AVRO" or not found.text:
        raise RegistryRefused(
            "a registered schema is not Avro",
            hint="another program has registered it: cdcd writes only Avro",
            **context,
            kind=found.kind,
        )
    return found.text

"""The requests that cdcd sends to a registry with Confluent's interface.

In: a request's values.  Out: the registry's reply, as plain values; `RegistryErrorAnswer` for an error reply.
Invariant: a request is repeated only without a reply, or after a reply with a retriable status, `max.retries` times
for each of the registry's addresses. An address that did not answer in time is not the first one for a minute, so
that not each request waits for it. Connections stay open between requests: as many as there were concurrent
requests, at most CONNECTIONS, each used by one thread at a time. A request with its complete reply takes no longer
than `timeout`, and the size of a reply is limited (`limits`).
Must not: cache a reply, interpret an error.
Wire source: Confluent's schema registry API: /subjects, /config; errors are {"error_code": ..., "message": ...}.

Confluent's client includes OAuth, which costs 17 MiB of memory and a third of a second at each start. So it is used
only for features that it alone has (`confluent_client`).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
import os
import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple, Protocol
from urllib.parse import quote, urlsplit

import certifi

from cdcd.registry.limits import Deadline, paced_response, read_body
from cdcd.version import __version__

__all__ = [
    "Client",
    "RegisteredSchema",
    "RegistryErrorAnswer",
    "RestClient",
    "TokenUnavailable",
    "TooManyVersions",
    "is_plain",
]

_PLAIN = frozenset(
    {
        "basic.auth.user.info",
        "bearer.auth.credentials.source",
        "bearer.auth.identity.pool.id",
        "bearer.auth.logical.cluster",
        "bearer.auth.token",
        "cache.capacity",
        "cache.latest.ttl.sec",
        "max.retries",
        "retries.max.wait.ms",
        "retries.wait.ms",
        "ssl.ca.location",
        "ssl.certificate.location",
        "ssl.key.location",
        "ssl.key.password",
        "timeout",
        "url",
    }
)
_BEARER_SOURCE, _TOKEN = "bearer.auth.credentials.source", "bearer.auth.token"
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
_AGAIN = frozenset({408, 429, 500, 502, 503, 504})
_JSON = "application/vnd.schemaregistry.v1+json"
_UNNAMED = -1
MAX_VERSIONS = 10_000
CONNECTIONS = 8
_PREFERRED_FOR_S = 60.0
"""How long an address that has answered in place of the first one is asked first."""
_STALE = (ConnectionError, http.client.BadStatusLine, ssl.SSLEOFError, ssl.SSLZeroReturnError)
"""The errors of a request on a connection that the other side has closed."""


class RegistryErrorAnswer(Exception):
    """An error reply of the registry: its HTTP status, its own code (-1: none), its message.

    `code` and `message` are raw JSON values, of any type.
    """

    def __init__(self, status: int, code: object, message: object) -> None:
        self.status = status
        self.code = code if isinstance(code, int) else _UNNAMED
        self.message = str(message) if message else f"HTTP status {status}"
        super().__init__(self.message)


class TokenUnavailable(Exception):
    """The issuer gave no OAuth token."""


class TooManyVersions(ValueError):
    """A subject has more than MAX_VERSIONS versions: each one may cost a request."""

    def __init__(self, versions: int) -> None:
        self.versions = versions
        super().__init__(f"{versions} versions")


class RegisteredSchema(NamedTuple):
    """A registered schema; `kind` is "AVRO", or another format's name; `schema_id` is None if the reply had none."""

    text: str
    kind: str
    schema_id: int | None


class Client(Protocol):
    """The requests to a registry. Raises RegistryErrorAnswer, TokenUnavailable, and the errors of a broken
    connection or reply."""

    def versions(self, subject: str) -> list[int]:
        """Return the numbers of the subject's versions."""

    def version(self, subject: str, number: int | None) -> RegisteredSchema:
        """Return one version; for None, the newest."""

    def by_id(self, number: int) -> RegisteredSchema:
        """Return the schema with this id."""

    def look_up(self, subject: str, text: str, *, normalize: bool) -> int:
        """Return the id of an Avro schema registered under the subject."""

    def register(self, subject: str, text: str, *, normalize: bool) -> int:
        """Register an Avro schema under the subject; return its id."""

    def level(self, subject: str | None) -> str:
        """Return the subject's compatibility level; for None, the server's global level."""

    def set_level(self, subject: str, level: str) -> None:
        """Set the subject's compatibility level."""

    def close(self) -> None:
        """Close the connections; another thread's request in progress fails."""


def is_plain(properties: Mapping[str, object]) -> bool:
    """Whether `RestClient` supports these properties of Confluent's client, and the environment."""
    if os.environ.keys() & {name for one in PROXIES for name in (one, one.upper())}:
        return False
    has_bearer = any(name.startswith("bearer.") for name in properties)
    is_static = properties.get(_BEARER_SOURCE) == "STATIC_TOKEN" and _TOKEN in properties
    if has_bearer and not is_static:
        return False
    has_user_info = any("@" in url for url in str(properties["url"]).split(","))
    return properties.keys() <= _PLAIN and not has_user_info


class RestClient:
    """`Client` over HTTP. Raises ValueError for invalid properties, OSError for a file that they name."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        self._urls = [url.strip().rstrip("/") for url in str(properties["url"]).split(",")]
        for url in self._urls:
            _refuse_no_url(url)
        self._timeout_s = _number(properties, "timeout", 10, least=0.001, most=86_400)
        self._retries = int(_number(properties, "max.retries", 1, most=1_000))
        self._wait_ms = _number(properties, "retries.wait.ms", 100)
        self._max_wait_ms = _number(properties, "retries.max.wait.ms", 20_000)
        self._headers = {
            "Accept": f"{_JSON}, application/vnd.schemaregistry+json, application/json",
            "User-Agent": f"cdcd/{__version__}",
            **_authorization(properties),
        }
        has_tls = any(urlsplit(url).scheme == "https" for url in self._urls)
        self._tls = _tls(properties) if has_tls else None
        self._is_closed = False
        self._answered: str | None = None
        """The address that has answered in place of the first one; None: the first one."""
        self._preferred_until_s = 0.0
        self._connections: set[http.client.HTTPConnection] = set()
        self._idle: dict[str, list[http.client.HTTPConnection]] = {url: [] for url in self._urls}
        self._lock = threading.Lock()
        self._room = threading.BoundedSemaphore(CONNECTIONS)

    def versions(self, subject: str) -> list[int]:  # noqa: D102
        numbers = [whole(number) for number in self._ask("GET", f"subjects/{_in_path(subject)}/versions")]
        if len(numbers) > MAX_VERSIONS:
            raise TooManyVersions(len(numbers))
        return numbers

    def version(self, subject: str, number: int | None) -> RegisteredSchema:  # noqa: D102
        which = "latest" if number is None else number
        found = self._ask("GET", f"subjects/{_in_path(subject)}/versions/{which}")
        return _registered(found, found.get("id"))

    def by_id(self, number: int) -> RegisteredSchema:  # noqa: D102
        return _registered(self._ask("GET", f"schemas/ids/{number}"), number)

    def look_up(self, subject: str, text: str, *, normalize: bool) -> int:  # noqa: D102
        return self._send_schema(f"subjects/{_in_path(subject)}", text, normalize)

    def register(self, subject: str, text: str, *, normalize: bool) -> int:  # noqa: D102
        return self._send_schema(f"subjects/{_in_path(subject)}/versions", text, normalize)

    def level(self, subject: str | None) -> str:  # noqa: D102
        path = "config" if subject is None else f"config/{_in_path(subject)}"
        return str(self._ask("GET", path)["compatibilityLevel"])

    def set_level(self, subject: str, level: str) -> None:  # noqa: D102
        self._ask("PUT", f"config/{_in_path(subject)}", {"compatibility": level})

    def close(self) -> None:  # noqa: D102
        self._is_closed = True
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            sock = connection.sock
            if sock is not None:
                try:
                    # A thread that waits for a reply gets an error. `SSLSocket.shutdown` would also unwrap TLS.
                    socket.socket.shutdown(sock, socket.SHUT_RDWR)
                except OSError:
                    pass  # the other side has closed it already
            connection.close()

    # --- inside ------------------------------------------------------------------------------------------

    def _send_schema(self, path: str, text: str, normalize: bool) -> int:
        body = {"schema": text, "schemaType": "AVRO"}
        return whole(self._ask("POST", f"{path}?normalize={str(normalize).lower()}", body)["id"])

    def _ask(self, method: str, path: str, body: Mapping[str, str] | None = None) -> Any:
        """Return the reply's JSON. Try the next address where one does not answer, or has a retriable status."""
        *urls, last = self._in_order()
        has_waited = False
        for url in urls:
            try:
                status, content = self._persist(url, method, path, body)
            except (OSError, http.client.HTTPException) as error:
                if self._is_closed:
                    raise
                # A refused connection costs no time, and the registry may be back with the next request.
                has_waited |= isinstance(error, OSError) and not isinstance(error, ConnectionError)
                continue
            if status not in _AGAIN:
                self._note_answer(url, has_waited=has_waited)
                return _json_of(status, content)
        status, content = self._persist(last, method, path, body)
        if status not in _AGAIN:
            self._note_answer(last, has_waited=has_waited)
        return _json_of(status, content)

    def _in_order(self) -> list[str]:
        """Return the addresses in the order in which to ask them."""
        with self._lock:
            answered, now_s = self._answered, _now_s()
            if answered is None:
                return self._urls
            if now_s >= self._preferred_until_s:
                # Only this request tries the first one again: the others do not wait for it.
                self._preferred_until_s = now_s + _PREFERRED_FOR_S
                return self._urls
        return [answered, *(url for url in self._urls if url != answered)]

    def _note_answer(self, url: str, *, has_waited: bool) -> None:
        """Note which address answers. `has_waited`: one before it did not, in time."""
        with self._lock:
            if url == self._urls[0]:
                self._answered = None
            elif has_waited and url != self._answered:  # an answer of the same one prolongs nothing
                self._answered, self._preferred_until_s = url, _now_s() + _PREFERRED_FOR_S

    def _persist(self, url: str, method: str, path: str, body: Mapping[str, str] | None) -> tuple[int, bytes]:
        for tries in range(self._retries + 1):
            is_last = tries == self._retries or self._is_closed
            try:
                status, content = self._once(url, method, path, body)
            except (OSError, http.client.HTTPException):
                if is_last or self._is_closed:
                    raise
            else:
                if is_last or status not in _AGAIN:
                    return status, content
            time.sleep(random.random() * min(self._wait_ms * 2**tries, self._max_wait_ms) / 1000)  # noqa: S311 - jitter, so that clients do not retry at once
        raise AssertionError("the last attempt returns or raises")

    def _once(self, url: str, method: str, path: str, body: Mapping[str, str] | None) -> tuple[int, bytes]:
        target = f"{urlsplit(url).path}/{path}"
        with self._connected(url) as connection:
            is_keep_alive = connection.sock is not None
            try:
                try:
                    return self._exchange(connection, method, target, body)
                except _STALE:
                    if not is_keep_alive or self._is_closed:
                        raise
                    # The registry has closed an idle connection: it may well accept a new one.
                    connection.close()
                    return self._exchange(connection, method, target, body)
            except BaseException as error:
                connection.close()  # a late reply must not become the reply to the next request
                # The type of the error depends on the operation that `close` interrupted.
                if self._is_closed and isinstance(error, Exception):
                    raise ConnectionError("the client was closed") from error
                raise

    @contextlib.contextmanager
    def _connected(self, url: str) -> Iterator[http.client.HTTPConnection]:
        """Return a connection for exclusive use: the most recently used idle one, or a new one."""
        with self._room:
            with self._lock:
                if self._is_closed:
                    raise ConnectionError("the client was closed")
                idle = self._idle[url]
                connection = idle.pop() if idle else self._connection(url)
                self._connections.add(connection)
            try:
                yield connection
            finally:
                with self._lock:
                    idle.append(connection)

    def _exchange(
        self, connection: http.client.HTTPConnection, method: str, target: str, body: Mapping[str, str] | None
    ) -> tuple[int, bytes]:
        headers = self._headers if body is None else {**self._headers, "Content-Type": _JSON}
        deadline = Deadline(self._timeout_s)
        connection.response_class = paced_response(deadline)
        if connection.sock is None:
            connection.connect()
        assert connection.sock is not None
        connection.sock.settimeout(deadline.left_s())
        connection.request(method, target, None if body is None else json.dumps(body), headers)
        response = connection.getresponse()
        content = read_body(response)
        if not response.isclosed():  # the rest of this response must not precede the next one
            connection.close()
        return response.status, content

    def _connection(self, url: str) -> http.client.HTTPConnection:
        parts = urlsplit(url)
        assert parts.hostname is not None
        if parts.scheme == "https":
            return http.client.HTTPSConnection(
                parts.hostname, parts.port or 443, timeout=self._timeout_s, context=self._tls
            )
        return http.client.HTTPConnection(parts.hostname, parts.port or 80, timeout=self._timeout_s)


def _now_s() -> float:
    return time.monotonic()


def _json_of(status: int, content: bytes) -> Any:
    """Return the JSON of a 2xx reply. Raises RegistryErrorAnswer for other replies, ValueError for invalid JSON."""
    try:
        found = json.loads(content) if content else None
    except RecursionError:
        found = None
    except ValueError:
        if 200 <= status < 300:
            raise
        found = None
    if 200 <= status < 300:
        return found
    reported = found if isinstance(found, dict) else {}
    raise RegistryErrorAnswer(status, reported.get("error_code"), reported.get("message"))


def _registered(found: Any, number: int | None) -> RegisteredSchema:
    return RegisteredSchema(str(found["schema"] or ""), str(found.get("schemaType") or "AVRO"), number)


def whole(value: Any) -> int:
    if not isinstance(value, int):
        raise TypeError("no whole number")
    return value


def _refuse_no_url(url: str) -> None:
    parts = urlsplit(url)
    is_one = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
    if not is_one or not url.isascii() or not url.isprintable() or " " in url:
        raise ValueError(f"not a URL: {url}")


def _in_path(subject: str) -> str:
    return quote(subject, safe="")


def _number(
    properties: Mapping[str, object], name: str, default: float, *, least: float = 0, most: float = 86_400_000
) -> float:
    value = properties.get(name, default)
    if isinstance(value, int | float) and least <= value <= most:
        return value
    raise ValueError(f"{name} has to be a number from {least} to {most}")


def _authorization(properties: Mapping[str, object]) -> dict[str, str]:
    """Return the headers that authenticate the client."""
    headers = {}
    user_info = properties.get("basic.auth.user.info")
    if user_info is not None:
        if ":" not in str(user_info):
            raise ValueError("basic.auth.user.info has to be USER:PASSWORD")
        headers["Authorization"] = "Basic " + base64.b64encode(str(user_info).encode()).decode()
    if _TOKEN in properties:
        headers["Authorization"] = f"Bearer {properties[_TOKEN]}"
        headers["target-sr-cluster"] = str(properties.get("bearer.auth.logical.cluster", ""))
        if "bearer.auth.identity.pool.id" in properties:
            headers["Confluent-Identity-Pool-Id"] = str(properties["bearer.auth.identity.pool.id"])
    for name, value in headers.items():
        if not value.isascii() or not (value.isprintable()):
            raise ValueError(f"the credentials have characters that the {name} header cannot have")
    return headers


def _tls(properties: Mapping[str, object]) -> ssl.SSLContext:
    """Return the TLS context for these properties. Raises OSError for a file, ValueError for a missing one."""
    given = properties.get("ssl.ca.location")
    authorities = os.environ.get("SSL_CERT_FILE") or os.environ.get("SSL_CERT_DIR") or certifi.where()
    where = str(authorities if given is None else given)
    is_folder = os.path.isdir(where)
    context = ssl.create_default_context(
        cafile=None if is_folder else where, capath=where if is_folder else None
    )
    certificate, key = properties.get("ssl.certificate.location"), properties.get("ssl.key.location")
    password = properties.get("ssl.key.password")
    if certificate is not None:
        context.load_cert_chain(
            str(certificate), None if key is None else str(key), None if password is None else str(password)
        )
    elif key is not None or password is not None:
        raise ValueError("ssl.certificate.location is required with ssl.key.location or ssl.key.password")
    return context

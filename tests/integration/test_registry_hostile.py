"""A registry that answers endlessly, slowly, with a decompression bomb, or with its request, for both clients.

Each request ends in time, reads at most its limit of bytes, and gives a one-line error without a secret.
"""

from __future__ import annotations

import base64
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pytest

from cdcd.errors import CdcdError, RegistryRefused, RegistryUnavailable
from cdcd.redaction import clean
from cdcd.registry import confluent
from cdcd.registry.confluent import Registry
from cdcd.registry.confluent_client import ConfluentClient
from cdcd.registry.limits import MAX_ANSWER_BYTES
from cdcd.registry.rest import Client, RestClient
from cdcd.registry.settings import RegistrySettings
from tests.support.bombs import gzip_bomb, zlib_bomb
from tests.support.hostile_http import HostileServer, whole
from tests.support.nightly import nightly_except

CANARY = "canary-5f3a91"
TIME_S = 1.0
WITHIN_S = 60.0
SOCKETS_BYTES = 12 << 20
"""The size of the kernel's socket buffers on both sides."""

HEAD = b"HTTP/1.1 %d X\r\n"
HostileAnswer = tuple[Callable[[HostileServer, bytes], Iterable[bytes]], type[CdcdError]]


def forever(piece: bytes) -> Iterator[bytes]:
    return itertools.repeat(piece)


def drip(server: HostileServer, first: bytes, piece: bytes) -> Iterator[bytes]:
    yield first
    while True:
        server.pause(TIME_S / 10)
        yield piece


def bomb(encoding: bytes, packed: bytes, status: int = 200) -> bytes:
    return whole(packed, status, b"Content-Encoding: " + encoding + b"\r\n")


GZIP, DEFLATE = gzip_bomb(100), zlib_bomb(100)

KINDS: dict[str, HostileAnswer] = {
    "too large": (
        lambda _s, _r: itertools.chain(
            [HEAD % 200 + b"Content-Length: 999999999999\r\n\r\n"], forever(b" " * 65_536)
        ),
        RegistryRefused,
    ),
    "without end": (
        lambda _s, _r: itertools.chain([HEAD % 200 + b"\r\n"], forever(b"[" * 65_536)),
        RegistryRefused,
    ),
    "chunks without end": (
        lambda _s, _r: itertools.chain(
            [HEAD % 200 + b"Transfer-Encoding: chunked\r\n\r\n"],
            forever(b"10000\r\n" + b"1" * 65_536 + b"\r\n"),
        ),
        RegistryRefused,
    ),
    "an error without end": (
        lambda _s, _r: itertools.chain([HEAD % 500 + b"\r\n"], forever(b" " * 65_536)),
        RegistryUnavailable,
    ),
    "headers without end": (
        lambda _s, _r: itertools.chain([HEAD % 200], forever(b"X: " + b"x" * 60_000 + b"\r\n")),
        RegistryUnavailable,
    ),
    "interim answers without end": (
        lambda s, _r: drip(s, b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        RegistryUnavailable,
    ),
    "a head that drips": (lambda s, _r: drip(s, HEAD % 200 + b"X: ", b"x"), RegistryUnavailable),
    "a line that drips": (lambda s, _r: drip(s, b"HTTP/1.1 200 ", b"x"), RegistryUnavailable),
    "a body that drips": (
        lambda s, _r: drip(s, HEAD % 200 + b"Content-Length: 100000\r\n\r\n", b" "),
        RegistryUnavailable,
    ),
    "chunks that drip": (
        lambda s, _r: drip(s, HEAD % 200 + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
        RegistryUnavailable,
    ),
    "an error that drips": (
        lambda s, _r: drip(s, HEAD % 503 + b"Content-Length: 100000\r\n\r\n", b" "),
        RegistryUnavailable,
    ),
    "nothing": (lambda s, _r: drip(s, b"", b""), RegistryUnavailable),
    "a gzip bomb": (lambda _s, _r: [bomb(b"gzip", GZIP)], RegistryRefused),
    "a deflate bomb": (lambda _s, _r: [bomb(b"deflate", DEFLATE)], RegistryRefused),
    "an error with a bomb": (lambda _s, _r: [bomb(b"gzip", GZIP, 403)], RegistryRefused),
    "deep JSON": (lambda _s, _r: [whole(b"[" * 1_000_000)], RegistryRefused),
    "a number without end": (lambda _s, _r: [whole(b"[" + b"9" * 1_000_000 + b"]")], RegistryRefused),
    "versions without end": (lambda _s, _r: [whole(b"[" + b"1," * 1_000_000 + b"1]")], RegistryRefused),
    "no HTTP": (lambda _s, _r: [b"\x00" * 1000], RegistryUnavailable),
    "lines of its own": (
        lambda _s, _r: [
            whole(
                json.dumps({"error_code": 1, "message": "no\nok    registry  fine\x1b[2J\u202e"}).encode(),
                422,
            )
        ],
        RegistryRefused,
    ),
    "a message that is a list": (
        lambda _s, _r: [whole(json.dumps({"error_code": 1, "message": [CANARY]}).encode(), 422)],
        RegistryRefused,
    ),
    "a message that is a number": (
        lambda _s, _r: [whole(json.dumps({"error_code": 1, "message": 5}).encode(), 500)],
        RegistryUnavailable,
    ),
    "a code that is a text": (
        lambda _s, _r: [whole(json.dumps({"error_code": CANARY, "message": "no"}).encode(), 404)],
        RegistryRefused,
    ),
    "an error that is a list": (lambda _s, _r: [whole(b'["no"]', 422)], RegistryRefused),
    "numbers that are texts": (lambda _s, _r: [whole(json.dumps([CANARY, None]).encode())], RegistryRefused),
    "another address": (
        lambda s, _r: [whole(b"", 307, f"Location: {s.url}/{CANARY}\r\n".encode())],
        RegistryRefused,
    ),
    "what it was sent": (lambda _s, request: [echo(request, 401)], RegistryRefused),
    "what it was sent, and ails": (lambda _s, request: [echo(request, 500)], RegistryUnavailable),
    "what it was sent, as no JSON": (lambda _s, request: [whole(request, 403)], RegistryRefused),
}


def echo(request: bytes, status: int) -> bytes:
    """Repeat the Authorization header and its decoded text, so that a cut of the text could leave a part of it."""
    header = next(line for line in request.decode().split("\r\n") if line.startswith("Authorization: "))
    sent = header.split()[-1]
    decoded = sent if "Bearer" in header else base64.b64decode(sent).decode()
    message = f"{header} {decoded} " + "." * (480 - len(header)) + decoded * 3
    return whole(json.dumps({"error_code": status * 100 + 1, "message": message}).encode(), status)


@pytest.mark.parametrize("where", ["the registry's URL", "a proxy", "the environment's proxy"])
def test_a_password_in_a_url_counts_as_a_secret(where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    url = "http://me:canary%2F5f3a91@127.0.0.1:1"
    more = {"a proxy": {"proxy": url}, "the registry's URL": {"url": f"http://127.0.0.1:2, {url}"}}.get(
        where, {}
    )
    if where == "the environment's proxy":
        monkeypatch.setenv("HTTPS_PROXY", url)
    ConfluentClient({"url": "http://127.0.0.1:1", "timeout": 1, **more}).close()
    assert clean("you sent canary/5f3a91") == "you sent ***"


CLIENTS: dict[str, tuple[type[Client], dict[str, Any]]] = {
    "ours, a password": (RestClient, {"username": "me", "read_password": lambda: CANARY}),
    "ours, a token": (RestClient, {"read_token": lambda: CANARY}),
    "Confluent's, a password": (ConfluentClient, {"username": "me", "read_password": lambda: CANARY}),
}


AT_EACH_CHANGE = (
    "too large",
    "chunks without end",
    "headers without end",
    "a head that drips",
    "a body that drips",
    "nothing",
    "a gzip bomb",
    "deep JSON",
    "no HTTP",
    "a message that is a list",
    "another address",
    "what it was sent",
)


@pytest.mark.parametrize("kind", nightly_except(KINDS, *AT_EACH_CHANGE))
@pytest.mark.parametrize("client", nightly_except(CLIENTS, "ours, a password"))
def test_any_answer_of_a_registry_is_one_clean_error_in_time(
    client: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    answer, expected = KINDS[kind]
    made, options = CLIENTS[client]
    monkeypatch.setattr(confluent, "new_client", lambda properties: made(properties))  # type: ignore[call-arg]
    ended: list[BaseException | object] = []
    with HostileServer(lambda request: answer(server, request)) as server:
        registry = Registry(
            RegistrySettings(
                server.url, request_timeout_s=TIME_S, read_properties=lambda: {"max.retries": "0"}, **options
            )
        )

        def ask() -> None:
            try:
                ended.append(registry._call("versions", lambda one: one.versions("shop-value")))
            except BaseException as error:  # noqa: BLE001 - the main thread checks it
                ended.append(error)

        requesting = threading.Thread(target=ask, daemon=True)
        requesting.start()
        requesting.join(WITHIN_S)
        taken_bytes = server.taken_bytes
        registry.close()
    assert len(ended) == 1, "the request has ended"
    (error,) = ended
    assert type(error) is expected, error
    shown = str(error)
    assert shown.isprintable()
    assert CANARY[:5] not in shown
    assert base64.b64encode(f"me:{CANARY}".encode()).decode()[:12] not in shown
    assert len(shown) < 1_500
    assert taken_bytes < MAX_ANSWER_BYTES + SOCKETS_BYTES


@pytest.mark.parametrize("status", [301, 307])
def test_where_another_address_is_named_the_url_is_to_be_corrected(status: int) -> None:
    """A redirect is not followed: the credentials are for the configured host."""
    with HostileServer(lambda _request: [whole(b"", status, b"Location: /elsewhere\r\n")]) as server:
        registry = Registry(RegistrySettings(server.url, read_properties=lambda: {"max.retries": "0"}))
        with pytest.raises(RegistryRefused, match=r"correct registry\.url, also its path"):
            registry.latest("shop-value")
        registry.close()
    assert len(server.asked) == 1

"""The REST client and a scripted server, for situations that a real registry cannot be forced into."""

from __future__ import annotations

import base64
import contextlib
import http.client
import http.server
import json
import socket
import socketserver
import struct
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from cdcd.registry import rest
from cdcd.registry.rest import CONNECTIONS, RegistryErrorAnswer, RestClient, is_plain
from cdcd.registry.settings import RegistrySettings, client_properties
from tests.support.waiting import eventually

POLL_S = 0.01
"""A server ends this late after its shutdown; the default is half a second."""


class Play(http.server.BaseHTTPRequestHandler):
    """Answers with the server's `answer`, and records the requests."""

    protocol_version = "HTTP/1.1"

    def _do(self) -> None:
        size_bytes = int(self.headers.get("Content-Length", "0"))
        body = self.rfile.read(size_bytes)
        self.server.asked.append((self.command, self.path, body))  # type: ignore[attr-defined]
        self.server.headers.append(dict(self.headers))  # type: ignore[attr-defined]
        status, content = self.server.answer(len(self.server.asked))  # type: ignore[attr-defined]
        self.send_response(status)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)
        if self.server.hangs_up:  # type: ignore[attr-defined]
            self.close_connection = True  # without a "Connection: close" header

    do_GET = do_POST = do_PUT = _do  # noqa: N815 - the server's names

    def log_message(self, *_args: object) -> None:
        """Do not log requests."""


@contextlib.contextmanager
def play(
    answer: Callable[[int], tuple[int, bytes]], *, hangs_up: bool = False
) -> Iterator[http.server.ThreadingHTTPServer]:
    """Run a server that answers its n-th request with `answer(n)`, n from 1 on."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Play)
    server.answer, server.hangs_up, server.asked, server.headers = answer, hangs_up, [], []  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def url_of(server: http.server.ThreadingHTTPServer) -> str:
    return f"http://127.0.0.1:{server.server_port}/apis/ccompat/v7/"


def client_of(server: http.server.ThreadingHTTPServer, **more: object) -> RestClient:
    return RestClient({"url": url_of(server), "retries.wait.ms": 1, **more})


def test_what_is_asked_and_by_whom() -> None:
    with play(lambda _: (200, b'{"id": 7}')) as server:
        client = client_of(server, **{"basic.auth.user.info": "me:it:self"})
        assert client.register("a/b c", '"string"', normalize=True) == 7
        client.close()
        ((command, path, body),) = server.asked  # type: ignore[attr-defined]
        assert (command, path) == ("POST", "/apis/ccompat/v7/subjects/a%2Fb%20c/versions?normalize=true")
        assert json.loads(body) == {"schema": '"string"', "schemaType": "AVRO"}
        (headers,) = server.headers  # type: ignore[attr-defined]
        assert base64.b64decode(headers["Authorization"].removeprefix("Basic ")) == b"me:it:self"


def test_a_reused_connection_that_the_server_has_closed_is_no_failure() -> None:
    """A registry, or a load balancer in front of it, closes idle connections; this needs no configured retries."""
    with play(lambda _: (200, b"[1, 2]"), hangs_up=True) as server:
        client = client_of(server, **{"max.retries": 0})
        assert [client.versions("s") for _ in range(5)] == [[1, 2]] * 5
        client.close()


@pytest.mark.parametrize(("retries", "asked"), [(0, 1), (1, 2), (2, 3)])
def test_a_retriable_status_is_retried_so_many_times(retries: int, asked: int) -> None:
    with play(lambda _: (503, b'{"error_code": 50301, "message": "not yet"}')) as server:
        client = client_of(server, **{"max.retries": retries})
        with pytest.raises(RegistryErrorAnswer) as caught:
            client.versions("s")
        client.close()
        assert (caught.value.status, caught.value.code, caught.value.message) == (503, 50301, "not yet")
        assert len(server.asked) == asked  # type: ignore[attr-defined]


def test_an_error_that_is_an_answer_is_not_repeated() -> None:
    with play(lambda _: (404, b'{"error_code": 40401, "message": "no such subject"}')) as server:
        client = client_of(server, **{"max.retries": 5})
        with pytest.raises(RegistryErrorAnswer) as caught:
            client.versions("s")
        client.close()
        assert (caught.value.status, caught.value.code) == (404, 40401)
        assert len(server.asked) == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("content", [b"<html>", b"[]", b'{"error_code": null, "message": ""}', b"", b"\xff"])
def test_an_error_without_a_registrys_message_is_reported_by_its_status(content: bytes) -> None:
    with play(lambda _: (403, content)) as server:
        client = client_of(server)
        with pytest.raises(RegistryErrorAnswer, match="HTTP status 403") as caught:
            client.level(None)
        client.close()
        assert caught.value.code == -1


def test_the_next_url_is_used_after_a_retriable_status_or_a_refused_connection() -> None:
    with play(lambda _: (500, b"")) as first, play(lambda _: (200, b"[3]")) as second:
        urls = f"http://127.0.0.1:1, {url_of(first)}, {url_of(second)}"
        client = client_of(second, url=urls, **{"max.retries": 0})
        assert client.versions("s") == [3]
        client.close()


class Silent:
    """A server that accepts connections and never answers. `asked`: how many connections it got."""

    def __init__(self) -> None:
        self.asked = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._connections: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def await_asked(self, count: int) -> None:
        eventually(lambda: self.asked >= count, "the silent server has accepted the connections")

    def _accept(self) -> None:
        with contextlib.suppress(OSError):  # closed
            while True:
                connection, _ = self._listener.accept()
                self._connections.append(connection)
                self.asked += 1

    def close(self) -> None:
        self._listener.close()
        for one in self._connections:
            one.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    server = Silent()
    yield server
    server.close()


def test_a_silent_address_is_not_waited_for_by_each_request(
    silent: Silent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One request waits for it, then none for a minute; then one request tries the address again."""
    clock = [0.0]
    monkeypatch.setattr(rest, "_now_s", lambda: clock[0])
    with play(lambda _: (200, b"[3]")) as server:
        urls = f"{silent.url}, http://127.0.0.1:1, {url_of(server)}"
        client = client_of(server, url=urls, timeout=1, **{"max.retries": 0})
        for now_s, asked in ((0, 1), (1, 1), (59, 1), (61, 2), (62, 2), (119, 2), (122, 3), (123, 3)):
            clock[0] = now_s
            assert client.versions("s") == [3]
            silent.await_asked(asked)
            assert silent.asked == asked
        client.close()


@pytest.fixture
def late_once() -> Iterator[Callable[[int], tuple[int, bytes]]]:
    """Return answers of which the first one comes only at the end of the test."""
    may_answer = threading.Event()

    def answer(number: int) -> tuple[int, bytes]:
        if number == 1:
            may_answer.wait(60)
        return 200, b"[1]"

    yield answer
    may_answer.set()


def test_the_first_address_is_the_first_again_once_it_answers(
    late_once: Callable[[int], tuple[int, bytes]], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr(rest, "_now_s", lambda: clock[0])
    with play(late_once) as first, play(lambda _: (200, b"[2]")) as second:
        client = client_of(second, url=f"{url_of(first)}, {url_of(second)}", timeout=1, **{"max.retries": 0})
        found = []
        for now_s in (0.0, 1.0, 61.0, 62.0):
            clock[0] = now_s
            found += client.versions("s")
        client.close()
    assert found == [2, 2, 1, 1]


def test_the_other_addresses_are_asked_once_the_preferred_one_does_not_answer(
    late_once: Callable[[int], tuple[int, bytes]],
) -> None:
    answers = [(200, b"[2]"), (503, b"")]
    with play(late_once) as first, play(lambda number: answers[number - 1]) as second:
        client = client_of(second, url=f"{url_of(first)}, {url_of(second)}", timeout=1, **{"max.retries": 0})
        assert [*client.versions("s"), *client.versions("s")] == [2, 1]
        client.close()


def test_an_address_that_fails_at_once_remains_the_first_one() -> None:
    """Nothing waits for it, and the next request may succeed there."""
    answers = [(503, b""), (200, b"[1]")]
    with play(lambda number: answers[number - 1]) as first, play(lambda _: (200, b"[2]")) as second:
        client = client_of(second, url=f"{url_of(first)}, {url_of(second)}", **{"max.retries": 0})
        assert [*client.versions("s"), *client.versions("s")] == [2, 1]
        client.close()


def test_who_waits_for_an_answer_goes_on_when_the_client_is_closed() -> None:
    asked, may_answer = threading.Event(), threading.Event()

    def answer(number: int) -> tuple[int, bytes]:
        if number > 1:
            asked.set()
            may_answer.wait(10)
        return 200, b"[1]"

    ended = []
    with play(answer) as server:
        client = client_of(server, timeout=60, **{"max.retries": 5})
        assert client.versions("s") == [1]  # from here on the client has a persistent connection

        def ask() -> None:
            try:
                client.versions("s")
            except OSError as error:
                ended.append(error)

        requesting = threading.Thread(target=ask)
        requesting.start()
        assert asked.wait(10)
        client.close()
        requesting.join(10)
        is_over = not requesting.is_alive()
        times = len(server.asked)  # type: ignore[attr-defined]
        may_answer.set()
        requesting.join(10)
    assert is_over
    assert len(ended) == 1
    assert times == 2, "a closed client does not repeat its request"


class Reset(socketserver.BaseRequestHandler):
    """Reads a request and resets the connection."""

    def handle(self) -> None:
        self.server.asked += self.request.recv(65_536).startswith(b"POST")  # type: ignore[attr-defined]
        self.request.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def test_a_registry_that_resets_each_connection_is_asked_as_often_as_was_said() -> None:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Reset) as server:
        server.asked = 0  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, args=(POLL_S,))
        thread.start()
        client = RestClient(
            {"url": f"http://127.0.0.1:{server.server_address[1]}", "max.retries": 1, "retries.wait.ms": 1}
        )
        for _ in range(3):
            with pytest.raises((OSError, http.client.HTTPException)):
                client.register("s", '"string"', normalize=False)
        client.close()
        server.shutdown()
        thread.join()
        assert server.asked == 6  # type: ignore[attr-defined]


def test_a_late_answer_is_not_taken_for_the_next_one() -> None:
    """The request on the persistent connection fails, and its repetition times out."""
    is_slow = threading.Event()

    def answer(number: int) -> tuple[int, bytes]:
        if number == 2:
            is_slow.wait(10)
        return 200, b"[%d]" % number

    with play(answer, hangs_up=True) as server:
        client = client_of(server, timeout=0.2, **{"max.retries": 0})
        assert client.versions("s") == [1]
        with pytest.raises(OSError, match="timed out"):
            client.versions("s")
        is_slow.set()
        assert client.versions("s") == [3]
        client.close()


@pytest.mark.parametrize(
    "content",
    [b"[1e999]", b'["1"]', b"{}", b"3", b'[{"a": 1}]', b"[" * 100_000, b"", b"null"],
    ids=lambda content: content[:9].decode(),
)
def test_an_answer_that_is_no_registrys_is_one_of_the_errors_that_say_so(content: bytes) -> None:
    with play(lambda _: (200, content)) as server:
        client = client_of(server)
        with pytest.raises((KeyError, TypeError, ValueError)):
            client.level(None)
        with pytest.raises((KeyError, TypeError, ValueError)):
            client.register("s", '"string"', normalize=False)
        client.close()


def test_a_code_counts_without_words_and_a_schema_may_be_none() -> None:
    answers = {1: (404, b'{"error_code": 40401}'), 2: (200, b'{"schema": null}')}
    with play(lambda number: answers[number]) as server:
        client = client_of(server)
        with pytest.raises(RegistryErrorAnswer, match="HTTP status 404") as caught:
            client.versions("s")
        assert caught.value.code == 40401
        assert client.version("s", None).text == ""
        client.close()


def test_where_an_address_leads() -> None:
    client = RestClient({"url": "https://[::1]/a, http://[fe80::abcd], HTTPS://registry:8081"})
    connections = [client._connection(url) for url in client._urls]
    assert [(one.host, one.port) for one in connections] == [
        ("::1", 443), ("fe80::abcd", 80), ("registry", 8081),
    ]  # fmt: skip
    with pytest.raises(FileNotFoundError):
        RestClient({"url": "HTTPS://registry", "ssl.ca.location": "/nowhere/ca.pem"})


@pytest.mark.parametrize(
    ("more", "plain"),
    [
        ({}, True),
        ({"ssl.ca.location": "/ca.pem", "timeout": "3"}, True),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN", "bearer.auth.token": "t"}, True),
        ({"bearer.auth.credentials.source": "OAUTHBEARER"}, False),
        ({"proxy": "http://proxy:3128"}, False),
        ({"nobody.knows": "this"}, False),
        ({"bearer.auth.token": "t"}, False),
        ({"bearer.auth.credentials.source": "STATIC_TOKEN"}, False),
    ],
)
def test_what_needs_confluents_client(
    more: dict[str, str], plain: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    settings = RegistrySettings("https://registry:8081", read_properties=lambda: more)
    properties = client_properties(settings)
    assert is_plain(properties) is plain
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    assert not is_plain(properties)


def test_a_user_in_the_address_needs_confluents_client() -> None:
    assert not is_plain({"url": "https://registry, https://me:secret@other"})


@pytest.mark.parametrize(
    "wrong",
    [
        {"url": "registry:8081"},
        {"url": "ftp://registry"},
        {"url": "https://"},
        {"timeout": "soon"},
        {"timeout": 0},
        {"timeout": 99_999_999_999},
        {"max.retries": -1},
        {"retries.wait.ms": -5},
        {"url": "http://registry:port"},
        {"url": "http://registry/a b"},
        {"bearer.auth.token": "of two\nlines"},
        {"basic.auth.user.info": "me"},
        {"url": "https://registry", "ssl.key.location": "/key.pem"},
    ],
)
def test_properties_that_do_not_fit_together_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r".+"):
        RestClient({"url": "http://registry", **wrong})


def test_as_many_as_ask_at_once_are_answered_at_once() -> None:
    """Up to a limit of connections, which stay open for later requests."""
    together = threading.Barrier(CONNECTIONS, timeout=30)
    with play(lambda _: (200, b'{"id": %d}' % together.wait())) as server:
        client = client_of(server)
        with ThreadPoolExecutor(2 * CONNECTIONS) as threads:
            asked = [
                threads.submit(client.register, "s", '"int"', normalize=False) for _ in range(2 * CONNECTIONS)
            ]
            ids = sorted(one.result() for one in asked)
        assert ids == sorted([*range(CONNECTIONS)] * 2), "each request gets its own answer"
        assert len(client._connections) == CONNECTIONS
        client.close()
        with pytest.raises(ConnectionError):
            client.level(None)


def test_closing_ends_what_all_others_wait_for() -> None:
    goes_on = threading.Event()
    waiting = threading.Barrier(4, timeout=30)

    def answer(_number: int) -> tuple[int, bytes]:
        waiting.wait()
        goes_on.wait(30)
        return 200, b'{"id": 1}'

    with play(answer) as server, ThreadPoolExecutor(3) as threads:
        client = client_of(server)
        asked = [threads.submit(client.register, "s", '"int"', normalize=False) for _ in range(3)]
        waiting.wait()
        client.close()
        try:
            for one in asked:
                with pytest.raises(ConnectionError):
                    one.result(30)
        finally:
            goes_on.set()

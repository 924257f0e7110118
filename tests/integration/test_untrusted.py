"""Input from servers, clients and names, and every output of cdcd: no secret, no forged line, no unlimited text.

The test searches planted secrets in the log in both formats, `/status`, `/readyz`, `/metrics`, `cdcd check` as text
and as JSON, and the output at the end.
"""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import re
import resource
import socket
import struct
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import yaml
from confluent_kafka import Producer

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from tests.integration.conftest import NewDaemon
from tests.support.daemon import Daemon, await_confirmed, environment_without_cdcd
from tests.support.hostile_http import HostileServer, whole
from tests.support.nightly import nightly, nightly_except
from tests.support.waiting import eventually

CANARY = "canary/5f 3a91+"
"""Each of its encoded forms is another text."""
FORGED = f"no\nok    registry  fine\r\n2026-01-01T00:00:00Z INFO forged\x1b[2J\x9b31m\u202e\u2028 {CANARY}"
WITHIN_S = 60.0
Outputs = dict[str, str]


def forms(secret: str) -> set[str]:
    pair = base64.b64encode(f"me:{secret}".encode()).decode()
    return {secret, quote(secret, safe=""), quote(secret), secret.replace(" ", "+"), pair, pair[8:-4]}


def outputs_of(daemon: Daemon, until: Callable[[Daemon], bool]) -> Outputs:
    """Return every output of cdcd: commands, a daemon in each format of its log, and its pages."""
    found: Outputs = {}
    for words in (
        ("check",),
        ("check", "--json"),
        ("init", "--dry-run"),
        ("resume", "--dry-run", "--accept-gap"),
    ):
        ended = daemon.run(*words)
        found[" ".join(words)], found[" ".join((*words, "stderr"))] = ended.stdout, ended.stderr
    for form in ("json", "console"):
        daemon.config["log"] = {"format": form, "level": "debug"}
        daemon.log_path = daemon.folder / f"{form}.log"
        daemon.start()
        eventually(lambda: until(daemon), "the daemon has received the planted input", WITHIN_S)
        for page in ("/status", "/readyz", "/livez", "/startupz", "/metrics"):
            found[f"{page} {form}"] = daemon.get(page)[1]
        daemon.stop()
        found[f"log {form}"] = daemon.log()
    return found


def assert_clean(found: Outputs) -> None:
    """Check that no form of the secret and no control character is in the outputs, and that no line is forged."""
    assert json.loads(found["check --json"])
    for name, text in found.items():
        for form in forms(CANARY):
            assert form not in text, f"{name}: {text}"
        assert text.replace("\n", "").isprintable(), f"{name}: {text!r}"
        if name.startswith(("/readyz", "/livez", "/startupz")):
            assert text.count("\n") == 1, text
        if name == "log json":
            assert all("event" in json.loads(line) for line in text.splitlines())
        if name == "log console":
            stamped = re.compile(r"\d{4}-\d\d-\d\dT[\d:.]+Z (DEBUG|INFO|WARNING|ERROR|CRITICAL) ")
            assert [line for line in text.splitlines() if not stamped.match(line)] == []
            assert not re.search(r"^\S+ INFO +forged", text, re.MULTILINE)
        if name == "check":
            assert not re.search("^ok +registry +fine", text, re.MULTILINE)


# --- a registry ----------------------------------------------------------------------------------------------


def echo(request: bytes, status: int) -> bytes:
    """Repeat the header as received and decoded, with text that would forge lines, and text that fills the limit."""
    found = re.search(rb"Authorization: (\S+) (\S+)", request)
    assert found is not None
    sent = found[2].decode()
    decoded = base64.b64decode(sent).decode() if found[1] == b"Basic" else sent
    message = f"{FORGED} {sent} {decoded} {quote(decoded)} {FORGED} " * 20
    return whole(json.dumps({"error_code": status * 100 + 1, "message": message}).encode(), status)


def drip(server: HostileServer) -> Iterator[bytes]:
    yield b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"
    while True:
        server.pause(0.1)
        yield b" "


REGISTRIES: dict[str, Callable[[HostileServer, bytes], Iterable[bytes]]] = {
    "401 that repeats": lambda _s, request: [echo(request, 401)],
    "500 that repeats": lambda _s, request: [echo(request, 500)],
    "422 that repeats": lambda _s, request: [echo(request, 422)],
    "403 in no JSON": lambda _s, request: [whole(request + FORGED.encode("utf-8") * 100, 403)],
    "one that drips": lambda server, _r: drip(server),
    "one without end": lambda _s, _r: itertools.chain(
        [b"HTTP/1.1 200 OK\r\n\r\n"], itertools.repeat(b" " * 65_536)
    ),
    "no HTTP": lambda _s, request: [request],
}


@pytest.mark.parametrize(
    ("kind", "credentials"),
    nightly_except(
        [*((kind, "password") for kind in REGISTRIES), ("401 that repeats", "token")],
        ("422 that repeats", "password"),
    ),
)
def test_whatever_a_registry_answers_is_shown_clean(
    kind: str,
    credentials: str,
    new_daemon: NewDaemon,
    postgres: PostgresServer,
    database: str,
    tmp_path: Path,
) -> None:
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY); INSERT INTO t VALUES (1)", dbname=database)
    secret = tmp_path / "secret"
    secret.write_text(CANARY + "\n")
    with HostileServer(lambda request: REGISTRIES[kind](server, request)) as server:
        named = {"token_file": str(secret)} if credentials == "token" else {
            "username": "me", "password_file": str(secret)
        }  # fmt: skip
        daemon = new_daemon(
            postgres, database, registry={"url": server.url, "properties": {"timeout": "1"}, **named}
        )
        found = outputs_of(daemon, lambda one: "CDCD-REGISTRY" in one.status().get("reason", ""))
    assert_clean(found)
    assert re.search("^fail +registry", found["check"], re.MULTILINE)
    assert "CDCD-REGISTRY" in found["/readyz json"] + found["/status json"]


# --- PostgreSQL ----------------------------------------------------------------------------------------------


class HostilePostgres:
    """Requests the password in clear text, and repeats it in its reply."""

    def __init__(self, answer: Callable[[bytes], bytes]) -> None:
        self._answer = answer
        self._server = HostileSocket(self._serve)

    def __enter__(self) -> int:
        return self._server.port

    def __exit__(self, *_exc: object) -> None:
        self._server.close()

    def _serve(self, client: socket.socket) -> None:
        size = int.from_bytes(client.recv(4), "big")
        if int.from_bytes(client.recv(size - 4)[:4], "big") in (80877103, 80877104):  # SSL, GSS: no
            client.sendall(b"N")
            self._serve(client)
            return
        client.sendall(b"R" + (8).to_bytes(4, "big") + (3).to_bytes(4, "big"))
        data = client.recv(65_536)
        client.sendall(self._answer(data[5:-1]))


class HostileSocket:
    """Serves each connection in a thread of its own."""

    def __init__(self, serve: Callable[[socket.socket], None]) -> None:
        import threading

        self._serve = serve
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.port = self._listening.getsockname()[1]
        self._thread = threading.Thread(target=self._accept, daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()
        self._thread.join(WITHIN_S)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            with client, contextlib.suppress(OSError):
                client.settimeout(WITHIN_S)
                self._serve(client)


def response(kind: bytes, severity: str, message: bytes) -> bytes:
    fields = b"S%s\0V%s\0CXX000\0M%s\0\0" % (severity.encode(), severity.encode(), message)
    return kind + (len(fields) + 4).to_bytes(4, "big") + fields


DATABASES: dict[str, Callable[[bytes], bytes]] = {
    "an error that repeats": lambda sent: response(b"E", "FATAL", sent + b" " + FORGED.encode()),
    "a long error": lambda sent: response(b"E", "FATAL", (sent + b" " + FORGED.encode()) * 50),
    "notices that repeat": lambda sent: (
        response(b"N", "WARNING", sent + b" " + FORGED.encode()) * 200 + response(b"E", "FATAL", b"enough")
    ),
    "no PostgreSQL": lambda sent: sent * 1_000,
}


@pytest.mark.parametrize("kind", nightly_except(DATABASES, "notices that repeat"))
def test_whatever_a_database_answers_is_shown_clean(
    kind: str, new_daemon: NewDaemon, postgres: PostgresServer, database: str
) -> None:
    daemon = new_daemon(postgres, database)
    with HostilePostgres(DATABASES[kind]) as port:
        daemon.config["source"] = {
            "dsn": f"postgresql://me:{quote(CANARY, safe='')}@127.0.0.1:{port}/shop?sslmode=disable"
        }
        found = outputs_of(daemon, lambda one: bool(one.status().get("reason")))
    assert_clean(found)
    assert "fail" in found["check"]


# --- Kafka ---------------------------------------------------------------------------------------------------

API_VERSIONS, SASL_HANDSHAKE, SASL_AUTHENTICATE = 18, 17, 36


def exactly(client: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = client.recv(size - len(data))
        if not piece:
            raise ConnectionError
        data += piece
    return data


def refuse_with_what_was_sent(client: socket.socket) -> None:
    """Act as a broker up to the log-in, whose refusal repeats the password."""

    def text(value: str) -> bytes:
        return struct.pack(">h", len(value.encode())) + value.encode()

    while True:
        request = exactly(client, int.from_bytes(exactly(client, 4), "big"))
        api, version, correlation, name_length = struct.unpack_from(">hhih", request)
        body = request[10 + max(0, name_length) :]
        if api == API_VERSIONS:
            apis = [(3, 0, 1), (SASL_HANDSHAKE, 0, 1), (API_VERSIONS, 0, 0), (SASL_AUTHENTICATE, 0, 0)]
            answer = struct.pack(">hi", 35 if version else 0, len(apis))
            answer += b"".join(struct.pack(">hhh", *one) for one in apis)
        elif api == SASL_HANDSHAKE:
            answer = struct.pack(">hi", 0, 1) + text("PLAIN")
        elif api == SASL_AUTHENTICATE:
            sent = body[4:].decode().split("\0")[-1]
            answer = (
                struct.pack(">h", 58) + text(f"{sent} is wrong, {FORGED} {sent * 3}") + struct.pack(">i", 0)
            )
        else:
            raise ConnectionError
        client.sendall(struct.pack(">ii", len(answer) + 4, correlation) + answer)


@pytest.fixture
def refused_by_kafka(new_daemon: NewDaemon, postgres: PostgresServer, database: str) -> Iterator[Daemon]:
    """Yield a daemon whose broker refuses its log-in."""
    daemon = new_daemon(postgres, database)
    broker = HostileSocket(refuse_with_what_was_sent)
    daemon.config["sink"] |= {
        "bootstrap_servers": f"127.0.0.1:{broker.port}",
        "properties": {
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "me",
            "sasl.password": CANARY,
        },
    }
    yield daemon
    broker.close()


def test_a_broker_that_repeats_a_password_is_shown_clean_by_check(refused_by_kafka: Daemon) -> None:
    shown = refused_by_kafka.run("check", "--json")
    assert_clean({"check --json": shown.stdout, "stderr": shown.stderr})
    assert "*** is wrong" in shown.stdout


@pytest.mark.nightly  # check has the refusal, too
def test_a_broker_that_repeats_a_password_is_shown_clean(refused_by_kafka: Daemon) -> None:
    found = outputs_of(refused_by_kafka, lambda one: "CDCD-SINK" in one.status().get("reason", ""))
    assert_clean(found)
    assert "*** is wrong" in found["check"]
    assert "*** is wrong" in found["log json"]


# --- names ---------------------------------------------------------------------------------------------------


def test_names_of_tables_and_columns_are_shown_clean(
    new_daemon: NewDaemon, postgres: PostgresServer, database: str
) -> None:
    """A table's name may have any character but NUL; 63 bytes of it."""
    table, column = "t\nok    x\x1b[2J\u202e\u2028\x7f\t\"'", "c\r\n\x1b[31m\u2066\x9b"
    quoted = '"' + table.replace('"', '""') + '"'
    postgres.execute(f'CREATE TABLE {quoted} (id int PRIMARY KEY, "{column}" text)', dbname=database)
    postgres.execute(f"INSERT INTO {quoted} VALUES (1, 'x')", dbname=database)
    postgres.execute(f'CREATE TABLE keyless (id int, "{column}" text)', dbname=database)
    daemon = new_daemon(postgres, database)
    found = outputs_of(daemon, lambda one: one.status().get("state") == "streaming")
    assert_clean(found)
    assert any(r"x\x1b[2J\u202e\u2028\x7f" in text for text in found.values()), "the name is shown escaped"
    assert "cdcd_events_total{" in found["/metrics json"]


# --- clients of the admin port -------------------------------------------------------------------------------

WITH_FEW = """
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, ({descriptors},) * 2)
from cdcd.cli import main
sys.exit(main())
"""


@pytest.mark.nightly
@pytest.mark.parametrize("descriptors", [nightly(1_024), 112])
def test_half_requests_hold_up_neither_probes_nor_rows(
    descriptors: int, new_daemon: NewDaemon, postgres: PostgresServer, database: str
) -> None:
    """1,500 incomplete requests, repeatedly, and as many invalid ones."""
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.entry = ("-c", WITH_FEW.format(descriptors=descriptors))
    daemon.start().wait_state("streaming")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(8_192, hard), hard))
    try:
        with contextlib.ExitStack() as clients:
            for number in range(1_500):
                client = clients.enter_context(socket.socket())
                client.setblocking(False)
                with contextlib.suppress(BlockingIOError):
                    client.connect(("127.0.0.1", daemon.port))
                with contextlib.suppress(OSError):
                    client.send(
                        b"GET /livez HTTP/1.1\r\nHost: " if number % 2 else b"\x16\x03\x01 hello\r\n\r\n"
                    )
                if number % 300 == 299:
                    postgres.execute(f"INSERT INTO t VALUES ({number})", dbname=database)
                    assert daemon.get("/livez", WITHIN_S)[0] == 200
            await_confirmed(postgres, daemon)
            assert daemon.get("/livez", WITHIN_S)[0] == 200
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert daemon.stop() == 0
    lines = daemon.log().splitlines()
    counted = daemon.events("admin_requests_refused")
    assert counted
    assert len(lines) < 100
    assert "Traceback" not in daemon.log()


# --- records -------------------------------------------------------------------------------------------------

DEEP = b"[" * 100_000
RECORDS: dict[str, tuple[str, Callable[[Daemon], bytes], bytes]] = {
    "progress that is deep": ("__progress", lambda one: one.slot.encode(), DEEP),
    "progress with keys of its own": (
        "__progress",
        lambda one: one.slot.encode(),
        json.dumps({"format": 2, FORGED: 1}).encode(),
    ),
    "a schema that is deep": ("__schemas", lambda _one: b"k", DEEP),
}


@pytest.mark.parametrize("kind", nightly_except(RECORDS, "progress with keys of its own"))
def test_whatever_others_write_to_cdcds_topics_is_shown_clean(
    kind: str, new_daemon: NewDaemon, postgres: PostgresServer, database: str, kafka: KafkaBroker
) -> None:
    topic, key, value = RECORDS[kind]
    postgres.execute("CREATE TABLE t (id int PRIMARY KEY)", dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.config["registry"] = "none"
    daemon.config["source"]["password"] = CANARY
    daemon.start().wait_state("streaming")
    assert daemon.stop() == 0
    producer = Producer({"bootstrap.servers": kafka.bootstrap})
    producer.produce(f"{daemon.name}.{topic}", value, key(daemon))
    assert producer.flush(WITHIN_S) == 0
    found = outputs_of(daemon, lambda one: one.status().get("state") == "halted")
    assert_clean(found)
    assert "CDCD-PROGRESS-UNREADABLE" in found["/readyz json"] or "CDCD-SCHEMA-TOPIC" in found["/readyz json"]
    assert "CDCD-INTERNAL" not in found["/status json"]


# --- another server on the admin port ------------------------------------------------------------------------

OTHERS: dict[str, Callable[[HostileServer, bytes], Iterable[bytes]]] = {
    "a daemon's words": lambda _s, request: [
        whole(
            json.dumps(
                {"name": "shop", "state": FORGED, "reason": FORGED + request.decode() * 5_000}
            ).encode()
        )
    ],
    "deep": lambda _s, _r: [whole(DEEP)],
    "a list": lambda _s, _r: [whole(b"[]")],
    "without end": REGISTRIES["one without end"],
    "slowly": REGISTRIES["one that drips"],
}


@pytest.mark.parametrize("kind", nightly_except(OTHERS, "a daemon's words"))
def test_whoever_listens_where_a_daemon_should_is_shown_clean(kind: str, tmp_path: Path) -> None:
    with HostileServer(lambda request: OTHERS[kind](server, request)) as server:
        path = tmp_path / "cdcd.yaml"
        tree = {
            "name": "shop",
            "source": {"dsn": "postgresql://cdcd@127.0.0.1:1/shop", "password": CANARY},
            "sink": {"bootstrap_servers": "127.0.0.1:1"},
            "registry": "none",
            "admin": {"port": server.port},
        }
        path.write_text(yaml.safe_dump(tree))
        ended = subprocess.run(
            [sys.executable, "-m", "cdcd", "resume", "--config", str(path)],
            env=environment_without_cdcd(),
            capture_output=True,
            text=True,
            timeout=WITHIN_S,
            check=False,
        )
    shown = ended.stdout + ended.stderr
    assert "Traceback" not in shown
    assert shown.count("\n") == 1
    assert shown[:-1].isprintable()
    assert CANARY not in shown
    assert len(shown) < 40_000


# --- files ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "tree",
    [
        {"name": FORGED},
        {"name": "shop", FORGED: 1},
        nightly({"name": "shop", "source": {"dsn": "postgresql://db/shop", "slot": {"name": FORGED}}}),
        nightly({"name": "shop", "sink": {"topics": {"template": FORGED}}}),
        nightly({"name": "shop", "admin": {"host_names": [FORGED]}}),
    ],
    ids=["a name", "a key", "a slot", "a template", "a host"],
)
def test_a_configuration_is_shown_clean(tree: dict[str, Any], tmp_path: Path) -> None:
    folder = tmp_path / "a\nb\x1b[2J"
    folder.mkdir()
    path = folder / "prod.yaml"
    path.write_text(yaml.safe_dump(tree))
    ended = subprocess.run(
        [sys.executable, "-m", "cdcd", "check", "--config", str(path)],
        env=environment_without_cdcd() | {"CDCD_SOURCE__PASSWORD": CANARY},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 78
    assert ended.stderr.replace("\n", "").isprintable()
    assert not re.search("^ok ", ended.stderr, re.MULTILINE)

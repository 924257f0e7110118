"""`cdcd capture` and `cdcd decode` as users run them, compared with test_decoding's account of the same work."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import stat
import subprocess
import sys
from pathlib import Path
from typing import Any

import psycopg2
import pytest
import yaml

from cdcd.demo.stack.postgres import PostgresServer
from tests.support.nightly import nightly
from tests.support.stack import PostgresServers, drop_database, new_database_name, run_script, wal_position
from tests.support.waiting import eventually

SCRIPT = (
    "CREATE TABLE public.t (id int PRIMARY KEY, v text, n numeric(8,2))",
    "CREATE PUBLICATION pub FOR TABLE public.t",
)
WORK = (
    "INSERT INTO public.t VALUES (1, 'it''s', 1.50), (2, NULL, NULL)",
    "UPDATE public.t SET v = 'é' WHERE id = 2",
    "UPDATE public.t SET id = 3 WHERE id = 2",
    "DELETE FROM public.t WHERE id = 1",
    "SELECT pg_logical_emit_message(true, 'out', 'box')",
)
CHANGE = re.compile(r"table public\.t: (INSERT|UPDATE|DELETE):(.*)")
PAIR = re.compile(r"(\w+)\[[^]]+\]:('(?:[^']|'')*'|\S+)")


class Capturing:
    """A running `cdcd capture`."""

    def __init__(
        self, folder: Path, dsn: str, *words: str, largest_file_bytes: int | None = None, **protocol: object
    ) -> None:
        self.path = folder / "wire"
        config = {
            "name": "shop",
            "source": {"dsn": dsn, "publication": {"names": ["pub"]}, "protocol": protocol},
            "sink": {"bootstrap_servers": "127.0.0.1:1"},
            "registry": {"url": "http://127.0.0.1:1"},
        }
        (folder / "cdcd.yaml").write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "cdcd", "capture", "--config", str(folder / "cdcd.yaml")]
        command += ["-o", str(self.path), *words]
        if largest_file_bytes is not None:
            command = ["prlimit", f"--fsize={largest_file_bytes}", *command]
        environment = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)

    def begun(self) -> str:
        """Wait until the capture has started, and return its first line."""
        assert self.process.stderr is not None
        return self.process.stderr.readline()

    def end(self) -> tuple[int, str]:
        """Return the exit status and the rest of standard error."""
        _, output = self.process.communicate(timeout=60)
        return self.process.returncode, output


def decoded(path: Path, *words: str) -> list[dict[str, Any]]:
    command = [sys.executable, "-m", "cdcd", "decode", str(path), *words]
    ended = subprocess.run(command, capture_output=True, text=True, check=True)
    assert ended.stderr == ""
    return [json.loads(line) for line in ended.stdout.splitlines()]


def witnessed(server: PostgresServer, name: str) -> list[tuple[str, dict[str, str | None]]]:
    """Return each change in test_decoding's account: the verb, and the new row's values by column."""
    lines = server.execute("SELECT data FROM pg_logical_slot_get_changes('witness', NULL, NULL)", dbname=name)
    reported = []
    for (line,) in lines:
        if found := CHANGE.match(line):
            row = found[2].rpartition("new-tuple:")[2]
            reported.append((found[1], {key: _unquoted(value) for key, value in PAIR.findall(row)}))
    return reported


def _unquoted(value: str) -> str | None:
    return None if value == "null" else value[1:-1].replace("''", "'") if value[0] == "'" else value


def changes(lines: list[dict[str, Any]]) -> list[tuple[str, dict[str, str | None]]]:
    """Return the same from the decoded capture; a DELETE has only its key."""
    columns: list[str] = []
    reported = []
    for line in lines:
        if line.get("message") == "Relation":
            columns = [column["name"] for column in line["fields"]["columns"]]
        elif line.get("message") in ("Insert", "Update", "Delete"):
            sent = line["fields"].get("new") or line["fields"]["old"]["columns"]
            row = {name: one.get("text") for name, one in zip(columns, sent, strict=True)}
            if line["message"] == "Delete":
                row = {"id": row["id"]}
            reported.append((line["message"].upper(), row))
    return reported


@pytest.mark.parametrize(("major", "version"), [nightly(14, 1), (18, "auto")])
def test_what_was_captured_is_what_test_decoding_saw(
    pg_server: PostgresServers, tmp_path: Path, major: int, version: object
) -> None:
    server, name = pg_server(major), new_database_name()
    server.create_database(name)
    try:
        run_script(server.dsn(name), *SCRIPT)
        capturing = Capturing(tmp_path, server.dsn(name), "--messages", "16", version=version)
        assert capturing.begun().startswith("cdcd: capturing from ")
        server.execute("SELECT pg_create_logical_replication_slot('witness', 'test_decoding')", dbname=name)
        run_script(server.dsn(name), *WORK)
        assert capturing.end() == (0, "cdcd: 16 messages\n")
        witness = witnessed(server, name)
        assert [slot for (slot,) in server.execute("SELECT slot_name::text FROM pg_replication_slots")] == [
            "witness"
        ]
    finally:
        drop_database(server, name)

    assert stat.S_IMODE(capturing.path.stat().st_mode) == 0o600
    header = json.loads(capturing.path.open("rb").readline())
    assert header["server_version_num"] // 10_000 == major
    assert header["proto_version"] == {14: 1, 18: 4}[major]
    assert (header["publication_names"], header["database"]) == (["pub"], name)
    lines = decoded(capturing.path)
    assert changes(lines) == witness
    assert witness == [
        ("INSERT", {"id": "1", "v": "it's", "n": "1.50"}),
        ("INSERT", {"id": "2", "v": None, "n": None}),
        ("UPDATE", {"id": "2", "v": "é", "n": None}),
        ("UPDATE", {"id": "3", "v": "é", "n": None}),
        ("DELETE", {"id": "1"}),
    ]
    kinds = [line["type"] for line in lines if "message" in line]
    assert "".join(kinds) == "BRIICBUCBUCBDCBM"
    emitted = lines[-1]["fields"]
    assert (emitted["transactional"], emitted["prefix"]) == (True, "out")
    assert emitted["content"] == {"text": "box"}
    key_change = next(line for line in lines if line.get("fields", {}).get("old"))
    assert key_change["fields"]["old"]["columns"][0] == {"kind": "t", "text": "2"}


@pytest.mark.nightly  # a process of its own; a capture of what is not streamed is above
def test_a_streamed_transaction_is_read_with_its_xids_and_nothing_is_confirmed(
    pg_server: PostgresServers, tmp_path: Path
) -> None:
    """F26; the daemon's slot does not advance, though its publication is captured."""
    server, name = pg_server(18), new_database_name()
    server.create_database(name)
    try:
        run_script(server.dsn(name), *SCRIPT)
        server.execute(f"ALTER DATABASE {name} SET logical_decoding_work_mem = '64kB'")
        server.execute("SELECT pg_create_logical_replication_slot('cdcd_shop', 'pgoutput')", dbname=name)
        before = server.execute("SELECT * FROM pg_replication_slots WHERE slot_name = 'cdcd_shop'")
        capturing = Capturing(tmp_path, server.dsn(name), streaming="parallel")
        capturing.begun()
        with contextlib.closing(psycopg2.connect(server.dsn(name))) as connection:
            cursor = connection.cursor()
            cursor.execute("INSERT INTO public.t SELECT g, repeat('a', 100) FROM generate_series(1, 2000) g")
            cursor.execute("SAVEPOINT one")
            cursor.execute(
                "INSERT INTO public.t SELECT g, repeat('b', 100) FROM generate_series(2001, 4000) g"
            )
            cursor.execute("ROLLBACK TO one")
            connection.commit()
        end = wal_position(server)

        def is_written() -> bool:
            command = [sys.executable, "-m", "cdcd", "decode", str(capturing.path)]
            ended = subprocess.run(command, capture_output=True, text=True, check=False)
            positions = re.findall(r'"wal_end_lsn": "(\w+)/(\w+)"', ended.stdout)
            return any((int(high, 16) << 32) + int(low, 16) >= end for high, low in positions)

        eventually(is_written, "a keepalive beyond the work is in the file")
        capturing.process.send_signal(signal.SIGINT)
        status, output = capturing.end()
        assert (status, output.endswith(" messages\n")) == (0, True)
        after = server.execute("SELECT * FROM pg_replication_slots WHERE slot_name = 'cdcd_shop'")
        assert after == before
    finally:
        drop_database(server, name)
    lines = decoded(capturing.path)
    kinds = "".join(line["type"] for line in lines if "message" in line)
    assert re.fullmatch(r"(SR?I+E|A)+c", kinds), re.sub(r"I+", "I", kinds)
    top = next(line["fields"]["xid"] for line in lines if line.get("type") == "S")
    (abort,) = [line["fields"] for line in lines if line.get("type") == "A"]
    assert abort["xid"] == top
    assert "abort_lsn" in abort
    rows = [line["fields"] for line in lines if line.get("type") == "I"]
    identities = [int(row["new"][0]["text"]) for row in rows if row["xid"] == top]
    assert identities == list(range(1, 2001))
    assert {row["xid"] for row in rows} <= {top, abort["subxid"]}


@pytest.mark.nightly  # tests/hints has the existing file
def test_a_capture_ends_after_its_seconds_and_touches_no_existing_file(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    run_script(postgres.dsn(database), *SCRIPT)
    capturing = Capturing(tmp_path, postgres.dsn(database), "--seconds", "0.5")
    assert capturing.begun().startswith("cdcd: capturing")
    assert capturing.end() == (0, "cdcd: 0 messages\n")
    content = capturing.path.read_bytes()
    again = Capturing(tmp_path, postgres.dsn(database), "--seconds", "0.5")
    status, output = again.end()
    assert status == 1
    assert "CDCD-CAPTURE" in output
    assert "File exists" in output
    assert capturing.path.read_bytes() == content


def test_a_capture_that_cannot_begin_leaves_no_file(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    capturing = Capturing(tmp_path, postgres.dsn(database))
    status, output = capturing.end()
    assert status == 1
    assert "publication pub does not exist" in output
    assert "cdcd init" in output
    assert os.listdir(tmp_path) == ["cdcd.yaml"]


@pytest.mark.nightly
def test_a_capture_that_waits_for_an_open_transaction_says_so_and_can_be_ended(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    """F38."""
    run_script(postgres.dsn(database), *SCRIPT)
    with contextlib.closing(psycopg2.connect(postgres.dsn(database))) as connection:
        connection.cursor().execute("INSERT INTO public.t VALUES (1)")
        capturing = Capturing(tmp_path, postgres.dsn(database))
        output = capturing.begun()
        assert "open transactions" in output
        assert f"pid {connection.info.backend_pid} of" in output
        capturing.process.send_signal(signal.SIGINT)
        status, output = capturing.end()
    assert (status, len(output.splitlines())) == (1, 1)
    assert "interrupted before the capture started" in output
    assert os.listdir(tmp_path) == ["cdcd.yaml"]


@pytest.mark.nightly
def test_a_capture_whose_file_cannot_grow_says_so_in_one_line(
    database: str, postgres: PostgresServer, tmp_path: Path
) -> None:
    run_script(postgres.dsn(database), *SCRIPT)
    capturing = Capturing(tmp_path, postgres.dsn(database), "--seconds", "30", largest_file_bytes=8192)
    assert capturing.begun().startswith("cdcd: capturing")
    postgres.execute("INSERT INTO public.t SELECT g FROM generate_series(1, 1000) g", dbname=database)
    status, output = capturing.end()
    assert (status, len(output.splitlines())) == (1, 1)
    assert f"{capturing.path} cannot be written: File too large" in output
    command = [sys.executable, "-m", "cdcd", "decode", str(capturing.path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    assert '"message": "Insert"' in shown.stdout.splitlines()[-1]


def test_what_the_sql_interface_returns_is_decoded_from_standard_input(
    database: str, postgres: PostgresServer
) -> None:
    run_script(
        postgres.dsn(database),
        *SCRIPT,
        f"SELECT pg_create_logical_replication_slot('s_{database}', 'pgoutput')",
        *WORK,
    )
    sent = postgres.execute(
        "SELECT data::text FROM pg_logical_slot_peek_binary_changes(%s, NULL, NULL,"
        " 'proto_version', '1', 'publication_names', 'pub')",
        f"s_{database}",
        dbname=database,
    )
    command = [sys.executable, "-m", "cdcd", "decode", "--messages", "--proto-version", "1"]
    given = "\n".join(line for (line,) in sent)
    ended = subprocess.run(command, input=given, capture_output=True, text=True, check=True)
    lines = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [verb for verb, _ in changes(lines)] == ["INSERT", "INSERT", "UPDATE", "UPDATE", "DELETE"]
    assert lines[0]["line"] == 1

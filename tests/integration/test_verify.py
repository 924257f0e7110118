"""`cdcd verify`: planted differences are found by kind, row, column and record; changes under load are none."""

from __future__ import annotations

import contextlib
import json
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg2
import pytest
from confluent_kafka.admin import AdminClient

from cdcd.cli.verify_state import only_run
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import RegistryRefused, RegistryUnavailable
from cdcd.registry.settings import RegistrySettings
from cdcd.verify.schemas import RegistryIds
from tests.integration.conftest import NewDaemon
from tests.support.daemon import STREAM_ONLY, Daemon, await_confirmed
from tests.support.nightly import nightly
from tests.support.waiting import eventually
from tests.verify.load import TABLES, Load
from tests.verify.planting import Forger, unseen
from tests.verify.running import verify

ROWS = 300
TABLE = """
    CREATE TABLE t (id int PRIMARY KEY, n int8, amount numeric(12,2), ratio float8, name text, day date,
                    at timestamptz, flag bool, doc jsonb, tags text[], raw bytea, big text);
    ALTER TABLE t ALTER big SET STORAGE EXTERNAL
"""
FILLED = """
    INSERT INTO t SELECT n, n * 7, n / 3.0, n / 7.0, 'name ' || n, date '2020-01-01' + n, now(), n % 2 = 0,
        jsonb_build_object('n', n), ARRAY['a', n::text], decode(md5(n::text), 'hex'),
        (SELECT string_agg(md5((n + m)::text), '') FROM generate_series(1, 99) m)
    FROM generate_series({first}, {last}) n
"""
CHANGED = {
    "n": "coalesce(n, 0) + 1", "amount": "amount + 0.01", "ratio": "ratio * 1.0000000000000002 + 1e-9",
    "name": "name || 'x'", "day": "day + 1", "at": "at + interval '1 microsecond'", "flag": "NOT flag",
    "doc": "doc || '{\"x\": null}'", "tags": "tags || NULL::text", "raw": "raw || '\\x00'", "big": "NULL",
}  # fmt: skip


@pytest.fixture
def daemon(postgres: PostgresServer, database: str, new_daemon: NewDaemon) -> Daemon:
    """Return a daemon that streams the table, and ignores changes with an origin."""
    postgres.execute(TABLE, dbname=database)
    postgres.execute(FILLED.format(first=1, last=ROWS // 2), dbname=database)
    over = {"source": {"protocol": {"origin": "none"}}, "snapshot": STREAM_ONLY}
    daemon = new_daemon(postgres, database, **over)
    daemon.start()
    daemon.wait_state("streaming")
    postgres.execute(FILLED.format(first=ROWS // 2 + 1, last=ROWS), dbname=database)
    postgres.execute("UPDATE t SET n = n + 1 WHERE id % 3 = 0", dbname=database)  # `big` is not sent
    return daemon


@pytest.fixture
def forger(daemon: Daemon, kafka: KafkaBroker, registry: SchemaRegistry) -> Forger:
    """Return a producer of records that cdcd has not written."""
    return Forger(kafka.bootstrap, registry.url, f"{daemon.name}.public.t")


def test_each_kind_of_difference_is_found_with_its_row_and_its_record(
    daemon: Daemon, forger: Forger, postgres: PostgresServer, database: str
) -> None:
    equal = verify(daemon)
    assert (equal.status, equal.one()["state"]) == (0, "equal"), equal
    assert equal.one()["rows_in_source"] == equal.one()["rows_in_topics"] == ROWS
    with unseen(postgres, database) as cursor:
        cursor.execute("INSERT INTO t (id) VALUES (1001)")  # a lost insert
        cursor.execute("DELETE FROM t WHERE id = 2")  # a lost delete
        cursor.execute("UPDATE t SET name = NULL WHERE id = 3")  # a lost update
        cursor.execute("UPDATE t SET id = 1004 WHERE id = 4")  # a lost change of a key
        cursor.execute("UPDATE t SET n = 70 + 71 - n WHERE id IN (10)")
        cursor.execute("UPDATE t o SET ratio = s.ratio FROM t s WHERE (o.id, s.id) IN ((11, 12), (12, 11))")
    await_confirmed(postgres, daemon)
    key, value = forger.record_of(20)
    forger.write(key, value, op="u", after={**forger.row(value), "big": None})  # null in place of unchanged
    key, value = forger.record_of(21)
    row = forger.row(value)
    forger.write(key, value, op="u", after={**row, "n": row["n"] - 1})  # an older version, repeated
    key, value = forger.record_of(22)
    forger.write(key, value, op="d", after=None)  # a delete that did not happen
    key, value = forger.record_of(23)
    forger.write(key, value, 1023, op="c", after={**forger.row(value), "id": 1023})  # a row that never was
    key, value = forger.record_of(24)
    row, later = forger.row(value), forger.commit_lsn(value) + 1
    copied = {"snapshot": "incremental", "txId": None, "commit_lsn": later}
    forger.write(
        key, value, op="r", after={**row, "n": row["n"] - 1}, source=copied
    )  # a copy's older row, last
    found = verify(daemon, "--show-keys")
    assert found.status == 1
    rows = {(one["kind"], one["key"]): one for one in found.one()["rows"]}
    assert {key: set(one["columns"]) for key, one in rows.items()} == {
        ("missing", "1001"): set(),
        ("extra", "2"): set(),
        ("different", "3"): {"name"},
        ("missing", "1004"): set(),
        ("extra", "4"): set(),
        ("different", "10"): {"n"},
        ("different", "11"): {"ratio"},
        ("different", "12"): {"ratio"},
        ("different", "20"): {"big"},
        ("different", "21"): {"n"},
        ("missing", "22"): set(),
        ("different", "24"): {"n"},
        ("extra", "1023"): set(),
    }
    assert all(
        one["topic"] == f"{daemon.name}.public.t"
        for key, one in rows.items()
        if key[1] not in ("1001", "1004")
    )
    assert rows["missing", "1001"]["topic"] is None
    hashed = verify(daemon).one()["rows"]
    assert len(hashed) == len(rows)
    assert not {one["key"] for one in hashed} & {key for _, key in rows}


@pytest.mark.parametrize("changes", [60, nightly(1000)])
def test_each_of_many_single_values_that_were_changed_is_found(
    daemon: Daemon, postgres: PostgresServer, database: str, changes: int
) -> None:
    draw = random.Random(changes)
    postgres.execute(FILLED.format(first=ROWS + 1, last=ROWS + changes), dbname=database)
    await_confirmed(postgres, daemon)
    planted: dict[int, str] = {}
    with unseen(postgres, database) as cursor:
        for row in draw.sample(range(1, ROWS + changes + 1), changes):
            planted[row] = draw.choice(sorted(CHANGED))
            cursor.execute(f"UPDATE t SET {planted[row]} = {CHANGED[planted[row]]} WHERE id = %s", (row,))
    found = verify(daemon, "--show-keys", "--limit", str(2 * changes))
    shown = {(int(one["key"]), *one["columns"]) for one in found.one()["rows"]}
    assert shown == set(planted.items())
    assert (found.status, found.one()["different"]) == (1, changes)


def test_under_load_with_ddl_there_is_no_difference(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    for statement in TABLES:
        postgres.execute(statement, dbname=database)
    daemon = new_daemon(postgres, database).start()
    daemon.wait_state("streaming")
    with Load(postgres, database, seed=7) as load:
        found = [verify(daemon) for _ in range(4)]
        assert load.transactions > 50

    def is_equal() -> bool:
        """A table that the last DDL has rewritten is being copied, and unknown until then; nothing else is."""
        found.append(verify(daemon))
        reasons = [one["reason"] for one in found[-1].tables.values() if one["state"] == "unknown"]
        assert all("cdcd is copying the table" in one for one in reasons), reasons
        return found[-1].status == 0

    eventually(is_equal, "the tables are equal")
    assert {one.status for one in found} <= {0, 2}, found
    assert sum(table["state"] == "equal" for one in found for table in one.tables.values()) >= 6, found


@contextlib.contextmanager
def open_transaction(server: PostgresServer, database: str, *statements: str) -> Iterator[None]:
    """Have another session with a transaction in which these statements were run."""
    with contextlib.closing(psycopg2.connect(server.dsn(database))) as connection:
        for statement in statements:
            connection.cursor().execute(statement)
        yield


def test_what_cannot_be_compared_has_its_reason(
    daemon: Daemon, postgres: PostgresServer, database: str
) -> None:
    for statement in (
        "CREATE TABLE keyless (n int)",
        "CREATE TABLE guarded (id int PRIMARY KEY)",
        "CREATE TABLE locked (id int PRIMARY KEY)",
    ):
        postgres.execute(statement, dbname=database)
    with open_transaction(postgres, database, "LOCK TABLE locked IN ACCESS EXCLUSIVE MODE"):
        refused = daemon.run("verify")
    assert refused.returncode == 2
    assert "held by pid" in refused.stderr, refused.stderr
    found = verify(daemon, "--table", "public.keyless", "--table", "public.t", "--table", "public.guarded")
    assert found.status == 2
    assert found.tables["public.t"]["state"] == "equal"
    assert "no unique key" in found.tables["public.keyless"]["reason"]
    assert found.tables["public.guarded"]["state"] == "equal"
    assert found.tables["public.guarded"]["rows_in_source"] == 0
    ((publication,),) = postgres.execute("SELECT quote_ident(pubname) FROM pg_publication", dbname=database)
    postgres.execute(f"ALTER PUBLICATION {publication} SET (publish = 'insert, delete')", dbname=database)
    partial = verify(daemon, "--table", "public.t")
    assert (partial.status, "no update, truncate" in partial.one()["reason"]) == (2, True), partial
    everything = "insert, update, delete, truncate"
    postgres.execute(f"ALTER PUBLICATION {publication} SET (publish = '{everything}')", dbname=database)
    assert daemon.stop() == 0
    stopped = verify(daemon, "--table", "public.t", "--timeout", "1")
    assert stopped.status == 2
    assert "no cdcd reads the slot" in stopped.one()["reason"]
    assert daemon.run("verify", "--table", "public.none").returncode == 78


def test_a_sample_and_a_rate(daemon: Daemon) -> None:
    found = verify(daemon, "--sample", "30", "--rate", "100000")
    assert found.status == 0
    assert 0 < found.one()["rows_in_source"] == found.one()["rows_in_topics"] < ROWS // 2


def test_a_comparison_needs_no_topic_of_messages(daemon: Daemon, kafka: KafkaBroker) -> None:
    """The message that marks the snapshot's place is no record: with sink.topics.create off it would halt cdcd."""
    assert verify(daemon).status == 0
    topics = AdminClient({"bootstrap.servers": kafka.bootstrap}).list_topics(timeout=30).topics
    assert f"{daemon.name}.public.t" in topics
    assert f"{daemon.name}.message" not in topics


def test_an_interrupted_run_continues_where_its_state_was_stored(
    daemon: Daemon, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    await_confirmed(postgres, daemon)
    assert daemon.stop() == 0
    words = ("--state", str(tmp_path / "state"), "--metrics-file", str(tmp_path / "verify.prom"))
    assert verify(daemon, *words, "--timeout", "1").status == 2
    assert 'cdcd_verify_state{table="public.t",state="unknown"} 1' in (tmp_path / "verify.prom").read_text()
    (stored,) = (tmp_path / "state").glob("*/topics.json")
    read = sum(offset for *_, offset in json.loads(stored.read_text())["next"])
    assert read >= ROWS
    daemon.start()
    daemon.wait_state("streaming")
    postgres.execute("UPDATE t SET n = 5 WHERE id = 1", dbname=database)
    for entries in stored.parent.glob("topics-*"):
        entries.write_bytes(
            bytes(entries.stat().st_size)
        )  # a run that read the records again would not notice
    continued = verify(daemon, *words)
    assert (continued.status, continued.one()["missing"]) == (1, ROWS - 1)
    assert list((tmp_path / "state").iterdir()) == []
    assert verify(daemon, *words).status == 0
    assert 'cdcd_verify_state{table="public.t",state="equal"} 1' in (tmp_path / "verify.prom").read_text()


def test_each_run_has_another_sample_although_a_table_is_always_unknown(
    daemon: Daemon, postgres: PostgresServer, database: str, tmp_path: Path
) -> None:
    """A table without a key cannot be compared by any run; nothing is left of this one that a next run could use."""
    postgres.execute("CREATE TABLE keyless (n int)", dbname=database)
    await_confirmed(postgres, daemon)
    state = tmp_path / "state"
    state.mkdir()
    (state / "4711").mkdir()  # of a table that is not there any more, in a run of another version
    (state / "4711" / "topics-0000").write_bytes(bytes(100))
    found = verify(daemon, "--state", str(state), "--sample", "50")
    assert {name: one["state"] for name, one in found.tables.items()} == {
        "public.t": "equal",
        "public.keyless": "unknown",
    }
    assert not (state / "outcomes.json").exists()
    assert not (state / "4711").exists()
    with only_run(state):
        second = daemon.run("verify", "--state", str(state))
    assert second.returncode == 2
    assert "another run of `cdcd verify" in second.stderr, second


def test_an_alter_table_does_not_wait_for_the_comparison(
    daemon: Daemon, postgres: PostgresServer, database: str
) -> None:
    await_confirmed(postgres, daemon)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(verify, daemon, "--rate", "60")  # the rows alone take five seconds
        locked = "SELECT count(*) FROM pg_locks WHERE relation = 't'::regclass AND mode = 'AccessShareLock'"
        eventually(lambda: postgres.execute(locked, dbname=database) != [(0,)], "the table is locked")
        postgres.execute("ALTER TABLE t ADD COLUMN added int DEFAULT 7", dbname=database)
        assert not running.done()
        postgres.execute("UPDATE t SET n = 1 WHERE id = 1", dbname=database)
        found = running.result()
    assert found.status == 0, found
    assert found.one()["not_compared"] == {"added": ROWS - 1}


def test_without_a_registry_the_schemas_are_read_from_their_topic(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    postgres.execute(TABLE, dbname=database)
    postgres.execute(FILLED.format(first=1, last=9), dbname=database)
    daemon = new_daemon(postgres, database)
    daemon.config["registry"] = "none"
    daemon.start()
    daemon.wait_state("streaming")
    postgres.execute("ALTER TABLE t DROP COLUMN raw", dbname=database)
    postgres.execute("UPDATE t SET n = 0 WHERE id < 5", dbname=database)
    found = verify(daemon)
    assert (found.status, found.one()["rows_in_topics"]) == (0, 9), found


def test_partitions_that_are_published_as_their_root(
    postgres: PostgresServer, database: str, new_daemon: NewDaemon
) -> None:
    for statement in (
        "CREATE TABLE p (id int, area text, n int, PRIMARY KEY (id, area)) PARTITION BY LIST (area)",
        "CREATE TABLE p_north PARTITION OF p FOR VALUES IN ('north')",
        "CREATE TABLE p_south (n int, area text NOT NULL, id int NOT NULL)",
        "ALTER TABLE p ATTACH PARTITION p_south FOR VALUES IN ('south')",
        "INSERT INTO p SELECT n, CASE n % 2 WHEN 0 THEN 'north' ELSE 'south' END, n FROM generate_series(1, 40) n",
    ):
        postgres.execute(statement, dbname=database)
    daemon = new_daemon(postgres, database)
    postgres.execute(
        f"ALTER PUBLICATION cdcd_{daemon.name} SET (publish_via_partition_root)", dbname=database
    )
    daemon.start()
    daemon.wait_state("streaming")
    postgres.execute("UPDATE p SET area = 'south' WHERE id < 5", dbname=database)
    found = verify(daemon)
    assert list(found.tables) == ["public.p"]
    assert (found.status, found.one()["rows_in_source"]) == (0, 40), found


def test_a_registry_that_does_not_know_an_id_or_does_not_answer(registry: SchemaRegistry) -> None:
    with contextlib.closing(RegistryIds(RegistrySettings(registry.url))) as known:
        with pytest.raises(RegistryRefused, match="no schema of a record's id") as refused:
            known.schema(2**31 - 1)
        assert refused.value.context["status"] == 404
    absent = RegistryIds(RegistrySettings(f"http://127.0.0.1:{free_port()}"))
    with pytest.raises(RegistryUnavailable, match="did not return a schema"):
        absent.schema(1)
    absent.close()


def test_a_record_that_cannot_be_decoded_is_named(
    daemon: Daemon, forger: Forger, postgres: PostgresServer
) -> None:
    await_confirmed(postgres, daemon)
    key, value = forger.record_of(1)
    forger.write_raw(key, value[:9])
    found = verify(daemon)
    assert found.status == 2
    assert "cannot be decoded" in found.one()["reason"]

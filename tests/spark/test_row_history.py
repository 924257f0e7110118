"""The history of a mirror's tables (SCD type 2): every version of each row.

The judges: a model that replays the changes one by one; and PostgreSQL, whose triggers write each version down.
"""

from __future__ import annotations

import os
import random
import time
from collections import defaultdict
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.demo.stack.registry import SchemaRegistry
from cdcd.errors import ConfigError, SparkReadError, TablesParked
from cdcd.spark import history, read_mirror
from cdcd.spark.clients.connection import Connection, RegistryAccess
from cdcd.spark.mirroring.start import mirror
from cdcd.spark.reading.plain_views import plain_views, script_of
from cdcd.spark.tables import compaction, history_rows, tasks
from cdcd.spark.target.commit_log import read_latest
from cdcd.spark.target.ownership import starting_version
from cdcd.spark.target.versions import TABLE_FORMATS, TableFormat
from cdcd.spark.testing import Database, Table
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.spark.history_model import (
    FIELDS,
    TABLE,
    Model,
    Version,
    batch_of,
    item,
    plain_copy_of,
    versions_of,
)
from tests.spark.unit.test_plain_views import duck
from tests.support.daemon import Daemon, await_confirmed
from tests.support.nightly import nightly, nightly_except
from tests.support.pages import python_blocks


@pytest.mark.parametrize("table_format", nightly_except(TABLE_FORMATS, "parquet"))
@pytest.mark.parametrize("seed", [1, nightly(2), nightly(3)])
def test_the_versions_are_those_of_a_replay(
    spark: SparkSession, tmp_path: Path, seed: int, table_format: TableFormat, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also after merges of the history's files, and for an earlier version of the target."""
    monkeypatch.setattr(compaction, "FAN", 3)
    items, model, chosen = (
        Batches(tmp_path / "mirror", FIELDS, table_format=table_format),
        Model(),
        random.Random(seed),
    )
    items.scd_type = 2
    earlier: list[Version] = []
    for batch in range(1, 15):
        with items.mirror() as batches:
            batches.compact()
        make = plain_copy_of if batch in (5, 11) else batch_of
        items.run(make(items, model, 100 * batch, chosen), loading=False)
        if batch == 8:
            earlier, at = model.versions, read_mirror(items.target).at
    assert items.rows() == sorted(model.rows.values(), key=lambda row: row["id"])
    assert versions_of(spark, items.target) == model.versions
    assert versions_of(spark, items.target, at=at) == earlier
    latest = read_latest(items.target)
    assert latest is not None
    assert len(latest.tables[TOPIC].history) < 8, "the files of 14 batches are merged"


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    """Return a table whose mirror has its history."""
    made = Batches(tmp_path / "mirror", FIELDS)
    made.scd_type = 2
    return made


def test_only_tracked_columns_make_versions(spark: SparkSession, items: Batches) -> None:
    items.run([items.change("c", 10, 1, after=item(1, "a", "first"))], loading=False)
    items.run([items.change("u", 20, 1, after=item(1, "a", "second"))], loading=False)
    items.run([items.change("u", 30, 1, after=item(1, "b", "second"))], loading=False)
    expected = [(1, "a", "second", (10, 1), (30, 1)), (1, "b", "second", (30, 1), None)]
    assert versions_of(spark, items.target, track_history_column_list=["name"]) == expected
    assert versions_of(spark, items.target, track_history_except_column_list=["note"]) == expected
    assert len(versions_of(spark, items.target)) == 3
    with pytest.raises(ConfigError, match="no such column"):
        versions_of(spark, items.target, track_history_column_list=["nmae"])
    with pytest.raises(ConfigError, match="exclude each other"):
        versions_of(
            spark, items.target, track_history_column_list=[], track_history_except_column_list=["note"]
        )


def test_a_text_outside_its_type_makes_a_version_only_if_its_column_is_tracked(
    spark: SparkSession, items: Batches
) -> None:
    outside = {"special": {"after.note": "infinity"}}
    items.run([items.change("c", 10, 1, after=item(1, "a", None), **outside)], loading=False)
    items.run([items.change("u", 20, 1, after=item(1, "a", None))], loading=False)
    assert versions_of(spark, items.target, track_history_except_column_list=["note"]) == [
        (1, "a", None, (10, 1), None)
    ]
    assert len(versions_of(spark, items.target)) == 2


def test_rows_that_are_copied_again_go_on_if_they_are_the_same(spark: SparkSession, items: Batches) -> None:
    """The TRUNCATE of a copy removes the rows that were not copied; one of the source ends all rows."""
    items.run([items.change("c", 10, number, after=item(number, "a")) for number in (1, 2, 3)], loading=False)
    again = [items.change("t", 20, 1, snapshot=True), items.change("r", 20, 2, after=item(1, "a"))]
    items.run([*again, items.change("r", 20, 3, after=item(2, "b"))], loading=False)
    assert versions_of(spark, items.target) == [
        (1, "a", "n", (10, 1), None),
        (2, "a", "n", (10, 2), (20, 3)),
        (2, "b", "n", (20, 3), None),
        (3, "a", "n", (10, 3), (20, 1)),
    ]
    items.run([items.change("t", 30, 1), items.change("c", 30, 2, after=item(1, "a"))], loading=False)
    assert [one for one in versions_of(spark, items.target) if one[0] == 1] == [
        (1, "a", "n", (10, 1), (30, 1)),
        (1, "a", "n", (30, 2), None),
    ]


def test_a_copy_that_begins_again_before_it_is_complete_ends_no_row(
    spark: SparkSession, items: Batches
) -> None:
    """The copy that is complete ends row 3, which it has not found, at its own TRUNCATE."""
    items.run([items.change("c", 10, number, after=item(number, "a")) for number in (1, 2, 3)], loading=False)
    for lsn in (20, 30):
        begun = [items.change("t", lsn, 1, snapshot=True), items.change("r", lsn, 2, after=item(1, "a"))]
        items.run(begun, loading=True)
    again = [items.change("r", 90, 1 + number, after=item(number, "a")) for number in (1, 2)]
    items.run([items.change("t", 90, 1, snapshot=True), *again], loading=False)
    expected = [(number, "a", "n", (10, number), None) for number in (1, 2)]
    assert versions_of(spark, items.target) == [*expected, (3, "a", "n", (10, 3), (90, 1))]
    items.run([items.change("t", 95, 1, snapshot=True)], loading=False)
    assert [one[4] for one in versions_of(spark, items.target)] == [(95, 1), (95, 1), (90, 1)]


def test_a_change_of_the_key_ends_a_row_with_the_values_of_the_new_one(
    spark: SparkSession, items: Batches
) -> None:
    """In another bucket, so that the table is folded as a whole."""
    items.run([items.change("c", 10, 1, after=item(1, "a", "long"))], loading=False)
    for number in range(2, 8):
        moved = [
            items.change("d", 10 * number, 1, before=item(number - 1, None)),
            items.change("c", 10 * number, 2, after=item(number, "a", None), unchanged=["note"]),
        ]
        items.run(moved, loading=False)
    assert versions_of(spark, items.target) == [
        *(
            (number, "a", "long", (10 * number, 1 + (number > 1)), (10 * number + 10, 1))
            for number in range(1, 7)
        ),
        (7, "a", "long", (70, 2), None),
    ]


def test_values_before_a_copy_are_not_those_of_rows_that_are_not_copied_yet(
    spark: SparkSession, items: Batches
) -> None:
    """The copy's TRUNCATE is in one bucket, the rows in all; whatever the batches are."""
    items.run([items.change("c", 10, one, after=item(one, "a", "old")) for one in range(1, 9)], loading=False)
    changed = [
        items.change("u", 21, one, after=item(one, "b", None), unchanged=["note"]) for one in range(1, 9)
    ]
    items.run([items.change("t", 20, 1, snapshot=True), *changed], loading=True)
    items.run([items.change("r", 30, one, after=item(one, "b", "new")) for one in range(1, 9)], loading=False)
    assert versions_of(spark, items.target) == [
        version
        for one in range(1, 9)
        for version in ((one, "a", "old", (10, one), (21, one)), (one, "b", "new", (30, one), None))
    ]


def test_a_change_without_a_key_before_a_truncate_ends_what_is_known(
    spark: SparkSession, items: Batches, tmp_path: Path
) -> None:
    items.run([items.change("c", 10, one, after=item(one, "a")) for one in (1, 2, 4, 5)], loading=False)
    _, keyless = items.change("u", 20, 1, after=item(1, "lost"))
    records = [
        (None, keyless),
        items.change("u", 20, 2, after=item(4, "b")),
        items.change("u", 20, 3, after=item(2, "b")),
        items.change("t", 30, 1, snapshot=True),
        items.change("r", 30, 2, after=item(1, "a")),
    ]
    items.run(records, loading=False)
    ended = [(one, "a", "n", (10, place), (10, 6)) for place, one in enumerate((1, 2, 4, 5), 1)]
    found = [(*one[:3], one[3], one[4]) for one in versions_of(spark, items.target)]
    assert [one for one in found if one[4] is None] == [(1, "a", "n", (30, 2), None)]
    assert len(found) == len(ended) + 1


@pytest.mark.parametrize("at_once", [nightly(True), False])
def test_versions_end_at_a_gap_that_a_copy_follows(
    spark: SparkSession, items: Batches, at_once: bool
) -> None:
    items.on_error = "park"
    items.run([items.change("c", 10, one, after=item(one, "a")) for one in (1, 2)], loading=False)
    special = {"gap.from_lsn": "0/A", "gap.to_lsn": "0/1E", "gap.reason": "CDCD-SLOT-LOST"}
    gap = items.change("g", 30, 1, special=special)
    later = [
        items.change("u", 31, 1, after=item(1, "c", None), unchanged=["note"]),
        items.change("t", 40, 1, snapshot=True),
        *(items.change("r", 40, one + 1, after=item(one, "c")) for one in (1, 2)),
    ]
    for records in ([gap, *later],) if at_once else ([gap], later):
        items.run(records, loading=False)
    found = versions_of(spark, items.target)
    assert [one for one in found if one[4] is None] == [
        (1, "c", "n", (40, 2), None),
        (2, "c", "n", (40, 3), None),
    ]
    assert all(one[4] <= (30, 1) for one in found if one[1] == "a"), "nothing is known behind the gap"


def test_a_parked_or_copied_table_has_a_history_only_if_it_is_asked_for(
    spark: SparkSession, items: Batches
) -> None:
    items.on_error = "park"
    items.run([items.change("c", 10, 1, after=item(1, "a"))], loading=True)
    with pytest.raises(SparkReadError, match="still copies"):
        versions_of(spark, items.target)
    assert len(versions_of(spark, items.target, loading=True)) == 1
    items.run([items.change("u", 20, 1, after=item(9, "z", None), unchanged=["note"])], loading=False)
    with pytest.raises(TablesParked, match="not updated any more"):
        versions_of(spark, items.target)
    with pytest.raises(TablesParked, match="parked while they were copied"):
        versions_of(spark, items.target, parked=True)
    assert len(versions_of(spark, items.target, parked=True, loading=True)) == 1


def test_columns_of_any_names(spark: SparkSession, tmp_path: Path) -> None:
    """Also those that the history has itself, and that differ only in case."""
    names = ["__op", "__at", "c0", "NAME", "name", "change", "row"]
    items = Batches(tmp_path / "mirror", [FIELDS[0], *(column(name, "string") for name in names)])
    items.scd_type = 2
    items.run([items.change("c", 10, 1, after={"id": 1} | {name: name for name in names})], loading=False)
    items.run([items.change("u", 20, 1, after={"id": 1} | dict.fromkeys(names, "x"))], loading=False)
    found = history(spark, str(items.target), TABLE).toArrow()
    assert found.column_names[: len(names) + 1] == ["id", *names]
    rows = sorted(
        [[column[place].as_py() for column in found.columns[1 : len(names) + 1]] for place in (0, 1)]
    )
    assert rows == sorted([names, ["x"] * len(names)])


def test_an_integer_that_became_a_floating_point_number(spark: SparkSession, tmp_path: Path) -> None:
    """The nearest one, as PostgreSQL's; also one that an integer of its size does not have exactly."""
    items = Batches(tmp_path / "mirror", [FIELDS[0], column("v", "long")])
    items.scd_type = 2
    items.run([items.change("c", 10, 1, after={"id": 1, "v": 2**53 + 1})], loading=False)
    items.alter([FIELDS[0], column("v", "double")])
    items.run([items.change("c", 20, 1, after={"id": 2, "v": 0.5})], loading=False)
    assert items.rows() == [{"id": 1, "v": float(2**53 + 1)}, {"id": 2, "v": 0.5}]
    found = history(spark, str(items.target), TABLE).collect()
    assert sorted(one["v"] for one in found) == [0.5, float(2**53 + 1)]


def test_a_value_that_is_not_sent_is_not_stored_again(items: Batches) -> None:
    """So a batch of small updates of a large row costs what the updates cost; of a row with another key it is."""
    items.run([items.change("c", 10, 1, after=item(1, "a", "x" * 1_000_000))], loading=False)
    updates = [
        items.change("u", 20, one, after=item(1, str(one), None), unchanged=["note"]) for one in range(1, 500)
    ]
    items.run(updates, loading=False)
    latest = read_latest(items.target)
    assert latest is not None
    first, second = latest.tables[TOPIC].history
    assert first.size_bytes > 1_000_000 > 10 * second.size_bytes
    assert items.rows() == [item(1, "499", "x" * 1_000_000)]


def test_rows_with_other_keys_are_stored_in_files_of_a_bounded_size(
    spark: SparkSession, items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (history_rows, tasks):
        monkeypatch.setattr(module, "PIECE_BYTES", 25_000)
    items.run([items.change("c", 10, 1, after=item(1, "a", "x" * 10_000))], loading=False)
    moved = []
    for one in range(1, 11):
        moved.append(items.change("d", 20, 2 * one, before=item(one, None)))
        after = item(one + 1, "a", None)
        moved.append(items.change("c", 20, 2 * one + 1, after=after, unchanged=["note"]))
    items.run(moved, loading=False)
    latest = read_latest(items.target)
    assert latest is not None
    assert len(latest.tables[TOPIC].history) > 4
    assert all(one.size_bytes < 40_000 for one in latest.tables[TOPIC].history)
    found = versions_of(spark, items.target)
    assert [(one[0], len(one[2] or ""), one[4] is None) for one in found] == [
        (number, 10_000, number == 11) for number in range(1, 12)
    ]


def test_values_that_are_not_known_are_in_no_version(spark: SparkSession, items: Batches) -> None:
    """An update during the copy of the table, of a row that is not copied yet."""
    items.run(
        [items.change("u", 10, 1, after=item(1, "a", None), unchanged=["note"])],
        loading=True,
    )
    items.run([items.change("r", 20, 1, after=item(1, "a", "copied"))], loading=False)
    assert versions_of(spark, items.target) == [(1, "a", "copied", (20, 1), None)]


def test_a_parked_table_has_no_version_of_the_time_that_is_missing(
    spark: SparkSession, items: Batches
) -> None:
    items.on_error = "park"
    items.run([items.change("c", 10, 1, after=item(1, "a"))], loading=False)
    items.run([items.change("u", 20, 1, after=item(9, "z", None), unchanged=["note"])], loading=False)
    assert read_mirror(items.target).parked
    items.run([items.change("u", 30, 1, after=item(1, "b"))], loading=False)
    again = [items.change("t", 40, 1, snapshot=True), items.change("r", 40, 2, after=item(1, "a"))]
    items.run(again, loading=False)
    assert versions_of(spark, items.target) == [(1, "a", "n", (10, 1), (10, 2)), (1, "a", "n", (40, 2), None)]


def test_columns_follow_the_table(spark: SparkSession, items: Batches) -> None:
    items.run([items.change("c", 10, 1, after=item(1, "a"))], loading=False)
    items.alter([*FIELDS, column("more", "int")])
    items.run([items.change("u", 20, 1, after={**item(1, "a"), "more": 7})], loading=False)
    found = history(spark, str(items.target), TABLE).orderBy("__start_at").collect()
    assert [(one["name"], one["more"]) for one in found] == [("a", None), ("a", 7)]


def test_a_table_that_was_created_again_begins_a_new_history(spark: SparkSession, items: Batches) -> None:
    items.alter(FIELDS, 100)
    items.run([items.change("c", 10, 1, after=item(1, "former"))], loading=False)
    items.alter(FIELDS, 200)
    items.run([items.change("c", 20, 1, after=item(1, "new"))], loading=False)
    assert versions_of(spark, items.target) == [(1, "new", "n", (20, 1), None)]


def test_a_table_without_a_key_has_no_history(spark: SparkSession, tmp_path: Path) -> None:
    log = Batches(tmp_path / "mirror", FIELDS, has_key=False)
    log.scd_type = 2
    log.run([log.change("c", 10, 1, after=item(1, "a"))], loading=False)
    with pytest.raises(SparkReadError, match="without a key has no history"):
        history(spark, str(log.target), TABLE)


def test_a_history_is_complete_or_absent(spark: SparkSession, tmp_path: Path) -> None:
    items = Batches(tmp_path / "mirror", FIELDS)
    items.run([items.change("c", 10, 1, after=item(1, "a"))], loading=False)
    with pytest.raises(SparkReadError, match="the mirror has no history"):
        history(spark, str(items.target), TABLE)
    with pytest.raises(SparkReadError, match="another SCD type"):
        starting_version(str(items.target), "shop", 4, "", scd_type=2)
    assert starting_version(str(items.target), "shop", 4, "").scd_type == 1


@pytest.mark.nightly  # the block tracks some columns, which has a test of its own
def test_the_block_of_the_page_runs(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = {"order_id": "bigint", "total": "numeric(10,2)", "updated_at": "timestamptz"}
    orders = Table("public.orders", columns, key=["order_id"])
    shop = Database(orders)
    shop.commit(orders.insert(order_id=7, total=Decimal("1.50")))
    shop.commit(orders.update(order_id=7, total=Decimal("1.50"), updated_at=datetime.now(UTC)))
    shop.mirror(str(tmp_path / "past"), stored_as_scd_type=2)
    (text,) = [one for one in python_blocks("docs/spark/read-mirror.md") if '"/data/past"' in one]
    exec(text.replace("/data/past", str(tmp_path / "past")), {"spark": spark})
    shown = capsys.readouterr().out
    assert shown.count("|       7|") == 1, "updated_at makes no version"


# --- PostgreSQL ----------------------------------------------------------------------------------------------

AUDIT = """
CREATE TABLE goods (id int PRIMARY KEY, name text, price numeric(10,2), doc text);
ALTER TABLE goods ALTER doc SET STORAGE EXTERNAL;
CREATE TABLE written_down (number bigserial, op text, id int, goods text, made_at timestamptz);
CREATE FUNCTION write_down() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP IN ('UPDATE', 'DELETE') AND (TG_OP = 'DELETE' OR NEW.id <> OLD.id) THEN
        INSERT INTO written_down (op, id, made_at) VALUES ('ended', OLD.id, now());
    END IF;
    IF TG_OP IN ('INSERT', 'UPDATE') THEN
        INSERT INTO written_down (op, id, goods, made_at) VALUES ('row', NEW.id, NEW::text, now());
    ELSIF TG_OP = 'TRUNCATE' THEN
        INSERT INTO written_down (op, made_at) VALUES ('all ended', now());
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER each_row AFTER INSERT OR UPDATE OR DELETE ON goods FOR EACH ROW EXECUTE FUNCTION write_down();
CREATE TRIGGER all_rows AFTER TRUNCATE ON goods FOR EACH STATEMENT EXECUTE FUNCTION write_down();
CREATE PUBLICATION cdcd_{name} FOR TABLE goods;
"""
STATEMENTS = (
    "INSERT INTO goods VALUES ({one}, 'n{two}', {two}.5, repeat('d{two}', 3000)) ON CONFLICT DO NOTHING",
    "UPDATE goods SET price = price + 1 WHERE id = {one}",
    "UPDATE goods SET name = 'u{two}', doc = repeat('e{two}', 3000) WHERE id = {one}",
    "UPDATE goods SET id = {two} + 1000 WHERE id = {one} AND NOT EXISTS (SELECT FROM goods WHERE id = {two} + 1000)",
    "DELETE FROM goods WHERE id = {one}",
)


def _write(server: PostgresServer, database: str, chosen: random.Random, transactions: int) -> None:
    for _ in range(transactions):
        statements = [
            chosen.choice(STATEMENTS).format(one=chosen.randrange(8), two=chosen.randrange(100))
            for _ in range(chosen.randrange(1, 5))
        ]
        server.execute("; ".join(statements), dbname=database)


def _written_down(server: PostgresServer, database: str) -> Iterator[tuple[int, list[tuple[str, bool]]]]:
    """Yield each key with its versions as PostgreSQL's text, and whether each one has ended."""
    held: dict[int, list[tuple[str, bool]]] = defaultdict(list)
    query = "SELECT op, id, goods FROM written_down ORDER BY number"
    for op, number, text in server.execute(query, dbname=database):
        ended = list(held) if op == "all ended" else [number]
        for one in ended:
            if held[one] and not held[one][-1][1]:
                if op == "row" and held[one][-1][0] == text:
                    break
                held[one][-1] = (held[one][-1][0], True)
        else:
            if op == "row":
                held[number].append((text, False))
    yield from held.items()


def _of_view(target: str) -> list[tuple[int, str, bool]]:
    """Return the versions of a view for DuckDB."""
    with duck() as connection:
        opened = read_mirror(target)
        connection.execute("\n".join(script_of(opened, plain_views(opened), time.time())))
        rows = connection.execute(
            'SELECT id, doc, "__end_at" IS NOT NULL FROM public_goods_history'
        ).fetchall()
    return sorted(rows)


def test_the_versions_are_those_that_postgresql_wrote_down(
    spark: SparkSession,
    postgres: PostgresServer,
    database: str,
    kafka: KafkaBroker,
    registry: SchemaRegistry,
    tmp_path: Path,
) -> None:
    """With TOASTed values, changes of the key, a TRUNCATE; in several batches, one of them folded by Spark's tasks,
    the daemon killed in between.
    """
    name, chosen, target = f"past{os.getpid()}", random.Random(5), str(tmp_path / "mirror")
    postgres.execute(AUDIT.format(name=name), dbname=database)
    began = datetime.now(UTC)
    connection = Connection(kafka.bootstrap, name, registry=RegistryAccess(registry.url))
    daemon = Daemon(
        tmp_path / "cdcd",
        name,
        dsn=postgres.dsn(database),
        bootstrap=kafka.bootstrap,
        registry_url=registry.url,
    )
    with daemon:
        daemon.start().wait_state("streaming")
        for part in range(4):
            _write(postgres, database, chosen, 40)
            if part == 1:
                postgres.execute("TRUNCATE goods", dbname=database)
                daemon.kill()
                daemon.start()
            await_confirmed(postgres, daemon)
            in_tasks = {"driver_bytes": 1} if part == 2 else {}
            mirror(spark, connection, target, stored_as_scd_type=2, **in_tasks).awaitTermination()
    found = history(spark, target, "public.goods").orderBy("id", "__start_at").collect()
    by_key: dict[int, list[tuple[str, bool]]] = defaultdict(list)
    for one in found:
        text = f"({one['id']},{one['name']},{one['price']},{one['doc']})"
        by_key[one["id"]].append((text, one["__end_at"] is not None))
    assert by_key == dict(_written_down(postgres, database))
    assert len(found) > 60
    assert _of_view(target) == sorted((one["id"], one["doc"], one["__end_at"] is not None) for one in found)
    margin = timedelta(minutes=5)
    times = [one["__start_time"].astimezone(UTC) for one in found]
    assert began - margin < min(times) <= max(times) < datetime.now(UTC) + margin
    assert all(one["__end_time"] >= one["__start_time"] for one in found if one["__end_at"] is not None)

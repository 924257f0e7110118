"""What the log of an Iceberg table has that Delta's has not: its manifests, its hint, and absolute paths."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.table import StaticTable

from cdcd.errors import MirrorInconsistent, StorageUnavailable, TableLogUnreadable
from cdcd.spark.formats import file_levels, iceberg_manifests, iceberg_metadata, open_table, open_tables
from cdcd.spark.formats.iceberg_access import IcebergAccess
from cdcd.spark.formats.iceberg_log import IcebergLog
from cdcd.spark.formats.open_schemas import MOST_NESTED, check_names, iceberg_schema
from cdcd.spark.mirroring import batches as mirror_batches
from cdcd.spark.mirroring.dropped_tables import drop_table
from cdcd.spark.reading.mirror import read_mirror
from cdcd.spark.source.source_position import SourcePosition
from cdcd.spark.storage.uri import open_storage
from cdcd.spark.target import target_writer
from cdcd.spark.target.left_files import sweep
from cdcd.spark.target.shape import Field
from cdcd.spark.target.target_writer import TargetWriter
from cdcd.spark.target.versions import TableEntry
from tests.spark.batches import TOPIC, Batches
from tests.spark.events import column
from tests.spark.foreign_readers import FOLDER, PyIceberg
from tests.spark.unit.test_open_tables import (
    apply,
    crash,
    files_of_rows,
    mirrored,
    newest,
    normalised,
    recorded,
    row,
)
from tests.spark.unit.test_plain_views import arrow

ID, BODY, SIZE = column("id", "int", required=True), column("body", "string"), column("size", "long")


@pytest.fixture
def items(tmp_path: Path) -> Batches:
    """Return a table with ten rows."""
    batches = Batches(tmp_path / "mirror", [ID, BODY], table_format="iceberg")
    batches.run(
        [batches.change("r", 10, number + 1, after=row(number, "first")) for number in range(10)],
        loading=False,
    )
    return batches


def metadata_of(items: Batches) -> dict[str, object]:
    """Return the newest metadata as it is stored."""
    folder = items.target / FOLDER / "metadata"
    number = (folder / "version-hint.text").read_text()
    found: dict[str, object] = json.loads((folder / f"v{number}.metadata.json").read_text())
    return found


def update(items: Batches, lsn: int) -> None:
    items.run([items.change("u", lsn, 1, after=row(lsn % 3, f"at {lsn}"))], loading=False)


def test_metadata_of_versions_that_are_not_retained_is_removed(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch each second would leave millions of files; the next batch leaves those of the version before."""
    monkeypatch.setattr(open_table, "CLEAN_EVERY", 1)
    for lsn in range(20, 30):
        update(items, lsn)
    folder = items.target / FOLDER / "metadata"
    assert len([*folder.glob("v*.metadata.json")]) == 11
    for number in range(2, read_mirror(items.target).version.number + 1):
        assert recorded(items, at=f"v{number}") == mirrored(items.target, at=f"v{number}")
    items.retain_s = -1.0
    update(items, 30)
    update(items, 31)
    assert sorted(one.name for one in folder.glob("v*.metadata.json")) == [
        "v12.metadata.json",
        "v13.metadata.json",
    ]
    assert len([*folder.glob("*.avro")]) == 4
    assert newest(items) == recorded(items) == mirrored(items.target)


def test_old_metadata_is_removed_whatever_numbers_the_versions_have(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each batch its predecessor expires, which is a version too: each batch begins at an odd one."""
    cleaned: list[int] = []
    real = IcebergLog.remove_old_versions

    def remove(self: IcebergLog, first: Callable[[], int]) -> None:
        assert self.version is not None
        cleaned.append(self.version)
        real(self, first)

    monkeypatch.setattr(IcebergLog, "remove_old_versions", remove)
    monkeypatch.setattr(open_table, "CLEAN_EVERY", 6)
    monkeypatch.setattr(mirror_batches, "IDLE_S", -1.0)
    for lsn in range(20, 32):
        items.retain_s = 3600.0
        update(items, lsn)
        items.retain_s = -1.0
        with items.mirror() as mirror:
            mirror.note_position(SourcePosition(end_lsn=lsn))
        assert read_mirror(items.target).version.tables[TOPIC].table_version == 2 * lsn - 37
    assert cleaned == [7, 13, 19], "no start forgets when the last one was"
    folder = items.target / FOLDER / "metadata"
    assert len([*folder.glob("v*.metadata.json")]) <= 2 * 6
    assert newest(items) == recorded(items) == mirrored(items.target)


def test_the_metadata_names_the_snapshots_that_are_retained(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_metadata, "MOST_SNAPSHOTS", 3)
    expected = {}
    for lsn in range(20, 26):
        update(items, lsn)
        table = StaticTable.from_metadata(str(items.target / FOLDER))
        snapshot = table.current_snapshot()
        assert snapshot is not None
        expected[snapshot.snapshot_id] = mirrored(items.target)
        assert len(table.snapshots()) <= 3
    for one in table.snapshots():
        assert normalised(table.scan(snapshot_id=one.snapshot_id).to_arrow()) == expected[one.snapshot_id]
    items.retain_s = -1.0
    update(items, 30)
    assert len(StaticTable.from_metadata(str(items.target / FOLDER)).snapshots()) == 1


def test_a_table_without_changes_names_no_snapshot_whose_files_are_removed(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_batches, "IDLE_S", -1.0)
    for lsn in range(20, 23):
        update(items, lsn)
    before, rows = PyIceberg().files(items.target), mirrored(items.target)
    assert len(snapshots_of(items)) == 4
    items.retain_s = -1.0
    with items.mirror() as mirror:
        assert all(scanned(items)), "a start removes no file"
        mirror.note_position(SourcePosition(end_lsn=100))
        assert [normalised(one) for one in scanned(items)] == [rows]
        number = read_mirror(items.target).version.tables[TOPIC].table_version
        mirror.note_position(SourcePosition(end_lsn=200))
        assert read_mirror(items.target).version.tables[TOPIC].table_version == number, (
            "no commit for nothing"
        )
    assert len([*(items.target / FOLDER).glob("part-*")]) == len(before) == 1
    update(items, 30)
    assert newest(items) == recorded(items) == mirrored(items.target) != rows


def snapshots_of(items: Batches) -> list[int]:
    return [one.snapshot_id for one in StaticTable.from_metadata(str(items.target / FOLDER)).snapshots()]


def scanned(items: Batches) -> list[pa.Table]:
    """Return the rows of each snapshot that the newest metadata names."""
    table = StaticTable.from_metadata(str(items.target / FOLDER))
    return [table.scan(snapshot_id=one).to_arrow() for one in snapshots_of(items)]


def test_a_table_names_no_file_of_too_many_that_are_removed(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With too many replaced files the oldest go before the retention is over, and so do their snapshots."""
    monkeypatch.setattr(target_writer, "MOST_REPLACED", 2)
    for lsn in range(20, 26):
        update(items, lsn)
        assert all(scanned(items))
        assert len([*(items.target / FOLDER).glob("part-*")]) <= 4
    assert len(snapshots_of(items)) > 1
    assert newest(items) == recorded(items) == mirrored(items.target)


def test_a_table_that_was_dropped_has_no_snapshot_with_rows(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mirror_batches, "IDLE_S", -1.0)
    update(items, 20)
    drop_table(items.target, "public.items")
    left = items.target / FOLDER / f"part-{'0' * 32}.parquet"
    left.write_bytes(b"of a crash")
    with items.mirror() as mirror:
        mirror.publish_start()
        sweep(items.target, mirror._writer)
        assert [one.num_rows for one in scanned(items)] == [0]
    items.retain_s = -1.0
    with items.mirror() as mirror:
        mirror.note_position(SourcePosition(end_lsn=100))
        assert not [*(items.target / FOLDER).glob("part-*")]


def test_a_merge_that_no_version_names_yet_may_expire(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has committed to the table in the background: the mirror's version still has the files before."""
    monkeypatch.setattr(file_levels, "FAN", 2)
    for lsn in range(20, 22):
        items.run([items.change("c", lsn, 1, after=row(lsn, "new"))], loading=False)
    version = read_mirror(items.target).version
    tables = open_tables.OpenTables(open_storage(str(items.target)), version)
    merge = tables.next(TOPIC, version.tables[TOPIC])
    assert merge is not None
    assert tables.write(version.tables[TOPIC], merge, threading.Event()) is not None
    assert tables.expire(version, time.time() + 1.0) == version
    assert len(snapshots_of(items)) == 1
    with items.mirror() as mirror:
        mirror.publish_start()
        assert newest(items) == recorded(items) == mirrored(items.target)


def crashed(items: Batches, monkeypatch: pytest.MonkeyPatch) -> int:
    """End a mirror after it has committed a batch to the table; return the table's version."""
    with monkeypatch.context() as patched, items.mirror() as mirror:
        patched.setattr(TargetWriter, "publish", crash)
        with pytest.raises(KeyboardInterrupt):
            apply(mirror, [items.change("u", 20, 1, after=row(1, "of a batch before a crash"))])
    return int((items.target / FOLDER / "metadata" / "version-hint.text").read_text())


def test_a_start_leaves_no_snapshot_of_a_batch_that_it_takes_back(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows, before = mirrored(items.target), snapshots_of(items)
    number = crashed(items, monkeypatch)
    (lost,) = set(snapshots_of(items)) - set(before)
    with items.mirror() as mirror:
        mirror.publish_start()
        assert newest(items) == recorded(items) == mirrored(items.target) == rows
        assert read_mirror(items.target).version.tables[TOPIC].table_version == number + 1
        assert lost not in snapshots_of(items)
        assert [normalised(one) for one in scanned(items)] == [rows, rows]


def test_a_start_that_takes_back_a_version_succeeds_it(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither the time nor the sequence number of the metadata goes back, for readers that have seen the version."""
    metadata = items.target / FOLDER / "metadata"
    number = crashed(items, monkeypatch)
    path = metadata / f"v{number}.metadata.json"
    later = {"last-updated-ms": int(time.time() * 1000) + 3_600_000, "last-sequence-number": 50}
    # The clock of the host was set back since.
    path.write_text(json.dumps(json.loads(path.read_text()) | later))
    with items.mirror() as mirror:
        mirror.publish_start()
        found = metadata_of(items)
        assert found["last-updated-ms"] == later["last-updated-ms"]
        assert found["last-sequence-number"] == 51
        assert newest(items) == recorded(items) == mirrored(items.target)
    update(items, 30)
    assert metadata_of(items)["last-sequence-number"] == 52
    assert newest(items) == recorded(items) == mirrored(items.target)


@pytest.mark.parametrize("content", [b"", b"{", b'{"format-version": 3}'])
@pytest.mark.parametrize("is_first", [False, True])
def test_a_start_replaces_a_version_that_is_not_readable(
    items: Batches, monkeypatch: pytest.MonkeyPatch, content: bytes, is_first: bool
) -> None:
    """A crash leaves an empty file where the file system has no links; another writer leaves another format."""
    if is_first:
        items = Batches(items.target.with_name("other"), [ID, BODY], table_format="iceberg")
    rows = mirrored(items.target) if not is_first else []
    number = crashed(items, monkeypatch)
    (items.target / FOLDER / "metadata" / f"v{number}.metadata.json").write_bytes(content)
    with items.mirror() as mirror:
        mirror.publish_start()
        if not is_first:
            assert newest(items) == recorded(items) == mirrored(items.target) == rows
        assert apply(mirror, [items.change("c", 30, 1, after=row(60, "new"))]) == ""
    assert newest(items) == recorded(items) == mirrored(items.target) == [*rows, row(60, "new")]


def test_a_version_that_cannot_be_read_now_is_not_replaced(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    number = crashed(items, monkeypatch)
    read, path = IcebergAccess.metadata, items.target / FOLDER / "metadata" / f"v{number}.metadata.json"

    def away(self: IcebergAccess, wanted: int) -> bytes:
        if wanted == number:
            raise StorageUnavailable("the storage does not answer")
        return read(self, wanted)

    monkeypatch.setattr(IcebergAccess, "metadata", away)
    with pytest.raises(StorageUnavailable), items.mirror():
        pass
    assert not path.with_name(f"v{number + 1}.metadata.json").exists()


@pytest.mark.filterwarnings("ignore:Encountered invalid snapshot summary")
@pytest.mark.parametrize("kind", ["v1.metadata.json", "snap-*.avro", "manifest-*.avro"])
def test_any_damage_of_the_metadata_is_an_error_of_the_table(items: Batches, kind: str) -> None:
    """PyIceberg ends with errors of many kinds, and its decoder reads behind the end of damaged bytes."""
    (path,) = (items.target / FOLDER / "metadata").glob(kind)
    entry, dice, saved = read_mirror(items.target).version.tables[TOPIC], random.Random(1), path.read_bytes()
    assert entry.table_version is not None
    found = 0
    for _ in range(250):
        path.write_bytes(damaged(saved, dice))
        try:
            IcebergLog(open_storage(str(items.target)), FOLDER, 0.0)._recorded(entry.table_version)
        except TableLogUnreadable:
            found += 1
    assert found > 200


@pytest.mark.parametrize("name", ["i5\0-er", "..", "", "n" * 1000, "a\\b", "a\u20acb"])
def test_a_name_that_no_file_has_is_damage_of_the_metadata(
    items: Batches, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The storage would refuse it, which ends the mirror."""
    entry = read_mirror(items.target).version.tables[TOPIC]
    assert entry.table_version is not None
    read = IcebergAccess.new_input
    monkeypatch.setattr(
        IcebergAccess,
        "new_input",
        lambda self, location: read(self, f"{location.rpartition('/')[0]}/{name}"),
    )
    with pytest.raises(TableLogUnreadable):
        IcebergLog(open_storage(str(items.target)), FOLDER, 0.0)._recorded(entry.table_version)


def damaged(data: bytes, dice: random.Random) -> bytes:
    """Return data with an end that is missing, other bytes, or other bytes of another length."""
    start, length = dice.randrange(len(data)), dice.randrange(100)
    if dice.random() < 0.3:
        return data[:start]
    changed = bytes(dice.choice((0, 1, 0x7F, 0x80, 0xFF)) for _ in range(dice.choice((1, 4, length))))
    return data[:start] + changed + data[start + len(changed) :]


def test_a_start_removes_files_of_the_metadata_that_a_crash_has_left(items: Batches) -> None:
    folder = items.target / FOLDER / "metadata"
    before = {*folder.iterdir()}
    names = [
        "version-hint.text",
        "v7.metadata.json",
        f"manifest-7-{'1' * 32}.avro",
        f"snap-7-{'2' * 32}.avro",
    ]
    for name in names:
        (folder / f"{name}.{'0' * 32}").write_bytes(b"")
    (folder / "version-hint.text.of-another").write_bytes(b"")
    with items.mirror() as mirror:
        sweep(items.target, mirror._writer)
    assert {*folder.iterdir()} - before == {folder / "version-hint.text.of-another"}


def test_a_commit_leaves_the_large_manifests_of_other_files(
    items: Batches, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iceberg_manifests, "MOST_ENTRIES", 4)
    files_of_rows(monkeypatch, 10)
    items.run([items.change("c", 20, n, after=row(n, "more")) for n in range(100, 300)], loading=False)
    before = manifests_of(items)
    assert [len(live) for live in before.values()] == [4, 4, 4, 4, 4, 1]
    items.run([items.change("u", 30, 1, after=row(5, "x"))], loading=False)
    after = manifests_of(items)
    assert len(before.keys() & after.keys()) == 4, (
        "neither the last one, which is small, nor that of the row's file"
    )
    assert sum(len(live) for live in after.values()) == 21
    assert newest(items) == mirrored(items.target)


def manifests_of(items: Batches) -> dict[str, list[str]]:
    """Return the manifests of the newest snapshot with the names of their files."""
    table = StaticTable.from_metadata(str(items.target / FOLDER))
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return {
        one.manifest_path: [entry.data_file.file_path for entry in one.fetch_manifest_entry(table.io)]
        for one in snapshot.manifests(table.io)
    }


def test_a_target_that_was_moved_is_readable_after_the_next_start(items: Batches, tmp_path: Path) -> None:
    """The metadata has absolute paths."""
    rows = mirrored(items.target)
    items.target = items.target.rename(tmp_path / "moved")
    with items.mirror():
        assert newest(items) == rows
    assert all(one.startswith(str(tmp_path / "moved")) for one in PyIceberg().files(items.target))
    update(items, 20)
    assert newest(items) == recorded(items) == mirrored(items.target) != rows


def test_a_table_without_a_row_is_readable(items: Batches) -> None:
    """Its metadata has no snapshot."""
    held = read_mirror(items.target).version.tables[TOPIC]
    bare = TableEntry("shop.public.bare", keyed=True, fields=held.fields)
    with items.mirror() as mirror:
        assert mirror.add_empty([bare]) == {}
    opened = read_mirror(items.target)
    found = [PyIceberg().recorded(opened, bare.topic).drop_columns(["__key"]), arrow(opened, "public_bare")]
    assert [(one.column_names, one.num_rows) for one in found] == [(["id", "body", "__special"], 0)] * 2


@pytest.mark.parametrize("content", [None, b"", b"7", b"1", b"x", b"9" * 5000])
def test_a_start_corrects_the_hint_of_the_newest_version(items: Batches, content: bytes | None) -> None:
    update(items, 20)
    hint = items.target / FOLDER / "metadata" / "version-hint.text"
    hint.unlink()
    if content is not None:
        hint.write_bytes(content)
    with items.mirror():
        assert hint.read_bytes() == b"2"
        assert newest(items) == mirrored(items.target)


def test_a_column_has_an_id_of_its_own(items: Batches) -> None:
    items.alter([ID, BODY, SIZE])
    items.run([items.change("u", 20, 1, after=row(1, "a") | {"size": 5})], loading=False)
    first = ids_of(items)
    items.alter([ID, SIZE])
    items.run([items.change("u", 30, 1, after={"id": 1, "size": 6})], loading=False)
    items.alter([ID, SIZE, BODY])
    items.run([items.change("u", 40, 1, after=row(1, "again") | {"size": 7})], loading=False)
    last = ids_of(items)
    assert (last["id"], last["size"], last["__key"]) == (first["id"], first["size"], first["__key"])
    assert last["body"] > max(first["id"], first["size"], first["body"])
    assert newest(items) == mirrored(items.target)


def test_a_renamed_or_dropped_column_leaves_the_files_without_special_texts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The texts go by the columns' names: files that have some are written again."""
    files_of_rows(monkeypatch, 1)
    columns = [numbered("id", 1, "int"), numbered("a", 2), numbered("b", 3)]
    items = Batches(tmp_path / "mirror", columns, table_format="iceberg")
    rows = [items.change("r", 10, n, after={"id": n, "a": f"a{n}", "b": "b"}) for n in range(1, 7)]
    text = items.change("r", 10, 7, after={"id": 7, "a": None, "b": "b"}, special={"after.a": "infinity"})
    items.run([*rows, text], loading=False)
    before = PyIceberg().files(items.target)
    items.alter([numbered("id", 1, "int"), numbered("b", 2)])
    items.run([items.change("u", 20, 1, after={"id": 1, "b": "was a"})], loading=False)
    after = PyIceberg().files(items.target)
    assert (len(before), len(after), len(before & after)) == (7, 7, 5)
    assert newest(items) == recorded(items) == mirrored(items.target)
    assert [one["__special"] for one in newest(items) if one["id"] == 7] == [[("b", "infinity")]]


def numbered(name: str, attnum: int, avro: str = "string") -> dict[str, object]:
    return column(name, avro, required=name == "id", **{"pg.attnum": attnum})


def ids_of(items: Batches) -> dict[str, int]:
    schema = StaticTable.from_metadata(str(items.target / FOLDER)).schema()
    return {one.name: one.field_id for one in schema.fields}


def fields(*columns: tuple[str, object]) -> list[Field]:
    return [Field(number + 1, name, name, avro) for number, (name, avro) in enumerate(columns)]


def place(*names: str) -> dict[str, object]:
    return {"type": "record", "name": "Place", "fields": [{"name": one, "type": "string"} for one in names]}


@pytest.mark.parametrize(
    ("columns", "text"),
    [
        (fields(("a", "int"), ("A", "int")), "case of their names"),
        (fields(("home", place("street")), ("home.street", "int")), "inside another"),
        (fields(("tags", {"type": "map", "values": "string"}), ("TAGS.key", "int")), "inside another"),
        (fields(("home", place(*(f"f{n}" for n in range(MOST_NESTED))))), "fields inside"),
    ],
)
def test_columns_that_readers_cannot_tell_apart_are_refused(columns: list[Field], text: str) -> None:
    with pytest.raises(MirrorInconsistent, match=text):
        check_names("iceberg", TOPIC, columns)


def test_the_ids_of_fields_inside_a_column_are_those_of_no_other() -> None:
    found = iceberg_schema(
        fields(("a", place("x", "y")), ("b", {"type": "array", "items": place("x", "y")}), ("c", "int"))
    )
    numbers = [int(one) for one in str(found).replace("'", " ").split() if one.isdigit()]
    assert len(numbers) == len({*numbers}) == 12

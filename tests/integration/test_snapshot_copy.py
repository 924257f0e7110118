"""Tables copied in an exported snapshot. The judge of rows and values is PostgreSQL itself."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import replace

import psycopg2
import pytest
from structlog.testing import capture_logs

from cdcd.errors import CdcdError, Retry, SnapshotStale
from cdcd.pgoutput.decode import decode
from cdcd.pgoutput.messages import Insert
from cdcd.snapshot.table import SnapshotReader
from cdcd.snapshot.units import CopiedTable, CopyUnit
from cdcd.source.connection import connect_sql, fetch, translate
from cdcd.source.publication_catalog import published_tables
from cdcd.source.settings import SourceSettings
from cdcd.source.slot import create_slot
from tests.support.nightly import nightly, nightly_except
from tests.support.source import plain, row_payloads, source_database
from tests.support.stack import SUPPORTED_POSTGRES_MAJORS, PostgresServers, run_script

LSN = 0x1_0000_0000
Row = tuple[str | None, ...]

NASTY = (
    "",
    r"\N",
    r"\\N",
    r"\.",
    "\\",
    "\\\\",
    r"\t",
    "a\tb",
    "a\nb",
    "a\r\nb",
    "\b\f\v",
    "".join(map(chr, range(1, 128))),
    "ends with a backslash\\",
    "\t\t",
    "\n",
    "grüße 🐘 \u202e \ufeff",
    "'; DROP TABLE t; --",
    "x" * 300_000,
    "N",
    "NULL",
)


@contextlib.contextmanager
def snapshot_of(settings: SourceSettings, reading: SourceSettings | None = None) -> Iterator[SnapshotReader]:
    """Yield a reader inside the snapshot of a new slot; `reading` if another role reads."""
    with create_slot(settings, export_snapshot=True) as slot:
        assert slot.snapshot_name is not None
        reader = SnapshotReader(lambda: connect_sql(reading or settings), translate, slot.snapshot_name)
        try:
            yield reader
        finally:
            reader.close()


def published(settings: SourceSettings) -> dict[str, CopiedTable]:
    """Return the tables to copy, by name, as the session requests them."""
    with contextlib.closing(connect_sql(settings)) as connection:
        return {
            one.name: CopiedTable(
                one.relid, one.schema, one.name, one.columns, one.row_filter, one.is_partitioned
            )
            for one in published_tables(connection, settings.publications)
        }


def copied(reader: SnapshotReader, table: CopiedTable) -> list[Row]:
    rows: list[Row] = []
    units = reader.units([table]).units
    batches = [batch for unit in units for batch, _ in reader.copy(unit, LSN)]
    reader.release()
    for payload in row_payloads(batches):
        message = decode(payload, in_stream=False, protocol_version=1)
        assert isinstance(message, Insert)
        assert message.relid == table.relid
        values = (column.value for column in message.new.columns)
        rows.append(tuple(None if value is None else value.decode() for value in values))
    return sorted(rows, key=repr)


def selected(settings: SourceSettings, query: str) -> list[Row]:
    with contextlib.closing(connect_sql(settings)) as connection:
        return sorted(fetch(connection, query), key=repr)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_values_arrive_as_postgresql_writes_them(pg_server: PostgresServers, major: int) -> None:
    with source_database(
        pg_server(major),
        'CREATE TABLE public."T %s {}" (id int PRIMARY KEY, "Note\t" text, raw bytea, tags text[], at timestamptz)',
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        insert = 'INSERT INTO public."T %%s {}" VALUES (%s, %s, %s, ARRAY[%s::text, NULL], %s)'
        with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
            for number, note in enumerate(NASTY):
                raw = note.encode()[:50]
                cursor.execute(insert, (number, note, raw, note[:50], "2024-02-29 12:00:00.5+03"))
            cursor.execute('INSERT INTO public."T %s {}" (id) VALUES (-1)')
        (table,) = published(settings).values()
        with snapshot_of(settings) as reader:
            rows = copied(reader, table)
        expected = selected(
            settings,
            'SELECT id::text, "Note\t", raw::text, tags::text, at::text FROM public."T %s {}"',
        )
        assert rows == expected
        assert ("-1", None, None, None, None) in rows
        assert {row[1] for row in rows} == {*NASTY, None}


def test_rows_committed_after_the_slot_are_not_copied(pg_server: PostgresServers) -> None:
    """F36: the stream has these rows."""
    with (
        source_database(
            pg_server(18),
            "CREATE TABLE public.t (id int PRIMARY KEY)",
            "INSERT INTO public.t VALUES (1)",
            "CREATE PUBLICATION pub FOR ALL TABLES",
        ) as settings,
        snapshot_of(settings) as reader,
    ):
        run_script(plain(settings), "INSERT INTO public.t VALUES (2)", "DELETE FROM public.t WHERE id = 1")
        assert copied(reader, published(settings)["t"]) == [("1",)]


@pytest.mark.parametrize("major", [nightly(15), 18])
def test_row_filter_and_column_list_are_obeyed(pg_server: PostgresServers, major: int) -> None:
    """F41."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY, secret text, kind text, note text)",
        """INSERT INTO public.t VALUES
           (1, 'never', '{} %s', 'in'), (2, 'never', 'other', 'out'), (3, 'never', NULL, 'out')""",
        "CREATE PUBLICATION pub FOR TABLE public.t (id, note) WHERE (kind = '{} %s')",
    ) as settings:
        run_script(plain(settings), "ALTER PUBLICATION pub SET (publish = 'insert')")
        table = published(settings)["t"]
        assert table.columns == ("id", "note")
        with snapshot_of(settings) as reader:
            assert copied(reader, table) == [("1", "in")]


def test_row_level_security_fails_rather_than_returning_fewer_rows(pg_server: PostgresServers) -> None:
    """F73."""
    server = pg_server(18)
    with source_database(
        server,
        "CREATE TABLE public.t (id int PRIMARY KEY)",
        "INSERT INTO public.t VALUES (1), (2)",
        "ALTER TABLE public.t ENABLE ROW LEVEL SECURITY",
        "CREATE POLICY one ON public.t USING (id = 1)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        role = f"reader_{settings.slot}"
        run_script(plain(settings), f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON public.t TO {role}")
        try:
            reading = replace(settings, dsn=server.dsn(settings.slot, role))
            assert selected(reading, "SELECT id::text FROM public.t") == [("1",)], "the policy is in force"
            with snapshot_of(settings, reading) as reader, pytest.raises(CdcdError) as caught:
                copied(reader, published(settings)["t"])
            assert caught.value.retry is Retry.OPERATOR
            assert "row-level security" in str(caught.value)
        finally:
            run_script(plain(settings), f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_a_partitioned_table_is_copied_once_through_its_root(pg_server: PostgresServers, major: int) -> None:
    """F50."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int, note text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_low PARTITION OF public.t FOR VALUES FROM (0) TO (10)",
        "CREATE TABLE public.t_high (note text, id int NOT NULL)",
        "ALTER TABLE public.t ATTACH PARTITION public.t_high FOR VALUES FROM (10) TO (20)",
        "INSERT INTO public.t VALUES (1, 'low'), (11, 'high')",
        "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = true)",
    ) as settings:
        tables = published(settings)
        assert list(tables) == ["t"]
        with snapshot_of(settings) as reader:
            assert copied(reader, tables["t"]) == [("1", "low"), ("11", "high")]


def test_an_inheriting_tables_rows_are_copied_once_and_not_for_its_parent(pg_server: PostgresServers) -> None:
    """ONLY: a row of a child is published under the child's Relation, not the parent's."""
    with source_database(
        pg_server(18),
        "CREATE TABLE public.parent (id int PRIMARY KEY)",
        "CREATE TABLE public.child (more text) INHERITS (public.parent)",
        "INSERT INTO public.parent VALUES (1)",
        "INSERT INTO public.child VALUES (2, 'x')",
        "CREATE PUBLICATION pub FOR TABLE public.parent",
    ) as settings:
        tables = published(settings)
        with snapshot_of(settings) as reader:
            rows = {name: copied(reader, table) for name, table in tables.items()}
        assert rows == {"child": [("2", "x")], "parent": [("1",)]}


def test_more_rows_than_one_run_arrive_in_several_and_none_is_missing(pg_server: PostgresServers) -> None:
    with source_database(
        pg_server(18),
        "CREATE TABLE public.t (id int PRIMARY KEY, note text)",
        "INSERT INTO public.t SELECT n, repeat('x', 100) FROM generate_series(1, 20000) n",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        with snapshot_of(settings) as reader:
            batches = [batch for batch, _ in reader.copy(CopyUnit(published(settings)["t"]), LSN)]
        assert len(batches) > 5
        assert sum(batch.count for batch in batches) == 20_000
        assert all(batch.xid is None for batch in batches)


def _until_stale(settings: SourceSettings, *statements: str, reading: SourceSettings | None = None) -> None:
    """Run the statements after the snapshot was taken; check that the copy of t must then restart."""
    table = published(settings)["t"]
    with snapshot_of(settings, reading) as reader:
        run_script(plain(settings), *statements)
        with pytest.raises(SnapshotStale) as caught:
            copied(reader, table)
    assert caught.value.retry is Retry.LIMITED
    assert caught.value.context["table"] == "public.t"


@pytest.mark.parametrize(
    "statement",
    [
        "ALTER TABLE public.t ALTER COLUMN n TYPE bigint",
        "ALTER TABLE public.t ADD COLUMN r float8 DEFAULT random()",
        "ALTER TABLE public.t RENAME COLUMN n TO m",
        "ALTER TABLE public.t DROP COLUMN n",
        "ALTER TABLE public.t RENAME TO u; CREATE TABLE public.t (id int PRIMARY KEY, n int)",
        "ALTER TABLE public.t SET SCHEMA elsewhere",
        "ALTER TABLE public.t ALTER COLUMN n TYPE int USING n + 1",
        "DROP TABLE public.t",
    ],
)
def test_a_table_that_the_snapshot_cannot_see_any_more_is_not_copied_as_empty(
    pg_server: PostgresServers, statement: str
) -> None:
    with source_database(
        pg_server(18),
        "CREATE SCHEMA elsewhere",
        "CREATE TABLE public.t (id int PRIMARY KEY, n int)",
        "INSERT INTO public.t SELECT g, g FROM generate_series(1, 100) g",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        _until_stale(settings, *statement.split("; "))


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
@pytest.mark.parametrize(
    "statement",
    ["ALTER TABLE public.t ALTER COLUMN n TYPE bigint", "ALTER TABLE public.t ALTER n TYPE int USING 1"],
)
def test_a_rewritten_partition_is_seen_with_a_right_on_columns_of_the_root_alone(
    pg_server: PostgresServers, statement: str, major: int
) -> None:
    server = pg_server(major)
    with source_database(
        server,
        "CREATE TABLE public.t (id int, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_low PARTITION OF public.t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_deep PARTITION OF public.t_low FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE public.t_high PARTITION OF public.t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO public.t VALUES (1, 1), (11, 11)",
        "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = true)",
    ) as settings:
        role = f"reader_{settings.slot}"
        run_script(
            plain(settings), f"CREATE ROLE {role} LOGIN", f"GRANT SELECT (id, n) ON public.t TO {role}"
        )
        try:
            reading = replace(settings, dsn=server.dsn(settings.slot, role))
            with snapshot_of(settings, reading) as reader:
                assert copied(reader, published(settings)["t"]) == [("1", "1"), ("11", "11")]
            drop_slot_of(settings)
            _until_stale(settings, statement, reading=reading)
        finally:
            run_script(plain(settings), f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
@pytest.mark.parametrize(
    ("statements", "rows"),
    [
        (("TRUNCATE public.t",), []),
        (("VACUUM FULL public.t",), [("1", "1"), ("2", "2")]),
        (("CLUSTER public.t USING t_pkey",), [("1", "1"), ("2", "2")]),
        (("INSERT INTO public.t VALUES (7, 7)", "VACUUM FULL public.t"), [("1", "1"), ("2", "2")]),
        (("DELETE FROM public.t WHERE id = 1", "VACUUM FULL public.t"), [("1", "1"), ("2", "2")]),
        (("DELETE FROM public.t", "VACUUM FULL public.t", "VACUUM FULL public.t"), [("1", "1"), ("2", "2")]),
        (("BEGIN; TRUNCATE public.t; ROLLBACK",), [("1", "1"), ("2", "2")]),
        (("ANALYZE public.t",), [("1", "1"), ("2", "2")]),
    ],
)
def test_a_new_file_without_a_rewrite_does_not_restart_the_copy(
    pg_server: PostgresServers, statements: tuple[str, ...], rows: list[Row], major: int
) -> None:
    """The stream has the TRUNCATE and the changes after it; the other rows are still in the snapshot."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY, n int)",
        "INSERT INTO public.t VALUES (1, 1), (2, 2)",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        table = published(settings)["t"]
        with snapshot_of(settings) as reader:
            run_script(plain(settings), *statements)
            assert copied(reader, table) == rows


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_a_publication_that_was_changed_since_makes_the_snapshot_stale(
    pg_server: PostgresServers, major: int
) -> None:
    """F42: the stream has a table's changes from its ADD TABLE on, the snapshot those before it was taken."""
    changes = [
        (True, "ALTER PUBLICATION pub ADD TABLE public.u"),
        (True, "ALTER PUBLICATION pub DROP TABLE public.t", "ALTER PUBLICATION pub ADD TABLE public.t"),
        (True, "ALTER PUBLICATION pub SET (publish = 'insert')"),
        (True, "DROP PUBLICATION pub", "CREATE PUBLICATION pub FOR TABLE public.t"),
        (False, "ALTER PUBLICATION other ADD TABLE public.t"),
        (False, "VACUUM FULL pg_publication", "VACUUM (FREEZE, FULL) pg_publication_rel"),
    ]
    if major >= 15:
        changes += [
            (True, "ALTER PUBLICATION pub SET TABLE public.t WHERE (id > 5)"),
            (True, "ALTER PUBLICATION pub ADD TABLES IN SCHEMA public"),
        ]
    for is_changed, *statements in changes:
        with (
            source_database(
                pg_server(major),
                "CREATE TABLE public.t (id int PRIMARY KEY)",
                "CREATE TABLE public.u (id int PRIMARY KEY)",
                "CREATE PUBLICATION pub FOR TABLE public.t",
                "CREATE PUBLICATION other FOR TABLE public.u",
            ) as settings,
            snapshot_of(settings) as reader,
        ):
            reader.check_publications(settings.publications, ())
            run_script(plain(settings), *statements)
            if not is_changed:
                reader.check_publications(settings.publications, ())
                continue
            with pytest.raises(SnapshotStale, match="publication was changed"):
                reader.check_publications(settings.publications, ())


LEAVES = (
    "CREATE TABLE public.t (id int PRIMARY KEY, n int) PARTITION BY RANGE (id)",
    "CREATE TABLE public.a PARTITION OF public.t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE public.late (id int PRIMARY KEY, n int)",
    "INSERT INTO public.t VALUES (1, 0)",
    "INSERT INTO public.late VALUES (11, 0)",
)
CREATE_PART = "CREATE TABLE public.part PARTITION OF public.t FOR VALUES FROM (20) TO (30)"
ATTACH_LATE = "ALTER TABLE public.t ATTACH PARTITION public.late FOR VALUES FROM (10) TO (20)"
REATTACHED = (
    "ALTER TABLE public.t DETACH PARTITION public.a",
    "UPDATE public.a SET n = 5",
    "ALTER TABLE public.t ATTACH PARTITION public.a FOR VALUES FROM (0) TO (10)",
)


@pytest.mark.parametrize("via_root", ["false", "true"])
@pytest.mark.parametrize(
    ("statements", "is_stale"),
    [
        (("UPDATE public.late SET n = 5", ATTACH_LATE), True),
        (REATTACHED, True),
        (("ALTER TABLE public.t DETACH PARTITION public.a", "CREATE TABLE public.other (id int)"), False),
        ((CREATE_PART,), False),
        ((f"{CREATE_PART} PARTITION BY RANGE (id)",), False),
        ((CREATE_PART, "INSERT INTO public.t VALUES (21, 0)"), True),
        (
            (
                CREATE_PART,
                "INSERT INTO public.t VALUES (21, 0)",
                "ALTER TABLE public.t DETACH PARTITION public.part",
                "TRUNCATE public.part",
                "ALTER TABLE public.t ATTACH PARTITION public.part FOR VALUES FROM (20) TO (30)",
            ),
            True,
        ),
        (("CREATE TABLE public.e (LIKE public.a INCLUDING ALL)", ATTACH_LATE.replace("late", "e")), True),
    ],
    ids=[
        "attached",
        "attached again",
        "detached",
        "created empty",
        "created for partitions",
        "created and filled",
        "created, filled, emptied while detached",
        "attached empty",
    ],
)
def test_a_partition_that_was_attached_before_the_tables_were_listed_makes_the_snapshot_stale(
    pg_server: PostgresServers, statements: tuple[str, ...], is_stale: bool, via_root: str
) -> None:
    """F42: its changes before that are not in the stream, and the snapshot does not see them."""
    made = f"CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = {via_root})"
    with (
        source_database(pg_server(18), *LEAVES, made) as settings,
        snapshot_of(settings) as reader,
    ):
        run_script(plain(settings), *statements)
        tables = list(published(settings).values())
        if is_stale:
            with pytest.raises(SnapshotStale, match="a partition was attached"):
                reader.check_publications(settings.publications, tables)
        else:
            reader.check_publications(settings.publications, tables)


def test_a_table_that_was_renamed_before_it_was_listed_makes_the_snapshot_stale(
    pg_server: PostgresServers,
) -> None:
    """Its changes in between are in the topic of its old name."""
    with (
        source_database(
            pg_server(18),
            "CREATE TABLE public.was (id int PRIMARY KEY)",
            "CREATE PUBLICATION pub FOR ALL TABLES",
        ) as settings,
        snapshot_of(settings) as reader,
    ):
        run_script(
            plain(settings),
            "INSERT INTO public.was VALUES (1)",
            "ALTER TABLE public.was RENAME TO t",
            "CREATE TABLE public.made (id int PRIMARY KEY)",
            "INSERT INTO public.made VALUES (1)",
        )
        tables = published(settings)
        assert copied(reader, tables["made"]) == [], "all changes are in the stream"
        with pytest.raises(SnapshotStale):
            copied(reader, tables["t"])


EXCHANGE = """
    DO $$
    DECLARE one record; other record;
    BEGIN
        EXECUTE 'LOCK TABLE public.%(one)s, public.%(other)s IN ACCESS EXCLUSIVE MODE';
        SELECT * INTO one FROM pg_class WHERE oid = 'public.%(one)s'::regclass;
        SELECT * INTO other FROM pg_class WHERE oid = 'public.%(other)s'::regclass;
        UPDATE pg_class SET relfilenode = other.relfilenode, relfrozenxid = other.relfrozenxid,
                            relminmxid = other.relminmxid WHERE oid = one.oid;
        UPDATE pg_class SET relfilenode = one.relfilenode, relfrozenxid = one.relfrozenxid,
                            relminmxid = one.relminmxid WHERE oid = other.oid;
    END $$
"""
"""Like the last step of pg_repack: two tables exchange their files."""
MAY_EXCHANGE = "SET allow_system_table_mods = on"


def exchange(one: str, other: str) -> str:
    return EXCHANGE % {"one": one, "other": other}


SWAP_IN = (
    "CREATE TABLE public.new AS TABLE public.t",
    MAY_EXCHANGE,
    exchange("t", "new"),
    "DROP TABLE public.new",
)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((), SWAP_IN),
        ((), (*SWAP_IN, "VACUUM FULL public.t")),
        ((), ("VACUUM FULL public.t", *SWAP_IN)),
        ((), (*SWAP_IN, "INSERT INTO public.t VALUES (7, 7, 'new')")),
        # not all new rows in the file are in the stream
        ((), ("TRUNCATE public.t", "INSERT INTO public.t VALUES (7, 7, 'new')")),
        # the snapshot sees rows in the file, but not those of its own time
        (
            ("CREATE TABLE public.new AS TABLE public.t", "UPDATE public.t SET n = 9 WHERE id = 1"),
            ("UPDATE public.new SET n = 9 WHERE id = 1", *SWAP_IN[1:]),
        ),
        (
            ("CREATE TABLE public.new AS TABLE public.t", "UPDATE public.t SET n = 9 WHERE id = 1"),
            ("UPDATE public.new SET n = 9 WHERE id = 1", *SWAP_IN[1:], "VACUUM FULL public.t"),
        ),
    ],
)
def test_a_file_that_was_swapped_in_makes_the_snapshot_stale(
    pg_server: PostgresServers, before: tuple[str, ...], after: tuple[str, ...], major: int
) -> None:
    """F81: pg_repack, pg_squeeze and REPACK insert the rows again, and the stream never sends them."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY, n int, note text)",
        "INSERT INTO public.t VALUES (1, 1, 'a'), (2, 2, 'b')",
        *before,
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        _until_stale(settings, *after)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
@pytest.mark.parametrize(
    ("statements", "rows"),
    [
        (("CREATE TABLE public.new AS TABLE public.t_high", MAY_EXCHANGE, exchange("t_high", "new")), None),
        (("VACUUM FULL public.t_high",), [("1", "1"), ("11", "11")]),
        (("VACUUM FULL public.t",), [("1", "1"), ("11", "11")]),
        (("TRUNCATE public.t_high",), [("1", "1")]),
        (("TRUNCATE public.t",), []),
        (("ALTER TABLE public.t DETACH PARTITION public.t_high",), None),
        (("ALTER TABLE public.t DETACH PARTITION public.t_high", "DROP TABLE public.t_high"), [("1", "1")]),
        (
            ("CREATE TABLE public.t_new PARTITION OF public.t FOR VALUES FROM (20) TO (30)",),
            [("1", "1"), ("11", "11")],
        ),
    ],
)
def test_another_file_of_a_partition_is_judged_as_a_tables(
    pg_server: PostgresServers, statements: tuple[str, ...], rows: list[Row] | None, major: int
) -> None:
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_low PARTITION OF public.t FOR VALUES FROM (0) TO (10) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_deep PARTITION OF public.t_low FOR VALUES FROM (0) TO (5)",
        "CREATE TABLE public.t_high PARTITION OF public.t FOR VALUES FROM (10) TO (20)",
        "INSERT INTO public.t VALUES (1, 1), (11, 11)",
        "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = true)",
    ) as settings:
        if rows is None:
            _until_stale(settings, *statements)
            return
        table = published(settings)["t"]
        with snapshot_of(settings) as reader:
            run_script(plain(settings), *statements)
            assert copied(reader, table) == rows


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_another_toast_file_alone_is_not_trusted(pg_server: PostgresServers, major: int) -> None:
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY, n int, note text)",
        "ALTER TABLE public.t ALTER note SET STORAGE EXTERNAL",
        "INSERT INTO public.t VALUES (1, 1, repeat('x', 5000))",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        ((toast,),) = selected(
            settings, "SELECT reltoastrelid::regclass::text FROM pg_class WHERE relname = 't'"
        )
        _until_stale(settings, f"VACUUM FULL {toast}")


def test_a_moved_partition_that_the_role_may_not_read_itself_is_not_trusted(
    pg_server: PostgresServers,
) -> None:
    """A read through the root does not show which partition lacks rows."""
    server = pg_server(18)
    with source_database(
        server,
        "CREATE TABLE public.t (id int, n int) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_low PARTITION OF public.t FOR VALUES FROM (0) TO (10)",
        "INSERT INTO public.t VALUES (1, 1)",
        "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = true)",
    ) as settings:
        role = f"reader_{settings.slot}"
        run_script(plain(settings), f"CREATE ROLE {role} LOGIN", f"GRANT SELECT ON public.t TO {role}")
        try:
            reading = replace(settings, dsn=server.dsn(settings.slot, role))
            _until_stale(settings, "VACUUM FULL public.t", reading=reading)
        finally:
            run_script(plain(settings), f"DROP OWNED BY {role}", f"DROP ROLE {role}")


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_another_tablespace_does_not_restart_the_copy(pg_server: PostgresServers, major: int) -> None:
    """The file is copied page by page, with the rows' transaction ids."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY, note text)",
        "INSERT INTO public.t VALUES (1, 'a')",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        space = f"space_{settings.slot}"
        table = published(settings)["t"]
        in_place = "SET allow_in_place_tablespaces = on"
        run_script(plain(settings), in_place, f"CREATE TABLESPACE {space} LOCATION ''")
        with snapshot_of(settings) as reader:
            run_script(plain(settings), f"ALTER TABLE public.t SET TABLESPACE {space}")
            assert copied(reader, table) == [("1", "a")]
        run_script(plain(settings), "DROP TABLE public.t", f"DROP TABLESPACE {space}")


def test_a_table_truncated_after_the_snapshot_is_reported(pg_server: PostgresServers) -> None:
    """TRUNCATE is not MVCC-safe: the snapshot sees an empty table, and the TRUNCATE follows in the stream."""
    with source_database(
        pg_server(18),
        "CREATE TABLE public.t (id int PRIMARY KEY)",
        "INSERT INTO public.t VALUES (1)",
        "CREATE PUBLICATION pub FOR TABLE public.t",
    ) as settings:
        table = published(settings)["t"]
        with snapshot_of(settings) as reader, capture_logs() as lines:
            assert copied(reader, table) == [("1",)]
            run_script(plain(settings), "TRUNCATE public.t")
            assert copied(reader, table) == []
        assert [(line["event"], line["table"]) for line in lines] == [("copied_as_empty", "public.t")]


def test_an_emptied_partition_does_not_hide_that_another_one_was_moved(pg_server: PostgresServers) -> None:
    """F81: the second unit would read blocks of another file, which has some of its rows in those of the first."""
    with source_database(
        pg_server(18),
        "CREATE TABLE public.t (id int, pad text) PARTITION BY RANGE (id)",
        "CREATE TABLE public.t_low PARTITION OF public.t FOR VALUES FROM (0) TO (1000)",
        "CREATE TABLE public.t_high PARTITION OF public.t FOR VALUES FROM (1000) TO (2000)",
        "INSERT INTO public.t SELECT g, repeat('x', 500) FROM generate_series(0, 1999) g",
        "DELETE FROM public.t WHERE id BETWEEN 1000 AND 1100",
        "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = true)",
    ) as settings:
        table = published(settings)["t"]
        with snapshot_of(settings) as reader:
            units = reader.units([table], unit_pages=20).units
            run_script(plain(settings), "TRUNCATE public.t_low")
            first, *others = [unit for unit in units if unit.leaf == units[-1].leaf]
            assert list(reader.copy(first, LSN))
            assert not [rows for unit in units if unit.leaf != first.leaf for rows in reader.copy(unit, LSN)]
            reader.release()
            run_script(plain(settings), "VACUUM FULL public.t_high")
            with pytest.raises(SnapshotStale):
                list(reader.copy(others[0], LSN))


def drop_slot_of(settings: SourceSettings) -> None:
    run_script(plain(settings), f"SELECT pg_drop_replication_slot('{settings.slot}')")


def test_a_copied_table_is_free_while_the_next_one_is_copied(pg_server: PostgresServers) -> None:
    """A lock held for the complete snapshot would block an ALTER TABLE, and all sessions that queue behind it."""
    with source_database(
        pg_server(18),
        "CREATE TABLE public.a (id int PRIMARY KEY)",
        "CREATE TABLE public.b (id int PRIMARY KEY, pad text)",
        "INSERT INTO public.b SELECT g, repeat('b', 200) FROM generate_series(1, 50000) g",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        tables = published(settings)
        with snapshot_of(settings) as reader:
            assert copied(reader, tables["a"]) == []
            copying = reader.copy(CopyUnit(tables["b"]), LSN)
            assert next(copying).batch.count > 0
            run_script(plain(settings), "SET lock_timeout = '5s'", "ALTER TABLE public.a ADD COLUMN n int")
            with pytest.raises(psycopg2.errors.LockNotAvailable):
                run_script(plain(settings), "SET lock_timeout = '200ms'", "TRUNCATE public.b")
            copying.close()


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_a_snapshot_that_is_gone_is_begun_anew(pg_server: PostgresServers, major: int) -> None:
    """F37: the snapshot ended with the connection that exported it."""
    with source_database(
        pg_server(major),
        "CREATE TABLE public.t (id int PRIMARY KEY)",
        "CREATE PUBLICATION pub FOR ALL TABLES",
    ) as settings:
        with create_slot(settings, export_snapshot=True) as slot:
            name = slot.snapshot_name
        assert name is not None
        reader = SnapshotReader(lambda: connect_sql(settings), translate, name)
        with contextlib.closing(reader), pytest.raises(SnapshotStale):
            copied(reader, published(settings)["t"])


ROOT = (
    "CREATE TABLE public.t (id int PRIMARY KEY) PARTITION BY RANGE (id)",
    "CREATE TABLE public.a PARTITION OF public.t FOR VALUES FROM (0) TO (10)",
    "CREATE TABLE public.m PARTITION OF public.t FOR VALUES FROM (10) TO (20) PARTITION BY RANGE (id)",
    "CREATE TABLE public.b PARTITION OF public.m FOR VALUES FROM (10) TO (20)",
    "CREATE TABLE public.n (id int PRIMARY KEY)",
    "INSERT INTO public.t VALUES (1), (11)",
    "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_via_partition_root = true)",
)
ATTACH = "ALTER TABLE public.t ATTACH PARTITION public.n FOR VALUES FROM (20) TO (30)"


@pytest.mark.parametrize("major", [nightly(14), 18])
@pytest.mark.parametrize(
    ("statements", "is_stale"),
    [
        (("ALTER TABLE public.t DETACH PARTITION public.a",), True),
        (("ALTER TABLE public.m DETACH PARTITION public.b",), True),
        (("INSERT INTO public.n VALUES (21)", ATTACH), True),
        (("DROP TABLE public.a",), False),
        (("CREATE TABLE public.c PARTITION OF public.t FOR VALUES FROM (20) TO (30)",), False),
        (
            (
                "ALTER TABLE public.t DETACH PARTITION public.a",
                "ALTER TABLE public.t ATTACH PARTITION public.a FOR VALUES FROM (0) TO (10)",
            ),
            False,
        ),
    ],
    ids=["detached", "detached below", "attached", "dropped", "made", "back again"],
)
def test_other_partitions_make_the_snapshot_stale(
    pg_server: PostgresServers, major: int, statements: tuple[str, ...], is_stale: bool
) -> None:
    """F81: attached and detached partitions are not in the stream, and a copy reads the current partitions."""
    with source_database(pg_server(major), *ROOT) as settings:
        table = published(settings)["t"]
        with snapshot_of(settings) as reader:
            run_script(plain(settings), *statements)
            if is_stale:
                with pytest.raises(SnapshotStale, match="name or partitions were changed"):
                    copied(reader, table)
                return
            left = {row[0] for row in selected(settings, "SELECT id::text FROM public.t")}
            assert {row[0] for row in copied(reader, table)} == left

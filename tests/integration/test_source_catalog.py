"""The catalog agrees with the walsender's messages, and publications with pgoutput's output."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace

import psycopg2
import pytest
from psycopg2.extensions import connection as Connection  # noqa: N812

from cdcd.demo.stack.postgres import PostgresServer
from cdcd.errors import SnapshotStale, SourceUnavailable
from cdcd.model import Attribute, Control, Relation, ReplicaIdentity
from cdcd.pgoutput import messages
from cdcd.pgoutput.decode import decode
from cdcd.source.catalog import Catalog
from cdcd.source.connection import connect_sql, fetch
from cdcd.source.identity import identify
from cdcd.source.key_index import TableKeys, table_keys
from cdcd.source.publication_catalog import PublishedTable, missing_publications, published_tables
from cdcd.source.settings import SourceSettings
from tests.support.nightly import nightly, nightly_except
from tests.support.proxy import Proxy
from tests.support.source import commits, make_slot, plain, read_until, source_database, streaming
from tests.support.stack import (
    POSTGRES_MAJORS,
    SUPPORTED_POSTGRES_MAJORS,
    PostgresServers,
    drop_database,
    in_one_transaction,
    run_script,
    wal_position,
)

TABLE = "CREATE TABLE public.t (id int PRIMARY KEY)"
TABLES = (
    'CREATE SCHEMA "Odd Schema"',
    "CREATE TYPE public.mood AS ENUM ('sad', 'happy')",
    "CREATE DOMAIN public.price AS numeric(10,2) CHECK (VALUE >= 0)",
    "CREATE TABLE public.plain (id int PRIMARY KEY, v varchar(20), n numeric(12,3), gone int, m public.mood)",
    "ALTER TABLE public.plain DROP COLUMN gone",
    "CREATE TABLE public.composite (b int, a text, v text, p public.price, PRIMARY KEY (a, b))",
    "CREATE TABLE public.whole (id int PRIMARY KEY, v int[])",
    "ALTER TABLE public.whole REPLICA IDENTITY FULL",
    "CREATE TABLE public.indexed (id int PRIMARY KEY, k2 int NOT NULL, k1 text NOT NULL, v text)",
    "CREATE UNIQUE INDEX indexed_k ON public.indexed (k1, k2) INCLUDE (v)",
    "ALTER TABLE public.indexed REPLICA IDENTITY USING INDEX indexed_k",
    "CREATE TABLE public.nothing (id int PRIMARY KEY)",
    "ALTER TABLE public.nothing REPLICA IDENTITY NOTHING",
    "CREATE TABLE public.keyless (v text)",
    "CREATE TABLE public.later (id int PRIMARY KEY DEFERRABLE, v text)",
    "CREATE TABLE public.computed (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, z text)",
    'CREATE TABLE "Odd Schema"."Odd, ""table""" ("Id" int PRIMARY KEY)',
    "CREATE TABLE public.parent (id int, at date, PRIMARY KEY (id, at)) PARTITION BY RANGE (at)",
    "CREATE TABLE public.leaf (note text, at date NOT NULL, id int NOT NULL)",
    "ALTER TABLE public.leaf DROP COLUMN note",
    "ALTER TABLE public.parent ATTACH PARTITION public.leaf FOR VALUES FROM ('2020-01-01') TO ('2030-01-01')",
    "CREATE TABLE public.unfinished (id int NOT NULL) PARTITION BY RANGE (id)",
    "CREATE TABLE public.unfinished_leaf PARTITION OF public.unfinished FOR VALUES FROM (0) TO (10)",
    "ALTER TABLE ONLY public.unfinished ADD PRIMARY KEY (id)",
    "CREATE TABLE public.late (id int) PARTITION BY RANGE (id)",
    "CREATE TABLE public.late_leaf (id int PRIMARY KEY DEFERRABLE)",
    "ALTER TABLE public.late ADD PRIMARY KEY (id)",
    "ALTER TABLE public.late ATTACH PARTITION public.late_leaf FOR VALUES FROM (0) TO (10)",
    "CREATE PUBLICATION pub FOR ALL TABLES WITH (publish_via_partition_root = true)",
)

INSERTS = (
    "INSERT INTO public.plain VALUES (1)",
    "INSERT INTO public.composite VALUES (1, 'a')",
    "INSERT INTO public.whole VALUES (1)",
    "INSERT INTO public.indexed VALUES (1, 1, 'k')",
    "INSERT INTO public.nothing VALUES (1)",
    "INSERT INTO public.keyless VALUES ('v')",
    "INSERT INTO public.later VALUES (1)",
    "INSERT INTO public.computed VALUES (1)",
    'INSERT INTO "Odd Schema"."Odd, ""table""" VALUES (1)',
    "INSERT INTO public.parent VALUES (1, '2024-01-01')",
    "INSERT INTO public.unfinished VALUES (1)",
    "INSERT INTO public.late VALUES (1)",
)


async def relations_on_the_wire(settings: SourceSettings, *statements: str) -> dict[int, messages.Relation]:
    """Return the last Relation message of each table that the statements changed."""
    async with streaming(settings, make_slot(settings)) as stream:
        in_one_transaction(plain(settings), *statements)
        items = await read_until(stream, lambda items: commits(items) == 1)
    found: dict[int, messages.Relation] = {}
    for item in items:
        if isinstance(item, Control) and item.payload[:1] == b"R":
            relation = decode(item.payload, in_stream=False, protocol_version=2)
            assert isinstance(relation, messages.Relation)
            found[relation.relid] = relation
    return found


def wire_form(relation: Relation) -> tuple[object, ...]:
    columns = [(column.is_key, column.name, column.type_oid, column.typmod) for column in relation.columns]
    schema = "" if relation.schema == "pg_catalog" else relation.schema
    return relation.relid, schema, relation.name, relation.identity.value, columns


def sent_form(relation: messages.Relation) -> tuple[object, ...]:
    columns = [(column.is_key, column.name, column.type_oid, column.typmod) for column in relation.columns]
    return relation.relid, relation.namespace, relation.name, relation.identity, columns


def attnums(connection: Connection, relid: int, columns: tuple[str, ...]) -> tuple[int, ...]:
    query = "SELECT attname::text, attnum FROM pg_attribute WHERE attrelid = %s"
    found = dict(fetch(connection, query, (relid,)))
    return tuple(found[name] for name in columns)


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
async def test_the_catalogs_relation_is_the_relation_message(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    with source_database(server, *TABLES) as settings, contextlib.closing(Catalog(settings)) as catalog:
        sent = await relations_on_the_wire(settings, *INSERTS)
        with contextlib.closing(connect_sql(settings)) as connection:
            tables = published_tables(connection, settings.publications)
        listed = {table.relid: table for table in tables}
        assert {(table.schema, table.name) for table in tables} >= {
            ("Odd Schema", 'Odd, "table"'),
            ("public", "parent"),
        }
        assert "leaf" not in {table.name for table in tables}
        assert listed.keys() <= sent.keys()  # both root and leaf may be described (F50)
        for relid, table in listed.items():
            assert wire_form(catalog.relation(relid, table.columns)) == sent_form(sent[relid])
            assert catalog.relation(relid) == catalog.relation(relid, table.columns)
            with contextlib.closing(connect_sql(settings)) as connection:
                known = catalog.attnums(catalog.relation(relid))
                assert known.described == attnums(connection, relid, table.columns)
                assert known.highest >= max(known.present)


@pytest.mark.parametrize("major", [nightly(14), 18])
async def test_keys_come_in_the_order_of_their_index(pg_server: PostgresServers, major: int) -> None:
    with source_database(pg_server(major), *TABLES) as settings:
        with contextlib.closing(connect_sql(settings)) as connection:
            relid = {table.name: table.relid for table in published_tables(connection, ("pub",))}
        with contextlib.closing(Catalog(settings)) as catalog:
            assert catalog.keys(0) is None

            def key(name: str, identity: ReplicaIdentity) -> tuple[str, ...]:
                index = (catalog.keys(relid[name]) or TableKeys()).of(identity)
                return () if index is None else index.columns

            assert key("composite", ReplicaIdentity.DEFAULT) == ("a", "b")
            assert key("composite", ReplicaIdentity.INDEX) == ()
            assert key("indexed", ReplicaIdentity.FULL) == ("id",)
            assert key("indexed", ReplicaIdentity.INDEX) == ("k1", "k2")
            assert key("whole", ReplicaIdentity.FULL) == ("id",)
            assert key("nothing", ReplicaIdentity.NOTHING) == ()
            assert key("keyless", ReplicaIdentity.DEFAULT) == ()


@pytest.mark.parametrize("major", [nightly(14), 18])
def test_keys_are_read_while_another_session_alters_the_table(pg_server: PostgresServers, major: int) -> None:
    """A key query while the stream runs waits for no other transaction."""
    with (
        source_database(pg_server(major), *TABLES) as settings,
        contextlib.closing(psycopg2.connect(settings.dsn)) as altering,
        contextlib.closing(connect_sql(settings)) as connection,
    ):
        relid = {table.name: table.relid for table in published_tables(connection, ("pub",))}["late"]
        with altering.cursor() as cursor:
            cursor.execute("ALTER TABLE public.late ADD COLUMN v text; REINDEX TABLE public.late_leaf")
        with connection.cursor() as observer:
            observer.execute("SET lock_timeout = 1")
        flaw = "index public.late_leaf_pkey is DEFERRABLE"
        assert [one.flaw for one in table_keys(connection, (relid,))[relid].indexes] == [flaw]


async def test_types_are_closed_over_elements_and_base_types(pg_server: PostgresServers) -> None:
    statements = (
        "CREATE DOMAIN public.price AS numeric(10,2)",
        "CREATE DOMAIN public.prices AS public.price[]",
        "CREATE TYPE public.mood AS ENUM ('sad')",
    )
    with source_database(pg_server(18), *statements) as settings:
        with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT 'public.prices'::regtype::oid::bigint, 'public.mood'::regtype::oid::bigint"
            )
            prices, mood = cursor.fetchall()[0]
        with contextlib.closing(Catalog(settings)) as catalog:
            found = catalog.types([prices, mood, 22, 4_000_000_000])
            assert {(entry.schema, entry.name, entry.kind) for entry in found.values()} == {
                ("public", "prices", "d"),
                ("public", "_price", "b"),
                ("public", "price", "d"),
                ("pg_catalog", "numeric", "b"),
                ("public", "mood", "e"),
                ("pg_catalog", "int2vector", "b"),
            }
            array = found[found[prices].base_oid]
            price = found[array.element_oid]
            assert (price.base_oid, price.base_typmod) == (1700, (10 << 16 | 2) + 4)
            assert found[22].element_oid == 0  # its text has no braces, so it is no array


@pytest.mark.parametrize("major", nightly_except(POSTGRES_MAJORS, 18))
async def test_types_are_closed_over_attributes_and_ranges(pg_server: PostgresServers, major: int) -> None:
    statements = (
        "CREATE EXTENSION hstore",
        "CREATE DOMAIN public.price AS numeric(10,2)",
        'CREATE TYPE public.inner_one AS (gone int, at date, "odd name" varchar(7)[])',
        "ALTER TYPE public.inner_one DROP ATTRIBUTE gone",
        "CREATE TYPE public.outer_one AS (one public.inner_one, paid public.price, tags hstore)",
        "CREATE TYPE public.span AS RANGE (subtype = public.price)",
    )
    with (
        source_database(pg_server(major), *statements) as settings,
        contextlib.closing(Catalog(settings)) as catalog,
    ):
        with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
            cursor.execute(
                "SELECT typname::text, oid::int8 FROM pg_type WHERE typname IN ('outer_one', 'span', 'int4range',"
                " 'span_multirange', 'spanmultirange')"
            )
            oids = dict(cursor.fetchall())
        found = {entry.name: entry for entry in catalog.types(oids.values()).values()}
        assert {
            "outer_one",
            "inner_one",
            "price",
            "numeric",
            "date",
            "_varchar",
            "hstore",
            "int4",
        } < found.keys()
        outer, inner = found["outer_one"], found["inner_one"]
        assert [a.name for a in outer.attributes] == ["one", "paid", "tags"]
        assert inner.attributes == (Attribute("at", 1082, -1), Attribute("odd name", 1015, 11))
        assert (found["hstore"].extension, inner.extension) == ("hstore", "")
        assert found["span"].subtype_oid == found["price"].oid
        assert found["int4range"].subtype_oid == 23
        multiranges = [entry for entry in found.values() if entry.kind == "m"]
        assert [entry.subtype_oid for entry in multiranges] == [oids["span"]] * (major >= 14)


async def test_an_altered_composite_type_is_seen_at_the_next_look_up(pg_server: PostgresServers) -> None:
    """F44: the stream does not report that the type was altered."""
    server = pg_server(18)
    statements = (
        "CREATE TYPE public.pair AS (a int, b text)",
        "CREATE DOMAIN public.pairs AS public.pair[]",
    )
    with source_database(server, *statements) as settings, contextlib.closing(Catalog(settings)) as catalog:
        with contextlib.closing(connect_sql(settings)) as connection, connection.cursor() as cursor:
            cursor.execute("SELECT 'public.pairs'::regtype::oid::int8, 'public.pair'::regtype::oid::int8")
            pairs, pair = cursor.fetchall()[0]
            assert [a.name for a in catalog.types([pairs])[pair].attributes] == ["a", "b"]
            cursor.execute("ALTER TYPE public.pair DROP ATTRIBUTE a, ADD ATTRIBUTE at date")
        found = catalog.types([pairs])
        assert found[pair].attributes == (Attribute("b", 25, -1), Attribute("at", 1082, -1))
        assert found[1082].name == "date"


async def test_the_catalog_reconnects_by_itself(pg_server: PostgresServers) -> None:
    server = pg_server(18)
    with source_database(server) as settings, contextlib.closing(Catalog(settings)) as catalog:
        assert catalog.types([23])
        server.execute(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", settings.slot
        )
        assert catalog.types([25])[25].name == "text"


async def test_a_dropped_or_changed_relation_makes_the_snapshot_stale(
    pg_server: PostgresServers,
) -> None:
    """DDL between the query of the published tables and the query of each table: no operator is needed."""
    with source_database(pg_server(18), "CREATE TABLE public.t (id int)") as settings:
        catalog = Catalog(settings)
        with contextlib.closing(catalog), contextlib.closing(connect_sql(settings)) as connection:
            with pytest.raises(SnapshotStale):
                catalog.relation(4_000_000_000)
            with connection.cursor() as cursor:
                cursor.execute("SELECT 'public.t'::regclass::oid")
                ((relid,),) = cursor.fetchall()
            with pytest.raises(SnapshotStale):
                catalog.relation(relid, ("id", "dropped a moment ago"))


@pytest.mark.parametrize("major", [nightly(15), nightly(16), nightly(17), 18])
async def test_column_lists_and_row_filters(pg_server: PostgresServers, major: int) -> None:
    """F41: a snapshot has to exclude the same rows and columns."""
    statements = (
        "CREATE TABLE public.t (id int PRIMARY KEY, open text, hidden text)",
        "CREATE PUBLICATION pub FOR TABLE public.t (id, open) WHERE (id > 10)",
        "CREATE PUBLICATION other FOR TABLE public.t (id, open) WHERE (id < 5)",
        "CREATE PUBLICATION everything FOR TABLE public.t",
    )
    with source_database(pg_server(major), *statements) as settings:
        sent = await relations_on_the_wire(settings, "INSERT INTO public.t VALUES (11, 'o', 'h')")
        with contextlib.closing(connect_sql(settings)) as connection:
            (table,) = published_tables(connection, ("pub",))
            assert table.columns == ("id", "open")
            assert table.row_filter == "((id > 10))"
            (both,) = published_tables(connection, ("pub", "other"))
            assert both.row_filter is not None
            assert {part.strip() for part in both.row_filter.split(" OR ")} == {"((id > 10))", "((id < 5))"}
            (conflict,) = published_tables(connection, ("pub", "everything"))
            assert conflict.has_conflicting_columns
            assert conflict.row_filter is None
        with contextlib.closing(Catalog(settings)) as catalog:
            described = catalog.relation(table.relid, table.columns)
            assert wire_form(described) == sent_form(sent[table.relid])


async def test_published_generated_columns(pg_server: PostgresServers) -> None:
    """F48."""
    statements = (
        "CREATE TABLE public.t (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED)",
        "CREATE PUBLICATION pub FOR TABLE public.t WITH (publish_generated_columns = stored)",
    )
    with source_database(pg_server(18), *statements) as settings:
        sent = await relations_on_the_wire(settings, "INSERT INTO public.t VALUES (1)")
        with contextlib.closing(connect_sql(settings)) as connection:
            (table,) = published_tables(connection, ("pub",))
        with contextlib.closing(Catalog(settings)) as catalog:
            described = catalog.relation(table.relid, table.columns)
            assert wire_form(described) == sent_form(sent[table.relid])
        assert table.columns == ("id", "twice")


@pytest.mark.parametrize("major", nightly_except(SUPPORTED_POSTGRES_MAJORS, 18))
def test_identity_of_tables_and_server(pg_server: PostgresServers, major: int) -> None:
    server = pg_server(major)
    with source_database(server, *TABLES) as settings:
        with contextlib.closing(connect_sql(settings)) as connection:
            who = identify(connection)
            tables = {table.name: table for table in published_tables(connection, ("pub",))}
            assert missing_publications(connection, ("gone", "pub", "gone too")) == ["gone", "gone too"]
        (row,) = server.execute("SELECT system_identifier::text FROM pg_control_system()")
        assert (who.system_identifier, who.timeline, who.database) == (row[0], 1, settings.slot)
        assert who.version_num // 10_000 == major
        assert 0 < who.wal_lsn <= wal_position(server)
        assert not who.in_recovery
        assert has_key(tables) == {
            "plain": (ReplicaIdentity.DEFAULT, True),
            "composite": (ReplicaIdentity.DEFAULT, True),
            "whole": (ReplicaIdentity.FULL, True),
            "indexed": (ReplicaIdentity.INDEX, True),
            "nothing": (ReplicaIdentity.NOTHING, False),
            "keyless": (ReplicaIdentity.DEFAULT, False),
            "later": (ReplicaIdentity.DEFAULT, False),
            "computed": (ReplicaIdentity.DEFAULT, True),
            'Odd, "table"': (ReplicaIdentity.DEFAULT, True),
            "parent": (ReplicaIdentity.DEFAULT, True),
            "unfinished": (ReplicaIdentity.DEFAULT, major >= 18),
            "late": (ReplicaIdentity.DEFAULT, True),
        }
        flaws = {name: table.key.flaw for name, table in tables.items() if table.key is not None}
        assert {name: flaw for name, flaw in flaws.items() if flaw is not None} == {
            "later": "index public.later_pkey is DEFERRABLE",
            "unfinished": "index public.unfinished_pkey is not valid",
            "late": "index public.late_leaf_pkey is DEFERRABLE",
        }
        assert not any(tables[name].has_record_key for name in ("later", "unfinished", "late"))
        assert tables["parent"].is_partitioned
        assert tables["computed"].columns == ("id", "z")
        run_script(plain(settings), "ALTER TABLE public.plain ENABLE ROW LEVEL SECURITY")


def has_key(tables: dict[str, PublishedTable]) -> dict[str, tuple[ReplicaIdentity, bool]]:
    return {name: (table.identity, table.has_key) for name, table in tables.items()}


async def test_tables_that_go_while_they_are_listed_are_no_error(pg_server: PostgresServers) -> None:
    """The server lists the published tables and then opens each: `could not open relation with OID`."""
    with (
        source_database(pg_server(18), "CREATE PUBLICATION pub FOR ALL TABLES") as settings,
        contextlib.closing(connect_sql(settings)) as observer,
        contextlib.closing(psycopg2.connect(settings.dsn)) as changing,
    ):
        changing.autocommit = True
        stop = threading.Event()

        def come_and_go() -> None:
            with changing.cursor() as cursor:
                while not stop.is_set():
                    cursor.execute("".join(f"CREATE TABLE g{n} (id int PRIMARY KEY); " for n in range(20)))
                    for number in range(20):
                        cursor.execute(f"DROP TABLE g{number}")

        thread = threading.Thread(target=come_and_go)
        thread.start()
        try:
            for _ in range(150):
                published_tables(observer, ("pub",))
        finally:
            stop.set()
            thread.join()


def test_the_catalog_of_another_server_is_not_queried(
    postgres: PostgresServer, pg_server: PostgresServers
) -> None:
    """F59: the connection is lost, and the name leads to a server where the oids are those of other tables."""
    other = pg_server(17)
    with source_database(postgres, TABLE) as settings, Proxy(postgres.port) as link:
        with contextlib.closing(connect_sql(settings)) as connection:
            server = identify(connection)
            ((relid,),) = fetch(connection, "SELECT 'public.t'::regclass::oid::int8")
        named = replace(settings, dsn=settings.dsn.replace(f":{postgres.port}/", f":{link.port}/"))
        other.create_database(settings.slot)
        try:
            with contextlib.closing(Catalog(named)) as catalog:
                catalog.expect(server)
                assert catalog.keys(relid) is not None
                link.point_to(other.port)
                link.cut()
                for _ in range(2):
                    with pytest.raises(SourceUnavailable, match="another server answers"):
                        catalog.keys(relid)
                link.point_to(postgres.port)
                assert catalog.keys(relid) is not None
        finally:
            drop_database(other, settings.slot)

"""Setups that a start refuses or accepts, each created on real servers.

In: a `World` that is ready for a first start.  Out: the same world, broken in one way.
`SETUPS` has for each the error code that `cdcd check` and the daemon must report, "" where both accept it.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import psycopg2
from confluent_kafka.admin import AdminClient, NewPartitions

from cdcd.config import Config, load_config
from cdcd.demo.stack.kafka import KafkaBroker
from cdcd.demo.stack.ports import free_port
from cdcd.demo.stack.postgres import PostgresServer
from cdcd.model import PartPosition
from cdcd.sink.kafka_sink import KafkaSink
from tests.support.daemon import Daemon
from tests.support.resolutions import command
from tests.support.stack import PostgresServers, run_script, slot_is_active
from tests.support.topics import create_topic, set_topic_config
from tests.support.waiting import eventually


@dataclass
class World:
    """A database with table t and its publication, a broker, a registry, and a daemon that is not started yet."""

    server: PostgresServer
    database: str
    daemon: Daemon
    kafka: KafkaBroker
    folder: Path
    pg_server: PostgresServers
    ends: contextlib.ExitStack
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> Config:
        return load_config(self.daemon.config_path, {})

    @property
    def dsn(self) -> str:
        return self.server.dsn(self.database)

    def sql(self, *statements: str) -> None:
        run_script(self.dsn, *statements)

    def run_once(self) -> None:
        """Start the daemon, let it stream, stop it: a position is stored and the slot is inactive."""
        self.sql("INSERT INTO t VALUES (1, 'a')")
        self.daemon.start().wait_state("streaming")
        assert self.daemon.stop() == 0
        eventually(lambda: not slot_is_active(self.server, self.daemon.slot), "the slot is inactive")

    def store(self, **changes: Any) -> None:
        """Write the progress record again with these fields changed."""
        with contextlib.closing(KafkaSink(self.config.sink_settings())) as sink:
            stored = sink.open()
            assert stored is not None
            sink.begin()
            sink.commit(replace(stored, **changes))

    def move_to(self, server: PostgresServer, database: str = "postgres") -> None:
        """Read from this server instead; create the table and the publication there."""
        self.server, self.database = server, database
        self.daemon.config["source"]["dsn"] = server.dsn(database)
        self.sql(
            "CREATE TABLE t (id int PRIMARY KEY, v text)",
            f"CREATE PUBLICATION {self.daemon.slot} FOR ALL TABLES",
        )

    def fresh(self, major: int = 18, **options: Any) -> PostgresServer:
        server = self.ends.enter_context(self.pg_server.fresh(major, **options))
        self.move_to(server)
        return server

    def role(self, attributes: str = "LOGIN REPLICATION", *statements: str) -> str:
        """Create a role for this test, and let the daemon connect with it."""
        name = f"r{self.daemon.slot}"
        self.sql(f"CREATE ROLE {name} {attributes}", *(one.format(role=name) for one in statements))
        server, database = self.server, self.database
        self.ends.callback(lambda: server.execute(f"DROP ROLE {name}"))
        self.ends.callback(lambda: server.execute(f"DROP OWNED BY {name}", dbname=database))
        self.daemon.config["source"]["dsn"] = self.server.dsn(self.database, name)
        return name

    def topics(self, **changes: Any) -> None:
        self.daemon.config["sink"]["topics"].update(changes)

    def source(self, **changes: Any) -> None:
        self.daemon.config["source"].update(changes)

    def make_slot(
        self, plugin: str = "pgoutput", *, two_phase: bool = False, database: str | None = None
    ) -> None:
        statement = "SELECT pg_create_logical_replication_slot(%s, %s, false, %s)"
        self.server.execute(statement, self.daemon.slot, plugin, two_phase, dbname=database or self.database)

    def drop_slot(self) -> None:
        self.server.execute("SELECT pg_drop_replication_slot(%s)", self.daemon.slot)

    def admin(self) -> AdminClient:
        return AdminClient({"bootstrap.servers": self.kafka.bootstrap})

    def delete_topic(self, name: str) -> None:
        admin = self.admin()
        admin.delete_topics([name])[name].result(30)
        eventually(lambda: name not in admin.list_topics(timeout=30).topics, "the topic is deleted")

    @property
    def topic(self) -> str:
        return f"{self.daemon.name}.public.t"

    @property
    def progress(self) -> str:
        return f"{self.daemon.name}.__progress"


Make = Callable[[World], None]


@dataclass(frozen=True)
class Setup:
    """`code`: reported by both. `check`, `daemon`: where they differ; "unknown": a check that could not be made."""

    name: str
    make: Make
    code: str = ""
    check: str | None = None
    daemon: str | None = None

    @property
    def expected(self) -> tuple[str, str]:
        return (
            self.code if self.check is None else self.check,
            self.code if self.daemon is None else self.daemon,
        )


# --- nothing is wrong ---


def fine(world: World) -> None:
    pass


def fine_after_a_run(world: World) -> None:
    world.run_once()


def another_transactional_id(world: World) -> None:
    world.run_once()
    world.daemon.config["sink"]["transactional_id"] = f"{world.daemon.name}-second"


# --- connection and role ---


def server_away(world: World) -> None:
    world.source(dsn=f"postgresql://postgres@127.0.0.1:{free_port()}/postgres")


def wrong_password(world: World) -> None:
    server = world.fresh(authentication="scram-sha-256")
    server.create_role("cdcd", "right")
    world.source(dsn=server.dsn("postgres", "cdcd"), password="wrong")


def no_such_database(world: World) -> None:
    world.source(dsn=world.server.dsn("nowhere_at_all"))


def no_such_role(world: World) -> None:
    world.source(dsn=world.server.dsn(world.database, "nobody_at_all"))


def role_without_replication(world: World) -> None:
    world.role("LOGIN", "GRANT SELECT ON t TO {role}")


def role_that_becomes_another(world: World) -> None:
    """The login role has REPLICATION; the role that reads the tables lacks it, which is allowed."""
    name = world.role("LOGIN REPLICATION")
    world.sql(f"CREATE ROLE {name}b NOLOGIN", f"GRANT {name}b TO {name}", f"GRANT SELECT ON t TO {name}b")
    world.sql(f"ALTER ROLE {name} SET role TO {name}b")
    server, database = world.server, world.database
    world.ends.callback(lambda: server.execute(f"DROP ROLE {name}b"))
    world.ends.callback(lambda: server.execute(f"DROP OWNED BY {name}b", dbname=database))


def role_that_becomes_one_that_may(world: World) -> None:
    name = world.role("LOGIN", "GRANT SELECT ON t TO {role}")
    world.sql(f"CREATE ROLE {name}b NOLOGIN REPLICATION", f"GRANT {name}b TO {name}")
    world.sql(f"ALTER ROLE {name} SET role TO {name}b")
    server = world.server
    world.ends.callback(lambda: server.execute(f"DROP ROLE {name}b"))


def role_that_becomes_one_that_may_not_read(world: World) -> None:
    name = world.role("LOGIN REPLICATION", "GRANT SELECT ON t TO {role}")
    world.sql(
        f"CREATE ROLE {name}b NOLOGIN", f"GRANT {name}b TO {name}", f"ALTER ROLE {name} SET role TO {name}b"
    )
    server = world.server
    world.ends.callback(lambda: server.execute(f"DROP ROLE {name}b"))


def standby(world: World) -> None:
    server = world.fresh()
    server.stop()
    (server.data_folder / "standby.signal").touch()
    server.start()


# --- the server's settings ---


def wal_level(world: World) -> None:
    world.fresh(settings={"wal_level": "replica"})


def no_slot_left(world: World) -> None:
    server = world.fresh(settings={"max_replication_slots": "1"})
    server.execute("SELECT pg_create_physical_replication_slot('other')")


def no_sender_left(world: World) -> None:
    world.fresh(settings={"max_wal_senders": "0"})


def option_of_a_later_version(world: World) -> None:
    server = world.pg_server(15)
    server.create_database(world.database)
    world.ends.callback(lambda: server.drop_database(world.database))
    world.move_to(server, world.database)
    world.source(protocol={"streaming": "parallel"})


def failover_of_a_later_version(world: World) -> None:
    option_of_a_later_version(world)
    world.source(protocol={}, slot={"failover": True})


def messages_of_a_later_version(world: World) -> None:
    server = world.pg_server(13)
    server.create_database(world.database)
    world.ends.callback(lambda: server.drop_database(world.database))
    world.move_to(server, world.database)


def no_heartbeats(world: World) -> None:
    world.role("LOGIN REPLICATION", "GRANT SELECT ON t TO {role}")
    function = "pg_logical_emit_message(boolean, text, text, boolean)"
    world.sql(f"REVOKE EXECUTE ON FUNCTION {function} FROM PUBLIC")
    world.source(heartbeat_interval_ms=1000)


# --- publications ---


def publication_missing(world: World) -> None:
    world.sql(f"DROP PUBLICATION {world.daemon.slot}")


def one_publication_of_two_missing(world: World) -> None:
    world.source(publication={"names": [world.daemon.slot, "gone"]})


def publications_disagree(world: World) -> None:
    world.sql("CREATE PUBLICATION narrow FOR TABLE t (id)")
    world.source(publication={"names": [world.daemon.slot, "narrow"]})


def publication_made_again(world: World) -> None:
    world.run_once()
    world.sql(
        f"DROP PUBLICATION {world.daemon.slot}", f"CREATE PUBLICATION {world.daemon.slot} FOR ALL TABLES"
    )


def table_taken_out(world: World) -> None:
    name = world.daemon.slot
    world.sql(f"DROP PUBLICATION {name}", f"CREATE PUBLICATION {name} FOR TABLE t", "CREATE TABLE u (id int)")
    world.run_once()
    world.source(publication={"table_removed": "halt"})
    world.sql(f"ALTER PUBLICATION {name} SET TABLE u")


def no_tables(world: World) -> None:
    world.sql("DROP TABLE t")


# --- tables ---


def schema_closed(world: World) -> None:
    world.sql("CREATE SCHEMA closed", "CREATE TABLE closed.c (id int PRIMARY KEY)")
    world.role("LOGIN REPLICATION", "GRANT SELECT ON t, closed.c TO {role}")


def table_closed(world: World) -> None:
    world.role()


def table_closed_after_the_copy(world: World) -> None:
    world.run_once()
    world.role()


def column_closed(world: World) -> None:
    world.role("LOGIN REPLICATION", "GRANT SELECT (id) ON t TO {role}")


def row_security(world: World) -> None:
    world.sql("ALTER TABLE t ENABLE ROW LEVEL SECURITY")
    world.role("LOGIN REPLICATION", "GRANT SELECT ON t TO {role}")


def keyless(world: World) -> None:
    world.sql("CREATE TABLE k (v text)")


def locked(world: World) -> None:
    """LOCK TABLE by another session: the check reports that the table is locked, and does not wait forever."""
    world.run_once()
    holder = psycopg2.connect(world.dsn, application_name="migration")
    world.ends.callback(holder.close)
    with holder.cursor() as cursor:
        cursor.execute("LOCK TABLE t IN ACCESS EXCLUSIVE MODE")


# --- slot and position ---


def slot_of_another_plugin(world: World) -> None:
    world.make_slot("test_decoding")


def slot_of_another_database(world: World) -> None:
    world.make_slot(database="postgres")
    world.ends.callback(world.drop_slot)


def slot_without_position(world: World) -> None:
    world.make_slot()


def slot_without_position_where_none_is_needed(world: World) -> None:
    world.daemon.config["snapshot"] = {"mode": "never"}
    world.make_slot()


def slot_with_two_phase(world: World) -> None:
    world.daemon.config["snapshot"] = {"mode": "never"}
    world.make_slot(two_phase=True)


def slot_not_to_be_made(world: World) -> None:
    world.source(slot={"create": False})


def slot_dropped(world: World) -> None:
    world.run_once()
    world.drop_slot()


def slot_made_again(world: World) -> None:
    slot_dropped(world)
    world.sql("INSERT INTO t VALUES (2, 'b')")
    world.make_slot()


def slot_advanced(world: World) -> None:
    world.run_once()
    world.sql("INSERT INTO t VALUES (2, 'b')")
    world.server.execute(
        "SELECT pg_replication_slot_advance(%s, pg_current_wal_lsn())",
        world.daemon.slot,
        dbname=world.database,
    )


def slot_held_by_somebody_else(world: World) -> None:
    from psycopg2.extras import LogicalReplicationConnection

    world.daemon.config["snapshot"] = {"mode": "never"}
    world.make_slot()
    holder = psycopg2.connect(
        world.dsn, connection_factory=LogicalReplicationConnection, application_name="another tool"
    )
    world.ends.callback(holder.close)
    options = {"proto_version": "1", "publication_names": world.daemon.slot}
    holder.cursor().start_replication(slot_name=world.daemon.slot, decode=False, options=options)


def another_server(world: World) -> None:
    """Staging and production with one Kafka: the same configuration file, but another server."""
    world.run_once()
    world.fresh()


def server_behind(world: World) -> None:
    world.run_once()
    world.store(end_lsn=1 << 60, commit_lsn=1 << 60)


def snapshot_cut_off_and_none_wanted(world: World) -> None:
    world.run_once()
    world.store(phase="snapshot", snapshot_tables=(world.topic,))
    world.daemon.config["snapshot"] = {"mode": "never"}


def part_numbered_otherwise(world: World) -> None:
    world.run_once()
    world.store(part=PartPosition(1 << 50, 3, "of another configuration"))


def progress_unreadable(world: World) -> None:
    create_topic(world.kafka.bootstrap, world.progress, config={"cleanup.policy": "compact"})
    producer = world.extra["producer"](world.daemon.slot)
    producer.begin_transaction()
    producer.produce(world.progress, b"not ours", world.daemon.slot.encode())
    producer.commit_transaction(30)


def progress_forgets(world: World) -> None:
    create_topic(world.kafka.bootstrap, world.progress, config={"retention.ms": "1000000"})


# --- Kafka ---


def kafka_away(world: World) -> None:
    world.daemon.entry = ("-m", "tests.faults.impatient")
    world.daemon.config["sink"]["bootstrap_servers"] = f"127.0.0.1:{free_port()}"


def kafka_certificate_missing(world: World) -> None:
    world.daemon.config["sink"]["properties"] = {
        "security.protocol": "SSL",
        "ssl.ca.location": str(world.folder / "nowhere.crt"),
    }


def property_unknown(world: World) -> None:
    world.daemon.config["sink"]["properties"] = {"no.such.property": "1"}


def transactions_too_long(world: World) -> None:
    world.daemon.config["sink"]["transaction_timeout_ms"] = 3_600_000


def two_tables_in_one_topic(world: World) -> None:
    world.sql("CREATE SCHEMA a", "CREATE SCHEMA ab")
    world.sql("CREATE TABLE a.bc (id int PRIMARY KEY)", "CREATE TABLE ab.c (id int PRIMARY KEY)")
    world.topics(template="{name}.{schema}{table}")


def two_topics_that_are_one_to_kafka(world: World) -> None:
    world.sql("CREATE SCHEMA a", "CREATE SCHEMA a_b")
    world.sql("CREATE TABLE a.b_c (id int PRIMARY KEY)", "CREATE TABLE a_b.c (id int PRIMARY KEY)")


def a_table_named_as_cdcds_own_topic(world: World) -> None:
    world.sql("CREATE SCHEMA mes", "CREATE TABLE mes.sage (id int PRIMARY KEY)")
    world.topics(template="{name}.{schema}{table}")


def name_too_long(world: World) -> None:
    world.topics(template="x" * 240 + "{name}.{schema}.{table}")


def topics_missing_and_not_made(world: World) -> None:
    world.topics(create=False)


def only_the_messages_topic_missing(world: World) -> None:
    create_topic(world.kafka.bootstrap, world.topic, 2)
    create_topic(world.kafka.bootstrap, world.progress, config={"cleanup.policy": "compact"})
    world.topics(create=False)


def too_many_replicas(world: World) -> None:
    world.topics(replication_factor=3)


def too_many_replicas_and_all_there(world: World) -> None:
    only_the_messages_topic_missing(world)
    create_topic(world.kafka.bootstrap, f"{world.daemon.name}.message", 2)
    world.topics(create=True, replication_factor=3)


def topic_property_unknown(world: World) -> None:
    world.topics(properties={"no.such.property": "1"})


def compacted_and_keyless(world: World) -> None:
    keyless(world)
    create_topic(world.kafka.bootstrap, f"{world.daemon.name}.public.k", config={"cleanup.policy": "compact"})


def made_compacted_and_keyless(world: World) -> None:
    keyless(world)
    world.topics(properties={"cleanup.policy": "compact"})


def compacted_and_keyed(world: World) -> None:
    world.topics(properties={"cleanup.policy": "compact"})


def topics_of_another_slot(world: World) -> None:
    """Two databases under one name: both would write to the same topics."""
    world.run_once()
    server, database = world.server, f"{world.database}b"
    server.create_database(database)
    world.ends.callback(lambda: server.drop_database(database))
    world.daemon.slot += "b"
    world.move_to(server, database)
    world.source(slot={"name": world.daemon.slot}, publication={"names": [world.daemon.slot]})


def topic_gone(world: World) -> None:
    world.run_once()
    world.delete_topic(world.topic)


def topic_made_again(world: World) -> None:
    topic_gone(world)
    create_topic(world.kafka.bootstrap, world.topic, 2)


def topic_widened(world: World) -> None:
    world.run_once()
    admin = world.admin()
    admin.create_partitions([NewPartitions(world.topic, 5)])[world.topic].result(30)
    eventually(
        lambda: len(admin.list_topics(world.topic, 30).topics[world.topic].partitions) == 5,
        "there are 5 partitions",
    )


def topic_of_a_table_that_is_not_published_any_more(world: World) -> None:
    world.sql("CREATE TABLE u (id int PRIMARY KEY)")
    world.run_once()
    world.sql("DROP TABLE u")
    world.delete_topic(f"{world.daemon.name}.public.u")


def progress_forgets_after_a_run(world: World) -> None:
    world.run_once()
    set_topic_config(world.kafka.bootstrap, world.progress, "cleanup.policy", "delete")


# --- registry, this machine ---


def schemas_unreadable(world: World) -> None:
    world.daemon.config["registry"] = "none"
    topic = f"{world.daemon.name}.__schemas"
    create_topic(world.kafka.bootstrap, topic, config={"cleanup.policy": "compact"})
    producer = world.extra["producer"](world.daemon.slot)
    producer.begin_transaction()
    producer.produce(topic, b"not ours", b"not ours")
    producer.commit_transaction(30)


def registry_away(world: World) -> None:
    world.daemon.config["registry"]["url"] = f"http://127.0.0.1:{free_port()}"


def registry_elsewhere(world: World) -> None:
    world.daemon.config["registry"]["url"] += "/nothing/here"


# --- keys and schemas that break the readers of the topics ---


def key_changed(world: World) -> None:
    world.sql("ALTER TABLE t ALTER v SET NOT NULL")
    world.run_once()
    world.sql("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (v)")


def type_changed(world: World) -> None:
    world.run_once()
    world.sql("ALTER TABLE t ALTER v TYPE int USING 1")


def type_changed_and_let_through(world: World) -> None:
    world.daemon.config["registry"]["incompatible"] = "register_with_none"
    type_changed(world)


def key_changed_and_a_new_topic(world: World) -> None:
    world.daemon.config["registry"]["incompatible"] = "new_topic"
    key_changed(world)


def type_changed_without_a_registry(world: World) -> None:
    world.daemon.config["registry"] = "none"
    type_changed(world)


def type_changed_and_back(world: World) -> None:
    type_changed(world)
    world.sql("ALTER TABLE t ALTER v TYPE text")


def subject_of_something_else(world: World) -> None:
    """Another table of that name wrote to these topics earlier, through another slot."""
    world.run_once()
    world.drop_slot()
    world.delete_topic(world.progress)
    world.sql("ALTER TABLE t ALTER v TYPE int USING 1")


def schemas_not_registered(world: World) -> None:
    world.daemon.config["registry"]["auto_register"] = False


def gap_accepted_and_type_changed(world: World) -> None:
    """The daemon marks a gap in each table's topic before it streams."""
    type_changed(world)
    world.drop_slot()
    ran = command(world.daemon, "resume", "--accept-gap")
    assert ran.returncode == 0, (ran.stdout, ran.stderr)


def key_of_no_column(world: World) -> None:
    keyless(world)
    world.daemon.config["format"] = {"overrides": [{"table": "public.k", "key_columns": ["gone"]}]}


def published_in_part_and_by_roots(world: World) -> None:
    """Tables that the stream describes differently from the catalog: column lists, roots, generated columns."""
    name = world.daemon.slot
    world.sql(
        "CREATE TABLE p (a text, id int, v text, PRIMARY KEY (id)) PARTITION BY RANGE (id)",
        "CREATE TABLE p1 (v text, id int NOT NULL, a text)",
        "ALTER TABLE p ATTACH PARTITION p1 FOR VALUES FROM (0) TO (100)",
        "CREATE TABLE g (id int PRIMARY KEY, twice int GENERATED ALWAYS AS (id * 2) STORED, v text)",
        "CREATE TABLE f (id int PRIMARY KEY, v text)",
        "ALTER TABLE f REPLICA IDENTITY FULL",
        "CREATE TABLE x (id int, code text NOT NULL UNIQUE)",
        "ALTER TABLE x REPLICA IDENTITY USING INDEX x_code_key",
        "CREATE TABLE k (v text)",
        f"DROP PUBLICATION {name}",
        f"CREATE PUBLICATION {name} FOR TABLE t, p (v, id), g (v, id), f (id), x, k "
        "WITH (publish_via_partition_root)",
        "INSERT INTO p VALUES ('a', 1, 'v')",
    )
    world.run_once()


def spill_folder_not_there(world: World) -> None:
    world.daemon.config["buffer"] = {"spill_dir": str(world.folder / "no" / "such" / "folder")}


def spill_folder_of_others(world: World) -> None:
    around = world.folder / "spill"
    own = around / f"cdcd-spill-{os.geteuid()}"
    own.mkdir(parents=True)
    own.chmod(0o777)
    world.daemon.config["buffer"] = {"spill_dir": str(around)}


def admin_port_in_use(world: World) -> None:
    taken = socket.create_server(("127.0.0.1", world.daemon.port))
    world.ends.callback(taken.close)


SETUP, UNUSABLE = "CDCD-SOURCE-SETUP", "CDCD-SLOT-UNUSABLE"
INCOMPATIBLE = "CDCD-SCHEMA-INCOMPATIBLE"
MISMATCH, MISSING = "CDCD-TOPIC-MISMATCH", "CDCD-TOPIC-MISSING"
SETUPS = (
    Setup("nothing is wrong, first start", fine),
    Setup("nothing is wrong, after a run", fine_after_a_run),
    Setup("another transactional id than before", another_transactional_id),
    Setup("PostgreSQL does not answer", server_away, "CDCD-SOURCE-UNAVAILABLE"),
    Setup("wrong password", wrong_password, "CDCD-SOURCE-AUTH"),
    Setup("no such database", no_such_database, SETUP),
    Setup("no such role", no_such_role, "CDCD-SOURCE-AUTH"),
    Setup("role without REPLICATION", role_without_replication, SETUP),
    Setup("role becomes another that lacks REPLICATION", role_that_becomes_another),
    Setup("role lacks REPLICATION, becomes one that has it", role_that_becomes_one_that_may, SETUP),
    Setup("role becomes another that may not read", role_that_becomes_one_that_may_not_read, SETUP),
    Setup("standby", standby, "CDCD-SOURCE-STANDBY"),
    Setup("wal_level = replica", wal_level, SETUP),
    Setup("all replication slots in use", no_slot_left, SETUP),
    Setup("no WAL sender", no_sender_left, "CDCD-SOURCE-UNAVAILABLE"),
    Setup("streaming parallel on PostgreSQL 15", option_of_a_later_version, SETUP),
    Setup("failover slot on PostgreSQL 15", failover_of_a_later_version, SETUP),
    Setup("logical messages on PostgreSQL 13, by default", messages_of_a_later_version),
    Setup("heartbeats that the role may not write", no_heartbeats),
    Setup("publication missing", publication_missing, "CDCD-PUBLICATION-MISSING"),
    Setup("one publication of two missing", one_publication_of_two_missing, "CDCD-PUBLICATION-MISSING"),
    Setup("publications with other column lists", publications_disagree, SETUP),
    Setup("publication dropped and made again", publication_made_again, "CDCD-PUBLICATION-CHANGED"),
    Setup("table taken out, table_removed: halt", table_taken_out, "CDCD-PUBLICATION-CHANGED"),
    Setup("publication without tables", no_tables),
    Setup("schema that the role may not use", schema_closed, SETUP),
    Setup("table that the role may not read", table_closed, SETUP),
    Setup("table that the role may not read, after the copy", table_closed_after_the_copy),
    Setup("column that the role may not read", column_closed, SETUP),
    Setup("row-level security", row_security, SETUP),
    Setup("table without a key", keyless),
    Setup("table locked by another session", locked, check="unknown", daemon=""),
    Setup("slot of another plugin", slot_of_another_plugin, UNUSABLE),
    Setup("slot of another database", slot_of_another_database, UNUSABLE),
    Setup("slot without a position, snapshot wanted", slot_without_position, UNUSABLE),
    Setup("slot without a position, none wanted", slot_without_position_where_none_is_needed),
    Setup("slot with two_phase, option off", slot_with_two_phase, UNUSABLE),
    Setup("no slot, source.slot.create off", slot_not_to_be_made, "CDCD-SLOT-MISSING"),
    Setup("slot dropped", slot_dropped, "CDCD-SLOT-MISSING"),
    Setup("slot dropped and made again", slot_made_again, "CDCD-SLOT-AHEAD"),
    Setup("slot advanced by somebody else", slot_advanced, "CDCD-SLOT-AHEAD"),
    Setup("slot held by another tool", slot_held_by_somebody_else, "CDCD-SLOT-ACTIVE"),
    Setup("another server than the position's", another_server, "CDCD-SOURCE-IDENTITY"),
    Setup("server's WAL ends before the position", server_behind, "CDCD-SOURCE-BEHIND"),
    Setup("snapshot cut off, then snapshot.mode: never", snapshot_cut_off_and_none_wanted, SETUP),
    Setup(
        "part of a transaction, its changes numbered differently",
        part_numbered_otherwise,
        "CDCD-PARTIAL-TRANSACTION-MISSING",
    ),
    Setup("progress record that nobody can read", progress_unreadable, "CDCD-PROGRESS-UNREADABLE"),
    Setup("progress topic with a retention", progress_forgets, MISMATCH),
    Setup("progress topic with a retention, after a run", progress_forgets_after_a_run, MISMATCH),
    Setup("Kafka does not answer", kafka_away, "CDCD-SINK-UNAVAILABLE"),
    Setup("certificate that is not there", kafka_certificate_missing, "CDCD-SINK-AUTH"),
    Setup("sink property that librdkafka does not know", property_unknown, "CDCD-SINK"),
    Setup("transaction time-out above the broker's", transactions_too_long, "CDCD-SINK"),
    Setup("two tables in one topic by the template", two_tables_in_one_topic, MISMATCH),
    Setup("two topics that are one to Kafka", two_topics_that_are_one_to_kafka, "CDCD-SINK"),
    Setup("table in the topic of logical messages", a_table_named_as_cdcds_own_topic, MISMATCH),
    Setup("topic name too long", name_too_long, "CDCD-SINK"),
    Setup("topics missing, sink.topics.create off", topics_missing_and_not_made, MISSING),
    Setup("only the topic of messages missing, create off", only_the_messages_topic_missing),
    Setup("more replicas than brokers", too_many_replicas, "CDCD-SINK"),
    Setup("more replicas than brokers, all topics there", too_many_replicas_and_all_there),
    Setup("topic property that Kafka does not know", topic_property_unknown, "CDCD-SINK"),
    Setup("compacted topic, table without a key", compacted_and_keyless, "CDCD-SINK"),
    Setup("topics to be made compacted, table without a key", made_compacted_and_keyless, "CDCD-SINK"),
    Setup("compacted topics, all tables with a key", compacted_and_keyed),
    Setup("topics of another database's slot", topics_of_another_slot, "CDCD-OWNED-BY-ANOTHER"),
    Setup("topic that held records gone", topic_gone, MISSING),
    Setup("topic deleted and made again", topic_made_again, "CDCD-TOPIC-REPLACED"),
    Setup("topic with more partitions than before", topic_widened, MISMATCH),
    Setup("topic of a dropped table gone", topic_of_a_table_that_is_not_published_any_more),
    Setup("registry does not answer", registry_away, "CDCD-REGISTRY-UNAVAILABLE"),
    Setup("registry.url is no registry's", registry_elsewhere, "CDCD-REGISTRY-REFUSED"),
    Setup("schema topic that nobody can read", schemas_unreadable, "CDCD-SCHEMA-TOPIC"),
    Setup("key changed since", key_changed, check="CDCD-KEY-CHANGED", daemon=""),
    Setup("key changed since, new_topic", key_changed_and_a_new_topic),
    Setup("column's type changed since", type_changed, check=INCOMPATIBLE, daemon=""),
    Setup("column's type changed since, let through", type_changed_and_let_through),
    Setup(
        "column's type changed since, no registry",
        type_changed_without_a_registry,
        check=INCOMPATIBLE,
        daemon="",
    ),
    Setup("column's type changed and changed back", type_changed_and_back),
    Setup("first start, other schemas in the subjects", subject_of_something_else, INCOMPATIBLE),
    Setup("type changed, and a gap to be marked", gap_accepted_and_type_changed, INCOMPATIBLE),
    Setup("schemas not registered, auto_register off", schemas_not_registered, "CDCD-REGISTRY-REFUSED"),
    Setup("format.key_columns that is not there", key_of_no_column, "CDCD-SCHEMA"),
    Setup("column lists, roots, generated columns, a run before", published_in_part_and_by_roots),
    Setup("spill folder's parent not there", spill_folder_not_there, "CDCD-SPILL"),
    Setup("spill folder open to others", spill_folder_of_others, "CDCD-SPILL"),
    Setup("admin.port in use on this machine", admin_port_in_use, check="", daemon="exit 78"),
)

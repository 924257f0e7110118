"""Situations that PostgreSQL causes."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator

import psycopg2
import psycopg2.extras

from cdcd.demo.stack.ports import free_port
from tests.hints.situation import World, situation
from tests.support.hints import sql_in
from tests.support.pooler import Pooler
from tests.support.stack import prepare
from tests.support.waiting import eventually

SETUP, AUTH, UNAVAILABLE = "CDCD-SOURCE-SETUP", "CDCD-SOURCE-AUTH", "CDCD-SOURCE-UNAVAILABLE"

# --- connecting -----------------------------------------------------------------------------------------------


@situation(SETUP, "a pooler refuses options", "connection pooler", "PostgreSQL itself in source.dsn")
def pooler_refuses_options(w: World) -> Iterator[None]:
    direct = w.daemon.config["source"]["dsn"]
    pooler = w.closing.enter_context(Pooler(w.server))
    w.start(source={"dsn": direct.replace(f":{w.server.port}/", f":{pooler.port}/")})
    yield
    assert w.daemon.events("retrying") == [], "no waiting makes a pooler another thing"
    checked = w.command("check").stdout
    assert "connection pooler" in checked
    assert "start the server" not in checked
    w.start(source={"dsn": direct})


@situation(SETUP, "a pooler lets SQL through, not replication", "connection pooler", "PostgreSQL itself")
def pooler_refuses_replication(w: World) -> Iterator[None]:
    direct = w.daemon.config["source"]["dsn"]
    pooler = w.closing.enter_context(Pooler(w.server, ignores={"options"}))
    w.start(source={"dsn": direct.replace(f":{w.server.port}/", f":{pooler.port}/")})
    yield
    assert w.daemon.events("retrying") == []
    assert "connection pooler" in w.command("check").stdout
    w.start(source={"dsn": direct})


@situation(SETUP, "the database does not exist", "psql -l")
def no_database(w: World) -> Iterator[None]:
    right = w.daemon.config["source"]["dsn"]
    w.start(source={"dsn": right + "_not"})
    yield
    w.start(source={"dsn": right})


@situation(SETUP, "the database takes no connections", "ALLOW_CONNECTIONS true")
def closed_database(w: World) -> Iterator[None]:
    w.sql(f"ALTER DATABASE {w.dbname} ALLOW_CONNECTIONS false", dbname="postgres")
    w.start()
    yield
    w.sql(f"ALTER DATABASE {w.dbname} ALLOW_CONNECTIONS true", dbname="postgres")
    w.resume()


@situation(SETUP, "an option of the DSN does not exist", "`options` in source.dsn")
def unknown_option(w: World) -> Iterator[None]:
    right = w.daemon.config["source"]["dsn"]
    w.start(source={"dsn": f"{right}?options=-c%20nonsense=1"})
    yield
    w.start(source={"dsn": right})


@situation(SETUP, "the server is not PostgreSQL", "host and port")
def no_postgres(w: World) -> Iterator[None]:
    right = w.daemon.config["source"]["dsn"]
    w.start(source={"dsn": right.replace(f":{w.server.port}/", f":{w.registry.port}/")})
    yield
    w.start(source={"dsn": right})


@situation(SETUP, "the role may not replicate", "ALTER ROLE", "REPLICATION")
def no_replication(w: World) -> Iterator[None]:
    name = f"r{w.dbname}"
    dsn = w.role(name)
    w.sql(f"GRANT SELECT ON t TO {name}")
    w.start(source={"dsn": dsn})
    yield
    (statement,) = re.findall(rf"ALTER ROLE \"?{name}\"? REPLICATION", w.hint)
    w.sql(statement)
    w.resume()


@situation(SETUP, "the role may not read a table", "GRANT SELECT ON", "cdcd resume")
def no_select(w: World) -> Iterator[None]:
    w.start(source={"dsn": w.role(f"r{w.dbname}", "REPLICATION")})
    yield
    checked = w.command("check").stdout
    (grant,) = re.findall(r"-> (GRANT SELECT [^;\n]+)", checked)
    w.sql(grant)
    w.resume()


@situation(AUTH, "the role does not exist", "CREATE ROLE", is_retried=True)
def no_role(w: World) -> Iterator[None]:
    w.start(source={"dsn": w.server.dsn(w.dbname, f"r{w.dbname}")})
    yield
    w.role(f"r{w.dbname}", "REPLICATION")
    w.sql(f"GRANT SELECT ON t TO r{w.dbname}")


@situation(AUTH, "the role may not log in", "ALTER ROLE ... LOGIN", is_retried=True)
def no_login(w: World) -> Iterator[None]:
    name = f"r{w.dbname}"
    dsn = w.role(name, "REPLICATION")
    w.sql(f"ALTER ROLE {name} NOLOGIN")
    w.sql(f"GRANT SELECT ON t TO {name}")
    w.start(source={"dsn": dsn})
    yield
    w.sql(f"ALTER ROLE {name} LOGIN")


@situation(
    AUTH, "the password is wrong", "correct the role's password", "source.password_file", is_retried=True
)
def wrong_password(w: World) -> Iterator[None]:
    name, password = f"r{w.dbname}", w.folder / "password"
    password.write_text("another\n")
    dsn = w.role(name, "REPLICATION", "PASSWORD 'right-one'")
    w.sql(f"GRANT SELECT ON t TO {name}")
    w.pg_hba(f"host all {name} 127.0.0.1/32 scram-sha-256")
    w.start(source={"dsn": dsn, "password_file": str(password)})
    yield
    password.write_text("right-one\n")


@situation(AUTH, "no password is given", "set the role's password", is_retried=True)
def no_password(w: World) -> Iterator[None]:
    name, password = f"r{w.dbname}", w.folder / "password"
    dsn = w.role(name, "REPLICATION", "PASSWORD 'right-one'")
    w.sql(f"GRANT SELECT ON t TO {name}")
    w.pg_hba(f"host all {name} 127.0.0.1/32 scram-sha-256")
    w.start(source={"dsn": dsn})
    yield
    password.write_text("right-one\n")
    w.start(source={"password_file": str(password)})


@situation(AUTH, "pg_hba.conf has no line for the role", "pg_hba.conf", "pg_reload_conf()", is_retried=True)
def no_hba_line(w: World) -> Iterator[None]:
    name = f"r{w.dbname}"
    dsn = w.role(name, "REPLICATION")
    w.sql(f"GRANT SELECT ON t TO {name}")
    allow = w.pg_hba(f"host all {name} 127.0.0.1/32 reject")
    w.start(source={"dsn": dsn})
    yield
    allow()


@situation(
    UNAVAILABLE, "nothing listens there", "start PostgreSQL, or correct host and port", is_retried=True
)
def nothing_listens(w: World) -> Iterator[None]:
    right = w.daemon.config["source"]["dsn"]
    w.start(source={"dsn": right.replace(f":{w.server.port}/", f":{free_port()}/")})
    yield
    w.start(source={"dsn": right})


@situation(UNAVAILABLE, "the server is stopped while it streams", "start PostgreSQL", is_retried=True)
def server_stops(w: World) -> Iterator[None]:
    server = w.servers.fresh(w.server.major)
    w.closing.callback(server.stop, "immediate")
    server.start()
    w.server, w.dbname = server, "postgres"
    w.sql(
        "CREATE TABLE public.t (id int PRIMARY KEY, body text)", f"CREATE PUBLICATION {w.slot} FOR ALL TABLES"
    )
    w.stream(source={"dsn": server.dsn()})
    server.stop()
    eventually(lambda: "Connection refused" in w.daemon.log(), "the failed connection is logged")
    first = w.daemon.events("retrying")[0]
    assert "start PostgreSQL" in first["error"] or "connects again" in first["error"]
    w.daemon.log_path.write_text(
        "\n".join(line for line in w.daemon.log().splitlines() if "refused" in line) + "\n"
    )
    yield
    server.start()


@situation(UNAVAILABLE, "the name has no address", "correct the host in source.dsn", is_retried=True)
def no_address(w: World) -> Iterator[None]:
    right = w.daemon.config["source"]["dsn"]
    w.start(source={"dsn": right.replace("127.0.0.1", "nowhere.invalid")})
    yield
    w.start(source={"dsn": right})


@situation(UNAVAILABLE, "the role has too many connections", "CONNECTION LIMIT", is_retried=True)
def connection_limit(w: World) -> Iterator[None]:
    name = f"r{w.dbname}"
    dsn = w.role(name, "REPLICATION", "CONNECTION LIMIT 0")
    w.sql(f"GRANT SELECT ON t TO {name}")
    w.start(source={"dsn": dsn})
    yield
    w.sql(f"ALTER ROLE {name} CONNECTION LIMIT -1")


@situation(
    UNAVAILABLE,
    "a login event trigger refuses",
    "refuses the connection",
    "login event trigger",
    is_retried=True,
)
def login_trigger(w: World) -> Iterator[None]:
    w.sql(
        "CREATE FUNCTION closed() RETURNS event_trigger LANGUAGE plpgsql AS "
        "$$ BEGIN IF session_user <> 'postgres' THEN RAISE 'closed on Sundays'; END IF; END $$",
        "CREATE EVENT TRIGGER closed ON login EXECUTE FUNCTION closed()",
    )
    name = f"r{w.dbname}"
    dsn = w.role(name, "REPLICATION")
    w.sql(f"GRANT SELECT ON t TO {name}")
    w.start(source={"dsn": dsn})
    yield
    assert "closed on Sundays" in w.daemon.log()
    assert "start PostgreSQL" not in w.daemon.log()
    w.sql("DROP EVENT TRIGGER closed")


# --- the server's settings ------------------------------------------------------------------------------------


@situation(SETUP, "wal_level is replica", "wal_level = 'logical'", "restart the server", "cdcd resume")
def wal_level(w: World) -> Iterator[None]:
    _small_server(w, wal_level="replica")
    w.start()
    yield
    w.server._settings["wal_level"] = "logical"
    w.server.restart()
    w.resume()


@situation(SETUP, "all replication slots are in use", "raise max_replication_slots", "restart the server")
def no_slot_left(w: World) -> Iterator[None]:
    _small_server(w, max_replication_slots="1")
    w.sql("SELECT pg_create_logical_replication_slot('taken', 'test_decoding')")
    w.start()
    yield
    w.server._settings["max_replication_slots"] = "5"
    w.server.restart()
    w.resume()


def _small_server(w: World, **settings: str) -> None:
    """Use a new server with these settings for the situation."""
    server = w.servers.fresh(w.server.major, settings=settings)
    w.closing.callback(server.stop, "immediate")
    server.start()
    w.server, w.dbname = server, "postgres"
    w.sql(
        "CREATE TABLE public.t (id int PRIMARY KEY, body text)", f"CREATE PUBLICATION {w.slot} FOR ALL TABLES"
    )
    w.configure(source={"dsn": server.dsn()})


@situation(SETUP, "an option of a later PostgreSQL", "set source.slot.failover: false, and restart cdcd")
def failover_too_early(w: World) -> Iterator[None]:
    server = w.servers(16)
    server.create_database(w.dbname)
    w.closing.callback(server.drop_database, w.dbname)
    w.server = server
    w.sql(
        "CREATE TABLE public.t (id int PRIMARY KEY, body text)", f"CREATE PUBLICATION {w.slot} FOR ALL TABLES"
    )
    w.closing.callback(w.daemon.__exit__)
    w.start(source={"dsn": server.dsn(w.dbname), "slot": {"failover": True}})
    yield
    w.follow(w.printed_hint(SETUP), "source.slot.failover")


# --- the slot -------------------------------------------------------------------------------------------------


@situation("CDCD-SLOT-ACTIVE", "another walsender reads the slot", "Stop the other reader", is_retried=True)
def other_reader(w: World) -> Iterator[None]:
    w.stream()
    w.daemon.stop()
    other = psycopg2.connect(
        w.server.dsn(w.dbname), connection_factory=psycopg2.extras.LogicalReplicationConnection
    )
    cursor = other.cursor()
    cursor.start_replication(
        slot_name=w.slot, options={"proto_version": "1", "publication_names": w.slot}, decode=False
    )
    w.start()
    yield
    other.close()


@situation("CDCD-SLOT-MISSING", "the slot was dropped, and the gap is accepted", "cdcd resume --accept-gap")
def slot_dropped(w: World) -> Iterator[None]:
    _without_slot(w)
    yield
    w.resume("resume", "--accept-gap")


@situation("CDCD-SLOT-MISSING", "the slot was dropped, and the tables are copied", "cdcd resnapshot")
def slot_dropped_and_copied(w: World) -> Iterator[None]:
    _without_slot(w)
    yield
    w.resume("resnapshot")


def _without_slot(w: World) -> None:
    w.stream()
    w.daemon.stop()
    w.sql(f"SELECT pg_drop_replication_slot('{w.slot}')")
    w.insert()
    w.start()


@situation("CDCD-SLOT-MISSING", "slot.create is off", "source.slot.create: true")
def slot_not_made(w: World) -> Iterator[None]:
    w.start(source={"slot": {"create": False}})
    yield
    w.start(source={"slot": {"create": True}})


@situation("CDCD-SLOT-LOST", "a WAL file that a valid slot needs is missing", "cdcd resnapshot")
def wal_file_missing(w: World) -> Iterator[None]:
    _small_server(w)
    w.stream()
    w.daemon.stop()
    ((name,),) = w.server.execute("SELECT pg_walfile_name(restart_lsn) FROM pg_replication_slots")
    w.insert()
    w.sql("SELECT pg_switch_wal()", "CHECKPOINT")
    (w.server.data_folder / "pg_wal" / name).unlink()
    w.start()
    yield
    w.resume("resnapshot")


@situation("CDCD-SLOT-AHEAD", "the slot was advanced", "cdcd resume --accept-gap")
def slot_advanced(w: World) -> Iterator[None]:
    w.stream()
    w.daemon.stop()
    w.insert()
    w.sql(f"SELECT pg_replication_slot_advance('{w.slot}', pg_current_wal_lsn())")
    w.start()
    yield
    w.resume("resume", "--accept-gap")


@situation("CDCD-SLOT-UNUSABLE", "the slot uses another plugin", "choose another source.slot.name")
def slot_of_another_plugin(w: World) -> Iterator[None]:
    w.sql(f"SELECT pg_create_logical_replication_slot('{w.slot}', 'test_decoding')")
    w.start()
    yield
    w.daemon.slot += "_own"
    w.start(source={"slot": {"name": w.daemon.slot}})


@situation("CDCD-SLOT-UNUSABLE", "the slot exists before the first start", "snapshot.mode: never")
def slot_without_progress(w: World) -> Iterator[None]:
    w.sql(f"SELECT pg_create_logical_replication_slot('{w.slot}', 'pgoutput')")
    w.start()
    yield
    w.start(snapshot={"mode": "never"})


@situation(
    "CDCD-SLOT-UNUSABLE", "the slot has two_phase, the configuration not", "source.protocol.two_phase: true"
)
def slot_with_two_phase(w: World) -> Iterator[None]:
    w.stream(source={"protocol": {"two_phase": True}})
    w.start(source={"protocol": {"two_phase": False}})
    yield
    w.start(source={"protocol": {"two_phase": True}})


@situation("CDCD-SLOT-UNUSABLE", "two_phase is switched off", "replace the slot", "cdcd resume")
def two_phase_switched_off(w: World) -> Iterator[None]:
    w.stream(source={"protocol": {"two_phase": True}})
    w.start(source={"protocol": {"two_phase": False}})
    yield
    w.sql(*sql_in(w.hint))
    w.resume()


@situation(
    "CDCD-SOURCE-TWO-PHASE",
    "a prepared transaction with a TRUNCATE in a subtransaction was rolled back",
    "which loses no change",
    "source.protocol.two_phase: false",
)
def prepared_and_rolled_back(w: World) -> Iterator[None]:
    w.stream(source={"protocol": {"two_phase": True}})
    w.daemon.stop()
    prepare(
        w.server.dsn(w.dbname),
        w.dbname,
        "SAVEPOINT s",
        f"TRUNCATE {w.table}",
        f"INSERT INTO {w.table} VALUES (1)",
    )
    w.sql(f"ROLLBACK PREPARED '{w.dbname}'")
    w.start()
    yield
    w.sql(*sql_in(w.hint))
    w.start(source={"protocol": {"two_phase": False}})


# --- publications, the server's identity -----------------------------------------------------------------------


@situation(
    "CDCD-PUBLICATION-MISSING", "there is no publication at the start", "create it, or run `cdcd init`"
)
def no_publication(w: World) -> Iterator[None]:
    w.sql(f"DROP PUBLICATION {w.slot}")
    w.start()
    yield
    statement = re.findall(r"CREATE PUBLICATION [^;]+", w.command("init").stdout)
    w.sql(*(statement or [f"CREATE PUBLICATION {w.slot} FOR ALL TABLES"]))
    w.resume()


@situation("CDCD-PUBLICATION-MISSING", "changes older than the recreated publication", "cdcd resnapshot")
def publication_made_again(w: World) -> Iterator[None]:
    _made_again(w)
    w.daemon.wait_state("halted")
    w.daemon.reload()
    yield
    w.resume("resnapshot")


@situation(
    "CDCD-PUBLICATION-CHANGED",
    "it was dropped and recreated, and rows were written",
    "`cdcd resnapshot` to copy",
)
def publication_changed(w: World) -> Iterator[None]:
    _made_again(w)
    yield
    w.resume("resnapshot")


def _made_again(w: World) -> None:
    w.stream()
    w.daemon.stop()
    w.sql(f"DROP PUBLICATION {w.slot}")
    w.insert()
    w.sql(f"CREATE PUBLICATION {w.slot} FOR ALL TABLES")
    w.start()


@situation("CDCD-PUBLICATION-CHANGED", "a table is taken out of it", "SIGHUP")
def table_taken_out(w: World) -> Iterator[None]:
    w.sql(
        "CREATE TABLE u (id int PRIMARY KEY)",
        f"DROP PUBLICATION {w.slot}",
        f"CREATE PUBLICATION {w.slot} FOR TABLE t, u",
    )
    w.stream(source={"publication": {"table_removed": "halt"}})
    w.daemon.stop()
    w.sql(f"ALTER PUBLICATION {w.slot} DROP TABLE u")
    w.start()
    yield
    w.daemon.reload()


@situation("CDCD-PUBLICATION-CHANGED", "a table is added to it", "cdcd resume")
def table_added(w: World) -> Iterator[None]:
    w.sql(
        "CREATE TABLE u (id int PRIMARY KEY)",
        f"DROP PUBLICATION {w.slot}",
        f"CREATE PUBLICATION {w.slot} FOR TABLE t",
    )
    w.stream(snapshot={"new_tables": "halt"})
    w.daemon.stop()
    w.sql(f"ALTER PUBLICATION {w.slot} ADD TABLE u")
    w.start()
    yield
    w.resume("resume")


@situation("CDCD-SOURCE-IDENTITY", "source.dsn names another database", "database that cdcd read before")
def another_database(w: World) -> Iterator[None]:
    right = w.daemon.config["source"]["dsn"]
    w.stream()
    w.sql(f"CREATE PUBLICATION {w.slot} FOR ALL TABLES", dbname="postgres")
    w.closing.callback(w.sql, f"DROP PUBLICATION {w.slot}", dbname="postgres")
    w.start(source={"dsn": w.server.dsn()})
    yield
    refused = w.command("resnapshot")  # this database has not replaced the other one: our slot is there
    assert refused.returncode != 0
    assert "CDCD-SOURCE-IDENTITY" in refused.stderr
    w.start(source={"dsn": right})
    w.daemon.wait_state("streaming")


# --- what the server fails at ----------------------------------------------------------------------------------


@situation(
    "CDCD-SOURCE-INTERNAL", "a value's TOAST chunks are missing", "delete or restore the row", "cdcd resume"
)
def damaged_row(w: World) -> Iterator[None]:
    _small_server(w)
    w.sql(
        "ALTER TABLE t ALTER body SET STORAGE EXTERNAL",
        "INSERT INTO t VALUES (1, repeat('x', 5000))",
        "CHECKPOINT",
    )
    ((path,),) = w.server.execute(
        "SELECT pg_relation_filepath(reltoastrelid) FROM pg_class WHERE oid = 'public.t'::regclass"
    )
    w.server.stop()
    file = w.server.data_folder / path
    file.write_bytes(bytes(file.stat().st_size))
    w.server.start()
    w.start()
    yield
    w.sql("DELETE FROM t WHERE id = 1")
    w.resume()


@situation("CDCD-SOURCE", "a text is not valid UTF-8", "correct the row in the table", "cdcd resnapshot")
def text_of_another_encoding(w: World) -> Iterator[None]:
    name = f"{w.dbname}_ascii"
    w.sql(
        f"CREATE DATABASE {name} ENCODING 'SQL_ASCII' LC_COLLATE 'C' LC_CTYPE 'C' TEMPLATE template0",
        dbname="postgres",
    )
    w.closing.callback(w.server.drop_database, name)
    w.closing.callback(w.daemon.__exit__)
    w.dbname = name
    w.sql(
        "CREATE TABLE public.t (id int PRIMARY KEY, body text)", f"CREATE PUBLICATION {w.slot} FOR ALL TABLES"
    )
    w.stream(source={"dsn": w.server.dsn(name)})
    w.sql("INSERT INTO t VALUES (1, E'\\xf6')")
    yield
    w.sql("UPDATE t SET body = 'oe' WHERE id = 1")
    w.resume("resnapshot")


@situation("CDCD-SECRET-UNREADABLE", "the password file is missing", "restore the file", is_retried=True)
def secret_is_gone(w: World) -> Iterator[None]:
    password = w.folder / "password"
    password.write_text("right-one\n")
    w.stream(source={"password_file": str(password)})
    os.unlink(password)
    w.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_replication WHERE state = 'streaming'")
    yield
    password.write_text("right-one\n")


@situation(
    "CDCD-SOURCE-SEND-FUNCTION",
    "a function of the server does not exist",
    "a function of PostgreSQL 14 or later is missing",
    "cdcd resume",
)
def function_missing(w: World) -> Iterator[None]:
    """Rename a catalog function, as on a server that only claims to be PostgreSQL; only this database is affected."""
    w.sql("ALTER FUNCTION pg_catalog.pg_control_system() RENAME TO pg_gone")
    w.start()
    yield
    assert "pg_control_system() does not exist" in w.daemon.events("halted")[0]["error"]
    w.sql("ALTER FUNCTION pg_catalog.pg_gone() RENAME TO pg_control_system")
    w.resume()

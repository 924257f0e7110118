"""Situations of rows, their schemas, the registry, and open transactions on disk."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from functools import partial
from pathlib import Path

import psycopg2

from cdcd.demo.stack.ports import free_port
from tests.hints.situation import World, situation
from tests.support.doors import registry_through
from tests.support.hints import hint_of
from tests.support.proxy import Proxy
from tests.support.waiting import eventually

# --- schemas ---------------------------------------------------------------------------------------------------


@situation("CDCD-SCHEMA", "the configured key is no column", "format.key_columns", "restart cdcd")
def no_such_key(w: World) -> Iterator[None]:
    w.sql("CREATE TABLE bag (a int)", "INSERT INTO bag VALUES (1)")
    w.start(format={"key_columns": ["nope"]})
    yield
    w.start(format={"key_columns": ["a"]})


@situation("CDCD-SCHEMA", "a column has the name of an added field", "under format.flat", "restart cdcd")
def name_of_an_added_field(w: World) -> Iterator[None]:
    w.sql("CREATE TABLE odd (id int PRIMARY KEY, __op text)", "INSERT INTO odd VALUES (1)")
    w.start(format={"value": "flat"})
    yield
    w.start(format={"flat": {"op": "__operation"}})


@situation(
    "CDCD-KEY-CHANGED", "the key is another column", "registry.incompatible: new_topic, and restart cdcd"
)
def another_key(w: World) -> Iterator[None]:
    _with_another_key(w)
    yield
    w.follow(w.printed_hint("CDCD-KEY-CHANGED"), "registry.incompatible")


@situation("CDCD-KEY-CHANGED", "the new key is accepted", "delete the subject <topic>-key")
def another_key_counts(w: World) -> Iterator[None]:
    _with_another_key(w)
    yield
    _ask(w, "DELETE", f"/subjects/{w.topic}-key")
    w.resume()


def _with_another_key(w: World) -> None:
    w.sql("ALTER TABLE t ADD other int NOT NULL DEFAULT 0", "CREATE SEQUENCE others")
    w.sql("ALTER TABLE t ALTER other SET DEFAULT nextval('others')")
    w.stream()
    w.sql("ALTER TABLE t DROP CONSTRAINT t_pkey", "ALTER TABLE t ADD PRIMARY KEY (other)")
    w.insert()


@situation("CDCD-SCHEMA-INCOMPATIBLE", "a column has another type", "registry.incompatible", "restart cdcd")
def another_type(w: World) -> Iterator[None]:
    _with_another_type(w)
    yield
    w.start(registry={"incompatible": "register_with_none"})


@situation(
    "CDCD-SCHEMA-INCOMPATIBLE", "a column has another type, and topics share subjects", "register_with_none"
)
def another_type_of_a_record(w: World) -> Iterator[None]:
    w.configure(registry={"subjects": "record_name"})
    _with_another_type(w)
    yield
    assert "new_topic" not in w.daemon.events("halted")[-1]["error"]
    w.start(registry={"incompatible": "register_with_none"})


def _with_another_type(w: World) -> None:
    w.stream()
    w.sql("ALTER TABLE t ALTER body TYPE int USING 1")
    w.insert()


@situation(
    "CDCD-REPLICA-IDENTITY", "a partition logs another key", "REPLICA IDENTITY FULL", "cdcd resnapshot"
)
def partition_with_another_key(w: World) -> Iterator[None]:
    w.sql(
        "CREATE TABLE r (id int PRIMARY KEY, other int NOT NULL) PARTITION BY RANGE (id)",
        "CREATE TABLE r1 PARTITION OF r FOR VALUES FROM (0) TO (1000)",
        "CREATE UNIQUE INDEX r1_other ON r1 (other)",
        "ALTER TABLE r1 REPLICA IDENTITY USING INDEX r1_other",
        "INSERT INTO r VALUES (1, 10)",
        f"ALTER PUBLICATION {w.slot} SET (publish_via_partition_root = true)",
    )
    w.stream()
    w.sql("DELETE FROM r")
    yield
    w.sql(*re.findall(r"ALTER TABLE \S+ REPLICA IDENTITY FULL", w.daemon.events("halted")[0]["error"]))
    w.resume("resnapshot")


@situation("CDCD-VALUE", "a date has no Avro value", "format.special")
def infinite_date(w: World) -> Iterator[None]:
    w.sql("ALTER TABLE t ADD day date")
    w.stream(format={"special": "halt"})
    w.sql("INSERT INTO t VALUES (1, '', 'infinity')")
    yield
    w.start(format={"special": "separate"})


@situation("CDCD-VALUE", "a value is too long", "format.max_value_bytes")
def long_value(w: World) -> Iterator[None]:
    w.stream(format={"max_value_bytes": 1000})
    w.sql("INSERT INTO t VALUES (1, repeat('x', 2000))")
    yield
    w.start(format={"max_value_bytes": 4000})


@situation(
    "CDCD-SOURCE-BINARY", "a type has no binary form", "source.protocol.binary: false", is_retried=True
)
def no_binary_form(w: World) -> Iterator[None]:
    w.stream(source={"protocol": {"binary": True}})
    w.sql("CREATE TABLE odd (id int PRIMARY KEY, v aclitem[])", "INSERT INTO odd VALUES (1, '{}')")
    w.sql("INSERT INTO odd SELECT 2, ARRAY[makeaclitem(10, 10, 'SELECT', false)]")
    yield
    w.daemon.wait_state("streaming")
    w.follow(w.printed_hint("CDCD-SOURCE-BINARY"), "source.protocol.binary")
    w.daemon.wait_state("streaming")


# --- the registry ----------------------------------------------------------------------------------------------


@situation(
    "CDCD-REGISTRY-UNAVAILABLE", "nothing listens there", "start the registry, or correct", is_retried=True
)
def no_registry(w: World) -> Iterator[None]:
    right = w.daemon.config["registry"]["url"]
    w.insert()
    w.start(registry={"url": f"http://127.0.0.1:{free_port()}"})
    yield
    w.start(registry={"url": right})


@situation("CDCD-REGISTRY-UNAVAILABLE", "an outage that ends", "start the registry", is_retried=True)
def registry_away(w: World) -> Iterator[None]:
    link = w.closing.enter_context(Proxy(w.registry.port))
    w.insert()
    link.refuse()
    w.start(registry={"url": registry_through(w.registry, link)})
    yield
    link.accept()


@situation("CDCD-REGISTRY-REFUSED", "the URL has a wrong path", "registry.url, also its path")
def another_path(w: World) -> Iterator[None]:
    right = w.daemon.config["registry"]["url"]
    w.insert()
    w.start(registry={"url": right.partition("/apis")[0] + "/apis/nothing/v0"})
    yield
    w.start(registry={"url": right})


@situation("CDCD-REGISTRY-REFUSED", "schemas are not registered", "register this Avro schema", "cdcd resume")
def not_registered(w: World) -> Iterator[None]:
    w.insert()
    w.start(registry={"auto_register": False})
    w.daemon.wait_state("halted")
    yield
    for count in range(1, 4):  # the schema of the key, then of the value
        halt = w.daemon.events("halted")[-1]["error"]
        subject = re.findall(r"\[subject=(\S+)\]", halt)[0]
        schema = re.findall(
            r"^register this Avro schema under the subject, then `cdcd resume`: (.*)", hint_of(halt)
        )[0]
        _ask(w, "POST", f"/subjects/{subject}/versions", {"schema": schema})
        w.resume()
        eventually(partial(_is_farther, w, count), "the daemon has queried the registry again")
        if w.daemon.status()["state"] == "streaming":
            break


def _is_farther(w: World, halts: int) -> bool:
    return w.daemon.status()["state"] == "streaming" or len(w.daemon.events("halted")) > halts


def _ask(w: World, method: str, path: str, body: dict[str, str] | None = None) -> None:
    request = urllib.request.Request(
        w.registry.url + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/vnd.schemaregistry.v1+json"},
        method=method,
    )
    try:
        urllib.request.urlopen(request, timeout=30).read()
    except urllib.error.HTTPError as error:
        raise AssertionError(error.read()) from error


# --- open transactions -----------------------------------------------------------------------------------------


@situation("CDCD-SPILL", "the folder is a file", "buffer.spill_dir", "restart cdcd")
def spill_to_a_file(w: World) -> Iterator[None]:
    path = w.folder / "spill"
    path.write_text("")
    w.start(buffer={"spill_dir": str(path)})
    yield
    w.start(buffer={"spill_dir": str(_made(w.folder / "spilled"))})


@situation(
    "CDCD-SPILL-FULL", "an open transaction is larger than allowed", "raise buffer.spill and restart cdcd"
)
def spill_is_full(w: World) -> Iterator[None]:
    with closing(_open_transaction(w)) as writer:
        yield
        w.follow(w.printed_hint("CDCD-SPILL-FULL"), "buffer.spill", "1GiB")
        w.daemon.wait_state("streaming")
        writer.commit()


@situation("CDCD-SPILL-FULL", "the server spills instead", "source.protocol.streaming: off and restart")
def spill_by_the_server(w: World) -> Iterator[None]:
    with closing(_open_transaction(w)) as writer:
        yield
        w.follow(w.printed_hint("CDCD-SPILL-FULL"), "source.protocol.streaming")
        w.daemon.wait_state("streaming")
        writer.commit()


def _open_transaction(w: World) -> psycopg2.extensions.connection:
    """Stream an open transaction into a small spill limit until it is reached; return its connection."""
    w.sql(f"ALTER DATABASE {w.dbname} SET logical_decoding_work_mem = '64kB'")
    w.stream(buffer={"memory": "1MiB", "spill": "1MiB", "spill_dir": str(_made(w.folder / "spilled"))})
    writer = psycopg2.connect(w.server.dsn(w.dbname))
    with writer.cursor() as cursor:
        cursor.execute("INSERT INTO t SELECT -g, repeat('x', 1000) FROM generate_series(1, 8000) g")
    return writer


def _made(folder: Path) -> Path:
    folder.mkdir()
    return folder

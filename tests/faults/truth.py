"""PostgreSQL's own history of the changes: triggers write it in the same transactions, test_decoding gives the order.

In: a DSN of a database where `SCRIPT` was run.  Out: committed transactions in order, with the rows before and after.
Invariant: a rolled back change leaves nothing in the history, because the trigger wrote in the same (sub)transaction;
the history has the order of the changes, because row triggers run in that order. No code of cdcd, no client-side
record: a client that lost its connection at COMMIT does not know the result of its transaction.
"""

from __future__ import annotations

import json
from collections import defaultdict
from contextlib import closing
from typing import Any

import psycopg2

from tests.faults.facts import MESSAGE, Change, Row, Table, Transaction

TABLES = (
    Table("plain", ("id",)),
    Table("whole", ("id",), is_full=True),
    Table("coded", ("code",)),
    Table("keyless", (), is_full=True),
    Table("journal", ()),
    Table("wide", ("id",)),
    Table("shape", ("id",)),
)
"""One table for each replica identity: DEFAULT, FULL with a key, an index, FULL without a key, none; one with TOASTed
values; one that DDL changes."""
INSERT_ONLY = "journal"

SAY = f"""CREATE OR REPLACE FUNCTION truth.say(content text) RETURNS void LANGUAGE sql AS $$
    SELECT pg_logical_emit_message(true, 'faults', content);
    INSERT INTO truth.history (op, tbl, after) VALUES ('m', '{MESSAGE}', json_build_object('content', content)) $$"""
SAY_NOTHING = "CREATE OR REPLACE FUNCTION truth.say(content text) RETURNS void LANGUAGE sql AS 'SELECT'"
"""Without logical messages: after a streamed one, cdcd reads the rest of the session without streaming."""

SCRIPT = f"""
CREATE TABLE plain (id int PRIMARY KEY, n int, amount numeric(12,2), flag boolean, note text);
CREATE TABLE whole (id int PRIMARY KEY, n int, amount numeric(12,2), note text);
CREATE TABLE coded (id int, code text NOT NULL, n int, note text);
CREATE TABLE keyless (n int, note text);
CREATE TABLE journal (n int, note text, raw bytea);
CREATE TABLE wide (id int PRIMARY KEY, n int, body text, note text, raw bytea);
CREATE TABLE shape (id int PRIMARY KEY, n int);
CREATE UNIQUE INDEX coded_code ON coded (code);
ALTER TABLE whole REPLICA IDENTITY FULL;
ALTER TABLE coded REPLICA IDENTITY USING INDEX coded_code;
ALTER TABLE keyless REPLICA IDENTITY FULL;
ALTER TABLE wide ALTER body SET STORAGE EXTERNAL, ALTER raw SET STORAGE EXTERNAL;
CREATE SEQUENCE ids;
CREATE SCHEMA truth;
CREATE TABLE truth.history (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint % 4294967296,
    op text NOT NULL, tbl text NOT NULL, before json, after json);
CREATE FUNCTION truth.row_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO truth.history (op, tbl, before, after) VALUES (
        CASE TG_OP WHEN 'INSERT' THEN 'c' WHEN 'UPDATE' THEN 'u' ELSE 'd' END, TG_TABLE_NAME,
        CASE WHEN TG_OP <> 'INSERT' THEN row_to_json(OLD) END,
        CASE WHEN TG_OP <> 'DELETE' THEN row_to_json(NEW) END);
    RETURN NULL; END $$;
CREATE FUNCTION truth.truncated() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO truth.history (op, tbl) VALUES ('t', TG_TABLE_NAME); RETURN NULL; END $$;
{SAY};
DO $$ DECLARE t text; BEGIN FOREACH t IN ARRAY ARRAY[{", ".join(f"'{table.name}'" for table in TABLES)}] LOOP
    EXECUTE format('CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON %I
                    FOR EACH ROW EXECUTE FUNCTION truth.row_changed()', t);
    EXECUTE format('CREATE TRIGGER truncated AFTER TRUNCATE ON %I EXECUTE FUNCTION truth.truncated()', t);
END LOOP; END $$;
"""


def publication_sql(name: str) -> str:
    """Return the statement that creates the publication of the tables, without the history."""
    return f"CREATE PUBLICATION {name} FOR TABLE {', '.join(table.name for table in TABLES)}"


class Truth:
    """The history of one database. Create it before the first change; `taken` returns the committed transactions."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.slot = f"truth_{dsn.rpartition('/')[2]}"
        self._last_seq = 0
        self._last_end_lsn = 0
        self._rows("SELECT FROM pg_create_logical_replication_slot(%s, 'test_decoding')", self.slot)

    def taken(self) -> tuple[Transaction, ...]:
        """Return the transactions since the last call, in commit order. No transaction may be open meanwhile."""
        changes = self._history()
        committed = self._rows(
            "SELECT lsn - '0/0'::pg_lsn, split_part(data, ' ', 2)::bigint,"
            " extract(epoch FROM substring(data FROM '\\(at (.*)\\)')::timestamptz)::float8 FROM"
            " pg_logical_slot_get_changes(%s, NULL, NULL, 'skip-empty-xacts', 'on', 'include-timestamp', 'on')"
            " WITH ORDINALITY AS d(lsn, xid, data, n) WHERE data ~ '^COMMIT \\d+' ORDER BY n",
            self.slot,
        )
        found = []
        for end_lsn, xid, committed_s in committed:
            if end_lsn > self._last_end_lsn and xid in changes:  # a server crash moves the slot back
                found.append(Transaction(int(xid), int(end_lsn), tuple(changes.pop(xid)), committed_s))
                self._last_end_lsn = int(end_lsn)
        assert not changes, f"in the history, but test_decoding has no commit of them: {sorted(changes)}"
        return tuple(found)

    def rows(self) -> dict[str, tuple[Row, ...]]:
        """Return the rows of every table."""
        return {
            table.name: tuple(
                _texts(row) for (row,) in self._rows(f"SELECT row_to_json(t)::text FROM {table.name} t")
            )
            for table in TABLES
        }

    def names(self) -> dict[int, str]:
        """Return the tables by relid."""
        query = "SELECT oid::int8, relname::text FROM pg_class WHERE relname = ANY(%s) AND relkind = 'r'"
        return dict(self._rows(query, [table.name for table in TABLES]))

    def _history(self) -> dict[int, list[Change]]:
        changes: dict[int, list[Change]] = defaultdict(list)
        rows = self._rows(
            "SELECT seq, xid, op, tbl, before::text, after::text FROM truth.history WHERE seq > %s ORDER BY seq",
            self._last_seq,
        )
        for seq, xid, op, table, before, after in rows:
            changes[int(xid)].append(Change(op, table, before and _texts(before), after and _texts(after)))
            self._last_seq = int(seq)
        return changes

    def _rows(self, query: str, *params: object) -> list[tuple[Any, ...]]:
        with closing(psycopg2.connect(self._dsn, connect_timeout=10)) as connection:
            connection.autocommit = True
            with connection.cursor() as cursor:
                cursor.execute("SET row_security = off; SET statement_timeout = '120s'")
                # With less, 18.4's test_decoding has crashed with a segmentation fault in its stream_abort callback,
                # and the whole server with it. PostgreSQL 12 has no such setting.
                cursor.execute(
                    "SELECT set_config(name, '1GB', false) FROM pg_settings WHERE name = 'logical_decoding_work_mem'"
                )
                cursor.execute(query, params)
                return cursor.fetchall() if cursor.description else []


def _texts(document: str) -> Row:
    """Return a JSON row with each value as PostgreSQL's text; no column of these tables contains JSON itself."""
    row = json.loads(document, parse_int=str, parse_float=str)
    return {name: str(value).lower() if isinstance(value, bool) else value for name, value in row.items()}

"""PostgreSQL's own history of the campaign's tables: triggers write it in the same transactions.

In: a DSN of a database where `SCRIPT` was run.  Out: the committed transactions in their order; the tables' rows.
Invariant: a change that was rolled back left nothing in the history, because the trigger wrote in the same
(sub)transaction. test_decoding, on a separate slot, has the order of the commits. No client's record is used: a
client that lost its connection at COMMIT does not know the result.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import closing
from typing import Any

import psycopg2

from tests.campaign.facts import LISTS, REGISTERS, TOTALLED, Commit, Key, Write
from tests.support.stack import position_after

COLUMNS = {TOTALLED[0]: "amount", TOTALLED[1]: "amount", LISTS: "elements", REGISTERS: "value"}
"""The judged column of each table."""
ACCOUNTS, AMOUNT, OTHERS = 100, 1000, 12
TOTAL = len(TOTALLED) * ACCOUNTS * AMOUNT
SCRIPT = f"""
CREATE SEQUENCE account_ids START {ACCOUNTS + 1};
CREATE TABLE checking (id int PRIMARY KEY, amount bigint NOT NULL, note text);
CREATE TABLE savings (id int PRIMARY KEY, amount bigint NOT NULL, note text);
CREATE TABLE lists (id int PRIMARY KEY, elements text NOT NULL);
CREATE TABLE registers (id int PRIMARY KEY, value bigint NOT NULL);
CREATE SEQUENCE new_values;
CREATE SCHEMA witness;
CREATE TABLE witness.history (
    seq bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
    xid bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    tbl text NOT NULL, old_id int, new_id int, value text);
CREATE FUNCTION witness.row_changed() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
    INSERT INTO witness.history (tbl, old_id, new_id, value) VALUES (TG_TABLE_NAME,
        CASE WHEN TG_OP <> 'INSERT' THEN OLD.id END, CASE WHEN TG_OP <> 'DELETE' THEN NEW.id END,
        CASE WHEN TG_OP <> 'DELETE' THEN to_jsonb(NEW) ->> TG_ARGV[0] END);
    RETURN NULL; END $$;
{
    "".join(
        f"CREATE TRIGGER history AFTER INSERT OR UPDATE OR DELETE ON {table}"
        f" FOR EACH ROW EXECUTE FUNCTION witness.row_changed('{column}'); "
        for table, column in COLUMNS.items()
    )
}
"""
FILL = f"""
INSERT INTO checking SELECT i, {AMOUNT} FROM generate_series(1, {ACCOUNTS}) i;
INSERT INTO savings SELECT i, {AMOUNT} FROM generate_series(1, {ACCOUNTS}) i;
INSERT INTO lists SELECT i, '' FROM generate_series(1, {OTHERS}) i;
INSERT INTO registers SELECT i, nextval('new_values') FROM generate_series(1, {OTHERS}) i;
"""


def writes(tbl: str, old_id: int | None, new_id: int | None, value: str | None) -> list[Write]:
    """Return the changes of rows that one line of the history has: a new key is a deletion and a new row."""
    found = []
    if old_id is not None and old_id != new_id:
        found.append(Write((tbl, str(old_id)), None))
    if new_id is not None:
        found.append(Write((tbl, str(new_id)), value))
    return found


class Witness:
    """The history of one database. Create it before the first row."""

    def __init__(self, dsn: str) -> None:
        self._dsn = dsn
        self.slot = f"witness_{dsn.rpartition('/')[2]}"
        self._run(SCRIPT)
        self.rows("SELECT FROM pg_create_logical_replication_slot(%s, 'test_decoding')", self.slot)
        self._run(FILL)

    def commits(self) -> tuple[Commit, ...]:
        """Return all transactions in commit order. No transaction may be open."""
        changes: dict[int, list[Write]] = defaultdict(list)
        history = self.rows("SELECT xid, tbl, old_id, new_id, value FROM witness.history ORDER BY seq")
        for xid, *line in history:
            changes[xid] += writes(*line)
        committed = self.rows(
            "SELECT lsn - '0/0'::pg_lsn, split_part(data, ' ', 2)::bigint FROM"
            " pg_logical_slot_get_changes(%s, NULL, NULL, 'skip-empty-xacts', 'on')"
            " WITH ORDINALITY AS d(lsn, xid, data, n) WHERE data ~ '^COMMIT \\d+' ORDER BY n",
            self.slot,
        )
        found = [
            Commit(int(xid), int(end_lsn), tuple(changes.pop(xid)))
            for end_lsn, xid in committed
            if xid in changes
        ]
        assert not changes, f"in the history, but test_decoding has no commit of them: {sorted(changes)[:5]}"
        return tuple(found)

    def table_rows(self) -> dict[Key, str]:
        """Return the rows of all tables."""
        return {
            (table, str(row_id)): value
            for table, column in COLUMNS.items()
            for row_id, value in self.rows(f"SELECT id, {column}::text FROM {table}")
        }

    def last_lsn(self) -> int:
        """Commit one more transaction; return the position after it, where no other session writes."""
        return position_after(self._dsn, "UPDATE registers SET value = nextval('new_values') WHERE id = 1")

    def rows(self, query: str, *params: Any) -> list[Any]:
        """Run one statement; return its rows."""
        with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(query, params or None)
            found = cursor.fetchall()
            connection.commit()
            return found

    def _run(self, script: str) -> None:
        with closing(psycopg2.connect(self._dsn)) as connection, connection.cursor() as cursor:
            cursor.execute(script)
            connection.commit()

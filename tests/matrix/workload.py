"""Several sessions at once on a real server, one step at a time, each step chosen by the seed.

In: a server's DSN, a seed.  Out: a `Done`: the facts that the witness cannot know by itself; the log of every
statement.
Invariant: one thread drives all sessions; a statement that waits for another session's lock fails after
LOCK_TIMEOUT_MS, so a step always ends. At the end every transaction is decided, the prepared ones too.
A state machine with weighted rules: (state of a session) -> possible next steps.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

import psycopg2

from tests.matrix import sql
from tests.matrix.tables import MAIN, SWAP

SESSIONS = 5
MAX_DEPTH = 5
MAX_PREPARED = 4
LOCK_TIMEOUT_MS = 40
IDLE_RULES = {"begin": 10.0, "alone": 5.0, "alone_ddl": 1.5, "non_transactional_message": 0.5, "decide": 2.5}
OPEN_RULES = {
    **{"insert": 8.0, "update": 5.0, "delete": 2.0, "copy": 1.0, "message": 0.7, "truncate": 0.7},
    **{"savepoint": 4.0, "release": 1.2, "rollback_to": 2.0, "ddl": 1.4, "partition": 0.5, "swap": 0.3},
    **{"commit": 2.5, "rollback": 0.5, "prepare": 0.8},
}


@dataclass
class Done:
    """`origin_xids`: transactions under the replication origin `origin`.

    `unreported_xids` are those of them whose origin the server may not report while it streams them: their first
    change was not a row change, or was rolled back. The server takes the origin from the first change that it has at
    that time. Catalog changes carry no origin, nor do invalidations from other transactions or messages.
    """

    origin: str
    origin_xids: set[int] = field(default_factory=set)
    unreported_xids: set[int] = field(default_factory=set)
    log: list[str] = field(default_factory=list)


@dataclass
class _Session:
    number: int
    connection: Any
    has_origin: bool
    is_open: bool = False
    savepoints: list[str] = field(default_factory=list)
    origin_xid: int | None = None
    """The open transaction, if it has an origin."""
    first_depth: int | None = None
    """The number of savepoints around its first change; None before the first change."""
    rows: int = 0
    """The number of rows that its last statement changed."""


class Workload:
    """`run(steps)` may be called again; `finish` ends the open transactions."""

    def __init__(self, dsn: str, origin: str, seed: int) -> None:
        self.done = Done(origin)
        self._random = Random(seed)
        self._number = 0
        self._prepared: list[str] = []
        self._sessions = [self._connect(dsn, number) for number in range(SESSIONS)]
        last = self._sessions[-1]
        last.has_origin = True
        self._execute(last, f"SELECT pg_replication_origin_session_setup('{origin}')")

    def run(self, steps: int, after_step: Callable[[str], None] = lambda _rule: None) -> None:
        """Take this many steps; call `after_step` with each one's name."""
        for _ in range(steps):
            session = self._random.choice(self._sessions)
            rules = OPEN_RULES if session.is_open else IDLE_RULES
            rule = self._random.choices(list(rules), list(rules.values()))[0]
            getattr(self, f"_{rule}")(session)
            after_step(rule)

    def large(self, rows: int) -> None:
        """Run one transaction with this many rows that stay, and half as many that do not, next to all open ones."""
        session = min((one for one in self._sessions if not one.has_origin), key=lambda one: one.is_open)
        if session.is_open:  # the same as for all sessions
            self._commit(session)
        insert = "INSERT INTO bulk SELECT g, 'bulk ' || g FROM generate_series({}, {}) g"
        self._begin(session)
        self._try(session, insert.format(1, rows // 2))
        self._savepoint(session)
        self._try(session, insert.format(rows + 1, rows + rows // 2))
        self._rollback_to(session)
        self._try(session, insert.format(rows // 2 + 1, rows))
        self._commit(session)

    def finish(self) -> None:
        """Commit the open transactions, decide the prepared ones, and mark the end by one more row."""
        for session in self._sessions:
            if session.is_open:
                self._commit(session)
        while self._prepared:
            self._decide(self._sessions[0])
        self._execute(self._sessions[0], "INSERT INTO last VALUES (1)")
        for session in self._sessions:
            session.connection.close()

    # --- rules of an idle session ---

    def _begin(self, session: _Session) -> None:
        self._execute(session, "BEGIN")
        session.is_open = True
        if session.has_origin:
            self._note_origin(session)

    def _alone(self, session: _Session) -> None:
        if session.has_origin:
            return
        self._rows(session, self._random.choice(("insert", "update", "delete")))

    def _alone_ddl(self, session: _Session) -> None:
        """Run DDL that is committed at once, between the open transactions of other sessions."""
        if not session.has_origin:
            rules = {self._ddl: 5.0, self._partition: 2.0, self._swap: 1.0, self._truncate: 1.0}
            self._random.choices(list(rules), list(rules.values()))[0](session)

    def _non_transactional_message(self, session: _Session) -> None:
        if not session.has_origin:
            self._number += 1
            self._execute(session, f"SELECT pg_logical_emit_message(false, 'loose', 'loose {self._number}')")

    def _decide(self, session: _Session) -> None:
        if session.has_origin or not self._prepared:
            return
        gid = self._prepared.pop(self._random.randrange(len(self._prepared)))
        verb = "COMMIT" if self._random.random() < 0.7 else "ROLLBACK"
        self._execute(session, f"{verb} PREPARED '{gid}'")

    # --- rules of an open transaction ---

    def _insert(self, session: _Session) -> None:
        self._rows(session, "insert")

    def _update(self, session: _Session) -> None:
        self._rows(session, "update")

    def _delete(self, session: _Session) -> None:
        self._rows(session, "delete")

    def _copy(self, session: _Session) -> None:
        statement, rows = sql.copied(self._random, self._random.choice(("plain", "entire", "swap")))
        self._try(session, statement, rows, is_of_rows=True)

    def _message(self, session: _Session) -> None:
        self._number += 1
        self._try(session, f"SELECT pg_logical_emit_message(true, 'within', 'message {self._number}')")

    def _truncate(self, session: _Session) -> None:
        self._try(session, sql.truncate(self._random))

    def _savepoint(self, session: _Session) -> None:
        if len(session.savepoints) < MAX_DEPTH:
            self._number += 1
            session.savepoints.append(f"s{self._number}")
            self._execute(session, f"SAVEPOINT {session.savepoints[-1]}")

    def _release(self, session: _Session) -> None:
        if session.savepoints:
            depth = self._random.randrange(len(session.savepoints))
            self._execute(session, f"RELEASE SAVEPOINT {session.savepoints[depth]}")
            del session.savepoints[depth:]
            if session.first_depth is not None:
                session.first_depth = min(session.first_depth, depth)

    def _rollback_to(self, session: _Session) -> None:
        if session.savepoints:
            self._back_to(session, self._random.randrange(len(session.savepoints)))

    def _ddl(self, session: _Session) -> None:
        if self._random.random() < 0.25:
            self._try(session, sql.identity(self._random))
            return
        table = self._random.choice(sql.ALTERED)
        self._number += 1
        self._try(session, sql.alter(self._random, table, self._columns(session, table), self._number))

    def _partition(self, session: _Session) -> None:
        attached = self._execute(session, "SELECT inhrelid::regclass::text FROM pg_inherits WHERE"
                                          " inhparent = 'parted'::regclass")  # fmt: skip
        self._number += 1
        self._try(session, sql.partition(self._random, {name for (name,) in attached}, self._number))

    def _swap(self, session: _Session) -> None:
        """Rename the table and create it again; sometimes drop an old one."""
        self._number += 1
        made = SWAP.replace("(", f"(made_{self._number} text, ", 1)
        statements = [
            f"ALTER TABLE swap RENAME TO swap_{self._number}",
            made,
            f"ALTER PUBLICATION {MAIN} ADD TABLE swap",
        ]
        old = self._execute(session, "SELECT relname FROM pg_class WHERE relkind = 'r' AND relname ~ '^swap_'"
                                     " ORDER BY relname")  # fmt: skip
        if old and self._random.random() < 0.5:
            statements.append(f"DROP TABLE {self._random.choice(old)[0]}")
        self._try(session, "; ".join(statements))

    def _commit(self, session: _Session) -> None:
        self._end(session, "COMMIT")

    def _rollback(self, session: _Session) -> None:
        self._back_to(session, None)

    def _prepare(self, session: _Session) -> None:
        if session.has_origin or len(self._prepared) >= MAX_PREPARED:
            return
        self._number += 1
        gid = f"gid {self._number}"
        if self._end(session, f"PREPARE TRANSACTION '{gid}'"):
            self._prepared.append(gid)

    # --- helpers of the rules ---

    def _rows(self, session: _Session, verb: str) -> None:
        table = self._random.choice(sql.ROW_TABLES)
        if table == "nothing":
            verb = "insert"
        columns = self._columns(session, table)
        if verb == "delete":
            statement = sql.delete(self._random, table)
        else:
            statement = getattr(sql, verb)(self._random, table, columns)
        self._try(session, statement, is_of_rows=True)

    def _columns(self, session: _Session, table: str) -> sql.Columns:
        return self._execute(
            session,
            "SELECT attname, format_type(atttypid, NULL) FROM pg_attribute JOIN pg_class c ON c.oid = attrelid"
            f" WHERE relname = '{table}' AND attnum > 0 AND NOT attisdropped ORDER BY attnum",
        )

    def _try(
        self, session: _Session, statement: str, rows: str | None = None, *, is_of_rows: bool = False
    ) -> bool:
        """Run a statement; after a failure roll back to the innermost savepoint, or the transaction."""
        try:
            self._execute(session, statement, rows)
        except psycopg2.Error as error:
            self.done.log.append(f"-- {type(error).__name__}")
            if session.is_open:
                self._note_change(session, is_of_rows=is_of_rows)
                self._back_to(session, len(session.savepoints) - 1 if session.savepoints else None)
            return False
        if session.is_open and (session.rows or not is_of_rows):
            self._note_change(session, is_of_rows=is_of_rows)
        return True

    def _note_change(self, session: _Session, *, is_of_rows: bool) -> None:
        if session.origin_xid is not None and session.first_depth is None:
            session.first_depth = len(session.savepoints)
            if not is_of_rows:
                self.done.unreported_xids.add(session.origin_xid)

    def _back_to(self, session: _Session, depth: int | None) -> None:
        if depth is None:
            self._execute(session, "ROLLBACK")
            self._closed(session)
            return
        self._execute(session, f"ROLLBACK TO SAVEPOINT {session.savepoints[depth]}")
        del session.savepoints[depth + 1 :]
        if session.origin_xid is not None and session.first_depth is not None and session.first_depth > depth:
            self.done.unreported_xids.add(session.origin_xid)

    def _end(self, session: _Session, statement: str) -> bool:
        try:
            self._execute(session, statement)
        except psycopg2.Error as error:  # the transaction is rolled back then
            self.done.log.append(f"-- {type(error).__name__}")
            self._execute(session, "ROLLBACK")
            self._closed(session)
            return False
        self._closed(session)
        return True

    @staticmethod
    def _closed(session: _Session) -> None:
        session.is_open = False
        session.savepoints.clear()
        session.origin_xid = session.first_depth = None

    def _note_origin(self, session: _Session) -> None:
        row = self._execute(session, "SELECT txid_current() % (1::bigint << 32)")
        session.origin_xid = int(row[0][0])
        self.done.origin_xids.add(session.origin_xid)

    def _connect(self, dsn: str, number: int) -> _Session:
        connection = psycopg2.connect(dsn)
        connection.autocommit = True
        session = _Session(number, connection, has_origin=False)
        self._execute(session, f"SET lock_timeout = {LOCK_TIMEOUT_MS}")
        return session

    def _execute(self, session: _Session, statement: str, rows: str | None = None) -> Any:
        self.done.log.append(f"/* {session.number} */ {statement[:2000]};")
        with session.connection.cursor() as cursor:
            if rows is not None:
                cursor.copy_expert(statement, io.StringIO(rows))
                session.rows = cursor.rowcount
                return []
            cursor.execute(statement)
            session.rows = cursor.rowcount
            return cursor.fetchall() if cursor.description else []

"""The plan of the workload: a pure, seeded sequence of transactions.

In: a seed, the writer's number, and the number of loaded rows.  Out: `Transaction`s: SQL steps and their end.
Invariant: the sequence depends only on the arguments. A writer changes only its own rows (loaded keys are distributed
by number, new keys come from the writer's range), so that writers never wait for each other. Every UPDATE and DELETE
has the number of rows that it must find.
Must not: connect to anything, read a clock.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random

from cdcd.demo import rows
from cdcd.demo.keys import LiveKeys

FIRST_NEW_KEY = 10_000_000
FIRST_BULK_KEY = 1_000_000_000
BULK_CHANGES = 100_000
_BULK_CHUNK = 5_000
_FEW = 10  # below this many live rows a writer inserts instead of deleting


@dataclass(frozen=True, slots=True)
class LoadedRows:
    """The number of loaded rows of each kind; keys are 1 to that number, each order has two order lines."""

    customers: int
    products: int
    orders: int
    events: int
    prices: int
    actors: int
    zoo: int
    coupons: int

    @classmethod
    def of(cls, total: int) -> LoadedRows:
        """Distribute about `total` rows to the tables."""

        def share(thousandths: int) -> int:
            return max(total * thousandths // 1000, 3)

        return cls(
            customers=share(100),
            products=share(20),
            orders=share(200),
            events=share(200),
            prices=share(40),
            actors=share(20),
            zoo=share(10),
            coupons=share(10),
        )


def zoo_key(number: int) -> str:
    """Return the uuid of a loaded row of type_zoo."""
    return str(uuid.UUID(int=number))


def coupon_key(number: int) -> str:
    """Return the code of a loaded coupon."""
    return f"LOAD {number:05d}"


def actor_copies(number: int) -> int:
    """Return the number of exact copies of a loaded audit_log row."""
    return 1 + number % 3


@dataclass(frozen=True, slots=True)
class Step:
    """One statement. `rows` is the number of rows that it must change; None if the server does not count rows."""

    sql: str
    values: tuple[str | None, ...] = ()
    rows: int | None = None


@dataclass(frozen=True, slots=True)
class Transaction:
    """Statements between BEGIN and COMMIT, or ROLLBACK if `is_committed` is False."""

    steps: tuple[Step, ...]
    is_committed: bool

    @property
    def changes(self) -> int:
        """The number of rows changed by the statements, including savepoints that are rolled back."""
        return sum(step.rows or 0 for step in self.steps)


class Writer:
    """One connection's share of the workload: an endless sequence of transactions."""

    def __init__(self, seed: int, number: int, writers: int, loaded: LoadedRows) -> None:
        self._random = Random(f"cdcd demo {seed} writer {number}")  # noqa: S311
        self._number, self._writers, self._loaded = number, writers, loaded
        self._last_key = FIRST_NEW_KEY + number
        self._steps: list[Step] = []
        self.customers = LiveKeys(self._own(loaded.customers))
        self.products = LiveKeys(self._own(loaded.products))
        self.orders = LiveKeys(self._own(loaded.orders))
        self.order_lines = LiveKeys((order, line) for order in self._own(loaded.orders) for line in (1, 2))
        self.events = LiveKeys(self._own(loaded.events))
        self.prices = LiveKeys(self._own(loaded.prices))
        self.audit_log = LiveKeys((f"load-{i}", actor_copies(i)) for i in self._own(loaded.actors))
        self.type_zoo = LiveKeys(zoo_key(i) for i in self._own(loaded.zoo))
        owns_coupons = number == 0  # TRUNCATE removes all coupons, so one writer has all of them
        self.coupons = LiveKeys(coupon_key(i) for i in range(1, loaded.coupons + 1) if owns_coupons)
        self._actions = self._weighted(owns_coupons)
        # Each action once before random choices, so that a short run on a slow machine has all of them.
        self._first = self._random.sample(self._actions[0], len(self._actions[0]))

    def transactions(self) -> Iterator[Transaction]:
        """Yield the writer's transactions, without end."""
        while True:
            yield self.next()

    def next(self) -> Transaction:
        """Return the next transaction and update the live keys."""
        self._steps = []
        is_committed = self._random.random() >= 0.07
        marks = self._marks()
        for _ in range(self._random.choice((1, 1, 1, 2, 3))):
            self._act()
            if self._random.random() < 0.12:
                self._savepoint(is_released=self._random.random() < 0.4)
        if not is_committed:
            self._undo(marks)
        for keys in self._tables():
            keys.forget()
        return Transaction(tuple(self._steps), is_committed)

    # --- the parts of a transaction

    def _weighted(self, owns_coupons: bool) -> tuple[list[Callable[[], None]], list[int]]:
        actions: list[tuple[int, Callable[[], None]]] = [
            (20, self._place_order),
            (6, self._advance_order),
            (3, self._cancel_order),
            (3, self._renumber_line),
            (8, self._change_customer),
            (3, self._sign_up),
            (2, self._renumber_customer),
            (2, self._replace_customer),
            (10, self._restock),
            (2, self._describe_product),
            (2, self._list_product),
            (1, self._renumber_product),
            (1, self._drop_product),
            (10, self._record_events),
            (3, self._move_event),
            (3, self._drop_event),
            (8, self._change_price),
            (3, self._renumber_price),
            (5, self._audit),
            (4, self._thin_audit),
            (8, self._zoo),
            (4, self._emit_message),
        ]
        if owns_coupons:
            actions += [(12, self._coupon), (1, self._truncate_coupons)]
        return [action for _, action in actions], [weight for weight, _ in actions]

    def _act(self) -> None:
        if self._first:
            self._first.pop()()
            return
        actions, weights = self._actions
        self._random.choices(actions, weights)[0]()

    def _savepoint(self, is_released: bool) -> None:
        self._do("SAVEPOINT s")
        marks = self._marks()
        self._act()
        if is_released:
            self._do("RELEASE SAVEPOINT s")
        else:
            self._do("ROLLBACK TO SAVEPOINT s")
            self._undo(marks)

    def _do(self, sql: str, *values: str | int | None, rows: int | None = None) -> None:
        texts = tuple(str(value) if isinstance(value, int) else value for value in values)
        self._steps.append(Step(sql, texts, rows))

    def _insert(self, table: str, row: rows.Row, copies: int = 1) -> None:
        places = ", ".join(["(" + ", ".join(["%s"] * len(row)) + ")"] * copies)
        self._do(f"INSERT INTO {table} VALUES {places}", *row * copies, rows=copies)  # noqa: S608

    def _own(self, count: int) -> Iterator[int]:
        return (key for key in range(1, count + 1) if key % self._writers == self._number)

    def _new_key(self) -> int:
        self._last_key += self._writers
        return self._last_key

    def _tables(
        self,
    ) -> tuple[LiveKeys[int] | LiveKeys[str] | LiveKeys[tuple[int, int]] | LiveKeys[tuple[str, int]], ...]:
        return (
            *(self.customers, self.products, self.orders, self.order_lines, self.events),
            *(self.prices, self.audit_log, self.type_zoo, self.coupons),
        )

    def _marks(self) -> list[int]:
        return [keys.mark() for keys in self._tables()]

    def _undo(self, marks: list[int]) -> None:
        for keys, mark in zip(self._tables(), marks, strict=True):
            keys.rollback(mark)

    # --- customers and products

    def _sign_up(self) -> None:
        key = self._new_key()
        self._insert("customers", rows.customer(self._random, key))
        self.customers.add(key)

    def _change_customer(self) -> None:
        if len(self.customers) < _FEW:
            return self._sign_up()
        key = self.customers.pick(self._random)
        sql = "UPDATE customers SET note = %s, credit = %s WHERE customer_id = %s"
        self._do(sql, rows.odd_text(self._random), rows.amount(self._random), key, rows=1)
        if self._random.random() < 0.2:  # the same row twice in one transaction
            self._do("UPDATE customers SET status = 'vip' WHERE customer_id = %s", key, rows=1)
        return None

    def _renumber_customer(self) -> None:
        if len(self.customers) < _FEW:
            return self._sign_up()
        old, new = self.customers.pick(self._random), self._new_key()
        self._do("UPDATE customers SET customer_id = %s WHERE customer_id = %s", new, old, rows=1)
        self.customers.remove(old)
        self.customers.add(new)
        return None

    def _replace_customer(self) -> None:
        if len(self.customers) < _FEW:
            return self._sign_up()
        key = self.customers.pick(self._random)
        self._do("DELETE FROM customers WHERE customer_id = %s", key, rows=1)
        if self._random.random() < 0.4:  # deleted and inserted again under the same key
            self._insert("customers", rows.customer(self._random, key))
        else:
            self.customers.remove(key)
        return None

    def _list_product(self) -> None:
        key = self._new_key()
        self._insert("products", rows.product(self._random, key))
        self.products.add(key)

    def _restock(self) -> None:
        """Update a small column, so that the stream does not contain the large columns."""
        if len(self.products) < _FEW:
            return self._list_product()
        key, amount = self.products.pick(self._random), self._random.randrange(50)
        self._do("UPDATE products SET stock = stock + %s WHERE product_id = %s", amount, key, rows=1)
        return None

    def _describe_product(self) -> None:
        if len(self.products) < _FEW:
            return self._list_product()
        key = self.products.pick(self._random)
        text = self._random.choice((rows.large_text(self._random), rows.odd_text(self._random)))
        self._do("UPDATE products SET description = %s WHERE product_id = %s", text, key, rows=1)
        if self._random.random() < 0.5:  # sent in this transaction, then not sent again
            self._do("UPDATE products SET stock = 0 WHERE product_id = %s", key, rows=1)
        return None

    def _renumber_product(self) -> None:
        """Change the key of a row whose large columns are not sent: their values are known only under the old key."""
        if len(self.products) < _FEW:
            return self._list_product()
        old, new = self.products.pick(self._random), self._new_key()
        self._do("UPDATE products SET product_id = %s WHERE product_id = %s", new, old, rows=1)
        self.products.remove(old)
        self.products.add(new)
        return None

    def _drop_product(self) -> None:
        if len(self.products) < _FEW:
            return self._list_product()
        key = self.products.pick(self._random)
        self._do("DELETE FROM products WHERE product_id = %s", key, rows=1)
        self.products.remove(key)
        return None

    # --- orders

    def _place_order(self) -> None:
        key = self._new_key()
        self._insert("orders", rows.order(self._random, key, self._loaded.customers))
        self.orders.add(key)
        for line in range(1, self._random.randrange(2, 6)):
            self._insert("order_lines", rows.order_line(self._random, key, line))
            self.order_lines.add((key, line))
        self._restock()
        if self._random.random() < 0.2:
            self._audit()

    def _advance_order(self) -> None:
        if len(self.orders) < _FEW:
            return self._place_order()
        sql = "UPDATE orders SET state = 'shipped', ship_on = %s WHERE order_id = %s"
        self._do(sql, rows.day(self._random), self.orders.pick(self._random), rows=1)
        return None

    def _cancel_order(self) -> None:
        if len(self.order_lines) < _FEW:
            return self._place_order()
        key = self.order_lines.pick(self._random)
        sql = "DELETE FROM order_lines WHERE order_id = %s AND line_no = %s"
        self._do(sql, *key, rows=1)
        self.order_lines.remove(key)
        if len(self.orders) >= _FEW:
            order = self.orders.pick(self._random)
            self._do("DELETE FROM orders WHERE order_id = %s", order, rows=1)
            self.orders.remove(order)
        return None

    def _renumber_line(self) -> None:
        if len(self.order_lines) < _FEW:
            return self._place_order()
        old, new = self.order_lines.pick(self._random), (self._new_key(), self._random.randrange(-5, 100))
        sql = "UPDATE order_lines SET order_id = %s, line_no = %s WHERE order_id = %s AND line_no = %s"
        self._do(sql, *new, *old, rows=1)
        self.order_lines.remove(old)
        self.order_lines.add(new)
        return None

    # --- events, prices, audit_log

    def _record_events(self) -> None:
        for _ in range(self._random.choice((1, 2, 5, 20))):
            key = self._new_key()
            self._insert("events", rows.event(self._random, key))
            self.events.add(key)

    def _move_event(self) -> None:
        """Change a key column that also decides the partition."""
        if len(self.events) < _FEW:
            return self._record_events()
        sql = "UPDATE events SET happened_at = %s WHERE event_id = %s"
        self._do(sql, rows.moment(self._random), self.events.pick(self._random), rows=1)
        return None

    def _drop_event(self) -> None:
        if len(self.events) < _FEW:
            return self._record_events()
        key = self.events.pick(self._random)
        self._do("DELETE FROM events WHERE event_id = %s", key, rows=1)
        self.events.remove(key)
        return None

    def _add_price(self) -> None:
        key = self._new_key()
        self._insert("prices", rows.price(self._random, key))
        self.prices.add(key)

    def _change_price(self) -> None:
        if len(self.prices) < _FEW or self._random.random() < 0.3:
            return self._add_price()
        key = self.prices.pick(self._random)
        if self._random.random() < 0.25:
            self._do("DELETE FROM prices WHERE price_id = %s", key, rows=1)
            self.prices.remove(key)
        else:
            sql = "UPDATE prices SET amount = %s, remark = %s WHERE price_id = %s"
            self._do(sql, rows.amount(self._random), rows.odd_text(self._random), key, rows=1)
        return None

    def _renumber_price(self) -> None:
        if len(self.prices) < _FEW:
            return self._add_price()
        old, new = self.prices.pick(self._random), self._new_key()
        self._do("UPDATE prices SET price_id = %s WHERE price_id = %s", new, old, rows=1)
        self.prices.remove(old)
        self.prices.add(new)
        return None

    def _audit(self) -> None:
        actor, copies = f"writer-{self._new_key()}", self._random.choice((1, 1, 2, 3))
        self._insert("audit_log", rows.audit(self._random, actor), copies)
        self.audit_log.add((actor, copies))

    def _thin_audit(self) -> None:
        """Delete or change exactly one of several equal rows, or all of them."""
        if len(self.audit_log) < _FEW:
            return self._audit()
        actor, copies = self.audit_log.pick(self._random)
        one = "WHERE ctid = (SELECT ctid FROM audit_log WHERE actor = %s LIMIT 1)"
        choice = self._random.randrange(3)
        self.audit_log.remove((actor, copies))
        if choice == 0:
            self._do(f"DELETE FROM audit_log {one}", actor, rows=1)  # noqa: S608
            if copies > 1:
                self.audit_log.add((actor, copies - 1))
        elif choice == 1:
            self._do("DELETE FROM audit_log WHERE actor = %s", actor, rows=copies)
        else:
            # the actor changes as well, so that the row differs from its former duplicates
            new = f"writer-{self._new_key()}"
            sql = f"UPDATE audit_log SET actor = %s, detail = %s {one}"  # noqa: S608
            self._do(sql, new, rows.odd_text(self._random), actor, rows=1)
            self.audit_log.add((new, 1))
            if copies > 1:
                self.audit_log.add((actor, copies - 1))
        return None

    # --- type_zoo, coupons, messages

    def _zoo(self) -> None:
        choice = self._random.random()
        if choice < 0.5 or len(self.type_zoo) < _FEW:
            key = rows.some_uuid(self._random)
            self._insert("type_zoo", rows.zoo(self._random, key))
            self.type_zoo.add(key)
            return
        key = self.type_zoo.pick(self._random)
        if choice < 0.8:
            columns = self._random.sample(rows.COLUMNS["type_zoo"][1:], 5)
            values = [self._random.choice(rows.ZOO[column]) for column in columns]
            changes = ", ".join(f"{column} = %s" for column in columns)
            self._do(f"UPDATE type_zoo SET {changes} WHERE id = %s", *values, key, rows=1)  # noqa: S608
            return
        self.type_zoo.remove(key)
        if choice < 0.9:
            new = rows.some_uuid(self._random)
            self._do("UPDATE type_zoo SET id = %s WHERE id = %s", new, key, rows=1)
            self.type_zoo.add(new)
        else:
            self._do("DELETE FROM type_zoo WHERE id = %s", key, rows=1)

    def _coupon(self) -> None:
        choice = self._random.random()
        if choice < 0.4 or len(self.coupons) < _FEW:
            code = rows.coupon_code(self._random, self._new_key())
            self._insert("coupons", rows.coupon(self._random, code))
            self.coupons.add(code)
            return
        code = self.coupons.pick(self._random)
        if choice < 0.7:
            self._do("UPDATE coupons SET uses = uses + 1 WHERE code = %s", code, rows=1)
            return
        self.coupons.remove(code)
        if choice < 0.85:
            new = rows.coupon_code(self._random, self._new_key())
            self._do("UPDATE coupons SET code = %s WHERE code = %s", new, code, rows=1)
            self.coupons.add(new)
        else:
            self._do("DELETE FROM coupons WHERE code = %s", code, rows=1)

    def _truncate_coupons(self) -> None:
        self._do("TRUNCATE coupons")
        self.coupons.clear()
        for _ in range(self._random.randrange(4)):
            self._coupon()

    def _emit_message(self) -> None:
        is_transactional = "t" if self._random.random() < 0.6 else "f"
        self._do(
            "SELECT pg_logical_emit_message(%s, %s, %s)",
            *(is_transactional, "cdcd-demo", self._random.choice(("order paid", "", "Zürich", "x" * 5_000))),
        )


def bulk_steps() -> Iterator[Step]:
    """Yield the statements of the one large transaction: 100,000 rows inserted, changed and deleted."""
    inserts = BULK_CHANGES * 9 // 10
    for start in range(0, inserts, _BULK_CHUNK):
        yield Step(
            "INSERT INTO events SELECT %s::bigint + n,"
            " timestamptz '2026-01-01 00:00:00+00' + n * interval '97.000013 seconds',"
            " 'import', md5(n::text)::uuid, jsonb_build_object('n', n)"
            " FROM generate_series(%s::bigint, %s::bigint) AS n",
            (str(FIRST_BULK_KEY), str(start), str(start + _BULK_CHUNK - 1)),
            _BULK_CHUNK,
        )
    half = (BULK_CHANGES - inserts) // 2
    between = "WHERE event_id >= %s AND event_id < %s"
    first, middle, last = FIRST_BULK_KEY, FIRST_BULK_KEY + half, FIRST_BULK_KEY + 2 * half
    yield Step(f"UPDATE events SET kind = 'imported' {between}", (str(first), str(middle)), half)  # noqa: S608
    yield Step(f"DELETE FROM events {between}", (str(middle), str(last)), half)  # noqa: S608

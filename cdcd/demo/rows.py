"""Rows of the shop, created from a random number generator, for the load and the workload.

In: a seeded `random.Random` and a key.  Out: the text of every column in the order of `COLUMNS`.
Invariant: the same generator state gives the same row; nothing here reads a clock or a database.
Must not: know which rows exist; only the plan does.
"""

from __future__ import annotations

import json
import uuid
from datetime import UTC, datetime, timedelta
from random import Random

Row = tuple[str | None, ...]

COLUMNS: dict[str, tuple[str, ...]] = {
    "customers": ("customer_id", "email", "name", "status", "tags", "credit", "registered_at", "note"),
    "products": ("product_id", "sku", "title", "description", "price", "attributes", "photo", "stock"),
    "orders": ("order_id", "customer_id", "state", "ordered_at", "ship_on", "total"),
    "order_lines": ("quantity", "order_id", "line_no", "product_id", "price", "gift"),
    "events": ("event_id", "happened_at", "kind", "session_id", "payload"),
    "prices": ("price_id", "product_id", "currency", "amount", "valid_from", "remark"),
    "audit_log": ("at", "actor", "action", "amount", "detail"),
    "type_zoo": (
        *("id", "yes", "small", "whole", "large", "money", "exact", "single", "twice", "feeling"),
        *("ints", "texts", "feelings", "at_zone", "at_local", "on_day", "at_time", "lasting"),
        *("other_id", "doc", "raw_doc", "bytes", "address", "padded", "words"),
    ),
    "coupons": ("code", "discount", "expires", "uses"),
}
"""The nine tables and their columns in table order."""

TABLES = tuple(COLUMNS)

# Strings that may break quoting, delimiters, NULL markers or encodings.
ODD_TEXTS: tuple[str | None, ...] = (
    *(None, "", " ", "NULL", "null", "\\N", "a\tb\nc\rd", 'say "hi"', "it's", "back\\slash", "{a,b}"),
    *("Zürich", "東京", "🛒 cart", "e\u0301", "\u200b", "0", "-", "Ω≈ç√∫"),
)

# column -> literals, the edge values of its type first
ZOO: dict[str, tuple[str | None, ...]] = {
    "yes": (None, "t", "f"),
    "small": (None, "-32768", "32767", "0"),
    "whole": (None, "-2147483648", "2147483647", "0", "42"),
    "large": (None, "-9223372036854775808", "9223372036854775807", "0"),
    "money": (None, "NaN", "-9999999999.99", "9999999999.99", "0.00", "-0.01", "12.30"),
    "exact": (
        None,
        "NaN",
        "Infinity",
        "-Infinity",
        "1E-20",
        "1.000",
        "123456789012345678901234567890.5",
        "0",
    ),
    "single": (None, "NaN", "Infinity", "-Infinity", "-0", "0.1", "3.4028235e+38", "1e-45"),
    "twice": (None, "NaN", "Infinity", "-Infinity", "-0", "0.1", "1.7976931348623157e+308", "5e-324"),
    "feeling": (None, "sad", "so-so", "very happy", 'quo"ted, {odd}'),
    "ints": (None, "{}", "{1,NULL,-3}", "{{1,2},{3,4}}", "[0:2]={7,8,9}", "{2147483647}"),
    "texts": (None, "{}", '{"",NULL,"NULL"}', '{"a,b","c\\"d","e\\\\f"," "}', '{{"x","y"}}', "{Zürich}"),
    "feelings": (None, "{}", '{sad,NULL,"very happy"}', '{"quo\\"ted, {odd}"}'),
    "at_zone": (
        *(None, "infinity", "-infinity", "0044-03-15 12:00:00+00 BC", "1969-12-31 23:59:59.999999+00"),
        *("9999-12-31 23:59:59.999999+00", "1582-10-10 00:00:00+00", "2026-03-29 02:30:00+02"),
    ),
    "at_local": (
        *(None, "infinity", "-infinity", "0001-12-31 23:59:59 BC", "1900-01-01 00:00:00.000001"),
        *("9999-12-31 23:59:59.999999", "2026-03-29 02:30:00"),
    ),
    "on_day": (
        *(None, "infinity", "-infinity", "0044-03-15 BC", "0001-01-01", "1582-10-10", "9999-12-31"),
        *("1969-12-31", "2026-02-28"),
    ),
    "at_time": (None, "00:00:00", "23:59:59.999999", "24:00:00", "12:34:56.7"),
    "lasting": (
        *(None, "0", "1 year 2 mons", "-3 days", "1 mon -1 day 00:00:01", "-00:00:00.000001"),
        *("1000 years 11 mons 29 days 23:59:59.999999", "36:00:00"),
    ),
    "other_id": (None, "00000000-0000-0000-0000-000000000000", "ffffffff-ffff-ffff-ffff-ffffffffffff"),
    "doc": (None, "null", "{}", '{"b": [1, 2.50, null], "a": "\\u00fc"}', '"text"', "1e400", "[]"),
    "raw_doc": (None, "null", '{"a":1,  "a":2}', " [ 1 , 2 ] ", '"\\u00fc"'),
    "bytes": (None, "\\x", "\\x00", "\\x00ff5c0a0927", "\\xdeadbeef"),
    "address": (None, "192.168.0.1", "10.0.0.0/8", "::1", "2001:db8::/32"),
    "padded": (None, "", "ab", "abcdef", "üß"),
    "words": ODD_TEXTS,
}

_START = datetime(2026, 1, 1, tzinfo=UTC)


def moment(random: Random) -> str:
    """Return a point in time of the first four months of 2026, with microseconds, in UTC."""
    return (_START + timedelta(microseconds=random.randrange(120 * 86_400_000_000))).isoformat(sep=" ")


def day(random: Random) -> str:
    """Return a date of the year 2026."""
    return (_START + timedelta(days=random.randrange(365))).date().isoformat()


def amount(random: Random, limit: int = 100_000) -> str:
    """Return a number with two decimals below `limit`."""
    return f"{random.randrange(limit)}.{random.randrange(100):02d}"


def odd_text(random: Random) -> str | None:
    """Return a text with characters that are often mishandled."""
    return random.choice(ODD_TEXTS)


def large_text(random: Random) -> str:
    """Return 8 to 16 kB that do not compress, so that it is stored out of line."""
    return random.randbytes(random.randrange(4_100, 8_000)).hex()


def customer(random: Random, number: int) -> Row:
    """Return a row of customers."""
    status = random.choice(("new", "regular", "vip", "closed"))
    tags = random.choice(("{}", "{gold}", '{gold,"two words",NULL}', '{"a,b","{x}"}'))
    note = odd_text(random) if random.random() < 0.3 else None
    mail = f"c{number}@example.org"
    return (str(number), mail, f"Customer {number}", status, tags, amount(random), moment(random), note)


def product(random: Random, number: int) -> Row:
    """Return a row of products; every fourth has a description and every eighth a photo out of line."""
    kind = random.randrange(8)
    description = large_text(random) if kind in (0, 4) else odd_text(random)
    photo = "\\x" + (random.randbytes(9_000) if kind == 0 else random.randbytes(kind)).hex()
    attributes = json.dumps({"colour": random.choice(("red", "green")), "grams": random.randrange(5_000)})
    price = amount(random, 1_000)
    return (
        *(str(number), f"SKU-{number:06d}", f"Product {number}", description, price),
        *(attributes, photo, str(random.randrange(100))),
    )


def order(random: Random, number: int, customers: int) -> Row:
    """Return a row of orders."""
    state = random.choice(("cart", "placed", "paid", "shipped", "returned"))
    ship_on = day(random) if random.random() < 0.7 else None
    buyer = str(random.randrange(1, customers + 1))
    return (str(number), buyer, state, moment(random), ship_on, amount(random))


def order_line(random: Random, order_number: int, line_no: int) -> Row:
    """Return a row of order_lines."""
    quantity, product_id = str(random.randrange(1, 20)), str(random.randrange(1, 1_000))
    gift = "t" if random.random() < 0.1 else "f"
    return (quantity, str(order_number), str(line_no), product_id, amount(random, 500), gift)


def event(random: Random, number: int) -> Row:
    """Return a row of events."""
    kind = random.choice(("view", "click", "search", "checkout"))
    session = some_uuid(random) if random.random() < 0.8 else None
    payload = json.dumps({"page": random.randrange(1_000), "ms": random.randrange(5_000)})
    return (str(number), moment(random), kind, session, payload if random.random() < 0.9 else None)


def price(random: Random, number: int) -> Row:
    """Return a row of prices."""
    currency = random.choice(("CHF", "EUR", "USD", "X"))
    value = random.choice((amount(random), "0.1000", "NaN", f"{random.randrange(10**9)}E-12"))
    valid_from = moment(random).removesuffix("+00:00")
    return (str(number), str(random.randrange(1, 1_000)), currency, value, valid_from, odd_text(random))


def audit(random: Random, actor: str) -> Row:
    """Return a row of audit_log."""
    action = random.choice(("login", "logout", "refund", "export"))
    return (moment(random), actor, action, amount(random) if action == "refund" else None, odd_text(random))


def zoo(random: Random, key: str) -> Row:
    """Return a row of type_zoo, each column's value from its own list of edges."""
    return (key, *(random.choice(ZOO[column]) for column in COLUMNS["type_zoo"][1:]))


def coupon(random: Random, code: str) -> Row:
    """Return a row of coupons."""
    expires = day(random) if random.random() < 0.8 else random.choice((None, "infinity"))
    return (code, amount(random, 100), expires, str(random.randrange(10)))


def some_uuid(random: Random) -> str:
    """Return a random UUID."""
    return str(uuid.UUID(int=random.getrandbits(128)))


def coupon_code(random: Random, number: int) -> str:
    """Return a code that no other number gives, with characters that need care in a key."""
    return f"{number:06d}{random.choice(('', ' ', '-Zürich', '/a.b', 'ß🎁', chr(9), chr(92)))}"

"""Random tables, rows and batches, to compare the C extensions with their Python fallbacks.

In: a `random.Random`.  Out: a table with its plan, batches of rows of that table, and slightly damaged ones.
Invariant: the same seed gives the same bytes. Most values are as the server writes them; a few are invalid.
"""

from __future__ import annotations

import datetime
import random
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from cdcd.avro.plan import RelationPlan, compile_plan
from cdcd.avro.transaction import TransactionContext
from cdcd.model import (
    Column,
    PgType,
    Relation,
    ReplicaIdentity,
    RowBatch,
    SnapshotMarker,
    TransactionBatch,
    TransactionInfo,
)
from cdcd.schema.identity import OldTuples
from cdcd.schema.keys import key_of
from cdcd.schema.policy import Policies, Policy, Rule
from cdcd.schema.relation_schema import relation_schemas
from tests.support.values import BY_HAND

LSN = 0x1_6B37_4D84
COMMIT_PG_US = 820_454_400_123_456
_NUMERIC_12_2 = (12 << 16 | 2) + 4
_NUMERIC_38_10 = (38 << 16 | 10) + 4


@dataclass(frozen=True)
class ColumnType:
    """A type, with generators of its text format and of its binary format."""

    oid: int
    typmod: int
    text: Callable[[random.Random], bytes]
    sent: Callable[[random.Random], bytes]
    array_oid: int = 0


def _by_hand(name: str) -> Callable[[random.Random], bytes]:
    return lambda chance: chance.choice(BY_HAND[name]).encode()


def _integer(bits: int) -> Callable[[random.Random], bytes]:
    def text(chance: random.Random) -> bytes:
        edge = 1 << (bits - 1)
        n = chance.choice((0, -1, 1, edge - 1, -edge, chance.randrange(-edge, edge)))
        if chance.random() < 0.005:
            n = chance.choice((edge, -edge - 1, n * 10**20))
        return b"%d" % n

    return text


def _boolean(chance: random.Random) -> bytes:
    return chance.choice((b"\0", b"\1") * 60 + (b"\2", b""))


def _any(*lengths: int) -> Callable[[random.Random], bytes]:
    return lambda chance: chance.randbytes(chance.choice(lengths))


def _string(chance: random.Random) -> bytes:
    letters = "abc xyz\n\"\\{},N☕é😀'"
    return "".join(chance.choices(letters, k=chance.choice((0, 1, 7, 8, 9, 30, 70)))).encode()


def _numeric(chance: random.Random) -> bytes:
    whole = "".join(chance.choices("0123456789", k=chance.choice((1, 1, 3, 9, 12, 28, 40))))
    fraction = "".join(chance.choices("0123456789", k=chance.choice((0, 1, 2, 2, 2, 9, 10, 11))))
    return (chance.choice(("", "-")) + whole + ("." + fraction if fraction else "")).encode()


def _sent_numeric(chance: random.Random) -> bytes:
    digits = [chance.choice((0, 1, 9999, chance.randrange(10_000))) for _ in range(chance.randrange(6))]
    weight, scale = chance.randrange(-3, 7), chance.choice((0, 1, 2, 2, 3, 10, 11))
    sign = chance.choice((0, 0, 0, 0x4000, 0x4000, 0xC000, 0xD000))
    return struct.pack(f">HhHH{len(digits)}H", len(digits), weight, sign, scale, *digits)


def _date(chance: random.Random) -> bytes:
    if chance.random() < 0.2:
        return chance.choice(BY_HAND["date"]).encode()
    if chance.random() < 0.99:
        day = datetime.date.fromordinal(chance.randrange(1, datetime.date.max.toordinal()))
        return day.isoformat().encode()
    month, day_of_month = chance.randrange(0, 14), chance.choice((0, 1, 28, 29, 30, 31, 32))
    return b"%04d-%02d-%02d" % (chance.choice((0, 1900, 2000, 2023, 2024)), month, day_of_month)


def _clock(chance: random.Random) -> bytes:
    text = b"%02d:%02d:%02d" % (chance.randrange(24), chance.randrange(60), chance.randrange(60))
    if chance.random() < 0.01:
        return text[:6] + chance.choice((b"60", b"59.1234567", b"59.", b"5", b"59,5", b"5 "))
    return text + chance.choice((b"", b".5", b".123456", b".000001"))


def _timestamp(zone: bytes) -> Callable[[random.Random], bytes]:
    def text(chance: random.Random) -> bytes:
        end = (
            chance.choice((b"", b"+00", b"+05:30", b" BC", zone + b" BC")) if chance.random() < 0.01 else zone
        )
        return _date(chance).removesuffix(b" BC") + b" " + _clock(chance) + end

    return text


def _float(chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return chance.choice(BY_HAND["float8"] + BY_HAND["float4"]).encode()
    if chance.random() < 0.3:
        return _digits(chance)
    value = struct.unpack(">d", chance.randbytes(8))[0]
    return repr(chance.choice((value, round(chance.uniform(-1e6, 1e6), 3)))).encode()


def _digits(chance: random.Random) -> bytes:
    """Return about as many digits as a double has, with a decimal point at any position, even an invalid one."""
    digits = str(chance.choice((chance.getrandbits(chance.randint(1, 70)), 2**53 + chance.randint(-3, 3))))
    point = chance.randint(0, len(digits) + 1)
    return (
        chance.choice(("", "-", "-0")) + digits[:point] + chance.choice((".", ".0")) + digits[point:]
    ).encode()


def _real(chance: random.Random) -> bytes:
    if chance.random() < 0.3:
        return chance.choice((_digits(chance), chance.choice(BY_HAND["float4"]).encode()))
    return b"%g" % struct.unpack(">f", chance.randbytes(4))[0]


def _hex(chance: random.Random) -> bytes:
    return b"\\x" + chance.randbytes(chance.choice((0, 1, 5, 40))).hex().encode()


def _uuid(chance: random.Random) -> bytes:
    h = chance.randbytes(16).hex()
    return f"{h[:8]}-{h[8:12]}-{h[12:16]}-{h[16:20]}-{h[20:]}".encode()


KINDS = (
    ColumnType(16, -1, lambda chance: chance.choice((b"t", b"f") * 60 + (b"T", b"")), _boolean, 1000),
    ColumnType(21, -1, _integer(16), _any(2), 1005),
    ColumnType(23, -1, _integer(32), _any(4), 1007),
    ColumnType(20, -1, _integer(64), _any(8), 1016),
    ColumnType(26, -1, lambda chance: b"%d" % chance.randrange(1 << 32), _any(4), 1028),
    ColumnType(
        5069, -1, lambda chance: b"%d" % chance.randrange(1 << chance.choice((20, 63, 64))), _any(8), 271
    ),
    ColumnType(25, -1, _string, _string, 1009),
    ColumnType(1043, -1, _by_hand("text"), _string, 1015),
    ColumnType(18, -1, _by_hand('"char"'), _any(1), 1002),
    ColumnType(114, -1, _by_hand("json"), _string, 199),
    ColumnType(3802, -1, _by_hand("json"), lambda chance: b"\x01" + _string(chance), 3807),
    ColumnType(17, -1, _hex, _any(0, 3, 50), 1001),
    ColumnType(700, -1, _real, _any(4), 1021),
    ColumnType(701, -1, _float, _any(8), 1022),
    ColumnType(1700, -1, _numeric, _sent_numeric, 1231),
    ColumnType(1700, _NUMERIC_12_2, _numeric, _sent_numeric, 1231),
    ColumnType(1700, _NUMERIC_38_10, _numeric, _sent_numeric, 1231),
    ColumnType(1082, -1, _date, _any(4), 1182),
    ColumnType(1083, -1, _clock, _any(8), 1183),
    ColumnType(1114, -1, _timestamp(b""), _any(8), 1115),
    ColumnType(1184, -1, _timestamp(b"+00"), _any(8), 1185),
    ColumnType(2950, -1, _uuid, _any(16), 2951),
    ColumnType(
        790, -1, lambda chance: b"$%d.%02d" % (chance.randrange(1000), chance.randrange(100)), _any(8), 791
    ),
    ColumnType(1186, -1, _by_hand("interval"), _any(16), 1187),
    ColumnType(869, -1, _by_hand("inet"), _any(8), 1041),
)
TYPES = {
    **{kind.oid: PgType(kind.oid, "pg_catalog", f"type{kind.oid}", "b") for kind in KINDS},
    **{
        kind.array_oid: PgType(kind.array_oid, "pg_catalog", f"_t{kind.oid}", "b", kind.oid) for kind in KINDS
    },
}
_NEEDS_QUOTES = re.compile(rb'[\s{}",\\]|^$|^null$', re.IGNORECASE)


def _array_text(kind: ColumnType, chance: random.Random) -> bytes:
    items = []
    for _ in range(chance.choice((0, 1, 1, 2, 5))):
        item = kind.text(chance)
        if chance.random() < 0.2:
            items.append(b"NULL")
        elif _NEEDS_QUOTES.search(item) or chance.random() < 0.05:
            items.append(b'"' + item.replace(b"\\", b"\\\\").replace(b'"', b'\\"') + b'"')
        else:
            items.append(item)
    text = b"{" + b",".join(items) + b"}"
    return chance.choice((text,) * 20 + (b"[0:1]=" + text, b"{" + text + b"}"))


@dataclass(frozen=True)
class Cell:
    """A column's type: a kind, or an array of it."""

    kind: ColumnType
    is_array: bool

    @property
    def oid(self) -> int:
        return self.kind.array_oid if self.is_array else self.kind.oid

    def value(self, chance: random.Random, letter: str) -> bytes:
        if letter in "nu":
            return letter.encode()
        if letter == "t":
            raw = _array_text(self.kind, chance) if self.is_array else self.kind.text(chance)
        else:
            raw = self.kind.sent(chance)
        if chance.random() < 0.001:
            raw = bytes(mutated(raw, chance))
        return letter.encode() + struct.pack(">I", len(raw)) + raw


def mutated(data: bytes, chance: random.Random) -> bytes:
    """Return the bytes with one random change."""
    at = chance.randrange(len(data) + 1)
    match chance.randrange(4):
        case 0:
            return data[:at] + chance.randbytes(1) + data[at + 1 :]
        case 1:
            return data[:at] + data[at + 1 :]
        case 2:
            return data[:at] + chance.randbytes(chance.choice((1, 4))) + data[at:]
        case _:
            return data[:at]


class Table:
    """A random table: columns, identity, key, format, policies; its plan; its rows."""

    def __init__(self, chance: random.Random, relid: int = 7) -> None:
        self.relid = relid
        self.cells = [
            Cell(chance.choice(KINDS), chance.random() < 0.15) for _ in range(chance.randrange(0, 9))
        ]
        self.identity = chance.choice(list(ReplicaIdentity))
        keys = set(chance.sample(range(len(self.cells)), min(len(self.cells), chance.choice((0, 1, 1, 2)))))
        columns = tuple(
            Column(f"c{n}_é", cell.oid, cell.kind.typmod, n in keys or self.identity is ReplicaIdentity.FULL)
            for n, cell in enumerate(self.cells)
        )
        self.relation = Relation(relid, "public", f"t{relid}", self.identity, columns)
        policies = _policies(chance)
        policy = policies.table(f"public.t{relid}")
        found = tuple(columns[n].name for n in sorted(keys))
        key = key_of(self.relation, found, None, policy)
        self.key = key
        self.schemas = schemas = relation_schemas(
            self.relation,
            TYPES,
            key,
            "shop",
            policies,
            is_key_required=chance.random() < 0.7,
            attnums=range(1, len(columns) + 1),
        )
        self.is_keyed = schemas.key is not None
        self.plan: RelationPlan = compile_plan(
            self.relation,
            schemas,
            topic=f"shop.public.t{relid}",
            partitions=chance.choice((1, 2, 6, 50)),
            key_schema_id=11 if self.is_keyed else None,
            value_schema_id=12,
            tombstones=chance.random() < 0.7,
            old_tuples=_old_tuples(chance, columns),
        )
        self._letters = chance.choice(("tttttttn", "tttttttn", "bbbbbbbbn", "tbn", "tttttttttttttttnu"))
        self._keys = keys

    def tuple_data(self, chance: random.Random, *, only_key: bool = False) -> bytes:
        out = struct.pack(">H", len(self.cells))
        for n, cell in enumerate(self.cells):
            # The replica identity of a partition may have more columns than the root's key (F78).
            is_null = only_key and n not in self._keys and chance.random() < 0.95
            letter = "n" if is_null else chance.choice(self._letters)
            if n in self._keys and letter in "nu" and chance.random() < 0.995:
                letter = "t"
            out += cell.value(chance, letter)
        return out

    def message(self, chance: random.Random, xid: int | None) -> bytes:
        kind = chance.choice("IIIUUUD")
        head = (
            kind.encode() + (b"" if xid is None else struct.pack(">I", xid)) + struct.pack(">I", self.relid)
        )
        if kind == "I":
            return head + b"N" + self.tuple_data(chance)
        old = self.tuple_data(chance)
        new = self.tuple_data(chance)
        if chance.random() < 0.5 and kind == "U":
            new = old  # the key stays
        before = chance.choice((b"O" + old, b"K" + self.tuple_data(chance, only_key=True)))
        if kind == "D":
            return head + before
        return head + chance.choice((b"", before)) + b"N" + new


def _old_tuples(chance: random.Random, columns: tuple[Column, ...]) -> OldTuples | None:
    if chance.random() < 0.85:
        return None
    names = [column.name for column in columns]
    partial = frozenset(names[: chance.randrange(len(names) + 1)])
    return OldTuples(frozenset({partial}), ("p",) if chance.random() < 0.1 else ())


SPECIAL: tuple[Literal["separate", "halt", "string"], ...] = (*("separate",) * 8, "halt", "string")


def _policies(chance: random.Random) -> Policies:
    policy = Policy(
        value=chance.choice(("envelope", "envelope", "flat")),
        keyless=chance.choice(("one_partition", "row")),
        numeric_as=chance.choice(("exact", "exact", "string", "double", "variable_scale")),
        special=chance.choice(SPECIAL),
        max_value_bytes=chance.choice((0,) * 12 + (6, 40)),
        oversized=chance.choice(("halt", "omit")),
        placeholder=chance.choice(("", "__unchanged")),
    )
    rules = (Rule(re.compile(r"public\.t7"), re.compile("c1_é"), {"special": "string"}),)
    return Policies(policy, rules if chance.random() < 0.2 else ())


def context(chance: random.Random, *, snapshot: bool = False, has_block: bool = False) -> TransactionContext:
    """Return random transaction constants."""
    info = TransactionInfo(
        xid=chance.choice((0, 750, 2**32 - 1)),
        commit_lsn=chance.choice((1, LSN, 2**63 - 1)),
        commit_pg_us=chance.choice((COMMIT_PG_US, 0, -(2**62), 2**63 - 1)),
        origin=chance.choice((None, None, "elsewhere")),
        origin_lsn=chance.choice((None, 7)),
        snapshot=chance.choice(tuple(SnapshotMarker)) if snapshot else "",
    )
    return TransactionContext(
        info,
        timeline=chance.choice((1, 2**32 - 1)),
        name="shop",
        database="orders_é",
        now_us=1_767_139_200_123_456,
        version="9.9.9",
        has_block=has_block,
    )


def frame(payload: bytes, lsn: int = LSN) -> bytes:
    """Return the frame of a payload in a batch."""
    return struct.pack(">IQ", len(payload), lsn) + payload


def row_batch_of(tables: list[Table], chance: random.Random) -> RowBatch:
    """Return a batch of rows of these tables; a few batches are malformed."""
    xid = chance.choice((None, None, 777))
    count = chance.choice((1, 2, 3, 8))
    payloads = [chance.choice(tables).message(chance, xid) for _ in range(count)]
    if chance.random() < 0.1:
        at = chance.randrange(count)
        payloads[at] = mutated(payloads[at], chance)
    frames = b"".join(frame(payload, LSN + number) for number, payload in enumerate(payloads))
    if chance.random() < 0.03:
        frames = mutated(frames, chance)
    if chance.random() < 0.02:
        count += chance.choice((-1, 1))
    return RowBatch(frames, count, xid)


def transactions_of(tables: list[Table], chance: random.Random) -> TransactionBatch:
    """Return a batch of complete transactions of these tables' rows."""
    count = chance.choice((1, 2, 5))
    lsn = LSN
    frames = b""
    for number in range(count):
        rows = [chance.choice(tables).message(chance, None) for _ in range(chance.choice((0, 1, 1, 3)))]
        lsn += 1000
        begin = struct.pack(">cQqI", b"B", lsn, COMMIT_PG_US + number, 700 + number)
        commit = struct.pack(">cBQQq", b"C", 0, lsn, lsn + 48, COMMIT_PG_US + number)
        frames += frame(begin, lsn - 900)
        frames += b"".join(frame(row, lsn - 800 + n) for n, row in enumerate(rows))
        frames += frame(commit, lsn + 48)
    if chance.random() < 0.03:
        frames = mutated(frames, chance)
    return TransactionBatch(frames, count)


def outcome(work: Callable[..., Any], *args: Any) -> Any:
    """Return the result of the call, or the type, text and context of its error."""
    try:
        return work(*args)
    except Exception as error:  # noqa: BLE001 - the fallback must raise the same error
        return type(error), str(error), getattr(error, "context", None)

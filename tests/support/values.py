"""Literals of every base type of PostgreSQL: hand-written limits, and random values from a fixed seed.

In: a type's name.  Out: literals that its input function accepts.
Invariant: the same values in each run.
"""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterator

BY_HAND: dict[str, list[str]] = {
    "bool": ["t", "f"],
    "bytea": ["\\x", "\\x00ff7f5c", "\\x2c7b7d22"],
    '"char"': ["x", "", ",", '"', "\\", "{", " "],
    "name": ["a_name", "", "null", 'q"u,o'],
    "int8": ["-9223372036854775808", "0", "9223372036854775807"],
    "int2": ["-32768", "0", "32767"],
    "int2vector": ["", "1", "1 2 -32768"],
    "int4": ["-2147483648", "-1", "0", "2147483647"],
    "text": [
        "", "naïve ☕ 😀", "NULL", "null", "back\\slash", "line\nbreak", "\t", "\v\f\r", " ", "a b", "{", "}", "a,b",
        '"', '""', "(", ")", "[", "]", "'", "\\\\", "\u00a0", "\u0085", "\u2028", "nUlL", "e\u0301", "\U0010ffff",
    ],
    "oid": ["0", "4294967295"],
    "tid": ["(0,0)", "(4294967295,65535)"],
    "xid": ["0", "4294967295"],
    "cid": ["0", "4294967295"],
    "oidvector": ["", "1", "1 2 4294967295"],
    "json": ['{"a":  1}', "null", '["\\u0000", "x"]'],
    "xml": [
        "<a/>", "", "text", '<?xml version="1.0"?><a/>', '<?xml version="1.0" encoding="UTF-8"?><a>☕</a>',
        '<?xml version="1.0" standalone="yes"?>\n<a/>', '<?xml version="1.0"?>\n<a/>',
        '<?xml version="1.0" encoding="ISO-8859-1" standalone="no"?><a/>',
    ],
    "point": ["(1.5,-2)", "(NaN,Infinity)", "(-0,1e300)", "(5e-324,1e15)"],
    "lseg": ["[(0,0),(1e22,-1)]"],
    "path": ["((0,0),(1,1))", "[(0,0),(1,1),(0.1,0.2)]", "[(1,2)]"],
    "box": ["(1,1),(0,0)", "(0,0),(-1.5,NaN)"],
    "polygon": ["((0,0),(1,1),(0.1,0.2))", "((1,2))"],
    "line": ["{1,-1,0}", "{0.1,2,1e20}"],
    "cidr": ["10.0.0.0/8", "0.0.0.0/0", "1.2.3.4/32", "::/0", "2001:db8::/32", "::1/128", "::ffff:1.2.3.4/128"],
    "float4": ["0.1", "-0", "0", "NaN", "Infinity", "-Infinity", "1e-45", "3.4028235e38", "1.17549435e-38",
               "16777217", "1e6", "999999", "123456", "1234567", "1e-4", "9.9e-5"],
    "float8": ["0.1", "-0", "0", "NaN", "Infinity", "-Infinity", "5e-324", "1.7976931348623157e308", "1e22", "1e15",
               "999999999999999", "1e-4", "9.9e-5", "9007199254740993",
               "5.684341886080801e-14", "2.2250738585072014e-308"],
    "unknown": [],
    "circle": ["<(0,0),1>", "<(0.1,-1e20),Infinity>"],
    "money": ["0", "-0.01", "0.1", "999.99", "-1000", "1234567.89", "92233720368547758.07", "-92233720368547758.08"],
    "macaddr8": ["08:00:2b:01:02:03:04:05"],
    "macaddr": ["08:00:2b:01:02:03", "ff:ff:ff:ff:ff:ff"],
    "inet": [
        "10.0.0.0/8", "1.2.3.4", "::1", "::", "::ffff:1.2.3.4", "::1.2.3.4", "::1:2", "::ffff:0:0", "1::",
        "::0.0.0.1", "::2", "1:0:0:2:0:0:0:3", "1:0:2:0:3:0:4:0", "0:0:1::", "ff::ff/64", "0:0:0:0:0:ffff:0:1/96",
        "0:0:0:0:0:fffe:1:1", "1:0:0:2:3:0:0:4", "255.255.255.255/0", "::1:0:0", "0:0:0:0:0:0:1:0",
    ],
    "bpchar": ["", "ab  ", "☕"],
    "varchar": ["", "abc"],
    "date": ["1970-01-01", "2024-02-29", "0001-01-01", "0001-12-31 BC", "0044-03-15 BC", "4714-11-24 BC",
             "10000-01-01", "5874897-12-31", "infinity", "-infinity"],
    "time": ["00:00:00", "23:59:59.999999", "12:30:00.5", "24:00:00", "12:00:00.000001"],
    "timestamp": ["2024-01-01 00:00:00.123456", "1969-12-31 23:59:59.9", "0044-03-15 12:00 BC",
                  "4714-11-24 00:00:00 BC", "10000-01-01 00:00:00", "294276-12-31 23:59:59.999999", "infinity",
                  "-infinity", "0001-01-01 00:00:00", "0001-12-31 23:59:59.5 BC", "2016-12-31 23:59:60"],
    "timestamptz": ["2024-01-01 05:30:00.1+05:30", "0044-03-15 12:00+00 BC", "294276-12-31 23:59:59.999999+00",
                    "1900-01-01 00:00:00+00", "infinity", "-infinity", "4714-11-24 00:00:00+00 BC"],
    "interval": ["0", "1 year 2 mons 3 days 04:05:06.789", "-1 year -2 mons +3 days -04:05:06", "1 mon", "-1 mon",
                 "-0.000001 sec", "-178956970 years -8 mons", "-2147483648 days",
                 "1 mon -1 days", "-1 mons +1 day", "1 day -00:00:01", "-1 day +00:00:01", "100:00:00", "13 mons",
                 "30 days", "-1 day", "-1 year", "-1 year 1 day", "-1 mon 1 day 1 sec", "1 year -1 mon 00:00:01"],
    "timetz": ["00:00:00+00", "24:00:00-15:59:59", "12:00:00.5+05:30", "12:00:00-00:00:01", "12:00:00-00:30"],
    "bit(1)": ["0", "1"],
    "bit(10)": ["0101010101"],
    "bit(16)": ["0101010101111111"],
    "varbit": ["", "1", "010101010", "1" * 64],
    "numeric": ["0", "0.00", "1.10", "NaN", "1e100", "-1e-100", "1234567890.12345", "10000", "0.00001", "9999",
                "-0.0000000000000001", "1e-16383", "1e1000", "100000000.0001"],
    "numeric(10,2)": ["0", "-0.01", "99999999.99", "NaN"],
    "refcursor": ["<unnamed portal 1>", ""],
    "uuid": ["0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"],
    "txid_snapshot": ["1:1:", "10:20:10,14,15"],
    "pg_lsn": ["0/0", "16/B374D848", "FFFFFFFF/FFFFFFFF"],
    "tsvector": ["", "a", "'a':1 'b':2A,3B,4C,16383", "'it''s':1 'b\\\\c' 'x y' '☕':5", "'a,b' '\"'"],
    "tsquery": [
        "", "'a'", "!a", "!!a", "a & b & c", "a & (b & c)", "a | b & c", "(a | b) & c", "!(a | b)", "!(a & b) | c",
        "a <-> b <-> c", "a <-> (b <-> c)", "(a <2> b) <3> (c <-> d)", "a <-> (b | c)", "(a & b) <-> c", "!a <-> b",
        "!(a <-> b)", "a:*", "a:AB", "a:*ABCD", "'it''s':D & 'b\\\\c'", "a <16384> b", "a & (b | (c & (d | e)))",
        "a <0> b", "'x y' | ''''",
    ],
    "jsonb": ['{"a": [1, null]}', '"☕"', "1.50", "[]"],
    "jsonpath": ["$", '$."a b"[*] ? (@ > 1)', "strict $.a", "lax $[0 to last]", '$ ? (@.a like_regex "^x" flag "i")'],
    "pg_snapshot": ["1:1:", "10:20:10,14,15", "18446744073709551:9223372036854775807:"],
    "xid8": ["0", "18446744073709551615"],
    "int4range": ["[1,5)", "empty", "(,)", "[,3)", "[-5,)"],
    "int8range": ["[1,9223372036854775807)"],
    "numrange": ["(1.5,2.50]", "[NaN,NaN]", "(,1e30)"],
    "tsrange": ['["2024-01-01 00:00","2024-01-02 00:00:00.5")', "[,infinity]"],
    "tstzrange": ['["2024-01-01 00:00+00","2044-01-02 00:00+00")'],
    "daterange": ["[2024-01-01,infinity)", "[4714-11-24 BC,2024-01-01)"],
}  # fmt: skip
"""Limits of each type, and values that are hard to quote."""

SINCE_14: dict[str, list[str]] = {
    "numeric": ["Infinity", "-Infinity"],
    "numrange": ["[Infinity,Infinity]"],
    "int4multirange": ["{}", "{[1,2),[3,4)}", "{(,)}", "{(,1),[5,)}"],
    "nummultirange": ["{(1.5,2.50],[3,3]}"],
    "tsmultirange": ['{["2024-01-01 00:00","2024-01-02 00:00")}'],
    "tstzmultirange": ['{["2024-01-01 00:00+00",)}'],
    "datemultirange": ["{[2024-01-01,2024-02-01),[2025-01-01,)}"],
    "int8multirange": ["{[1,2)}"],
}
SINCE_17: dict[str, list[str]] = {"interval": ["infinity", "-infinity", "2562047788:00:54.775806"]}

AS_TEXT: dict[str, list[str]] = {
    "regproc": ["now", "0"],
    "regprocedure": ["sum(int4)", "0"],
    "regoper": ["||/", "0"],
    "regoperator": ["+(int4,int4)"],
    "regclass": ["pg_class"],
    "regtype": ["int4", "timestamptz"],
    "regconfig": ["english"],
    "regdictionary": ["simple"],
    "regnamespace": ["pg_catalog"],
    "regrole": ["postgres"],
    "regcollation": ['"C"'],
}
"""Types whose binary format cdcd does not decode."""

WITHOUT_LITERALS = {
    "pg_node_tree", "pg_ndistinct", "pg_dependencies", "pg_mcv_list", "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary", "gtsvector", "aclitem", "unknown",
}  # fmt: skip
"""Their input functions accept no literal; `unknown` is not a column type. (aclitem has no send function.)"""

EXTENSIONS: dict[str, dict[str, list[str]]] = {
    "citext": {"citext": ["", "NaÏve", "NULL"]},
    "cube": {"cube": ["(1,2),(3,4)", "(1,2)", "(0.1),(1e22)", "(0,0,0)", "()", "(-1)"]},
    "hstore": {"hstore": ["", '"a"=>"1", "b"=>NULL', '"q\\"u\\\\o"=>"x y", ""=>""', '"☕"=>"{,}"']},
    "ltree": {
        "ltree": ["", "Top.Science", "a"],
        "lquery": ["Top.*{1,2}.!a|b", "*", "a@*%"],
        "ltxtquery": ["Europe & Russia*@ & !Transportation", "a | b"],
    },
    "isn": {"ean13": ["978-0-11-000222-4"], "isbn13": ["978-0-11-000222-4"], "issn": ["1436-4522"]},
    "seg": {"seg": ["1 .. 2", "<5.0", "~6.5"]},
    "intarray": {"query_int": ["1&(2|3)"]},
}
"""Literals by extension, then type."""

VECTORS: dict[str, list[str]] = {
    "vector": ["[1,2.5,-0]", "[0.1]", "[1e-45,3.4e38,1e6,999999,16777217]"],
    "halfvec": ["[1,2.5,-0]", "[0.1,65504,6e-8]"],
    "sparsevec": ["{1:0.5,3:2}/5", "{}/3", "{16000:1e-30}/16000"],
}
"""Literals of the types of pgvector."""


RANDOM_LITERALS = 200


def random_literals(type_name: str, count: int = RANDOM_LITERALS) -> list[str]:
    """Return random literals; none for a type without a generator."""
    make = _BY_CHANCE.get(type_name)
    dice = random.Random(type_name)
    return [] if make is None else [make(dice) for _ in range(count)]


def _text(dice: random.Random) -> str:
    alphabets = ("a\"\\{}(),[] \t\n\vN'.", "ul☕é😀\u0085\u00a0", "".join(map(chr, range(1, 128))))
    letters = dice.choice(alphabets)
    return "".join(dice.choice(letters) for _ in range(dice.randrange(8)))


def _double(dice: random.Random) -> str:
    bits = dice.getrandbits(64) if dice.random() < 0.5 else dice.getrandbits(53) << dice.randrange(11)
    value = struct.unpack("<d", struct.pack("<Q", bits))[0]
    return repr(dice.choice((value, float(dice.getrandbits(dice.randrange(1, 120))), dice.random())))


def _real(dice: random.Random) -> str:
    value = struct.unpack("<f", struct.pack("<I", dice.getrandbits(32)))[0]
    return repr(dice.choice((value, float(dice.getrandbits(dice.randrange(1, 60))), dice.random())))


def _finite(make: Callable[[random.Random], str], dice: random.Random) -> str:
    while (text := make(dice)) in ("nan", "inf", "-inf"):
        pass
    return text


def _numeric(dice: random.Random) -> str:
    digits = str(dice.getrandbits(dice.randrange(1, 200)))
    sign = dice.choice(("", "-"))
    return (
        f"{sign}{digits}e{dice.randrange(-120, 60)}"
        if dice.random() < 0.5
        else f"{sign}{digits}.{digits[:5]}"
    )


def _span(low: int, high: int) -> Callable[[random.Random], int]:
    return lambda dice: int(low + (high - low) * dice.random()) >> dice.randrange(20)


_microseconds = _span(-211_800_000_000_000_000, 9_223_000_000_000_000_000)


def _days(dice: random.Random) -> str:
    return f"J{dice.randrange(0, 2_147_483_493) >> dice.randrange(12)}"


def _clock(dice: random.Random) -> str:
    fraction = dice.choice(("", f".{dice.randrange(1_000_000):06d}", f".{dice.randrange(10)}"))
    return f"{dice.randrange(24):02d}:{dice.randrange(60):02d}:{dice.randrange(60):02d}{fraction}"


def _day(dice: random.Random) -> str:
    year = dice.choice((dice.randrange(1, 4000), dice.randrange(1970, 2040), dice.randrange(10_000, 290_000)))
    era = " BC" if year < 4000 and dice.random() < 0.2 else ""
    return f"{year:04d}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}|{era}"


def _timestamp(zone: str) -> Callable[[random.Random], str]:
    return lambda dice: _day(dice).replace("|", f" {_clock(dice)}{zone}")


def _offset(dice: random.Random) -> str:
    seconds = dice.choice(("", f":{dice.randrange(60):02d}"))
    return f"{dice.choice('+-')}{dice.randrange(15):02d}:{dice.randrange(60):02d}{seconds}"


def _interval(dice: random.Random) -> str:
    parts = [f"{dice.randrange(-2000, 2000)} {unit}" for unit in ("months", "days", "hours", "microseconds")]
    return " ".join(dice.sample(parts, dice.randrange(1, 5)))


def _address(dice: random.Random) -> str:
    if dice.random() < 0.3:
        return f"{'.'.join(str(dice.randrange(256)) for _ in range(4))}/{dice.randrange(33)}"
    zeros = dice.random()
    words = [
        0 if dice.random() < zeros else dice.choice((0xFFFF, 1, dice.randrange(65536))) for _ in range(8)
    ]
    return ":".join(f"{word:x}" for word in words) + dice.choice(("", f"/{dice.randrange(129)}"))


def _lexeme(dice: random.Random) -> str:
    word = "".join(dice.choice("ab'\\ ☕,\"") for _ in range(dice.randrange(1, 4)))
    return "'" + word.replace("\\", "\\\\").replace("'", "''") + "'"


def _vector(dice: random.Random) -> str:
    def places() -> str:
        return ":" + ",".join(f"{dice.randrange(1, 16384)}{dice.choice('ABCD')}" for _ in range(3))

    return " ".join(_lexeme(dice) + dice.choice(("", places())) for _ in range(dice.randrange(6)))


def _query(dice: random.Random, depth: int = 5) -> str:
    if depth == 0 or dice.random() < 0.2:
        return _lexeme(dice) + dice.choice(("", ":*", ":A", ":*BC", ":D"))
    if dice.random() < 0.2:
        return f"!({_query(dice, depth - 1)})"
    operator = dice.choice(("&", "|", "<->", "<2>", f"<{dice.randrange(16384)}>"))
    return f"({_query(dice, depth - 1)}) {operator} ({_query(dice, depth - 1)})"


def _snapshot(dice: random.Random) -> str:
    low, high = sorted((dice.randrange(1, 1 << 62), dice.randrange(1, 1 << 62)))
    running = sorted({dice.randrange(low, high) for _ in range(dice.randrange(5))})
    return f"{low}:{high}:{','.join(map(str, running))}"


def _json(dice: random.Random) -> str:
    last = dice.choice(("null", "true", "1.50"))
    return f'{{"{"k" * dice.randrange(4)}": [{dice.getrandbits(40)}, {last}]}}'


def _integers(low: int, high: int) -> Callable[[random.Random], str]:
    return lambda dice: str(dice.randint(low, high))


def _hex(dice: random.Random) -> str:
    return dice.randbytes(dice.randrange(20)).hex()


def _groups(size: int) -> Callable[[random.Random], str]:
    return lambda dice: dice.randbytes(size).hex(":")


def _bits(dice: random.Random) -> str:
    return "".join(dice.choice("01") for _ in range(dice.randrange(70)))


def _pairs(dice: random.Random, least: int = 1) -> str:
    return ",".join(f"({_double(dice)},{_double(dice)})" for _ in range(dice.randrange(least, 5)))


def _range(make: Callable[[random.Random], str]) -> Callable[[random.Random], str]:
    def literal(dice: random.Random) -> str:
        try:
            low, high = sorted((make(dice), make(dice)), key=float)
        except ValueError:
            low, high = sorted((make(dice), make(dice)))
        low, high = dice.choice(((low, high), ("", high), (low, ""), ("", "")))
        return f"{dice.choice('[(')}{low},{high}{dice.choice('])')}"

    return literal


def _iso_day(dice: random.Random) -> str:
    return f"{dice.randrange(1000, 9999)}-{dice.randrange(1, 13):02d}-{dice.randrange(1, 29):02d}"


_BY_CHANCE: dict[str, Callable[[random.Random], str]] = {
    "bytea": lambda dice: "\\x" + _hex(dice),
    "int8": _integers(-(1 << 63), (1 << 63) - 1),
    "int2": _integers(-(1 << 15), (1 << 15) - 1),
    "int4": _integers(-(1 << 31), (1 << 31) - 1),
    "int2vector": lambda dice: " ".join(str(dice.randint(-32768, 32767)) for _ in range(dice.randrange(6))),
    "oidvector": lambda dice: " ".join(str(dice.getrandbits(32)) for _ in range(dice.randrange(6))),
    "text": _text,
    "varchar": _text,
    "bpchar": _text,
    "name": _text,
    "refcursor": _text,
    "oid": _integers(0, (1 << 32) - 1),
    "xid": _integers(0, (1 << 32) - 1),
    "cid": _integers(0, (1 << 32) - 1),
    "tid": lambda dice: f"({dice.getrandbits(32)},{dice.getrandbits(16)})",
    "json": _json,
    "jsonb": _json,
    "point": lambda dice: f"({_double(dice)},{_double(dice)})",
    "lseg": lambda dice: f"[({_double(dice)},{_double(dice)}),({_double(dice)},{_double(dice)})]",
    "box": lambda dice: f"({_double(dice)},{_double(dice)}),({_double(dice)},{_double(dice)})",
    "path": lambda dice: dice.choice(("[{}]", "({})")).format(_pairs(dice)),
    "polygon": lambda dice: f"({_pairs(dice)})",
    "line": lambda dice: f"{{{dice.randrange(1, 99)},{_double(dice)},{_double(dice)}}}",
    "circle": lambda dice: f"<({_double(dice)},{_double(dice)}),{dice.random()}>",
    "cidr": lambda dice: _address(dice).partition("/")[0],
    "inet": _address,
    "float4": _real,
    "float8": _double,
    "macaddr": _groups(6),
    "macaddr8": _groups(8),
    "date": _days,
    "time": _clock,
    "timetz": lambda dice: _clock(dice) + _offset(dice),
    "timestamp": _timestamp(""),
    "timestamptz": _timestamp("+00"),
    "interval": _interval,
    "varbit": _bits,
    "numeric": _numeric,
    "uuid": lambda dice: dice.randbytes(16).hex(),
    "txid_snapshot": _snapshot,
    "pg_snapshot": _snapshot,
    "pg_lsn": lambda dice: f"{dice.getrandbits(32):X}/{dice.getrandbits(dice.randrange(1, 33)):X}",
    "tsvector": _vector,
    "tsquery": _query,
    "jsonpath": lambda dice: (
        f"$.{'k' * dice.randrange(1, 4)}[{dice.randrange(9)}] ? (@ > {dice.random():.3f})"
    ),
    "xid8": _integers(0, (1 << 64) - 1),
    "int4range": _range(_integers(-1000, 1000)),
    "int8range": _range(_integers(-(1 << 40), 1 << 40)),
    "numrange": _range(lambda dice: f"{dice.random():.5f}"),
    "daterange": _range(_iso_day),
    "tsrange": _range(lambda dice: f'"{_iso_day(dice)} {_clock(dice)}"'),
    "tstzrange": _range(lambda dice: f'"{_iso_day(dice)} {_clock(dice)}+00"'),
    "cube": lambda dice: "({}),({})".format(
        *(",".join(map(str, (dice.random() for _ in range(3)))) for _ in range(2))
    ),
    "hstore": lambda dice: ",".join(
        f'"{_quoted(dice)}"=>"{_quoted(dice)}"' for _ in range(dice.randrange(4))
    ),
    "citext": _text,
    "vector": lambda dice: f"[{','.join(_finite(_real, dice) for _ in range(dice.randrange(1, 9)))}]",
    "halfvec": lambda dice: (
        f"[{','.join(f'{dice.uniform(-9, 9):.7f}' for _ in range(dice.randrange(1, 9)))}]"
    ),
    "ltree": lambda dice: ".".join(dice.choice("abcXYZ_19") for _ in range(dice.randrange(6))),
}


def _quoted(dice: random.Random) -> str:
    return _text(dice).replace("\\", "\\\\").replace('"', '\\"')


def literals(major: int, random_ones: int = RANDOM_LITERALS) -> Iterator[tuple[str, list[str]]]:
    """Yield (declared type, literals) for every type that a column of this major version can have."""
    more = SINCE_14 if major >= 14 else {}
    names = dict.fromkeys((*BY_HAND, *more))
    for name in names:
        by_hand = [*BY_HAND.get(name, ()), *more.get(name, ())]
        if major >= 17:
            by_hand += SINCE_17.get(name, ())
        if by_hand:
            yield name, [*by_hand, *random_literals(name, random_ones)]

"""Literals of every type that a column can have: picked by hand, random, and from the server's catalog.

In: a major, the number of values of each type, the server.  Out: (declared type, literals).
Invariant: the same values for the same major and number, except names from the server's catalog.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

from tests.support.values import AS_TEXT, BY_HAND, EXTENSIONS, SINCE_14, SINCE_17, VECTORS, random_literals

Execute = Callable[..., list[tuple[Any, ...]]]
Dice = random.Random

DDL = (
    *(f"create extension {name}" for name in EXTENSIONS),
    """create type mood as enum ('sad', 'so so', 'it''s "ok"', 'null', '{a,b}', '(x)', ' ')""",
    "create domain price as numeric(10, 2) check (value > -100)",
    "create domain net_price as price",
    "create type address as (street text, number int)",
    "create type nothing as ()",
    "create type single as (a text)",
    'create type "Per son" as ("first name" text, home address, others address[], born date, paid net_price,'
    " tags hstore, matrix single[], gone int)",
    'alter type "Per son" drop attribute gone',
    'create table log (id int, "at" timestamptz, payload bytea)',
    "create schema staged",
    "create table staged.measured as select n % 7 as a, n % 11 as b, n % 3 as c from generate_series(1, 2000) n",
    *(
        f"create statistics staged.of_{kind}_{number} ({kind}) on {columns} from staged.measured"
        for kind in ("ndistinct", "dependencies", "mcv")
        for number, columns in enumerate(("a, b", "b, c", "a, b, c"))
    ),
    "analyze staged.measured",
)
SHADES = 250
"""The labels of an enum."""

MORE: dict[str, list[str]] = {
    "text": ["\ud7ff", "\ue000", "\ufffd", "\uffff", "\U00010000", "\U0001f468\u200d\U0001f469", "\ufeffx"],
    "timestamp": ["1972-06-30 23:59:60", "294247-01-10 04:00:54.775807",
                  "294247-01-10 04:00:54.775808", "1969-12-31 23:59:59.999999", "1970-01-01 00:00:00"],
    "timestamptz": ["2016-12-31 23:59:60+00", "2015-06-30 23:59:60+00", "294247-01-10 04:00:54.775807+00",
                    "294247-01-10 04:00:54.775808+00", "1969-12-31 23:59:59.999999+00"],
    "time": ["23:59:60", "00:00:00.000001"],
    "timetz": ["23:59:60+00", "00:00:00+15:59:59"],
    "date": ["9999-12-31", "1969-12-31", "1582-10-15", "4713-01-01 BC"],
    "float8": ["-5e-324", "-1.7976931348623157e308", "2.2250738585072011e-308", "1e-300"],
    "float4": ["-1e-45", "-3.4028235e38", "1.1754942e-38"],
    "numeric": ["1e2000", "-0", "0e-2000"],
    "int4": ["1"], "int2": ["-1", "1"], "int8": ["-1", "1"],
    "bytea": ["\\x00", "\\xff", "\\x5c", "\\x" + "00" * 300],
    "mood": ["sad", "so so", 'it\'s "ok"', "null", "{a,b}", "(x)", " "],
    "price": ["0", "-99.99"], "net_price": ["1.50", "-99", "NaN", "99999999.99"],
    "address": ["(,)", '("",-1)', '("a\nb\t(),\\\\\\"""",)', "(NULL,1)"],
    "nothing": ["()"],
    "single": ["()", '("")', "(x)"],
    '"Per son"': ['(Ann,"(Main,1)","{""(a b,2)"",NULL}",2000-01-01,1.50,"k=>v, n=>NULL",)', "(,,,,,,)",
                  '("☕ ""q""","(\\"\\",)",{},0044-03-15 BC,-0.01,,"{(),NULL,""(\\\\""\\\\"")""}")',
                  "(,,,infinity,,,)", '(,,"{{""(a,1)""}}",,,,)', '(,,,,,,"[0:0]={()}")', "(,,,,NaN,,)"],
    "log": ["(,,)", "(1,infinity,)"],
    '"char"': [chr(code) for code in range(1, 128)],
    "bit(10)": [f"{number:010b}" for number in range(0, 1024, 5)],
    "information_schema.yes_or_no": ["YES", "NO"],
    "information_schema.cardinal_number": ["0"],
    "information_schema.time_stamp": ["2024-01-01 00:00:00.126+00", "infinity"],
}  # fmt: skip
"""In addition to those of `tests.support.values`."""

WITHOUT = {
    "cstring": "a pseudo-type",
    "gtsvector": "an index key's type: its input function accepts nothing, and no function returns one",
    "pg_brin_bloom_summary": "as gtsvector", "pg_brin_minmax_multi_summary": "as gtsvector",
    "ghstore": "as gtsvector", "ltree_gist": "as gtsvector", "intbig_gkey": "as gtsvector",
    "pg_node_tree": "its input function accepts nothing; the test compares its text",
    "pg_ndistinct": "as pg_node_tree", "pg_dependencies": "as pg_node_tree", "pg_mcv_list": "as pg_node_tree",
}  # fmt: skip
"""Types of columns to which no value can be cast, with the reason."""

UNCASTABLE = {
    "pg_node_tree": "select ev_action from pg_rewrite",
    "pg_ndistinct": "select stxdndistinct from pg_statistic_ext_data",
    "pg_dependencies": "select stxddependencies from pg_statistic_ext_data",
    "pg_mcv_list": "select stxdmcv from pg_statistic_ext_data",
}
"""Types whose values come from the server's catalog."""

BY_SERVER = {
    "regproc": "select oid::regproc from pg_proc p where"
    " (select count(*) from pg_proc q where q.proname = p.proname) = 1",
    "regprocedure": "select oid::regprocedure from pg_proc",
    "regoper": "select oid::regoper from pg_operator p where"
    " (select count(*) from pg_operator q where q.oprname = p.oprname) = 1",
    "regoperator": "select oid::regoperator from pg_operator",
    "regclass": "select oid::regclass from pg_class",
    "regtype": "select oid::regtype from pg_type",
    "regconfig": "select oid::regconfig from pg_ts_config",
    "regdictionary": "select oid::regdictionary from pg_ts_dict",
    "regnamespace": "select oid::regnamespace from pg_namespace",
    "regrole": "select oid::regrole from pg_roles",
    "regcollation": "select oid::regcollation from pg_collation where collencoding in (-1, 6)",
}
"""The names that a type's text can be; the name of two overloaded functions does not identify one of them."""

ONLY_AS_TEXT = {*AS_TEXT, "aclitem", "pg_ndistinct", "pg_dependencies", "pg_mcv_list"}


def every_type(major: int, count: int, execute: Execute) -> Iterator[tuple[str, list[str], bool]]:
    """Yield each declared type with its distinct literals; `count` random ones if there are so many.

    The third item: whether there is no binary reader for these values.
    """
    by_hand = _by_hand(major)
    for name in dict.fromkeys((*by_hand, *_BY_CHANCE)):
        if not _is_there(name, major):
            continue
        made = islice(dict.fromkeys(_by_chance(name, count)), count)
        yield name, [*dict.fromkeys((*by_hand.get(name, ()), *made))], name in ONLY_AS_TEXT
    yield "shade", [shade(number) for number in range(min(count, SHADES))], False
    if major >= 16:  # older servers wrote invalid UTF-8
        yield '"char"', [f"\\{code:03o}" for code in range(128, 256)], True
    for name, query in BY_SERVER.items():
        written = execute(f"select r::text from ({query} order by oid limit {count}) s(r)")
        yield name, [*dict.fromkeys((*AS_TEXT[name], "4294967295", *(text for (text,) in written)))], True


def vector_types(count: int) -> Iterator[tuple[str, list[str]]]:
    """Yield the same for pgvector's types, which need a server of their own."""
    dice = random.Random("sparsevec")
    for name, picked in VECTORS.items():
        made = random_literals(name, count) or [_sparse(dice) for _ in range(count)]
        yield name, [*dict.fromkeys((*picked, *made))]


def _sparse(dice: Dice) -> str:
    places = sorted(dice.sample(range(1, 1000), dice.randrange(6)))
    return f"{{{','.join(f'{place}:{dice.uniform(-9, 9):.7g}' for place in places)}}}/1000"


def shade(number: int) -> str:
    """Return a label of the enum `shade`."""
    return f"{chr(0x2600 + number)} {number}'\""


def _by_chance(name: str, count: int) -> list[str]:
    """Return several times the wanted number, because some are equal."""
    make, dice = _BY_CHANCE.get(name), random.Random(name)
    return [make(dice) for _ in range(6 * count)] if make else random_literals(name, 6 * count)


def _by_hand(major: int) -> dict[str, list[str]]:
    of_major = [BY_HAND, MORE, *EXTENSIONS.values(), *([SINCE_14] if major >= 14 else [])]
    of_major += [SINCE_17] if major >= 17 else []
    found: dict[str, list[str]] = {}
    for picked in of_major:
        for name, literals in picked.items():
            if literals:
                found.setdefault(name, []).extend(literals)
    return found


def _is_there(name: str, major: int) -> bool:
    return not (name.endswith("multirange") and major < 14) and (
        name not in ("numeric(5,-2)", "numeric(3,5)") or major >= 15
    )


def plane_text(dice: Dice, longest: int = 12) -> str:
    """Return text of every plane of Unicode."""
    letters = []
    for _ in range(dice.randrange(longest)):
        code = dice.randrange(17) << 16 | dice.randrange(1, 0x10000)
        letters.append(chr(code) if not 0xD800 <= code < 0xE000 else chr(code - 0x800))
    return "".join(letters)


def _text(dice: Dice) -> str:
    return plane_text(dice) if dice.random() < 0.5 else random_literals("text", 1 + dice.randrange(300))[-1]


def _acl(dice: Dice) -> str:
    rights = "".join(one + dice.choice(("", "*")) for one in "arwdDxtXUCTc" if dice.random() < 0.4)
    whose, by = (
        dice.choice(("postgres", "pg_monitor", "pg_signal_backend")),
        dice.choice(("postgres", "pg_monitor")),
    )
    return f"{whose}={rights}/{by}"


def _decimal(precision: int, scale: int) -> Callable[[Dice], str]:
    def literal(dice: Dice) -> str:
        unscaled = dice.randrange(10 ** dice.randrange(1, precision + 1))
        return f"{dice.choice('-+')}{unscaled}e{-scale}"

    return literal


def _money(dice: Dice) -> str:
    units, cents = divmod(dice.getrandbits(63) >> dice.randrange(60), 100)
    return f"{dice.choice(('', '-'))}{units}.{cents:02d}"


def _bits(size: int) -> Callable[[Dice], str]:
    return lambda dice: f"{dice.getrandbits(size):0{size}b}"


def _multirange(point: Callable[[int], str]) -> Callable[[Dice], str]:
    """Return ranges between points that grow with their numbers; some are adjacent, and some have no end."""

    def literal(dice: Dice) -> str:
        places = [dice.randrange(9000) for _ in range(2 * dice.randrange(5))]
        points = [point(place) for place in sorted(places)]
        if points and dice.random() < 0.2:
            points[0 if dice.random() < 0.5 else -1] = ""
        pairs = zip(points[::2], points[1::2], strict=True)
        made = [f"{dice.choice('[(')}{low},{high}{dice.choice('])')}" for low, high in pairs]
        return f"{{{','.join(made)}}}"

    return literal


def _label(dice: Dice, letters: str = "abcXYZ_19") -> str:
    return "".join(dice.choice(letters) for _ in range(dice.randrange(1, 6)))


def _lquery(dice: Dice) -> str:
    level = (lambda: _label(dice) + dice.choice(("", "*", "@", "%", "@*")), lambda: f"*{{{dice.randrange(3)},5}}",
             lambda: f"!{_label(dice)}|{_label(dice)}")  # fmt: skip
    return ".".join(dice.choice(level)() for _ in range(dice.randrange(1, 5)))


def _words(dice: Dice, word: Callable[[Dice], str], depth: int = 3) -> str:
    if depth == 0 or dice.random() < 0.3:
        return dice.choice(("", "!")) + word(dice)
    return f"({_words(dice, word, depth - 1)}{dice.choice('&|')}{_words(dice, word, depth - 1)})"


def _seg(dice: Dice) -> str:
    low, high = sorted((dice.randrange(-9999, 9999), dice.randrange(-9999, 9999)))
    forms = (f"{low / 100} .. {high / 100}", f"{low / 10}", f"~{high}", f"<{low}", f"{low} ..", f".. {high}",
             f"{abs(high)}(+-){abs(low) % 9}.5")  # fmt: skip
    return dice.choice(forms)


def _book(prefix: str) -> Callable[[Dice], str]:
    return lambda dice: f"{prefix}{dice.randrange(10 ** (12 - len(prefix))):0{12 - len(prefix)}d}?"


def _issn(dice: Dice) -> str:
    return f"977{dice.randrange(10**7):07d}00?"


def _address(dice: Dice) -> str:
    street = plane_text(dice, 5).replace("\\", "\\\\").replace('"', '""')
    return f'("{street}",{dice.randrange(-(1 << 31), 1 << 31)})'


def _person(dice: Dice) -> str:
    def part(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '""') + '"'

    home, other = _address(dice), _address(dice)
    others = "{" + part(other).replace('""', '\\"') + ",NULL}" if "\\" not in other else "{}"
    born = dice.choice((*random_literals("date", 50), "infinity"))
    return f"({part(plane_text(dice))},{part(home)},{part(others)},{born},{dice.randrange(9999) / 100},,)"


def _log(dice: Dice) -> str:
    at = dice.choice(random_literals("timestamptz", 100))
    return f'({dice.getrandbits(31)},"{at}","\\\\x{dice.randbytes(5).hex()}")'


_BY_CHANCE: dict[str, Callable[[Dice], str]] = {
    "text": _text,
    "varchar": _text,
    "bpchar": _text,
    "varchar(10)": lambda dice: _text(dice)[:10],
    "char(5)": lambda dice: _text(dice)[:5],
    "name": lambda dice: _text(dice)[:12],
    "refcursor": _text,
    "citext": _text,
    "xml": lambda dice: (
        f"<a b='{dice.getrandbits(40)}'>{_label(dice, '☕é😀x ]')}<!-- {_label(dice)} --></a>"
    ),
    "aclitem": _acl,
    "money": _money,
    "numeric(10,2)": _decimal(10, 2),
    "numeric(38,0)": _decimal(38, 0),
    "numeric(38,38)": _decimal(38, 38),
    "numeric(20,10)": _decimal(20, 10),
    "numeric(50,5)": _decimal(50, 5),
    "numeric(5,-2)": lambda dice: str(dice.randrange(-9999999, 9999999)),
    "numeric(3,5)": lambda dice: f"{dice.randrange(-999, 999)}e-5",
    "time(0)": lambda dice: random_literals("time", 1 + dice.randrange(300))[-1],
    "time(3)": lambda dice: random_literals("time", 1 + dice.randrange(300))[-1],
    "timestamp(3)": lambda dice: random_literals("timestamp", 1 + dice.randrange(300))[-1],
    "timestamptz(0)": lambda dice: random_literals("timestamptz", 1 + dice.randrange(300))[-1],
    "interval(2)": lambda dice: random_literals("interval", 1 + dice.randrange(300))[-1],
    "bit(16)": _bits(16),
    "bit(100)": _bits(100),
    "int4multirange": _multirange(lambda place: str(place - 4000)),
    "int8multirange": _multirange(lambda place: str((place - 4000) << 40)),
    "nummultirange": _multirange(lambda place: f"{(place - 4000) / 64}"),
    "datemultirange": _multirange(lambda place: f"{1000 + place}-02-28"),
    "tsmultirange": _multirange(lambda place: f'"{1000 + place}-02-28 12:00:00.5"'),
    "tstzmultirange": _multirange(lambda place: f'"{1000 + place}-02-28 12:00:00.5+00"'),
    "cidr": lambda dice: random_literals("cidr", 1 + dice.randrange(600))[-1],
    "ltree": lambda dice: ".".join(_label(dice) for _ in range(dice.randrange(6))),
    "lquery": _lquery,
    "ltxtquery": lambda dice: _words(dice, lambda dice: _label(dice) + dice.choice(("", "*", "@", "%"))),
    "query_int": lambda dice: _words(dice, lambda dice: str(dice.randrange(1 << 30))),
    "seg": _seg,
    "ean13": _book("40"),
    "isbn13": _book("978"),
    "isbn": _book("978"),
    "ismn13": _book("9790"),
    "ismn": _book("9790"),
    "issn13": _issn,
    "issn": _issn,
    "upc": _book("0"),
    "price": lambda dice: f"{dice.randrange(-9999, 10**9)}e-2",
    "net_price": lambda dice: f"{dice.randrange(-9999, 10**9)}e-2",
    "address": _address,
    "single": lambda dice: '("' + _label(dice, 'ab ,()"\\☕').replace("\\", "\\\\").replace('"', '""') + '")',
    '"Per son"': _person,
    "log": _log,
    "information_schema.cardinal_number": lambda dice: str(dice.randrange(1 << 31)),
    "information_schema.character_data": _text,
    "information_schema.sql_identifier": lambda dice: _text(dice)[:12],
    "information_schema.time_stamp": lambda dice: random_literals("timestamptz", 1 + dice.randrange(300))[-1],
}
"""Types of which `tests.support.values` has few values, or none."""

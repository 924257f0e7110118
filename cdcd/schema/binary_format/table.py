"""The types whose send format cdcd decodes exactly, and the types that it reads as text.

In: a type's oid, the catalog's types.  Out: its function, or None.
Invariant: a type made of other types has a function exactly if all of those have one. A type of an extension is
identified by extension and name, because its oid differs between servers.
"""

from __future__ import annotations

from collections.abc import Mapping

from cdcd.model import PgType
from cdcd.schema.binary_format import (
    containers,
    datetime,
    floating,
    geometric,
    network,
    numbers,
    strings,
    textsearch,
)
from cdcd.schema.binary_format import pgvector as of_pgvector
from cdcd.schema.binary_format.cut import TextOfBinary
from cdcd.schema.types.bits import bits_of_binary
from cdcd.schema.types.numeric import text_of_binary as numeric

_OID, _INT2 = numbers.integer(">I"), numbers.integer(">h")

BUILT_IN: dict[int, TextOfBinary] = {
    16: numbers.boolean,
    17: strings.bytea,
    18: strings.one_character,  # "char"
    19: strings.as_is,  # name
    20: numbers.integer(">q"),
    21: _INT2,
    22: containers.vector(_INT2, 21),  # int2vector
    23: numbers.integer(">i"),
    25: strings.as_is,  # text
    26: _OID,
    27: numbers.tid,
    28: _OID,  # xid
    29: _OID,  # cid
    30: containers.vector(_OID, 26),  # oidvector
    114: strings.as_is,  # json
    142: strings.as_is,  # xml: with client encoding UTF8 its declaration names no encoding in either format
    194: strings.as_is,  # pg_node_tree
    600: geometric.point,
    601: geometric.lseg,
    602: geometric.path,
    603: geometric.box,
    604: geometric.polygon,
    628: geometric.line,
    650: network.network,  # cidr
    700: floating.real,
    701: floating.double,
    718: geometric.circle,
    774: network.mac(8),
    790: numbers.money,
    829: network.mac(6),
    869: network.network,  # inet
    1042: strings.as_is,  # char(n)
    1043: strings.as_is,  # varchar
    1082: datetime.date,
    1083: datetime.time,
    1114: datetime.timestamp,
    1184: datetime.timestamptz,
    1186: datetime.interval,
    1266: datetime.timetz,
    1560: bits_of_binary,
    1562: bits_of_binary,  # varbit
    1700: numeric,
    1790: strings.as_is,  # refcursor
    2950: strings.uuid,
    2970: numbers.snapshot,  # txid_snapshot
    3220: numbers.lsn,
    3614: textsearch.tsvector,
    3615: textsearch.tsquery,
    3802: strings.after_version_1,  # jsonb
    4072: strings.after_version_1,  # jsonpath
    5038: numbers.snapshot,  # pg_snapshot
    5069: numbers.integer(">Q"),  # xid8
}
"""By oid, which is the same on every server."""

OF_EXTENSIONS: dict[tuple[str, str], TextOfBinary] = {
    ("citext", "citext"): strings.as_is,
    ("cube", "cube"): geometric.cube,
    ("hstore", "hstore"): strings.hstore,
    ("ltree", "ltree"): strings.after_version_1,
    ("ltree", "lquery"): strings.after_version_1,
    ("ltree", "ltxtquery"): strings.after_version_1,
    ("vector", "vector"): of_pgvector.vector,
    ("vector", "halfvec"): of_pgvector.halfvec,
    ("vector", "sparsevec"): of_pgvector.sparsevec,
    ("postgis", "geometry"): strings.upper_hex,
    ("postgis", "geography"): strings.upper_hex,
}
"""By (extension, type name)."""

TEXT_INSTEAD: dict[str, str] = {
    "regclass, regcollation, regconfig, regdictionary, regnamespace, regoper, regoperator, regproc, regprocedure, "
    "regrole, regtype": "sent as an oid; its text is a name that only the server's catalog has",
    "pg_ndistinct, pg_dependencies, pg_mcv_list, pg_brin_bloom_summary, pg_brin_minmax_multi_summary": (
        "sent in the server's internal storage format"
    ),
    '"char" above 127': "its text depends on the server's version and encoding",
    "any other type with a send function that is neither built in nor of an extension above": (
        "only its author defines the send format"
    ),
    "arrays, composites, ranges and multiranges of these, and of types without a send function": (
        "a part cannot be decoded, or the server itself refuses to send it"
    ),
}
"""The types that `source.protocol.binary` leaves as text, and the reasons; the docs print the table."""

MAX_DEPTH = 32
"""Types that are nested deeper are encoded as their text: readers do not support deeper schemas."""


def text_of_binary(oid: int, types: Mapping[int, PgType], depth: int = 0) -> TextOfBinary | None:
    """Return the function of a type, None where its send format cannot be decoded exactly.

    `types` also has the types that its types are made of.
    """
    if depth > MAX_DEPTH:
        return None
    known = BUILT_IN.get(oid)
    pg_type = types.get(oid)
    if known is not None or pg_type is None:
        return known
    if pg_type.kind == "e":
        return strings.as_is
    if pg_type.kind == "d":
        return text_of_binary(pg_type.base_oid, types, depth + 1)
    if pg_type.kind == "c":
        return _composite(pg_type, types, depth)
    if pg_type.kind in "rm":
        part = text_of_binary(pg_type.subtype_oid, types, depth + 1)
        make = containers.span if pg_type.kind == "r" else containers.spans
        return None if part is None else make(part)
    if pg_type.element_oid:
        element = text_of_binary(pg_type.element_oid, types, depth + 1)
        described = types.get(pg_type.element_oid)
        delimiter = described.delimiter if described else pg_type.delimiter
        return None if element is None else containers.array(element, pg_type.element_oid, delimiter)
    return OF_EXTENSIONS.get((pg_type.extension, pg_type.name))


def _composite(pg_type: PgType, types: Mapping[int, PgType], depth: int) -> TextOfBinary | None:
    functions: dict[int, TextOfBinary] = {}
    for attribute in pg_type.attributes:
        function = text_of_binary(attribute.type_oid, types, depth + 1)
        if function is None:
            return None
        functions[attribute.type_oid] = function
    return containers.composite({**BUILT_IN, **functions})

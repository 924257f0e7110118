"""Types of the system catalogs, which are rare in tables -> string of the server's text.

In: the server's text.  Out: an Avro string.
Invariant: a reg* type is the name that the server prints with an empty search path, schema-qualified outside
pg_catalog. int2vector and oidvector are numbers separated by spaces, and not arrays, although they have an element
type in pg_type.
"""

from __future__ import annotations

from dataclasses import replace

from cdcd.schema.codec import Builder, Codec
from cdcd.schema.types.text import TEXT_ONLY

INT2VECTOR, OIDVECTOR = 22, 30
VECTORS = frozenset((INT2VECTOR, OIDVECTOR))

OIDS = {
    INT2VECTOR: "int2vector",
    24: "regproc",
    27: "tid",
    OIDVECTOR: "oidvector",
    194: "pg_node_tree",
    1033: "aclitem",
    2202: "regprocedure",
    2203: "regoper",
    2204: "regoperator",
    2205: "regclass",
    2206: "regtype",
    2970: "txid_snapshot",
    3220: "pg_lsn",
    3361: "pg_ndistinct",
    3402: "pg_dependencies",
    3642: "gtsvector",
    3734: "regconfig",
    3769: "regdictionary",
    4089: "regnamespace",
    4096: "regrole",
    4191: "regcollation",
    4600: "pg_brin_bloom_summary",
    4601: "pg_brin_minmax_multi_summary",
    5017: "pg_mcv_list",
    5038: "pg_snapshot",
}

_OF_A_NAME = replace(TEXT_ONLY, content="the name, with its schema outside pg_catalog")


def _builder(codec: Codec) -> Builder:
    return lambda typmod, policy: codec


BUILDERS: dict[int, Builder] = {
    oid: _builder(_OF_A_NAME if name.startswith("reg") else TEXT_ONLY) for oid, name in OIDS.items()
}

"""The expected Avro type of each base type: the golden table for the test of pg_type and for the documentation.

Names are pg_type.typname; Avro types are those without a modifier and with the default policy.
"""

from __future__ import annotations

from typing import Any

STRING, LONG = "string", "long"
_JSON = {"type": STRING, "connect.version": 1, "connect.name": "io.debezium.data.Json"}

_OF_THE_CATALOG = (
    "int2vector",
    "oidvector",
    "tid",
    "aclitem",
    "gtsvector",
    "pg_lsn",
    "pg_snapshot",
    "txid_snapshot",
    "pg_node_tree",
    "pg_ndistinct",
    "pg_dependencies",
    "pg_mcv_list",
    "pg_brin_bloom_summary",
    "pg_brin_minmax_multi_summary",
    "regclass",
    "regcollation",
    "regconfig",
    "regdictionary",
    "regnamespace",
    "regoper",
    "regoperator",
    "regproc",
    "regprocedure",
    "regrole",
    "regtype",
)

BUILT_IN: dict[str, Any] = {
    "bool": "boolean",
    **dict.fromkeys(("int2", "int4"), "int"),
    **dict.fromkeys(("int8", "oid", "xid", "cid", "xid8"), LONG),
    "float4": "float",
    "float8": "double",
    "numeric": STRING,
    "money": {"type": "bytes", "logicalType": "decimal", "precision": 19, "scale": 2},
    **dict.fromkeys(("text", "varchar", "bpchar", "name", "char", "xml", "refcursor"), STRING),
    **dict.fromkeys(("tsvector", "tsquery", "jsonpath"), STRING),
    **dict.fromkeys(("json", "jsonb"), _JSON),
    "bytea": "bytes",
    "uuid": {"type": STRING, "logicalType": "uuid"},
    **dict.fromkeys(("bit", "varbit"), STRING),
    "date": {"type": "int", "logicalType": "date"},
    "time": {"type": LONG, "logicalType": "time-micros"},
    "timetz": STRING,
    "timestamp": {"type": LONG, "logicalType": "local-timestamp-micros"},
    "timestamptz": {"type": LONG, "logicalType": "timestamp-micros"},
    "interval": STRING,
    **dict.fromkeys(("inet", "cidr", "macaddr", "macaddr8"), STRING),
    **dict.fromkeys(("point", "line", "lseg", "box", "path", "polygon", "circle"), STRING),
    **dict.fromkeys(_OF_THE_CATALOG, STRING),
}
MAY_BE_SPECIAL = {"xid8", "numeric", "date", "time", "timestamp", "timestamptz", "interval"}
"""Types with values that their Avro types cannot hold."""
SINCE_13 = {"xid8", "pg_snapshot", "regcollation"}
SINCE_14 = {"pg_brin_bloom_summary", "pg_brin_minmax_multi_summary"}

OF_EXTENSIONS: dict[str, dict[str, Any]] = {
    "hstore": {"hstore": {"type": "map", "values": ["null", STRING]}, "ghstore": STRING},
    "citext": {"citext": STRING},
    "ltree": dict.fromkeys(("ltree", "lquery", "ltxtquery", "ltree_gist"), STRING),
    "cube": {"cube": STRING},
    "isn": dict.fromkeys(("ean13", "isbn13", "ismn13", "issn13", "isbn", "ismn", "issn", "upc"), STRING),
    "seg": {"seg": STRING},
    "intarray": dict.fromkeys(("query_int", "intbig_gkey"), STRING),
}

_FLOATS = {"type": "array", "items": "float"}

OF_OTHERS: dict[str, dict[str, Any]] = {
    "vector": {"vector": _FLOATS, "halfvec": _FLOATS, "sparsevec": STRING},
    "postgis": {
        **dict.fromkeys(("geometry", "geography"), "bytes"),
        **dict.fromkeys(("box2d", "box3d", "box2df", "gidx", "spheroid", "raster"), STRING),
    },
    "pg_trgm": {"gtrgm": STRING},
}
"""Types of extensions that the servers of most tests do not have."""

"""PostGIS' geometry and geography -> Avro bytes, EWKB; its boxes and rasters -> string of the server's text.

In: geometry_out's text, which is EWKB in hex digits, or geometry_send's bytes, which are the same EWKB.
Out: the same EWKB as Avro bytes, with the SRID and the Z and M of the value.
Invariant: the bytes are PostGIS' own; they are neither parsed nor converted.
"""

from __future__ import annotations

from binascii import unhexlify

from cdcd.schema.codec import Builder, Codec
from cdcd.schema.types.text import TEXT_ONLY
from cdcd.schema.varint import encode_bytes

EXTENSION = "postgis"


def encode_geometry(raw: bytes) -> bytes:
    """Encode geometry_out's hex EWKB. Raises ValueError on anything but hex digits."""
    if not raw:
        raise ValueError("not EWKB in hex")
    return encode_bytes(unhexlify(raw))


_CODEC = Codec("bytes", encode_geometry, encode_bytes, content="EWKB")

EXTENSION_BUILDERS: dict[tuple[str, str], Builder] = {
    (EXTENSION, "geometry"): lambda typmod, policy: _CODEC,
    (EXTENSION, "geography"): lambda typmod, policy: _CODEC,
    **{
        (EXTENSION, name): lambda typmod, policy: TEXT_ONLY
        for name in ("box2d", "box3d", "box2df", "gidx", "spheroid", "raster")
    },
    ("postgis_raster", "raster"): lambda typmod, policy: TEXT_ONLY,
}

"""Network addresses: inet, cidr, macaddr, macaddr8.

In: network_send's family, bits, cidr flag, size, and the address; the bytes of a MAC address.
Out: inet_out's text: the number of bits only where it is not the full length (cidr: always), IPv6 in inet_net_ntop's
format.
Invariant: the size is that of the family.
"""

from __future__ import annotations

import struct

from cdcd.schema.binary_format.cut import TextOfBinary

_SIZES = {2: 4, 3: 16}  # PGSQL_AF_INET is 2, PGSQL_AF_INET6 is 3


def network(raw: bytes) -> bytes:
    """Convert the bytes of inet_send or cidr_send."""
    family, bits, is_cidr, size = raw[:4]
    address = raw[4:]
    if size != len(address) or _SIZES[family] != size or bits > 8 * size or is_cidr > 1:
        raise ValueError("not a binary address")
    text = b"%d.%d.%d.%d" % tuple(address) if size == 4 else _ipv6(address)
    return text + b"/%d" % bits if is_cidr or bits < 8 * size else text


def mac(size: int) -> TextOfBinary:
    """Return the function of a MAC address of this many bytes."""

    def text(raw: bytes) -> bytes:
        if len(raw) != size:
            raise ValueError("not a binary MAC address")
        return raw.hex(":").encode()

    return text


def _ipv6(address: bytes) -> bytes:
    words = struct.unpack(">8H", address)
    start, length = _zeros(words)
    if start == 0 and _holds_ipv4(words, length):
        return (b"::" if length >= 6 else b"::ffff:") + b"%d.%d.%d.%d" % tuple(address[12:])
    if length < 2:
        return b":".join(b"%x" % word for word in words)
    before, after = words[:start], words[start + length :]
    return b"::".join(b":".join(b"%x" % word for word in part) for part in (before, after))


def _zeros(words: tuple[int, ...]) -> tuple[int, int]:
    """Return start and length of the first of the longest sequences of zeros."""
    best = (0, 0)
    start = None
    for index, word in enumerate((*words, 1)):
        if word == 0:
            start = index if start is None else start
        elif start is not None:
            if index - start > best[1]:
                best = (start, index - start)
            start = None
    return best


def _holds_ipv4(words: tuple[int, ...], zeros: int) -> bool:
    return zeros == 6 or (zeros == 5 and words[5] == 0xFFFF)

"""tsvector and tsquery.

In: tsvectorsend's lexemes with positions; tsquerysend's operators in Polish notation, the right operand first.
Out: `'cat':3A,5 'dog'`; `'cat' & !( 'dog' | 'cow' ) <2> 'mouse'`.
Invariant: quotes and backslashes are doubled, as by the output functions; only the length limits the depth of a
query, and the depth needs no recursion.
"""

from __future__ import annotations

import struct
from collections import deque

from cdcd.schema.binary_format.cut import all_of, string_at, uint32_at

_WEIGHTS = (b"", b"C", b"B", b"A")
_VALUE, _OPERATOR = 1, 2
_NOT, _AND, _OR, _PHRASE = 1, 2, 3, 4
_PRIORITY = {_NOT: 4, _AND: 2, _OR: 1, _PHRASE: 3}
_HIGHEST = 5


def _quoted(text: bytes) -> bytes:
    return b"'%s'" % text.replace(b"\\", b"\\\\").replace(b"'", b"''")


def tsvector(raw: bytes) -> bytes:
    """Convert tsvectorsend's bytes."""
    count, position = uint32_at(raw, 0), 4
    words = []
    for _ in range(count):
        lexeme, position = string_at(raw, position)
        (number,) = struct.unpack_from(">H", raw, position)
        places = struct.unpack_from(f">{number}H", raw, position + 2)
        position += 2 + 2 * number
        shown = b",".join(b"%d%s" % (place & 0x3FFF, _WEIGHTS[place >> 14]) for place in places)
        words.append(_quoted(lexeme) + (b":" + shown if places else b""))
    all_of(position, raw)
    return b" ".join(words)


def tsquery(raw: bytes) -> bytes:
    """Convert tsquerysend's bytes."""
    items = _items(raw)
    if not items:
        return b""
    # In reverse, Polish notation has each operator after its operands, the left operand first.
    operands: list[_Operand] = []
    for item in reversed(items):
        if isinstance(item, bytes):
            operands.append(_Operand(deque((item,)), _VALUE, _HIGHEST))
        elif item[0] == _NOT:
            operand = operands.pop().within(_PRIORITY[_NOT])
            operand.parts.appendleft(b"!")
            operands.append(_Operand(operand.parts, _NOT, _PRIORITY[_NOT]))
        else:
            operands.append(_joined(item, right=operands.pop(), left=operands.pop()))
    (whole,) = operands
    return b"".join(whole.parts)


class _Operand:
    """A part of a query: its text as a list of pieces, so that a deep query is not copied at each level."""

    __slots__ = ("operator", "parts", "priority")

    def __init__(self, parts: deque[bytes], operator: int, priority: int) -> None:
        self.parts = parts
        self.operator = operator
        self.priority = priority

    def within(self, priority: int, *, is_right_of_phrase: bool = False) -> _Operand:
        """Add parentheses where an operator of this priority needs them; return the operand."""
        if self.priority < priority or (is_right_of_phrase and self.operator == _PHRASE):
            self.parts.appendleft(b"( ")
            self.parts.append(b" )")
        return self


def _joined(item: tuple[int, int], *, right: _Operand, left: _Operand) -> _Operand:
    operator, distance = item
    priority = _PRIORITY[operator]
    before = left.within(priority).parts
    after = right.within(priority, is_right_of_phrase=operator == _PHRASE).parts
    sign = {_AND: b"&", _OR: b"|"}.get(operator) or (b"<->" if distance == 1 else b"<%d>" % distance)
    if len(before) >= len(after):
        before.append(b" %s " % sign)
        before.extend(after)
        return _Operand(before, operator, priority)
    after.appendleft(b" %s " % sign)
    after.extendleft(reversed(before))
    return _Operand(after, operator, priority)


def _items(raw: bytes) -> list[bytes | tuple[int, int]]:
    """Return the texts of the values, and the operators with their distances."""
    count, position = uint32_at(raw, 0), 4
    items: list[bytes | tuple[int, int]] = []
    for _ in range(count):
        kind, detail = raw[position], raw[position + 1]
        position += 2
        if kind == _VALUE:
            text, position = string_at(raw, position + 1)
            items.append(_quoted(text) + _suffix(detail, raw[position - len(text) - 2]))
        elif kind == _OPERATOR and detail in _PRIORITY:
            distance = 0
            if detail == _PHRASE:
                (distance,) = struct.unpack_from(">H", raw, position)
                position += 2
            items.append((detail, distance))
        else:
            raise ValueError("not a binary tsquery")
    all_of(position, raw)
    return items


def _suffix(weights: int, is_prefix: int) -> bytes:
    if weights > 15 or is_prefix > 1:
        raise ValueError("not a binary tsquery")
    if not weights and not is_prefix:
        return b""
    letters = bytes(letter for bit, letter in zip((8, 4, 2, 1), b"ABCD", strict=True) if weights & bit)
    return b":" + b"*" * is_prefix + letters

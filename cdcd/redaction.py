"""Redaction and escaping: the one way by which text leaves the process.

In: texts that may hold anything (a server's words, names, paths), and every secret when it is read.  Out: texts that
may be shown: known secrets struck out by value in each form in which they travel, what looks like a secret struck
out by its form, everything that a terminal would act on or hide escaped, and cut at a length.
Invariant: a secret is struck out before the text is cut, so that no part of one is left at the end of it; whatever a
text holds, its cost is in proportion to its length.
Must not: be given row values; nothing here could tell them from other text.

A secret that could be a word (shorter than eight characters, or lower-case letters only) is struck out only where it
stands as a word of its own: the password "cdcd" must not eat the slot "cdcd_shop". Shorter than four characters it is
struck out only where its form gives it away (`password=`, `user:password` as it was given, base64).
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote, quote_plus

__all__ = [
    "STRUCK_OUT",
    "add_credentials",
    "add_secret",
    "clean",
    "clean_lines",
    "escape",
    "forget",
    "strike",
]

STRUCK_OUT = "***"
MAX_CHARACTERS = 32_768
"""Of one text that is shown: more than any traceback of ours."""
MAX_RENEWED = 16
"""Values that are remembered of a secret that is read again and again: each renewal makes one more."""
_SHORTEST = 4
_LONG_ENOUGH = 8
_LONG = 12
_LINE_OF_A_KEY = 20

_URL_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/@]{0,300}):\S{0,1000}@")
_ASSIGNED = re.compile(
    r"((?:\b|_)(?:password|passwd|sslpassword|secret|sasl\.password|basic\.auth\.user\.info|access_token)"
    r"[\"']?\s{0,9}[=:]\s{0,9})"
    r"('(?:[^'\\]|\\.|''){0,1000}'|\"(?:[^\"\\]|\\.){0,1000}\"|[^\s&,;}]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,9}[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)

_lock = threading.Lock()
_secrets: dict[str, tuple[str, ...]] = {}  # by value its forms
_permanent: set[str] = set()
_renewed: dict[str, list[str]] = {}  # by what is renewed its values, the one read last at the end
_forms: tuple[str, ...] = ()
_pattern: re.Pattern[str] | None = None


# --- what is secret ------------------------------------------------------------------------------------------


def add_secret(value: str | None, *, renews: str | None = None) -> None:
    """Strike this value out of every text from now on. Called where a secret is read or decoded.

    `renews` names what is read again and again (a file, a token): its last values are remembered, and no others are
    forgotten for them.
    """
    if value and value != STRUCK_OUT:
        _add(value, lambda: _forms_of(value), renews)


def add_credentials(user: str, password: str, *, renews: str | None = None) -> None:
    """Strike out a password, and `user:password` as HTTP's basic authentication sends it."""
    add_secret(password, renews=renews)
    pair = f"{user}:{password}"
    if password:
        _add(pair, lambda: {pair, *_percent(pair), *_base64(pair)}, renews and f"{renews}, with its user")


def forget() -> None:
    """Forget every secret: for tests, each of which has its own."""
    global _forms, _pattern
    with _lock:
        for one in (_secrets, _permanent, _renewed):
            one.clear()
        _forms, _pattern = (), None


def _add(value: str, forms: Callable[[], Iterable[str]], renews: str | None) -> None:
    global _forms, _pattern
    with _lock:
        if renews is None:
            _permanent.add(value)
        else:
            earlier = [one for one in _renewed.get(renews, ()) if one != value]
            _renewed[renews] = [*earlier, value][-MAX_RENEWED:]
        if value in _secrets:
            return
        _secrets[value] = tuple(forms())
        in_use = _permanent.union(*_renewed.values())
        for one in _secrets.keys() - in_use:
            del _secrets[one]
        found = {form for one in _secrets.values() for form in one}
        ordered = sorted(found, key=lambda form: (-len(form), form))
        pattern = re.compile("|".join(map(_matching, ordered))) if ordered else None
        _pattern, _forms = pattern, tuple(ordered)


def _forms_of(value: str) -> set[str]:
    """Return a secret as it is given, and as it may come back in an answer, a URL, a page or a log."""
    values = {value, value.strip()}
    lines = value.splitlines()
    if len(lines) > 1:  # a key or a certificate
        values |= {line for line in lines if len(line) >= _LINE_OF_A_KEY and not line.startswith("-----")}
    forms = set(values)
    for one in values:
        forms |= {json.dumps(one)[1:-1], json.dumps(one, ensure_ascii=False)[1:-1], repr(one)[1:-1]}
        forms |= {html.escape(one), escape(one), *_percent(one)}
    shown = {form for form in forms if len(form) >= _SHORTEST}
    return shown | {form for one in values for form in _base64(one)}


def _percent(value: str) -> Iterator[str]:
    for one in (quote(value, safe=""), quote(value), quote_plus(value)):
        yield one
        yield re.sub(r"%[0-9A-F]{2}", lambda found: found[0].lower(), one)


def _base64(value: str) -> Iterator[str]:
    """Yield the characters that its bytes come to in base64, wherever in what was encoded they begin."""
    data = value.encode(errors="surrogateescape")
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        inner = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(inner) >= _LONG_ENOUGH:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")
    alone = base64.b64encode(data).decode()  # its last characters, too
    if len(alone) >= _LONG_ENOUGH:
        yield alone
        yield alone.replace("+", "-").replace("/", "_")


def _matching(form: str) -> str:
    is_no_word = len(form) >= _LONG or (len(form) >= _LONG_ENOUGH and not re.fullmatch("[a-z]*", form))
    return re.escape(form) if is_no_word else rf"(?<!\w){re.escape(form)}(?!\w)"


# --- what is shown -------------------------------------------------------------------------------------------


def strike(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return the text without secrets, cut: for what is escaped by its format, as JSON does."""
    shown = _by_form(_by_value(text, max_characters))
    left = len(text) - max_characters
    return shown if left <= 0 else f"{shown}... ({left} more characters)"


def escape(text: str) -> str:
    r"""Return the text on one line, with `\n`, `\x1b` or `\u202e` for what is no printable character.

    A name or a server's words cannot forge a line, colour a terminal or turn the direction of writing.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def clean(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return what may be shown of a text, on one line: struck out, escaped, cut."""
    return escape(strike(text, max_characters))


def clean_lines(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """As `clean`, for a text of cdcd's own making whose lines are meant: a table, a traceback."""
    return "\n".join(map(escape, strike(text, max_characters).split("\n")))


def _by_value(text: str, upto: int) -> str:
    """Return the text's first `upto` characters; a secret that begins in them is struck out whole."""
    forms, pattern = _forms, _pattern
    longest = len(forms[0]) if forms else 0
    head = text if len(text) <= upto else text[: upto + longest]
    if pattern is None or not any(form in head for form in forms):
        return head[:upto]
    parts: list[str] = []
    done = 0
    for found in pattern.finditer(head):
        if found.start() >= upto:
            break
        parts += (head[done : found.start()], STRUCK_OUT)
        done = found.end()
    return "".join((*parts, head[done:upto]))


def _by_form(text: str) -> str:
    if "://" in text:
        text = _URL_PASSWORD.sub(rf"\1:{STRUCK_OUT}@", text)
    text = _ASSIGNED.sub(rf"\g<1>{STRUCK_OUT}", text)
    return _BEARER.sub(rf"\1 {STRUCK_OUT}", text)


def _escaped(character: str) -> str:
    if character.isprintable():
        return character
    number = ord(character)
    named = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}.get(character)
    return named or (
        f"\\x{number:02x}"
        if number < 0x100
        else f"\\u{number:04x}"
        if number < 0x10000
        else f"\\U{number:08x}"
    )

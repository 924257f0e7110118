"""Redaction and escaping: all text that leaves the process passes through this module.

In: texts with any content (server messages, names, paths), and every secret when it is read.  Out: texts that may be
shown. Known secrets are struck out by value in each encoding in which they are sent, text that looks like a secret is
struck out by its form, characters that a terminal would interpret or hide are escaped, and long texts are cut.
Invariant: secrets are struck out before the text is cut, so that no part of a secret remains at its end. The cost is
proportional to the length of the text, for any content.
Must not: be given row values; this module could not distinguish them from other text.

A secret that could be a word (shorter than eight characters, or lower-case letters only) is struck out only where it
is a word of its own: the password "cdcd" must not damage the slot name "cdcd_shop". A secret of fewer than four
characters is struck out only where its form reveals it (`password=`, `user:password` as it was given, base64). A user
without a password is struck out only in addresses (`//user@`, `user@host`), unless it is long enough for a token.
"""

from __future__ import annotations

import base64
import html
import json
import re
import threading
from collections.abc import Callable, Iterable, Iterator
from urllib.parse import quote, quote_plus, unquote

__all__ = [
    "STRUCK_OUT",
    "add_credentials",
    "add_secret",
    "add_user_of",
    "clean",
    "clean_lines",
    "escape",
    "forget",
    "strike",
]

STRUCK_OUT = "***"
MAX_CHARACTERS = 32_768
"""The limit of one text that is shown: longer than any traceback of cdcd."""
MAX_RENEWED = 16
"""The number of recent values that are remembered of a secret that is renewed."""
_SHORTEST = 4
_LONG_ENOUGH = 8
_LONG = 12
_LINE_OF_A_KEY = 20

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]*:)?//")
_URL_PASSWORD = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,30}://[^\s:/@]{0,300}):\S{0,1000}@")
_ASSIGNED = re.compile(
    r"((?:\b|_)(?:password|passwd|sslpassword|secret|sasl\.password|basic\.auth\.user\.info|access_token)"
    r"[\"']?\s{0,9}[=:]\s{0,9})"
    r"('(?:[^'\\]|\\.|''){0,1000}'|\"(?:[^\"\\]|\\.){0,1000}\"|[^\s&,;}]+)",
    re.IGNORECASE,
)
_BEARER = re.compile(r"\b(Bearer|Basic)\s{1,9}[A-Za-z0-9._~+/=-]{8,}", re.IGNORECASE)

_lock = threading.Lock()
_secrets: dict[str, tuple[str, ...]] = {}  # each value's forms
_permanent: set[str] = set()
_renewed: dict[str, list[str]] = {}  # by the name of the renewed secret, its values, the newest at the end
_lone: set[str] = set()  # patterns of users without a password
_in_address: re.Pattern[str] | None = None
_forms: tuple[str, ...] = ()
_pattern: re.Pattern[str] | None = None


# --- secrets -------------------------------------------------------------------------------------------------


def add_secret(value: str | None, *, renews: str | None = None) -> None:
    """Strike this value out of every text from now on. To be called when a secret is read or decoded.

    `renews` names the source of a secret that is read repeatedly (a file, a token): only its most recent values are
    remembered. They do not displace other secrets.
    """
    if value and value != STRUCK_OUT:
        _add(value, lambda: _forms_of(value), renews)


def add_credentials(user: str, password: str, *, renews: str | None = None) -> None:
    """Strike out a password, and `user:password` as HTTP basic authentication sends it."""
    add_secret(password, renews=renews)
    pair = f"{user}:{password}"
    if password:
        _add(pair, lambda: {pair, *_percent(pair), *_base64(pair)}, renews and f"{renews}, with its user")


def add_user_of(address: str) -> None:
    """Strike out the user and the password of an address, with a scheme or without one; it may have none.

    A user without a password may be a token, or a word: then it is struck out in addresses only.
    """
    user_info, found, host = address.strip().rpartition("@")
    if not found:
        return
    user, _, password = _SCHEME.sub("", user_info).partition(":")
    for one, other in {(user, password), (unquote(user), unquote(password))}:
        if other:
            add_credentials(one, other)
        elif len(one) >= _LONG:
            add_secret(one)
        elif one:
            _add_lone(one, host)


def forget() -> None:
    """Remove every secret; for tests, each of which has its own secrets."""
    global _forms, _pattern, _in_address
    with _lock:
        for one in (_secrets, _permanent, _renewed, _lone):
            one.clear()
        _forms, _pattern, _in_address = (), None, None


def _add_lone(user: str, host: str) -> None:
    """Strike out a user after `//`, and before its host."""
    global _in_address
    name = re.escape(user)
    with _lock:
        _lone.update((rf"(?<=//){name}(?=@)", rf"(?<!\w){name}(?=@{re.escape(host)})"))
        _in_address = re.compile("|".join(sorted(_lone)))


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
    """Return a secret as it is given, and as it may appear in an error message, a URL, a page or a log."""
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
    """Yield the base64 characters of the value, for each alignment that it may have inside a longer encoded text."""
    data = value.encode(errors="surrogateescape")
    for before in range(3):
        text = base64.b64encode(b"\0" * before + data).decode().rstrip("=")
        inner = text[-(-before * 8 // 6) : (before + len(data)) * 8 // 6]
        if len(inner) >= _LONG_ENOUGH:
            yield inner
            yield inner.replace("+", "-").replace("/", "_")
    alone = base64.b64encode(data).decode()  # with the last characters and the padding
    if len(alone) >= _LONG_ENOUGH:
        yield alone
        yield alone.replace("+", "-").replace("/", "_")


def _matching(form: str) -> str:
    is_no_word = len(form) >= _LONG or (len(form) >= _LONG_ENOUGH and not re.fullmatch("[a-z]*", form))
    return re.escape(form) if is_no_word else rf"(?<!\w){re.escape(form)}(?!\w)"


# --- shown texts ---------------------------------------------------------------------------------------------


def strike(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return the text without secrets, cut to a length; for output whose format escapes it, such as JSON."""
    shown = _by_form(_by_value(text, max_characters))
    left = len(text) - max_characters
    return shown if left <= 0 else f"{shown}... ({left} more characters)"


def escape(text: str) -> str:
    r"""Return the text on one line; characters that are not printable become `\n`, `\x1b` or `\u202e`.

    Thus a name or a server message cannot forge a line, colour a terminal or change the direction of writing.
    """
    return text if text.isprintable() else "".join(map(_escaped, text))


def clean(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return a text that may be shown, on one line: secrets struck out, escaped, cut to a length."""
    return escape(strike(text, max_characters))


def clean_lines(text: str, max_characters: int = MAX_CHARACTERS) -> str:
    """Return a text of cdcd itself as `clean` does, but with its line breaks: a table, a traceback."""
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
    if _in_address is not None:
        text = _in_address.sub(STRUCK_OUT, text)
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

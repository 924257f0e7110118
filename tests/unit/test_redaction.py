"""Text that leaves the process: secrets are redacted in each form, control characters escaped, the length limited."""

from __future__ import annotations

import base64
import html
import json
import time
import unicodedata
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cdcd.errors import CdcdError
from cdcd.redaction import (
    MAX_RENEWED,
    add_credentials,
    add_secret,
    add_user_of,
    clean,
    clean_lines,
    escape,
    forget,
    strike,
)

CANARY = 'c&nary <5f"3a91>/+é'
FORMS = {
    "as it is": CANARY,
    "in an assignment": f"secret was {CANARY}.",
    "amid letters": f"x{CANARY}x",
    "in JSON": json.dumps({"got": CANARY}),
    "in JSON with letters": json.dumps({"got": CANARY}, ensure_ascii=False),
    "in Python's form": repr(CANARY),
    "in a page": html.escape(CANARY),
    "in a URL": quote(CANARY, safe=""),
    "in a path": quote(CANARY),
    "in a form": quote_plus(CANARY),
    "in a URL, lower case": quote(CANARY, safe="").lower(),
    "decoded from a header": f"me:{CANARY}",
    "as a header": "Basic " + base64.b64encode(f"me:{CANARY}".encode()).decode(),
    "as a header's value": base64.b64encode(f"me:{CANARY}".encode()).decode(),
    "as another user's": base64.b64encode(f"another:{CANARY}".encode()).decode(),
    "for URLs": base64.urlsafe_b64encode(f"me:{CANARY}".encode()).decode(),
    "as a bearer token": f"bearer {CANARY}",
}


@pytest.mark.parametrize("form", FORMS)
def test_a_known_secret_is_struck_out_in_each_form_in_which_it_comes_back(form: str) -> None:
    add_credentials("me", CANARY)
    shown = clean(f"401: you sent {FORMS[form]} to me")
    assert shown.startswith("401: you sent ")
    assert shown.endswith(" to me")
    for part in (CANARY, "nary", "5f", "3a91", base64.b64encode(f"me:{CANARY}".encode()).decode()[4:-4]):
        assert part not in shown


@pytest.mark.parametrize("at", range(80, 112))
def test_no_part_of_a_secret_is_left_where_a_text_is_cut(at: int) -> None:
    add_secret("canary-5f3a91")
    shown = clean("canary-5f3a91 " + "." * (at - 14) + "canary-5f3a91 and more", 100)
    assert "cana" not in shown
    assert len(shown) <= 100 + len("... (99 more characters)")


@pytest.mark.parametrize(
    ("secret", "text", "shown"),
    [
        ("cdcd", "cdcd: slot cdcd_shop, user=cdcd", "***: slot cdcd_shop, user=***"),
        ("postgres", "postgresql://h/d as postgres", "postgresql://h/d as ***"),
        ("Passw0rd", "xPassw0rdx", "x***x"),
        ("correcthorse", "xcorrecthorsex", "x***x"),
        ("a", "a topic", "a topic"),
        ("", "a topic", "a topic"),
    ],
)
def test_a_secret_that_could_be_a_word_is_struck_out_as_a_word(secret: str, text: str, shown: str) -> None:
    add_secret(secret)
    assert strike(text) == shown


def test_a_short_password_is_struck_out_where_its_form_gives_it_away() -> None:
    add_credentials("me", "abc")
    header = base64.b64encode(b"me:abc").decode()
    assert strike(f"password=abc, {header}, me:abc") == "password=***, ***, ***"


@pytest.mark.parametrize("password", ["canary-5f3a9", "canary-5f3a91", "canary-5f3a912"])
def test_nothing_is_left_of_a_header_that_comes_back(password: str) -> None:
    """For any length modulo three, the last characters of the header also encode a part of the password."""
    add_credentials("me", password)
    assert strike(f"you sent {base64.b64encode(f'me:{password}'.encode()).decode()}") == "you sent ***"


@pytest.mark.parametrize(
    "form", ["http://me:{}@proxy", "me:{}@proxy:3128", "//{}@proxy", "HTTP://a@b:{}@proxy"]
)
def test_the_user_of_an_address_is_struck_out(form: str) -> None:
    add_user_of("proxy:3128")
    add_user_of(form.format(CANARY))
    assert CANARY not in clean(f"407 for {form.format(CANARY)}; {CANARY}: no")
    assert clean("proxy:3128 is no secret") == "proxy:3128 is no secret"


@pytest.mark.parametrize(
    "address", ["http://cdcd@registry:8081", "cdcd@registry:8081", "http://cd%63d@registry:8081"]
)
def test_a_user_without_a_password_is_struck_out_only_in_an_address(address: str) -> None:
    """It may be a token, or a word that is everywhere: the name of a program, or of a container of Azure."""
    add_user_of(address)
    text = "cdcd --config cdcd.yaml: no answer from http://{0}@registry:8081, {0}@registry:8081; cdcd@EXAMPLE.COM"
    assert clean(text.format("cdcd")) == text.format("***")
    add_user_of("https://another@registry")
    assert clean("https://another@registry and //cdcd@host") == "https://***@registry and //***@host"


def test_a_key_is_struck_out_line_by_line() -> None:
    line = "MIIEvQIBADANBgkqhkiG9w0BAQ"
    add_secret(f"-----BEGIN PRIVATE KEY-----\n{line}\n{line[::-1]}\n-----END PRIVATE KEY-----\n")
    assert strike(f"bad line {line[::-1]} in -----BEGIN PRIVATE KEY-----") == (
        "bad line *** in -----BEGIN PRIVATE KEY-----"
    )


def test_tokens_that_are_renewed_again_and_again_take_no_more_memory() -> None:
    for number in range(MAX_RENEWED + 10):
        add_secret(f"token-{number:08}", renews="a token")
    assert strike("token-00000000") == "token-00000000"
    assert strike(f"token-{MAX_RENEWED + 9:08}") == "***"


def test_tokens_that_are_renewed_again_and_again_do_not_make_other_secrets_known() -> None:
    """A password in the configuration is read once; one in a file at each connect."""
    add_secret("canary-5f3a91")
    add_credentials("me", "canary-file", renews="a file")
    for number in range(5 * MAX_RENEWED):
        add_secret(f"token-{number:08}", renews="a token")
        add_secret("canary-5f3a91", renews="a token")
    header = base64.b64encode(b"me:canary-file").decode()
    assert strike(f"canary-5f3a91 canary-file {header}") == "*** *** ***"


HOSTILE = {
    "lines": "one\ntwo\r\nthree\x0b\x0c\x1c\x85\u2028\u2029",
    "a terminal's commands": "\x1b[2J\x1b]0;title\x07\x9b31m\x7f\x00\b",
    "directions": "\u202e\u2066\u200f\u061c",
    "what nobody sees": "\u200b\ufeff\u2060\U000e0041",
    "halves": "\ud800\udcff",
    "no character at all": "\ufdd0\U0010ffff\ue000",
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_what_a_terminal_acts_on_is_escaped(kind: str) -> None:
    shown = clean(f"table {HOSTILE[kind]} é ж 日")
    assert shown.isprintable()
    assert len(shown.splitlines()) == 1
    assert shown.startswith("table ")
    assert shown.endswith(" é ж 日")
    assert escape(shown) == shown


@given(st.text())
def test_nothing_unprintable_is_left_of_any_text(text: str) -> None:
    for shown in (clean(text), *clean_lines(text).split("\n")):
        assert not [one for one in shown if unicodedata.category(one)[0] == "C" or one in "\u2028\u2029"]


def test_lines_of_our_own_stay_lines() -> None:
    assert clean_lines("Traceback:\n  line\x1b\n") == "Traceback:\n  line\\x1b\n"


@pytest.mark.parametrize(
    "text",
    ["a" * 2_000_000, "a://" * 500_000, "password='" * 200_000, "secret= " * 200_000, "\x1b" * 2_000_000],
    ids=lambda text: text[:10],
)
def test_a_text_without_end_costs_no_more_than_what_is_shown_of_it(text: str) -> None:
    """The patterns run only on the part that is shown, in linear time."""
    add_secret("canary-5f3a91")
    took_s = []
    for size in (8_000, 32_000):
        began_s = time.thread_time()
        assert clean(text, size).endswith(f"... ({len(text) - size} more characters)")
        took_s.append(time.thread_time() - began_s)
    assert took_s[1] < 12 * took_s[0] + 0.2, "time must not grow with the square of the text"


def test_an_error_of_cdcd_is_one_clean_line() -> None:
    add_secret("canary-5f3a91")
    error = CdcdError("no\ntable \x1b[31m canary-5f3a91", hint="do\nit", table="a\nb")
    assert str(error) == r"CDCD-ERROR: no\ntable \x1b[31m *** [table=a\nb] -> do\nit"


@pytest.mark.parametrize(
    ("text", "struck"),
    [
        ("postgres://u:p@h/d", "postgres://u:***@h/d"),
        ("postgres://u@h/d", "postgres://u@h/d"),
        ("http://h:8080/x", "http://h:8080/x"),
        ("host=h password=p dbname=d", "host=h password=*** dbname=d"),
        ("host=h password = 'a b' dbname=d", "host=h password = *** dbname=d"),
        ('{"password": "p", "user": "u"}', '{"password": ***, "user": "u"}'),
        ("password_file=/etc/p", "password_file=/etc/p"),
        ("Authorization: Basic dXNlcjpwYXNz", "Authorization: Basic ***"),
        ("authorization: bearer  eyJhbGciOi.J9", "authorization: bearer ***"),
    ],
)
def test_what_is_written_as_a_secret_is_one(text: str, struck: str) -> None:
    assert strike(text) == struck


def test_forgotten_secrets_are_shown() -> None:
    add_secret("canary-5f3a91")
    forget()
    assert strike("canary-5f3a91") == "canary-5f3a91"

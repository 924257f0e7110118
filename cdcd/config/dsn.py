"""A PostgreSQL connection string, parsed to find secrets and early mistakes.

Comes in: a URL (`postgresql://...`) or `key=value` pairs, libpq's two forms.
Goes out: `Dsn`: the same string without its password, the password alone, and a form that is safe to print.
Invariant: no message and no repr made here contains any part of the string except its parameters' names.
Must not: import a PostgreSQL client; interpret a parameter, which is libpq's task.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import parse_qsl, quote, unquote

from pydantic_core import CoreSchema, core_schema

from cdcd.config.values import HIDDEN, Secret, refuse
from cdcd.property_names import is_secret_property
from cdcd.redaction import add_secret

_URL = re.compile(
    r"(?P<scheme>postgres(?:ql)?)://(?P<authority>[^/?]*)(?:/(?P<database>[^?]*))?(?:\?(?P<query>.*))?"
)
_SCHEME = re.compile(r"\s*[^\s=]*://")
"""How a URL begins; in key=value pairs a value may have the form of one."""
_PAIR = re.compile(
    r"\s*(?P<key>[A-Za-z_][A-Za-z0-9_]*)\s*=\s*(?:'(?P<quoted>(?:[^'\\]|\\.)*)'|(?P<bare>(?:[^\s'\\]|\\.)*))"
)
_HOST_PORT = re.compile(r"(?:\[[^\]]*\]|[^:\[\]]*)(?::(?P<port>\d+))?")
_SHOWN_NAMES = """
    host hostaddr port dbname user service servicefile passfile target_session_attrs load_balance_hosts
    connect_timeout keepalives keepalives_idle keepalives_interval keepalives_count tcp_user_timeout
    sslmode sslnegotiation sslrootcert sslcert sslkey sslcertmode sslcrl sslcrldir sslsni sslcompression
    ssl_min_protocol_version ssl_max_protocol_version channel_binding require_auth gssencmode krbsrvname
    gsslib gssdelegation client_encoding application_name fallback_application_name
    min_protocol_version max_protocol_version
"""
SHOWN = frozenset(_SHOWN_NAMES.split())
"""Parameters whose values are never secret; of any other one, also a misspelt one, only the name is shown."""


class Dsn:
    """One connection string. `text` has no password in it; `parameters` are libpq's names and values."""

    __slots__ = ("_shown", "parameters", "password", "text")

    def __init__(self, text: str) -> None:
        is_url = _SCHEME.match(text) is not None
        parameters = _parse_url(text) if is_url else _parse_pairs(text)
        _check(parameters)
        password = parameters.get("password")
        self.password = Secret(password) if password else None
        for name, value in parameters.items():
            if is_secret_property(name) and name not in SHOWN:
                add_secret(value)
        self.parameters = {key: value for key, value in parameters.items() if key != "password"}
        write = _write_url if is_url else _write_pairs
        self.text = write(self.parameters)
        self._shown = write({key: value if key in SHOWN else HIDDEN for key, value in parameters.items()})

    def __repr__(self) -> str:
        return self._shown

    __str__ = __repr__

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _resolve: Any) -> CoreSchema:
        return core_schema.no_info_after_validator_function(
            cls,
            core_schema.str_schema(min_length=1),
            serialization=core_schema.plain_serializer_function_ser_schema(repr),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _schema: CoreSchema, _resolve: Any) -> dict[str, Any]:
        return {"type": "string", "minLength": 1}


def _check(parameters: dict[str, str]) -> None:
    if not parameters.get("dbname") and "service" not in parameters:
        refuse("names no database", "end the URL with /DATABASE or add dbname=DATABASE")
    if "replication" in parameters:
        refuse("must not set replication", "omit it: cdcd sets replication itself")
    for port in parameters.get("port", "").split(","):
        if port and not (port.isdigit() and 0 < int(port) < 65536):
            refuse("has a port that is not a number from 1 to 65535")


def _parse_url(text: str) -> dict[str, str]:
    match = _URL.fullmatch(text)
    if match is None:
        refuse("is not a PostgreSQL URL", "write postgresql://USER@HOST:PORT/DATABASE")
    authority, database, query = match["authority"], match["database"] or "", match["query"] or ""
    if authority.count("@") > 1 or "@" in database or "/" in database:
        refuse("has a '@' or '/' where neither is allowed", "percent-encode them: %40, %2F")
    user_info, _, hosts = authority.rpartition("@")
    user, _, password = user_info.partition(":")
    host, port = _split_hosts(hosts)
    parts = {"user": user, "password": password, "host": host, "port": port, "dbname": database}
    parameters = {key: unquote(value) for key, value in parts.items() if value}
    try:
        # "+" is not a blank in libpq's URLs
        parameters.update(
            parse_qsl(query.replace("+", "%2B"), keep_blank_values=True, strict_parsing=bool(query))
        )
    except ValueError:
        refuse("has a query that is not key=value&key=value")
    return parameters


def _split_hosts(hosts: str) -> tuple[str, str]:
    names, ports = [], []
    for part in hosts.split(","):
        match = _HOST_PORT.fullmatch(part)
        if match is None:
            refuse("has a host that is not HOST or HOST:PORT")
        names.append(
            part.removesuffix(f":{match['port']}").strip("[]") if match["port"] else part.strip("[]")
        )
        ports.append(match["port"] or "")
    return ",".join(names), ",".join(ports) if any(ports) else ""


def _write_url(parameters: dict[str, str]) -> str:
    rest = dict(parameters)
    user, password = rest.pop("user", ""), rest.pop("password", "")
    user_info = quote(user, safe="") + (f":{quote(password, safe='*')}" if password else "")
    ports = rest.pop("port", "").split(",")
    hosts = rest.pop("host", "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports + [""] * (len(hosts) - len(ports))
    places = ",".join(
        _write_host(host) + (f":{port}" if port else "") for host, port in zip(hosts, ports, strict=False)
    )
    database = quote(rest.pop("dbname", ""), safe="")
    query = "&".join(f"{key}={quote(value, safe='/*')}" for key, value in rest.items())
    return (
        f"postgresql://{user_info}{'@' if user_info else ''}{places}/{database}{'?' if query else ''}{query}"
    )


def _write_host(host: str) -> str:
    return f"[{host}]" if ":" in host else quote(host, safe="")


def _parse_pairs(text: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    position = 0
    stripped = text.strip()
    while position < len(stripped):
        match = _PAIR.match(stripped, position)
        if match is None or (match.end() < len(stripped) and not stripped[match.end()].isspace()):
            refuse(
                "is neither a PostgreSQL URL nor key=value pairs",
                "write postgresql://USER@HOST:PORT/DATABASE",
            )
        value = match["quoted"] if match["quoted"] is not None else match["bare"]
        parameters[match["key"]] = re.sub(r"\\(.)", r"\1", value)
        position = match.end()
    return parameters


def _write_pairs(parameters: dict[str, str]) -> str:
    return " ".join(f"{key}={_quoted(value)}" for key, value in parameters.items())


def _quoted(value: str) -> str:
    if re.fullmatch(r"[^\s'\\]+", value):
        return value
    return "'" + value.replace("\\", "\\\\").replace("'", "\\'") + "'"

"""The same requests through Confluent's client, for features that only it has: OAuth, proxies.

In: its properties.  Out: a `rest.Client`, with the same limits on replies as `rest.RestClient`.
Must not: be imported where `rest.is_plain`: the docstring of `rest` says what the import costs.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import structlog
from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.error import OAuthTokenError, SchemaRegistryError

from cdcd.redaction import add_secret, add_user_of
from cdcd.registry.limits import limit_client
from cdcd.registry.rest import (
    MAX_VERSIONS,
    PROXIES,
    RegisteredSchema,
    RegistryErrorAnswer,
    TokenUnavailable,
    TooManyVersions,
    whole,
)

__all__ = ["ConfluentClient"]

_LOG = structlog.stdlib.get_logger("cdcd.registry")
T = TypeVar("T")
_TIMEOUT_S = 10.0


def _proxies() -> list[str]:
    return [os.environ.get(name, "") for one in PROXIES for name in (one, one.upper())]


class ConfluentClient:
    """`Client` with Confluent's properties. Raises TypeError and ValueError for refused properties."""

    def __init__(self, properties: Mapping[str, object]) -> None:
        for url in (*str(properties["url"]).split(","), str(properties.get("proxy", "")), *_proxies()):
            add_user_of(url)
        self._client = SchemaRegistryClient(dict(properties))
        rest = self._client._rest_client
        issuer = getattr(getattr(rest, "bearer_field_provider", None), "client", None)
        for client in (rest.session, issuer):
            if client is not None and not limit_client(client, float(rest.timeout or _TIMEOUT_S)):
                _LOG.warning("registry_time_not_limited", client=type(client).__name__)
        self._note_token(rest)

    def _note_token(self, rest: Any) -> None:
        """Register each token of the issuer for redaction."""
        handle = getattr(rest, "handle_bearer_auth", None)
        if handle is None:  # a client without tokens
            return

        def noted(headers: dict[str, str]) -> None:
            handle(headers)
            add_secret(headers.get("Authorization", "").removeprefix("Bearer "), renews="issuer")

        rest.handle_bearer_auth = noted

    def versions(self, subject: str) -> list[int]:  # noqa: D102
        numbers = [whole(number) for number in self._ask(lambda client: client.get_versions(subject))]
        if len(numbers) > MAX_VERSIONS:
            raise TooManyVersions(len(numbers))
        return numbers

    def version(self, subject: str, number: int | None) -> RegisteredSchema:  # noqa: D102
        def ask(client: SchemaRegistryClient) -> RegisteredSchema:
            one = (
                client.get_latest_version(subject) if number is None else client.get_version(subject, number)
            )
            return _registered(one.schema, one.schema_id)

        return self._ask(ask)

    def by_id(self, number: int) -> RegisteredSchema:  # noqa: D102
        return self._ask(lambda client: _registered(client.get_schema(number), number))

    def look_up(self, subject: str, text: str, *, normalize: bool) -> int:  # noqa: D102
        schema = Schema(text, schema_type="AVRO")
        return self._ask(lambda client: int(client.lookup_schema(subject, schema, normalize).schema_id))

    def register(self, subject: str, text: str, *, normalize: bool) -> int:  # noqa: D102
        schema = Schema(text, schema_type="AVRO")
        return self._ask(lambda client: int(client.register_schema(subject, schema, normalize)))

    def level(self, subject: str | None) -> str:  # noqa: D102
        return self._ask(lambda client: str(client.get_compatibility(subject)))

    def set_level(self, subject: str, level: str) -> None:  # noqa: D102
        self._ask(lambda client: client.set_compatibility(subject, level))

    def close(self) -> None:  # noqa: D102
        self._client.__exit__(None, None, None)

    def _ask(self, request: Callable[[SchemaRegistryClient], T]) -> T:
        try:
            result = request(self._client)
            self._client.clear_caches()  # it would hold every version of every schema; `schema_cache` is enough
        except SchemaRegistryError as error:
            raise RegistryErrorAnswer(
                error.http_status_code, error.error_code, error.error_message
            ) from error
        except OAuthTokenError as error:
            raise TokenUnavailable from error
        return result


def _registered(schema: Schema, number: int | None) -> RegisteredSchema:
    return RegisteredSchema(schema.schema_str or "", schema.schema_type or "AVRO", number)

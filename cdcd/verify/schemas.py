"""The schemas of records by their ids: from the registry, or from the schema topic without one.

In: the settings of the registry, or those of the sink and the schema topic.  Out: schemas as JSON objects.
Invariant: an id has one schema for ever, so each is asked for once.
Must not: register anything.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

from cdcd.errors import RegistryRefused, RegistryUnavailable, SchemasUnreadable
from cdcd.redaction import clean
from cdcd.registry.client import is_transport, new_client
from cdcd.registry.rest import Client, RegistryErrorAnswer, TokenUnavailable
from cdcd.registry.settings import RegistrySettings, client_properties
from cdcd.schema.schema_index import SchemaIndex
from cdcd.sink.schema_log import SchemaLog
from cdcd.sink.settings import SinkSettings

_MOST_CHARACTERS = 500


class RegistryIds:
    """The schemas of a registry. Raises RegistryUnavailable, RegistryRefused, ConfigError."""

    def __init__(self, settings: RegistrySettings) -> None:
        self._settings = settings
        self._client: Client | None = None
        self._known: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """Return the schema of an id."""
        if number not in self._known:
            try:
                self._known[number] = json.loads(self._text(number))
            except (KeyError, RecursionError, TypeError, ValueError) as error:
                raise RegistryRefused(
                    "the answer does not come from a schema registry, or the schema is not Avro",
                    hint="check registry.url, also its path",
                    id=number,
                ) from error
        return self._known[number]

    def _text(self, number: int) -> str:
        try:
            if self._client is None:
                self._client = new_client(client_properties(self._settings))
            return self._client.by_id(number).text or "null"
        except RegistryErrorAnswer as error:
            raise RegistryRefused(
                "the registry has no schema of a record's id, or refuses to return it",
                hint="check registry.url and the registry's rights: the topics may belong to another registry",
                id=number,
                status=error.status,
            ) from error
        except (TokenUnavailable, OSError) as error:
            raise self._unavailable(error) from error
        except Exception as error:
            if is_transport(error):
                raise self._unavailable(error) from error
            raise

    def _unavailable(self, error: Exception) -> RegistryUnavailable:
        reason = clean(f"{type(error).__name__}: {error}", _MOST_CHARACTERS)
        return RegistryUnavailable(f"the registry did not return a schema: {reason}", url=self._settings.url)

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()


class TopicIds:
    """The schemas of a schema topic, read again for an unknown id. Raises Sink errors, SchemasUnreadable."""

    def __init__(self, settings: SinkSettings, topic: str) -> None:
        self._settings, self._topic = settings, topic
        self._known: dict[int, Any] = {}

    def schema(self, number: int) -> Any:
        """Return the schema of an id."""
        if number not in self._known:
            index = SchemaIndex()
            with contextlib.closing(SchemaLog(self._settings, self._topic, is_committed=True)) as log:
                log.read(index, log.end(), self._settings.operation_timeout_s)
            text = index.text(number)
            if text is None:
                raise SchemasUnreadable(
                    "the schema topic has no schema of a record's id",
                    hint="the topics belong to another schema topic, or records were deleted from it",
                    topic=self._topic,
                    id=number,
                )
            self._known[number] = json.loads(text)
        return self._known[number]

    def close(self) -> None:
        """Do nothing: no connection remains open."""

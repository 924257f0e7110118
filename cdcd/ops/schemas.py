"""The read endpoints of the schema registry API, answered from the daemon's schema index.

In: the index, and a function that reads the schema topic again.  Out: the responses of Confluent's API, also errors.
Invariant: only committed schemas are shown. Before a 404 for an unknown id or subject, the topic is read again,
because a reader of the rows can be faster than the confirmation of cdcd's own commit, or another daemon with the same
prefix may have written the schema. While the answer is unknown (the topic was not read yet, Kafka does not answer),
the response is 503, which clients retry, and never 404. Few bodies are read at a time, each in a limited time.
Must not: register anything, show a row value.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import Any, Protocol, TypeVar

from aiohttp import web

from cdcd.ops.request_body import reading_body
from cdcd.schema.schema_index import RegisteredVersion, SchemaIndex

__all__ = ["MAX_SCHEMA_BYTES", "SchemaSource", "add_routes"]

MAX_SCHEMA_BYTES = 4 << 20
_TYPE = "application/vnd.schemaregistry.v1+json"
_NO_SUBJECT = 40401
_NO_VERSION = 40402
_NO_SCHEMA = 40403
_NO_LEVEL = 40408
_BAD_SCHEMA = 42201
_BAD_VERSION = 42202
_READ_ONLY = 42205
_NO_BODY = 40801
_NOT_YET = 50301
_RETRY_AFTER_S = "1"
_BODIES_AT_A_TIME = 4
_BODY_S = 10.0
_MAX_DIGITS = 10
_FIRST_ERROR = 400
"""Text of the request in an error is escaped to ASCII, because a terminal may show it."""
_T = TypeVar("_T")
_Answer = Callable[[web.Request], Awaitable[web.Response]]


class SchemaSource(Protocol):
    """The source of the schemas."""

    @property
    def schema_index(self) -> SchemaIndex | None: ...  # noqa: D102
    @property
    def compatibility(self) -> str: ...  # noqa: D102
    async def refresh(self, concerns: Callable[[RegisteredVersion], bool]) -> bool: ...  # noqa: D102


def add_routes(router: web.UrlDispatcher, source: SchemaSource) -> None:
    """Add the routes that serve the schemas of `source`."""
    pages = _Pages(source)
    version = "/subjects/{subject}/versions/{version}"
    for path, page in (
        ("/schemas/ids/{id}", pages.by_id),
        ("/schemas/ids/{id}/schema", pages.text_by_id),
        ("/schemas/ids/{id}/subjects", pages.subjects_of_id),
        ("/schemas/ids/{id}/versions", pages.versions_of_id),
        ("/schemas/types", pages.types),
        ("/subjects", pages.subjects),
        ("/subjects/{subject}/versions", pages.versions),
        (version, pages.version),
        (f"{version}/schema", pages.version_text),
        ("/config", pages.level),
        ("/config/{subject}", pages.subject_level),
        ("/mode", pages.mode),
        ("/mode/{subject}", pages.mode),
        ("/contexts", pages.contexts),
    ):
        router.add_get(path, _guarded(page), allow_head=False)
    router.add_post("/subjects/{subject}", _guarded(pages.look_up))
    router.add_post("/subjects/{subject}/versions", _guarded(pages.refuse))


class _Refused(Exception):
    """An error of the API: the first three digits of its code are the HTTP status."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


def _guarded(page: _Answer) -> _Answer:
    async def answer(request: web.Request) -> web.Response:
        try:
            return await page(request)
        except _Refused as refused:
            status = int(str(refused.code)[:3])
            answered = _json({"error_code": refused.code, "message": str(refused)}, status)
            if status == web.HTTPServiceUnavailable.status_code:
                answered.headers["Retry-After"] = _RETRY_AFTER_S
            return answered

    return answer


def _json(value: Any, status: int = 200) -> web.Response:
    return web.Response(
        status=status, text=json.dumps(value, ensure_ascii=status >= _FIRST_ERROR), content_type=_TYPE
    )


def _text(text: str) -> web.Response:
    return web.Response(text=text, content_type=_TYPE)


class _Pages:
    def __init__(self, source: SchemaSource) -> None:
        self._source = source
        self._bodies = asyncio.Semaphore(_BODIES_AT_A_TIME)

    # --- by id ---

    async def by_id(self, request: web.Request) -> web.Response:
        return _json({"schema": await self._by_id(request)})

    async def text_by_id(self, request: web.Request) -> web.Response:
        return _text(await self._by_id(request))

    async def subjects_of_id(self, request: web.Request) -> web.Response:
        return _json(sorted({one.subject for one in await self._places(request)}))

    async def versions_of_id(self, request: web.Request) -> web.Response:
        places = await self._places(request)
        return _json([{"subject": one.subject, "version": one.version} for one in places])

    async def types(self, _request: web.Request) -> web.Response:
        return _json(["AVRO"])

    # --- by subject ---

    async def subjects(self, request: web.Request) -> web.Response:
        prefix = request.query.get("subjectPrefix", "")
        names = self._schema_index().subjects()
        return _json([name for name in names if name.startswith(_without_context(prefix))])

    async def versions(self, request: web.Request) -> web.Response:
        return _json([one.version for one in await self._subject(request)])

    async def version(self, request: web.Request) -> web.Response:
        return _json(_shown(await self._version(request)))

    async def version_text(self, request: web.Request) -> web.Response:
        return _text((await self._version(request)).text)

    async def look_up(self, request: web.Request) -> web.Response:
        subject, text = _subject_of(request), await self._schema_in(request)
        try:
            json.loads(text)
        except (ValueError, RecursionError):
            raise _Refused(_BAD_SCHEMA, "the schema is not JSON") from None
        found = await self._find(
            lambda schema_index: schema_index.find_equal(subject, text), lambda one: one.subject == subject
        )
        if found is None:
            if not self._schema_index().versions(subject):
                raise _no_subject(subject)
            raise _Refused(_NO_SCHEMA, "Schema not found")
        return _json(_shown(found))

    async def refuse(self, _request: web.Request) -> web.Response:
        raise _Refused(_READ_ONLY, "this registry is read-only: only cdcd registers its schemas")

    # --- settings ---

    async def level(self, _request: web.Request) -> web.Response:
        return _json({"compatibilityLevel": self._source.compatibility})

    async def subject_level(self, request: web.Request) -> web.Response:
        subject = _subject_of(request)
        versions = await self._find(
            lambda schema_index: schema_index.versions(subject), lambda one: one.subject == subject
        )
        if versions:
            return _json({"compatibilityLevel": versions[-1].compatibility})
        if request.query.get("defaultToGlobal", "").lower() == "true":
            return await self.level(request)
        raise _Refused(_NO_LEVEL, f"Subject '{subject}' does not have subject-level compatibility configured")

    async def mode(self, _request: web.Request) -> web.Response:
        return _json({"mode": "READONLY"})

    async def contexts(self, _request: web.Request) -> web.Response:
        return _json(["."])

    # --- inside ---

    async def _schema_in(self, request: web.Request) -> str:
        try:
            with reading_body():
                async with asyncio.timeout(_BODY_S), self._bodies:
                    body = await request.read()
            schema = json.loads(body)["schema"]
        except TimeoutError:
            raise _Refused(_NO_BODY, "the request's body was not received in time") from None
        except (ValueError, KeyError, TypeError, RecursionError):
            raise _Refused(_BAD_SCHEMA, "the body has no schema") from None
        if not isinstance(schema, str):
            raise _Refused(_BAD_SCHEMA, "the schema is not a text")
        return schema

    def _schema_index(self) -> SchemaIndex:
        schema_index = self._source.schema_index
        if schema_index is None:
            raise _Refused(_NOT_YET, "the schema topic has not been read yet")
        return schema_index

    async def _find(
        self, look: Callable[[SchemaIndex], _T], concerns: Callable[[RegisteredVersion], bool]
    ) -> _T:
        """Return the schema found; if none is found, read the topic again and repeat the search."""
        found = look(self._schema_index())
        if not found:
            if not await self._source.refresh(concerns):
                raise _Refused(_NOT_YET, "the schema topic cannot be read now")
            found = look(self._schema_index())
        return found

    async def _by_id(self, request: web.Request) -> str:
        number = _id_of(request)
        text = await self._find(
            lambda schema_index: schema_index.text(number), lambda one: one.schema_id == number
        )
        if text is None:
            raise _no_schema(number)
        return text

    async def _places(self, request: web.Request) -> list[RegisteredVersion]:
        number = _id_of(request)
        places = await self._find(
            lambda schema_index: schema_index.places(number), lambda one: one.schema_id == number
        )
        if not places:
            raise _no_schema(number)
        return places

    async def _subject(self, request: web.Request) -> list[RegisteredVersion]:
        subject = _subject_of(request)
        versions = await self._find(
            lambda schema_index: schema_index.versions(subject), lambda one: one.subject == subject
        )
        if not versions:
            raise _no_subject(subject)
        return versions

    async def _version(self, request: web.Request) -> RegisteredVersion:
        versions, wanted = await self._subject(request), request.match_info["version"]
        if wanted in ("latest", "-1"):
            return versions[-1]
        if not _is_number(wanted) or not 0 < int(wanted) < 1 << 31:
            raise _Refused(_BAD_VERSION, f"The specified version '{wanted}' is not a valid version id")
        for one in versions:
            if one.version == int(wanted):
                return one
        raise _Refused(_NO_VERSION, f"Version {wanted} not found.")


def _id_of(request: web.Request) -> int:
    text = request.match_info["id"]
    if not _is_number(text) or int(text) >= 1 << 31:
        raise _Refused(_NO_SCHEMA, f"Schema {text} not found")
    return int(text)


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) <= _MAX_DIGITS


def _subject_of(request: web.Request) -> str:
    return _without_context(request.match_info["subject"])


def _without_context(name: str) -> str:
    """Return a subject without the default context, which some clients send explicitly."""
    return name.removeprefix(":.:")


def _shown(one: RegisteredVersion) -> dict[str, Any]:
    return {"subject": one.subject, "version": one.version, "id": one.schema_id, "schema": one.text}


def _no_subject(subject: str) -> _Refused:
    return _Refused(_NO_SUBJECT, f"Subject '{subject}' not found.")


def _no_schema(number: int) -> _Refused:
    return _Refused(_NO_SCHEMA, f"Schema {number} not found")

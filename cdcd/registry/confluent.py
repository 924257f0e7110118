"""Registry: the id of a schema under a subject, from any registry with Confluent's interface.

In: a subject and an Avro schema.  Out: its id, cached for the life of the process: records with known schemas flow
while the registry is down (F55), also after a lost connection to another server. For a subject with many versions the
latest ones are cached (`schema_cache`).
Invariant: a subject that cdcd creates gets its own compatibility level: cdcd never relies on the server's global
level (a new Apicurio has NONE). With auto_register off cdcd writes nothing to the registry.
An id in use for one schema is never used for another: cdcd detects a registry that has lost its data before it
registers a schema there.
Must not: retry for long (the caller tries again, F55), change the level of a subject that exists.
Every method here blocks and belongs in a thread.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from cdcd.errors import (
    CdcdError,
    ConfigError,
    RegistryRefused,
    RegistryUnavailable,
    SchemaIncompatible,
)
from cdcd.failpoints import hit
from cdcd.findings import Finding
from cdcd.redaction import clean
from cdcd.registry.client import is_transport, new_client
from cdcd.registry.rest import (
    Client,
    RegisteredSchema,
    RegistryErrorAnswer,
    TokenUnavailable,
    TooManyVersions,
)
from cdcd.registry.schema_cache import SchemaCache, VersionCache
from cdcd.registry.settings import RegistrySettings, client_properties
from cdcd.schema.attnums import is_equal_but_for_numbers
from cdcd.schema.compatibility import Difference, level_differences
from cdcd.schema.schema_index import text_of

__all__ = ["Registry"]

T = TypeVar("T")
Observer = Callable[[str, str], None]
"""Called after each request with the operation and its code ("200", the HTTP status, or "unreachable")."""

_SUBJECT_NOT_FOUND = 40401
_VERSION_NOT_FOUND = 40402
_SCHEMA_NOT_FOUND = 40403
_NO_SUCH_PATH_HINT = (
    "correct registry.url, also its path, and restart cdcd: the server at this address does not have this "
    "endpoint"
)
_TOO_MANY_HINT = (
    "delete the oldest versions, whose records no reader needs any more (`curl -X DELETE "
    "REGISTRY/subjects/SUBJECT/versions/NUMBER`), then `cdcd resume`"
)
_TRY_AGAIN = frozenset({408, 425, 429})
_UNAUTHORISED = frozenset({401, 403})
_MAX_REASON_CHARACTERS = 500
_SILENT_S = 15.0
_ABSENT_FOR_S = 2.0
_VERIFIED_FOR_S = 1.0
"""For this long, a check that the registry has its data counts: the first schemas of many tables need one check."""


def _unobserved(operation: str, code: str) -> None:
    """Observe nothing."""


class Registry:
    """A client with a cache. Errors: RegistryUnavailable (try again), RegistryRefused, ConfigError."""

    def __init__(self, settings: RegistrySettings, observe: Observer = _unobserved) -> None:
        self._settings = settings
        self._observe = observe
        self._cache = SchemaCache()
        self._version_cache = VersionCache("")
        self._latest: dict[str, dict[str, Any] | None] = {}
        self._absent_s: dict[str, float] = {}
        """By subject without a schema, the time when that was found: the next request then needs no look-up."""
        self._has_levels_first = True
        """Whether the registry accepts a level for a subject without a schema."""
        self._client: Client | None = None
        self._verified = 0
        self._verified_s = -_VERIFIED_FOR_S
        """The time of the last check that found no loss, by the same registry."""
        self._loss: tuple[str, str] | None = None
        """A loss that was found, as the arguments of `_lost`: until `close`, nothing is registered."""
        self._levels: dict[str, str] = {}
        self._forcing = threading.RLock()
        self._silent_until_s = 0.0

    def schema_id(self, subject: str, schema: Mapping[str, Any], *, is_forced: bool = False) -> int:
        """Return the id of `schema` under `subject`; register a new schema when that is allowed.

        Raises SchemaIncompatible where readers could not read on; `is_forced` skips that check.
        """
        text = text_of(schema)
        schema_id = self._cache.id_of(subject, text)
        if schema_id is None:
            schema_id = self._find_or_register(subject, text, is_forced)
            if not self._cache.take(subject, text, schema_id):
                raise self._lost(f"the schema of id {schema_id}", subject)
            self._latest[subject] = dict(schema)
        return schema_id

    def latest(self, subject: str) -> dict[str, Any] | None:
        """Return the newest schema under `subject`, None when it has none.

        While the registry does not answer, return the newest known schema. Raises RegistryRefused where the registry
        has lost a schema in use.
        """
        # Each is read once: the thread of `verify_next` may clear them in between.
        is_cached, cached = subject in self._latest, self._latest.get(subject)
        if is_cached and time.monotonic() < self._silent_until_s:
            return cached
        in_use = self._cache.newest_id_of(subject)
        try:
            found = self._ask_latest(subject)
            if found is None and in_use is not None:
                self._refuse_loss(subject, in_use)
        except RegistryUnavailable:
            if not is_cached:
                raise
            # A registry that does not answer may use up each request's timeout, and there may be many tables.
            self._silent_until_s = time.monotonic() + _SILENT_S
            return cached
        self._latest[subject] = found
        if found is None:
            # Deleted, or never created: its cached ids must not count as lost data of the registry.
            self._cache.forget(subject)
        return found

    @property
    def registers(self) -> bool:
        """Whether a new schema is registered."""
        return self._settings.auto_register

    def registered(self, subject: str) -> Iterator[Any]:
        """Yield the schemas under `subject`, the newest first, one at a time in memory: there may be hundreds.

        While the registry does not answer, yield the newest known schema; of too many versions, the newest one.
        """
        try:
            numbers = self._versions(subject)
        except RegistryUnavailable:
            cached = self._latest.get(subject)
            if cached is None:
                raise
            yield cached
            return
        except RegistryRefused as refusal:
            if not isinstance(refusal.__cause__, TooManyVersions):
                raise
            yield self._ask_latest(subject)
            return
        for number in reversed(numbers):
            yield self._version(subject, number)

    def newest(self, subject: str) -> dict[str, Any] | None:
        """Return the newest schema under `subject` without caching it: a check of all tables needs each one once."""
        return self._ask_latest(subject)

    def judge(self, subject: str, schema: Mapping[str, Any], *, is_forced: bool = False) -> None:
        """Raise the error that `schema_id` would raise, without changing anything in the registry."""
        text = text_of(schema)
        found, is_subject = self._found(subject, text)
        if found is not None:
            return
        self._refuse_unregistered(subject, text)
        if is_subject and not is_forced:
            level = self._level(subject)
            if level == "NONE" and self._settings.registers_incompatible:
                level = self._settings.compatibility  # `schema_id` restores this level before it registers
            self._refuse_incompatible(subject, schema, level)

    def verify_next(self) -> None:
        """Check that the registry still has a subject in use, another subject each time.

        Raises RegistryRefused when it does not: ids of written records then have no schema, or another one.
        """
        self._put_levels_back()
        subjects = self._cache.subjects
        if not subjects:
            return
        begun_s = time.monotonic()
        self._verified += 1
        subject = subjects[self._verified % len(subjects)]
        if self._is_missing(subject):
            raise self._lost("a subject that is in use", subject)
        self._verified_s = begun_s

    def _verify_unless_lately(self) -> None:
        if time.monotonic() - self._verified_s < _VERIFIED_FOR_S:
            self._put_levels_back()
        else:
            self.verify_next()

    @property
    def knows_any(self) -> bool:
        """Whether the cache has ids: records with known schemas flow while the registry is down (F55)."""
        return bool(self._cache.subjects)

    def check(self, subject: str) -> list[Finding]:
        """Return findings on whether the registry answers and accepts the credentials, without writing anything.

        `subject` is one that cdcd would use: some registries show a client only its own subjects.
        """
        try:
            level = self._global_level() or self._level_by(subject)
        except CdcdError as error:
            hint = error.advice or "check registry.url, the credentials, and that the registry is running"
            return [Finding("fail", "registry", error.without_hint, hint, error)]
        rule = (
            f"new subjects get {self._settings.compatibility}"
            if self._settings.auto_register
            else "read only"
        )
        return [Finding("ok", "registry", f"answers (its global compatibility {level}); {rule}")]

    def _global_level(self) -> str:
        """Return the registry's global level as text, "" where cdcd may not read it."""
        try:
            return "is " + self._call("global_config", lambda client: client.level(None))
        except RegistryRefused:
            return ""

    def _level_by(self, subject: str) -> str:
        self._ask_latest(subject)
        return "may not be read"

    def close(self) -> None:
        """Close the connection; the cache stays valid."""
        self._disconnect()
        self._loss = None

    def _disconnect(self) -> None:
        client, self._client = self._client, None
        self._version_cache = VersionCache("")
        self._verified_s = -_VERIFIED_FOR_S
        if client is not None:
            client.close()

    # --- inside ------------------------------------------------------------------------------------------

    def _lost(self, what: str, subject: str) -> RegistryRefused:
        """Clear the cache, so that the next session queries and registers again; return this session's error."""
        self._loss = what, subject
        self._cache.clear()
        self._latest.clear()
        self._version_cache = VersionCache("")
        return RegistryRefused(
            f"the registry has lost {what}: consumers cannot decode records already written with its ids",
            hint="restore the registry; or accept the loss: run `cdcd resume` or restart cdcd, which then "
            "registers every schema again",
            subject=subject,
        )

    def _refuse_loss(self, subject: str, schema_id: int) -> None:
        """Raise RegistryRefused where an id in use has no schema, or another one, in the registry.

        A subject that was deleted on purpose (F45) leaves the schemas of its ids; with some registries only while
        another subject has them, so a missing schema is a loss only if the topic's other subject is missing too.
        """
        try:
            found = self._call("by_id", lambda client: client.by_id(schema_id), subject=subject)
        except RegistryRefused as refusal:
            if refusal.context.get("error_code") != _SCHEMA_NOT_FOUND:
                return  # without the right to read, a missing schema is not a proof of loss
            other = self._cache.nearest_to(subject)
            if other is not None and not self._is_missing(other):
                return
            raise self._lost(f"the schema of id {schema_id}", subject) from refusal
        if not self._cache.is_of(schema_id, found.text):
            raise self._lost(f"the schema of id {schema_id}", subject)

    def _is_missing(self, subject: str) -> bool:
        """Whether the registry certainly has no such subject."""
        try:
            self._call("versions", lambda client: client.versions(subject), subject=subject)
        except RegistryRefused as refusal:
            # Without the right to read, a missing subject is not a proof.
            return refusal.context.get("error_code") == _SUBJECT_NOT_FOUND
        return False

    def _ask_latest(self, subject: str) -> dict[str, Any] | None:
        try:
            found = self._call("latest", lambda client: client.version(subject, None), subject=subject)
        except RegistryRefused as refusal:
            code = refusal.context.get("error_code")
            if code == _SUBJECT_NOT_FOUND:
                self._absent_s[subject] = time.monotonic()
            if code in (_SUBJECT_NOT_FOUND, _VERSION_NOT_FOUND):
                return None
            raise
        schema = _avro_of(found, subject)
        return schema if isinstance(schema, dict) else {"type": schema}  # another program's may be no record

    def knows(self, subject: str, schema: Mapping[str, Any]) -> bool:
        """Whether exactly this schema is registered under `subject`."""
        text = text_of(schema)
        if self._cache.id_of(subject, text) is not None:
            return True
        try:
            self._look_up(subject, text)
        except RegistryRefused as refusal:
            if refusal.context.get("error_code") in (_SUBJECT_NOT_FOUND, _SCHEMA_NOT_FOUND):
                return False
            raise
        return True

    def _look_up(self, subject: str, text: str) -> int:
        return self._call(
            "lookup",
            lambda client: client.look_up(subject, text, normalize=self._settings.normalize),
            subject=subject,
        )

    def _find_or_register(self, subject: str, text: str, is_forced: bool) -> int:
        found, is_subject = self._found(subject, text)
        self._absent_s.pop(subject, None)
        if found is not None:
            return found
        self._refuse_unregistered(subject, text)
        self._verify_unless_lately()
        if self._loss is not None:  # found by the plan of another table, meanwhile
            raise self._lost(*self._loss)
        if not is_subject:
            return self._create_subject(subject, text)
        if is_forced:
            return self._force(subject, text)
        level = self._level(subject)
        if level == "NONE" and self._settings.registers_incompatible:
            level = self._settings.compatibility  # a killed process has not restored the level
            self._set_level(subject, level)
        self._refuse_incompatible(subject, json.loads(text), level)
        return self._register(subject, text)

    def _found(self, subject: str, text: str) -> tuple[int | None, bool]:
        """Return the schema's id under the subject, None where it has none; and whether the subject exists."""
        found_s = self._absent_s.get(subject)
        if found_s is not None and time.monotonic() - found_s < _ABSENT_FOR_S:
            return None, False
        try:
            return self._look_up(subject, text), True
        except RegistryRefused as refusal:
            code = refusal.context.get("error_code")
            if code not in (_SUBJECT_NOT_FOUND, _SCHEMA_NOT_FOUND):
                raise
            return None, code == _SCHEMA_NOT_FOUND

    def _refuse_unregistered(self, subject: str, text: str) -> None:
        if not self._settings.auto_register:
            self._absent_s.pop(
                subject, None
            )  # an operator registers it now, and cdcd must query again at once
            raise RegistryRefused(
                "the schema is not registered and registry.auto_register is off",
                hint=f"register this Avro schema under the subject, then `cdcd resume`: {text}",
                subject=subject,
            )

    def _refuse_incompatible(self, subject: str, schema: Mapping[str, Any], level: str) -> None:
        """Raise SchemaIncompatible with the differences, which the registry does not report.

        The registry also accepts some types as equal that cdcd refuses.
        """
        if level == "NONE":
            return
        newest = self._ask_latest(subject)
        if newest is not None and is_equal_but_for_numbers(newest, schema):
            return  # it was compared with the others when it was registered
        numbers = self._versions(subject)  # none if all were deleted: there is nothing to compare with
        if not level.endswith("_TRANSITIVE"):
            numbers = numbers[-1:]
        found: dict[Difference, None] = {}
        for number in reversed(numbers):  # one at a time in memory: there may be hundreds
            earlier = self._version(subject, number)
            found |= dict.fromkeys(level_differences(level, schema, [earlier]))
            if is_equal_but_for_numbers(earlier, schema):
                break
        if found:
            raise SchemaIncompatible(
                f"the new schema is not {level}: {'; '.join(map(str, found))}",
                status=409,
                subject=subject,
            )

    def _versions(self, subject: str) -> list[int]:
        """Return the numbers of a subject's versions; none if there is no such subject."""
        try:
            return self._call("versions", lambda client: client.versions(subject), subject=subject)
        except RegistryRefused as refusal:
            if refusal.context.get("error_code") != _SUBJECT_NOT_FOUND:
                raise
            return []

    def _version(self, subject: str, number: int) -> Any:
        earlier = self._version_cache
        if earlier.subject != subject:
            earlier = self._version_cache = VersionCache(subject)
        text = earlier.get(number)
        if text is not None:
            return json.loads(text)
        found = self._call("version", lambda client: client.version(subject, number), subject=subject)
        schema = _avro_of(found, subject)
        earlier.put(number, json.dumps(schema))
        return schema

    def _level(self, subject: str) -> str:
        """Return the subject's compatibility level; an operator may have changed the level that cdcd set."""
        try:
            level = self._call("get_compatibility", lambda client: client.level(subject), subject=subject)
        except RegistryRefused as refusal:
            if refusal.context.get("status") != 404:
                raise
            return self._settings.compatibility
        return level

    def _force(self, subject: str, text: str) -> int:
        """Register with level NONE, then restore the level; if that fails, `verify_next` tries again."""
        with self._forcing:
            level = self._level(subject)
            self._levels.setdefault(subject, level)
            self._set_level(subject, "NONE")
            try:
                return self._register(subject, text)
            finally:
                self._put_levels_back()

    def _put_levels_back(self) -> None:
        with self._forcing:  # `verify_next` runs in another thread
            for subject, level in list(self._levels.items()):
                self._set_level(subject, level)
                del self._levels[subject]

    def _create_subject(self, subject: str, text: str) -> int:
        """Register a subject's first schema and set the subject's level, the level first if possible.

        Some registries refuse a level for a subject without a schema. They have nothing to compare the first schema
        with, so the order does not matter there.
        """
        if self._sets_level_first(subject):
            hit("schema_level_set")
            return self._register(subject, text)
        schema_id = self._register(subject, text)
        hit("schema_level_set")
        self._set_level(subject, self._settings.compatibility)
        return schema_id

    def _sets_level_first(self, subject: str) -> bool:
        """Set the level of a subject without a schema; return False where this registry refuses that."""
        if self._has_levels_first:
            try:
                self._set_level(subject, self._settings.compatibility)
            except RegistryRefused as refusal:
                if refusal.context.get("status") != 404:
                    raise
                self._has_levels_first = False
        return self._has_levels_first

    def _register(self, subject: str, text: str) -> int:
        return self._call(
            "register",
            lambda client: client.register(subject, text, normalize=self._settings.normalize),
            subject=subject,
        )

    def _set_level(self, subject: str, level: str) -> None:
        self._call("set_compatibility", lambda client: client.set_level(subject, level), subject=subject)

    def _call(self, operation: str, request: Callable[[Client], T], subject: str = "-") -> T:
        client = None
        try:
            client = self._connected()
            result = request(client)
        except RegistryErrorAnswer as error:
            self._observe(operation, str(error.status))
            if error.status in _UNAUTHORISED:
                self._disconnect()  # so that the next call reads the password again
            raise _refusal(error, operation, subject) from error
        except TokenUnavailable as error:
            self._observe(operation, "unauthorised")
            self._disconnect()  # as above: the secret may have been rotated
            raise RegistryUnavailable(
                f"{operation}: the issuer gave no OAuth token",
                hint="check the issuer's endpoint, and the client's id and secret; cdcd tries again",
                subject=subject,
            ) from error
        except TooManyVersions as error:
            self._observe(operation, "200")
            raise RegistryRefused(
                f"{operation}: the subject has {error.versions} versions, too many to compare a new one with all",
                hint=_TOO_MANY_HINT,
                subject=subject,
            ) from error
        except CdcdError:
            raise
        except Exception as error:
            was_closed = client is not None and self._client is not client  # by another thread, meanwhile
            if was_closed or is_transport(error):
                self._observe(operation, "unreachable")
                self._verified_s = -_VERIFIED_FOR_S
                reason = clean(f"{type(error).__name__}: {error}", _MAX_REASON_CHARACTERS)
                raise RegistryUnavailable(
                    f"{operation}: {reason}", url=self._settings.url, subject=subject
                ) from error
            if isinstance(error, KeyError | RecursionError | TypeError | ValueError):
                self._observe(operation, "unreadable")
                raise RegistryRefused(
                    f"{operation}: the answer does not come from a schema registry",
                    hint="correct registry.url, also its path, and restart cdcd",
                    subject=subject,
                ) from error
            raise
        self._observe(operation, "200")
        return result

    def _connected(self) -> Client:
        if self._client is None:
            try:
                self._client = new_client(client_properties(self._settings))
            except (TypeError, ValueError) as error:
                raise ConfigError(f"registry: the client refuses its properties: {error}") from error
        return self._client


def _avro_of(schema: RegisteredSchema, subject: str) -> Any:
    """Return a registered schema as JSON. Raises RegistryRefused where it is not Avro."""
    try:
        if schema.kind == "AVRO":
            return json.loads(schema.text or "{}")
    except (ValueError, RecursionError):
        pass  # no Avro either
    raise RegistryRefused(
        "the subject has schemas that are not Avro",
        hint="another program has registered these schemas: choose another `name`, or another strategy "
        "for subjects (registry.subjects)",
        subject=subject,
    )


def _refusal(error: RegistryErrorAnswer, operation: str, subject: str) -> CdcdError:
    status, code = error.status, error.code
    reason = f"{operation}: {clean(error.message, _MAX_REASON_CHARACTERS)}"
    if status >= 500 or status in _TRY_AGAIN:
        return RegistryUnavailable(reason, status=status, subject=subject)
    if status == 409:
        return SchemaIncompatible(reason, status=status, error_code=code, subject=subject)
    is_elsewhere = status < 400 or (status == 404 and code // 100 != 404)
    hint = _NO_SUCH_PATH_HINT if is_elsewhere else None
    if status in _UNAUTHORISED:
        hint = (
            "correct the registry's credentials (username and password_file, token_file, or its properties), then "
            "`cdcd resume`, which reads the files again"
        )
    return RegistryRefused(reason, hint=hint, status=status, error_code=code, subject=subject)

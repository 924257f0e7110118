"""An admin client that reports why no broker answers.

In: the sink's settings.  Out: the cluster's metadata, or the error of its connections.
Invariant: a refused login is raised at once: librdkafka retries it until the timeout, and then reports only that no
broker answered.
Must not: create or alter anything.
"""

from __future__ import annotations

import time
from collections import deque

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient, ClusterMetadata

from cdcd.errors import SinkAuthorization
from cdcd.sink.client_log import CLIENT_LOG
from cdcd.sink.error_map import error_of, making_client, translate
from cdcd.sink.hints import hint_for
from cdcd.sink.settings import SinkSettings, admin_properties

__all__ = ["Admin"]

_FIRST_TIMEOUT_S = 2.0
_SILENCE = (KafkaError._TRANSPORT, KafkaError._TIMED_OUT)


class Admin:
    """`client` is the admin client itself, `timeout_s` the limit of an operation. Blocks; belongs in a thread.

    A new client needs a quarter of a second for its first answer, so several lookups use one client.
    """

    def __init__(self, settings: SinkSettings) -> None:
        self.timeout_s = settings.operation_timeout_s
        # Not a method of this object: the reference cycle would keep the client's threads alive.
        self._reported_errors: deque[KafkaError] = deque(maxlen=8)
        with making_client():
            self.client = AdminClient(
                admin_properties(settings) | {"error_cb": self._reported_errors.append}, logger=CLIENT_LOG
            )

    def metadata(self, asked: str | None, doing: str, **context: object) -> ClusterMetadata:
        """Return the cluster's metadata of one topic, or of all. Raises SinkUnavailable, SinkAuthorization."""
        deadline_s = time.monotonic() + self.timeout_s
        timeout_s = _FIRST_TIMEOUT_S  # doubled, so that a slow answer arrives as well
        # Cleared once: the client reports a repeated error of a connection only the first time.
        self._reported_errors.clear()
        while True:
            left_s = deadline_s - time.monotonic()
            try:
                return self.client.list_topics(asked, timeout=min(timeout_s, max(left_s, 0.1)))
            except KafkaException as failure:
                error = error_of(failure)
                refusal = self._refusal(doing, **context)
                if refusal is not None:
                    raise refusal from failure
                if error.code() not in _SILENCE or left_s <= timeout_s:
                    raise translate(self._cause(error), doing, **context) from failure
            timeout_s *= 2

    def _cause(self, error: KafkaError) -> KafkaError:
        """Return the error of the connections where it says more than a missing answer, else `error`."""
        reported = [one for one in self._reported_errors if one.code() != KafkaError._ALL_BROKERS_DOWN]
        if not reported or error.code() not in _SILENCE:
            return error
        return next((one for one in reversed(reported) if hint_for(one)), reported[-1])

    def _refusal(self, doing: str, **context: object) -> SinkAuthorization | None:
        self.client.poll(0)
        found = (translate(error, doing, **context) for error in self._reported_errors)
        return next((error for error in found if isinstance(error, SinkAuthorization)), None)

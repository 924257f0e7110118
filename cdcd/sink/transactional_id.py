"""Whether the principal may use Kafka transactions, asked without fencing a cdcd that is running.

In: the sink's settings.  Out: a finding for `cdcd check`.
Must not: use the slot's own transactional id.
"""

from __future__ import annotations

import dataclasses

from cdcd.errors import SinkError
from cdcd.findings import Finding
from cdcd.sink.producer import KafkaSink
from cdcd.sink.settings import SinkSettings

__all__ = ["check_transactional_id"]


def check_transactional_id(settings: SinkSettings) -> Finding:
    """Return whether the principal may use transactions, tried with `<transactional id>.check`.

    The slot's own id is not tried, because that would fence a cdcd that is running. An ACL that names the
    slot's id literally refuses the other one, which the finding says.
    """
    probe_id = f"{settings.transactional_id}.check"
    subject = f"transactional id {settings.transactional_id}"
    sink = KafkaSink(dataclasses.replace(settings, transactional_id=probe_id, delivery="exactly_once"))
    try:
        sink.initialise_only()
    except SinkError as error:
        mend = f"grant Write and Describe on transactional ids with the prefix {settings.transactional_id}"
        return Finding("fail", subject, f"tried with {probe_id}: {error}", mend)
    finally:
        sink.close()
    return Finding("ok", subject, f"transactions are allowed (tried with {probe_id})")

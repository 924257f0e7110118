"""cdcd that waits three seconds for Kafka, not a minute: `python -m tests.faults.impatient --config FILE`.

It checks topics and schemas twice a second.
"""

from __future__ import annotations

import sys
from dataclasses import replace

from cdcd.cli import main
from cdcd.config import Config
from cdcd.session import topic_watch
from cdcd.sink.settings import SinkSettings

OPERATION_TIMEOUT_S = 3.0
_patient = Config.sink_settings


def _impatient(config: Config) -> SinkSettings:
    return replace(_patient(config), operation_timeout_s=OPERATION_TIMEOUT_S)


Config.sink_settings = _impatient  # type: ignore[method-assign]
topic_watch.WATCH_INTERVAL_S = 0.5

sys.exit(main())

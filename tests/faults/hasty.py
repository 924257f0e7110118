"""cdcd that checks secrets and certificates five times a second: `python -m tests.faults.hasty --config FILE`."""

from __future__ import annotations

import sys

from cdcd.cli import main
from cdcd.session import rotation

rotation.CHECK_INTERVAL_S = 0.2

sys.exit(main())

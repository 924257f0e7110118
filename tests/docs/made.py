"""The pages that are generated from the code, with their generators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.docs.commands import commands_page
from tests.docs.errors import errors_page
from tests.docs.evolution import evolution_page
from tests.docs.metrics import metrics_page
from tests.docs.options import options_page
from tests.docs.types import types_page

MADE: Mapping[str, Callable[[], str]] = {
    "options.md": options_page,
    "cli.md": commands_page,
    "errors.md": errors_page,
    "metrics.md": metrics_page,
    "types.md": types_page,
    "evolution.md": evolution_page,
}

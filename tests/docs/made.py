"""Which pages are made from the code, and by what."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from tests.docs.commands import commands_page
from tests.docs.options import options_page

MADE: Mapping[str, Callable[[], str]] = {"options.md": options_page, "cli.md": commands_page}

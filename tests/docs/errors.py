"""Generate the page of all errors from their classes.

In: the classes of `cdcd.errors`; errors.template, the page's introduction.  Out: Markdown.
Must not: add text about an error that its class does not have.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

from cdcd.errors import CdcdError, daemon, protocol, schemas, sink, source
from cdcd.errors.commands import typeable, use_file

INTRODUCTION = Path(__file__).with_suffix(".template")
SECTIONS: dict[str, tuple[ModuleType, ...]] = {
    "The daemon and its machine": (daemon,),
    "PostgreSQL": (source,),
    "Messages of the server": (protocol,),
    "Rows, schemas, the registry": (schemas,),
    "Kafka and readers": (sink,),
}
_HEAD = "| code | what | who resolves it | resolution |\n|---|---|---|---|\n"
_FAILURES = re.compile(r" \(F\d+(?:, F\d+)*\)")
"""The numbers of failures, which no page for operators has."""


def errors_page() -> str:
    """Return the page of all errors."""
    use_file(None)  # the reader's file is unknown
    sections = [f"## {title}\n\n{_HEAD}{''.join(_rows(modules))}" for title, modules in SECTIONS.items()]
    return INTRODUCTION.read_text() + "\n".join(sections)


def _rows(modules: tuple[ModuleType, ...]) -> Iterator[str]:
    for module in modules:
        for one in vars(module).values():
            if isinstance(one, type) and issubclass(one, CdcdError) and one.__module__ == module.__name__:
                yield f"| `{one.code}` | {_what(one)} | {one.retry.value} | {_resolution(one)} |\n"


def _what(error: type[CdcdError]) -> str:
    first, *_ = (error.__doc__ or "").splitlines()
    return _FAILURES.sub("", first).rstrip(".")


def _resolution(error: type[CdcdError]) -> str:
    """Return the class's resolution, or its hint: a resolution of its base is not its own."""
    texts = (vars(base).get(name) for base in error.__mro__ for name in ("resolution", "hint"))
    return typeable(next(text for text in texts if text))

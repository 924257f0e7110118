"""The part of a daemon's configuration that a reader of its topics needs: the prefix, Kafka, the registry.

Comes in: the daemon's own file and an environment, as for `load`.  Goes out: `ReaderConfig`; one value by its key.
Invariant: the sections are checked by the daemon's own models; no secret file is looked for, because it may be on
another host than the configuration, and no other section is checked: a reader's host has no password of PostgreSQL.
Must not: read a secret file, retain a secret, connect.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cdcd.config.document import KeyPath, first_of, path_text, read_document
from cdcd.config.environment import read_variables
from cdcd.config.load import overridden
from cdcd.config.model import Config, Name
from cdcd.config.problems import Origins, lines_of
from cdcd.config.sink import RegistryOption, Sink
from cdcd.config.values import NO_FILES, Room
from cdcd.errors import ConfigError

__all__ = ["LoadedReader", "ReaderConfig", "load_reader", "value_at"]


class ReaderConfig(Room):
    """The sections that a reader shares with the daemon."""

    name: Name
    sink: Sink
    registry: RegistryOption


@dataclass(frozen=True, slots=True)
class LoadedReader:
    """The configuration, and the variables that have set some of its keys."""

    config: ReaderConfig
    variables: Mapping[KeyPath, str]


_OTHERS = Config.model_fields.keys() - ReaderConfig.model_fields.keys()


def load_reader(path: Path | str, environ: Mapping[str, str]) -> LoadedReader:
    """Return a reader's part of the configuration in `path`, overridden by the variables. Raises ConfigError."""
    document, variables = read_document(Path(path)), read_variables(environ)
    origins = Origins(document.name, document.lines, variables.names)
    tree = {
        key: value for key, value in overridden(document.tree, variables.tree).items() if key not in _OTHERS
    }
    problems = tuple(variables.problems)
    config = None
    try:
        config = ReaderConfig.model_validate(tree, context=NO_FILES)
    except ValidationError as error:
        problems = (*lines_of(error.errors(include_url=False), origins), *problems)
    if config is None or problems:
        raise ConfigError(f"{document.name} cannot be used by a reader", first_of(problems)) from None
    return LoadedReader(config, variables.names)


def value_at(path: Path | str, environ: Mapping[str, str], key: KeyPath) -> str:
    """Return one value of the configuration as text. Raises ConfigError if it has none."""
    document = read_document(Path(path))
    found: Any = overridden(document.tree, read_variables(environ).tree)
    for part in key:
        found = found.get(part) if isinstance(found, dict) else None
    if found is None:
        raise ConfigError(f"{document.name} has no {path_text(key)}, nor has the environment")
    return str(found)

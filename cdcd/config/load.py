"""Load a `Config` from a file and an environment, or report every problem at once.

Comes in: a path and an environment; a variable overrides the file.
Goes out: `LoadedConfig` (the Config and the origin of each value), or ConfigError whose `problems` are lines.
Invariant: a file is used only if all of it is valid.
Must not: read `os.environ`, connect, retain a pydantic error (its inputs can be secrets).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from cdcd.config.document import Document, first_of, read_document
from cdcd.config.environment import read_variables
from cdcd.config.model import Config
from cdcd.config.problems import Origins, lines_of
from cdcd.config.sink import registry_or_none
from cdcd.errors import ConfigError


@dataclass(frozen=True, slots=True)
class LoadedConfig:
    """A valid configuration and the origin of its values."""

    config: Config
    origins: Origins


def load_config(path: Path | str, environ: Mapping[str, str]) -> Config:
    """Return the configuration in `path`, overridden by the variables of `environ`. Raises ConfigError."""
    return load(path, environ).config


def load(path: Path | str, environ: Mapping[str, str]) -> LoadedConfig:
    """Return the configuration as `load_config` does, with the origins. Raises ConfigError."""
    return load_document(read_document(Path(path)), environ)


def load_document(document: Document, environ: Mapping[str, str]) -> LoadedConfig:
    """Override the file's tree by the variables and validate the result. Raises ConfigError."""
    variables = read_variables(environ)
    origins = Origins(document.name, document.lines, variables.names)
    problems = tuple(variables.problems)
    config = None
    try:
        config = Config(**overridden(document.tree, variables.tree))
    except ValidationError as error:
        problems = (*lines_of(error.errors(include_url=False), origins), *problems)
    if config is None or problems:
        count = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
        raise ConfigError(f"{document.name} has {count}", first_of(problems)) from None
    return LoadedConfig(config, origins)


def overridden(tree: Mapping[str, Any], variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the file's tree overridden by the variables, of which one may set an option of `registry: none`."""
    whole = {key: registry_or_none(value) if key == "registry" else value for key, value in tree.items()}
    return whole | {key: _merge(whole.get(key), value) for key, value in variables.items()}


def _merge(under: Any, over: Any) -> Any:
    """Return `under` overridden by `over`: mappings key by key, any other value whole."""
    if not isinstance(under, dict) or not isinstance(over, dict):
        return over
    return under | {key: _merge(under.get(key), value) for key, value in over.items()}

"""The configuration: one tree of options from a YAML file and the environment, checked as a whole.

Comes in: a file, `CDCD_...` variables.  Goes out: `Config`, and the settings of each package.
Invariant: every problem is reported at once, with path, origin and advice; no secret is ever shown.
Must not: connect to anything.
"""

from cdcd.config.load import LoadedConfig, load, load_config
from cdcd.config.model import Config
from cdcd.config.reader import LoadedReader, ReaderConfig, load_reader, value_at

__all__ = [
    "Config",
    "LoadedConfig",
    "LoadedReader",
    "ReaderConfig",
    "load",
    "load_config",
    "load_reader",
    "value_at",
]

"""The librdkafka client of a producer, called directly: records of a known topic at a fraction of the cost.

In: the properties of a producer.  Out: the producer, and its `DirectProducer` or None.
Invariant: only librdkafka's public interface is used, and only while the producer exists. Where a part of it is
missing, there is no `DirectProducer`, and every record goes through confluent-kafka's `produce`, which does the same.
Must not: change what is produced, or fail where a producer alone does not.

confluent-kafka's `produce` names the topic, which librdkafka then looks for in a list of all topics: with 1,500
topics that takes 12 µs a record. With a handle of the topic there is no search, and no arguments for Python to parse.
confluent-kafka does not give away the address of its client, but librdkafka gives it to a plugin.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
from collections.abc import Mapping
from types import ModuleType
from typing import Any

import confluent_kafka.cimpl
from confluent_kafka import KafkaException, Producer

from cdcd.extensions import extension

FUNCTIONS = (
    "rd_kafka_conf_interceptor_add_on_new",
    "rd_kafka_opaque",
    "rd_kafka_topic_new",
    "rd_kafka_topic_destroy",
    "rd_kafka_produce",
)
"""What the extension calls, in the order of `use`."""
_PLUGINS, _SEPARATOR = "plugin.library.paths", ";"
_TEXT_BYTES = 512


@functools.cache
def _plugin() -> ModuleType | None:
    """Return the extension, which is the plugin as well; None if it, or librdkafka's support, is missing."""
    module = extension("cdcd.sink._produce_batch")
    if module is None or module.__file__ is None or _SEPARATOR in module.__file__:
        return None
    try:
        # The module is linked with librdkafka, so its functions are found through it.
        loaded = ctypes.CDLL(confluent_kafka.cimpl.__file__)
        if not _has_plugins(loaded):
            return None
        module.use(*(loaded[name] for name in FUNCTIONS))
    except (OSError, AttributeError):
        return None
    return module


def _has_plugins(loaded: ctypes.CDLL) -> bool:
    """Return whether librdkafka was built with plugins."""
    new, get, destroy = (loaded[f"rd_kafka_conf_{name}"] for name in ("new", "get", "destroy"))
    new.restype = ctypes.c_void_p
    get.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(ctypes.c_size_t)]
    destroy.argtypes, destroy.restype = [ctypes.c_void_p], None
    text, size = ctypes.create_string_buffer(_TEXT_BYTES), ctypes.c_size_t(_TEXT_BYTES)
    configuration = new()
    get(configuration, b"builtin.features", text, size)
    destroy(configuration)
    return b"plugins" in text.value.split(b",")


def new_producer(properties: Mapping[str, object], *, logger: object) -> tuple[Producer, Any | None]:
    """Return a new producer and its `DirectProducer`, which has to be closed before the producer is released.

    Raises as `Producer` does.
    """
    plugin = _plugin()
    if plugin is not None:
        plugin.forget_created()
        # Whatever is wrong, with the plugin or without it: what `Producer` says without it is the truth.
        with contextlib.suppress(KafkaException, SystemError):
            producer = Producer(_with_plugin(properties, str(plugin.__file__)), logger=logger)
            return producer, _direct_producer(plugin, producer)
    return Producer(dict(properties), logger=logger), None


def _with_plugin(properties: Mapping[str, object], path: str) -> dict[str, object]:
    """Return the properties with one plugin more."""
    paths = [str(properties[_PLUGINS])] if properties.get(_PLUGINS) else []
    return {**properties, _PLUGINS: _SEPARATOR.join([*paths, path])}


def _direct_producer(plugin: ModuleType, producer: Producer) -> Any | None:
    try:
        return plugin.DirectProducer(producer)
    except LookupError:
        return None

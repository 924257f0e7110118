"""An error that is no exception of Python, as the Kafka client raises one after its fatal error.

In: nothing.  Out: never: a `KafkaError` is raised, which only a bare `except` catches.
"""

from __future__ import annotations

import ctypes

from confluent_kafka import KafkaError


def raise_no_exception() -> None:
    """Raise the error of a producer that was fenced."""
    set_object = ctypes.pythonapi.PyErr_SetObject
    set_object.argtypes, set_object.restype = [ctypes.py_object, ctypes.py_object], ctypes.py_object
    set_object(KafkaError, KafkaError(KafkaError._FENCED, fatal=True))

"""A program that measures one round each time it is asked, so that its rounds alternate with those of others.

In: a command. The program prints a line when it is ready, and a line of JSON for each line of its input.
Out: a function that has it measure a round, and returns its answer.
Invariant: the program has ended when the context has.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any


@contextmanager
def asked(command: Sequence[str]) -> Iterator[Callable[[], Any]]:
    """Yield what measures a round. Raises RuntimeError if the program has ended."""
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as peer:
        assert peer.stdin is not None
        assert peer.stdout is not None
        questions, answers = peer.stdin, peer.stdout
        _line(answers.readline())

        def measured_round() -> Any:
            questions.write("\n")
            questions.flush()
            return json.loads(_line(answers.readline()))

        yield measured_round
        questions.close()


def _line(line: str) -> str:
    if not line:
        raise RuntimeError("the program with Spark has ended")
    return line

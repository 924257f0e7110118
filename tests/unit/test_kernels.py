"""Which kernels run: what CDCD_KERNELS says, and what is said when one is not there."""

from __future__ import annotations

import pytest

from cdcd import kernels

ROWS, PRODUCE_BATCH, READING, FRAMES = kernels.KERNELS


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The compiled modules that are installed."""
    names = set(kernels.KERNELS)

    def load(name: str) -> object:
        if name not in names:
            raise ImportError(f"no module {name}")
        return kernels  # any module

    monkeypatch.setattr(kernels.importlib, "import_module", load)
    monkeypatch.delenv(kernels.VARIABLE, raising=False)
    return names


def test_what_is_there_runs(there: set[str]) -> None:
    assert kernels.running() == "compiled kernels"
    assert not kernels.is_fallback()
    there.remove(READING)
    assert kernels.running() == f"kernels in Python: {READING}"
    assert kernels.is_fallback()


def test_twins_that_are_asked_for_run_and_are_no_fallback(
    there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "python")
    assert kernels.compiled(ROWS) is None
    assert kernels.running() == f"kernels in Python: {ROWS}, {PRODUCE_BATCH}, {READING}, {FRAMES}"
    there.clear()
    assert not kernels.is_fallback()


def test_a_kernel_that_was_asked_for_and_is_not_there_ends_the_process(
    there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "compiled")
    assert kernels.compiled(ROWS) is not None
    there.remove(ROWS)
    with pytest.raises(
        SystemExit, match=r"cdcd\.avro\.rows is not there .* install cdcd where there is a C compiler"
    ):
        kernels.compiled(ROWS)


@pytest.mark.usefixtures("there")
def test_a_word_that_is_none_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(kernels.VARIABLE, "fast")
    with pytest.raises(SystemExit, match="one of auto, compiled, python, not 'fast'"):
        kernels.compiled(ROWS)

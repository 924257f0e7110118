"""The implementation that CDCD_EXTENSIONS selects, and the error when an extension is missing."""

from __future__ import annotations

import pytest

from cdcd import extensions

ROWS, COLUMNS, PRODUCE_BATCH, COPY_ROWS, READING, FRAMES, ENTRIES, HASHES = extensions.EXTENSIONS


@pytest.fixture
def there(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Simulate these installed compiled modules."""
    names = set(extensions.EXTENSIONS)

    def load(name: str) -> object:
        if name not in names:
            raise ImportError(f"no module {name}")
        return extensions  # any module

    monkeypatch.setattr(extensions.importlib, "import_module", load)
    monkeypatch.delenv(extensions.VARIABLE, raising=False)
    return names


def test_what_is_there_runs(there: set[str]) -> None:
    assert extensions.implementation() == "C extensions"
    assert not extensions.is_fallback()
    there.remove(READING)
    assert extensions.implementation() == f"Python fallback for {READING}"
    assert extensions.is_fallback()


def test_a_fallback_that_was_asked_for_is_no_warning(
    there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(extensions.VARIABLE, "python")
    assert extensions.extension(ROWS) is None
    missing = ", ".join((ROWS, COLUMNS, PRODUCE_BATCH, COPY_ROWS, READING, FRAMES, ENTRIES, HASHES))
    assert extensions.implementation() == f"Python fallback for {missing}"
    there.clear()
    assert not extensions.is_fallback()


def test_an_extension_that_was_asked_for_and_is_missing_ends_the_process(
    there: set[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(extensions.VARIABLE, "compiled")
    assert extensions.extension(ROWS) is not None
    there.remove(ROWS)
    with pytest.raises(
        SystemExit, match=r"cdcd\.avro\.rows is missing .* install cdcd on a machine with a C compiler"
    ):
        extensions.extension(ROWS)


@pytest.mark.usefixtures("there")
def test_a_word_that_is_none_ends_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(extensions.VARIABLE, "fast")
    with pytest.raises(SystemExit, match="one of auto, compiled, python, not 'fast'"):
        extensions.extension(ROWS)

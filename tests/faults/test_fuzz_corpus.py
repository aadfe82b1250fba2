"""All inputs of the fuzzers' corpora and all past crashes, without a fuzzer.

A crash that a fuzzer finds goes to ``fuzz/corpus/<target>/crash-<what>`` once it is mended.
"""

import importlib
from pathlib import Path

import pytest

CORPUS = Path(__file__).parent / "fuzz" / "corpus"
INPUTS = sorted(path for path in CORPUS.rglob("*") if path.is_file())


@pytest.mark.parametrize("path", INPUTS, ids=lambda path: f"{path.parent.name}-{path.name}")
def test_only_input_errors_are_raised(path):
    """Each ``crash-*`` is made after a find of the fuzzers, and named for what was wrong.

    Seen to fail without the limits to the length of numbers in `info._cast`.
    """
    target = importlib.import_module(f"tests.faults.fuzz.{path.parent.name}")
    target.one(path.read_bytes())


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in INPUTS) < 200_000
    assert {path.parent.name for path in INPUTS} == {
        path.stem for path in (CORPUS.parent).glob("*.py") if path.stem[0] != "_"
    } - {"common"}

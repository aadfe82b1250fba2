"""The examples of docs/gpu.md, run in order as a reader would."""

import re
from pathlib import Path

import pytest

from ..conftest import HAS_GPU

PAGE = Path(__file__).parents[2] / "docs" / "gpu.md"
SECTIONS = re.split(r"^(?=## )", PAGE.read_text(), flags=re.MULTILINE)[1:]


def blocks(text):
    return re.findall(r"^```python\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda text: text.splitlines()[0][3:])
def test_the_examples_run(section, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    scope = {"__name__": "example"}
    examples = blocks(section)
    for number, example in enumerate(examples):
        if HAS_GPU or "# needs a GPU" not in example:
            exec(compile(example, f"docs/gpu.md, example {number}", "exec"), scope)
    assert examples, "a section without an example"

"""The schema as nf-core's tools read it, which launch pipelines from web forms."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import nf_core.pipelines.schema as nf_core_schema
import nf_core.utils as nf_core_utils
import pytest

from .conftest import REPOSITORY, Launcher


@pytest.fixture(scope="module")
def config(
    make_launcher: Callable[[str, Path], Launcher], fake_scripts: Path
) -> Iterator[dict[str, str | None]]:
    """Give nf-core the pipeline's params: its own call wants a newer Nextflow than we ask for."""
    launch = make_launcher("schema_lint", fake_scripts)("config", "-flat", REPOSITORY)
    assert launch.status == 0, launch.text
    found = re.findall(r"^params\.(\S+) = (.*)$", launch.text, flags=re.MULTILINE)
    params = {name: None if value == "null" else value.strip("'") for name, value in found}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nf_core_utils, "fetch_wf_config", lambda *_, **__: {"params": params})
        yield params


def linted(path: Path) -> dict[str, str]:
    schema = nf_core_schema.PipelineSchema()
    schema.schema_filename = path
    schema.load_lint_schema()
    return dict(schema.invalid_nextflow_config_default_parameters)


def test_nf_core_accepts_the_schema(config: dict[str, str | None]) -> None:
    assert len(config) > 40
    assert linted(REPOSITORY / "nextflow_schema.json") == {}


def test_nf_core_sees_what_is_wrong(config: dict[str, str | None], tmp_path: Path) -> None:
    text = (REPOSITORY / "nextflow_schema.json").read_text(encoding="utf-8")
    other = tmp_path / "nextflow_schema.json"
    other.write_text(text.replace('"use_gpu": {', '"use_gpus": {'), encoding="utf-8")
    assert "use_gpus" in linted(other)
    other.write_text(text.replace('"$ref": "#/$defs/tiles"', '"$ref": "#/$defs/x"'))
    with pytest.raises(AssertionError, match="tiles"):
        linted(other)

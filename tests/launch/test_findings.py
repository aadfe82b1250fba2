"""Last messages on a run's report."""

from __future__ import annotations

from pathlib import Path

import pytest

from linumpy.launch.findings import findings, made

HEAD = (
    '<meta name="linumpy-findings" content="2 problems, 1 warning">\n'
    '<meta name="linumpy-problem" content="z01: &lt;b&gt; &amp; &#34;c&#34; &#39;d&#39;">\n'
    '<style></style><meta name="linumpy-problem" content="not of the head">'
)


def test_problems_are_read_from_the_head_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("LINUMPY_FAILURE", raising=False)
    page = tmp_path / "report.html"
    assert findings(page) == ("", False)
    page.write_text("<html>")
    assert findings(page) == ("", False)
    page.write_text(HEAD.replace("2 problems, 1 warning", "no problems").partition("\n")[0])
    assert findings(page) == (f"no problems, see the report: {page}", False)
    page.write_text(HEAD)
    text = f"2 problems, 1 warning, see the report: {page}\n  z01: <b> & \"c\" 'd'"
    assert findings(page) == (text, True)
    # linum_nextflow.py says it.
    told = tmp_path / "told"
    monkeypatch.setenv("LINUMPY_FAILURE", str(told))
    assert findings(page) == (text, True)
    told.touch()
    assert findings(page) == ("", False)
    assert told.read_text() == text
    for name in ("acq.ome.zarr", "acq_ras.ome.zarr", "acq.nii.gz", "acqua.ome.zarr", "acq.csv"):
        (tmp_path / name).touch()
    done = made(tmp_path, "acq", 75)
    assert done == f"made {tmp_path}/acq.ome.zarr (also acq_ras.ome.zarr, acq.nii.gz) in 75 s"
    assert made(tmp_path, "other", 75) == ""
    findings(page, done)
    assert told.read_text() == f"{done}\n{text}"

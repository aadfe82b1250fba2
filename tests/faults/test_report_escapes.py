"""The report of a run with malicious texts stays a page of text."""

import csv
import io
import json
import shutil
import subprocess
from html.parser import HTMLParser
from urllib.parse import urlsplit

import pytest
from PIL import Image

from linumpy.report.build import build_report
from linumpy.report.run_section import SECTION, WALL, replace_part
from linumpy.store.manifest import adopt
from tests.report.conftest import pristine_run  # noqa: F401

EVIL = (
    "</title></style></script><script>document.title='owned'</script>\"'onmouseover=\"owned()\" "
    "><img src=x onerror=\"document.title='owned'\"><!--/linumpy:run--><!--linumpy:wall-->--> "
    "<svg onload=owned()>&lt;b&gt;<a href=javascript:owned()>$\\frac{ {{7*7}}{% raw %}\u202e"
)
NAME = '<img src=x onerror=owned()>"onmouseover="owned()\' $x^$ javascript:owned().png'
TEXTS = ("atlas", "reason", "unit", "message", "warning", "text", "process", "tag", "engine",
         "name", "command_line", "subject", "nextflow", "status", "profile", "note", "notes",
         "step", "medium", "metric", "transform", "flags", "method")  # fmt: skip


class Page(HTMLParser):
    """Elements with the names of their attributes, addresses, and text."""

    def __init__(self, source):
        super().__init__()
        self.elements, self.addresses, self.words = set(), [], ""
        self.feed(source)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.elements |= {(tag, name) for name, _ in attrs} | {(tag, None)}
        self.addresses += [value for name, value in attrs if name in ("src", "href")]

    def handle_data(self, data):
        self.words += data


def spoil_json(path):
    """Put the text into every value of a document that is meant to be read by people."""

    def spoilt(value, key=None):
        if isinstance(value, dict):
            return {k: spoilt(v, k) for k, v in value.items()}
        if isinstance(value, list):
            return [spoilt(v, key) for v in value]
        return EVIL if isinstance(value, str) and key in TEXTS else value

    path.write_text(json.dumps(spoilt(json.loads(path.read_text()))))


def table(rows):
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue()


@pytest.fixture(scope="module")
def hostile_page(pristine_run, tmp_path_factory):  # noqa: F811
    full_run = tmp_path_factory.mktemp("hostile") / "run"
    shutil.copytree(pristine_run, full_run)
    for path in full_run.rglob("*.json"):
        if ".zarr" not in str(path):
            spoil_json(path)
    columns = ["slice_id", "use", "exclude_reason", "notes", "quality_score", "interpolated",
               "interpolation_failed", "interpolation_method_used",
               "interpolation_fallback_reason"]  # fmt: skip
    rows = [["00", "true", "", EVIL, "0.93", "", "", "", ""],
            ["03", "false", EVIL, EVIL, EVIL, "", "", "", ""],
            ["04", "false", "", "", "", "true", "", EVIL, ""],
            ["05", "false", "", "", "", "", "true", "", EVIL]]  # fmt: skip
    (full_run / "slice_config.csv").write_text(table([columns, *rows]))
    for folder in ("aips", "previews", "diagnostics"):
        Image.new("L", (8, 8), 99).save(full_run / folder / NAME)
    trace = next((full_run / "pipeline_info").glob("trace*"))
    flat = " ".join(EVIL.split())
    trace.write_text(trace.read_text().replace("(z00)", f"({flat})").replace("FAILED", flat))
    place = full_run / "pipeline_info" / "run.json"
    record = json.loads(place.read_text())
    record |= {"subject": EVIL, "params": {EVIL: EVIL, "nested": {EVIL: [EVIL]}}}
    record |= {"versions": {EVIL: EVIL}, "status": EVIL, "command_line": EVIL, "profile": EVIL}
    place.write_text(json.dumps(record))
    volume = full_run / "slices/slice_z02.ome.zarr/zarr.json"
    document = json.loads(volume.read_text())
    del document["attributes"]["linumpy"]["manifest"]
    document["attributes"]["linumpy"]["flags"] = {"0,1": [EVIL], EVIL: [EVIL]}
    volume.write_text(json.dumps(document))
    adopt(volume.parent)
    accuracy = json.loads((full_run / "accuracy.json").read_text())
    accuracy[EVIL] = next(iter(accuracy.values()))
    (full_run / "accuracy.json").write_text(json.dumps(accuracy))
    return build_report(full_run)


def test_no_text_of_a_run_becomes_markup(hostile_page, pristine_run):  # noqa: F811
    """Seen to fail with ``autoescape=False``: script, svg, onmouseover and many more."""
    source, page = hostile_page, Page(hostile_page)
    # What the plain page is made of.
    allowed = Page(build_report(pristine_run)).elements
    new = {name for name in page.elements - allowed if name not in {("a", "href"), ("a", None)}}
    assert not new
    assert not {tag for tag, _ in page.elements} & {"iframe", "object", "link"}
    # The page's own one.
    assert source.count("<script") == 1
    assert not {name for _, name in page.elements if name and name.startswith("on")}
    for address in page.addresses:
        assert urlsplit(address).scheme in ("", "data") and not address.startswith("//")
    # It is all there to read, and no template was run.
    assert page.words.count("<script>document.title='owned'</script>") >= 12
    assert "{{7*7}}" in page.words and "49{%" not in page.words
    # What is told when the run ends finds its places, and them alone.
    for part in (SECTION, WALL):
        again = replace_part(source, part, "<p>put</p>")
        assert again.count("<p>put</p>") == 1


@pytest.mark.skipif(shutil.which("chromium") is None, reason="no Chromium on this machine")
def test_a_browser_runs_nothing_of_it(hostile_page, tmp_path):
    """Seen to fail with ``autoescape=False``: the page's title shows it."""
    page = tmp_path / "report.html"
    page.write_text(hostile_page, encoding="utf-8")
    done = subprocess.run(
        ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={tmp_path}/c",
         "--dump-dom", page.as_uri()],
        capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    title = done.stdout.partition("<title>")[2].partition("</title>")[0]
    assert "reconstruction report" in title and title != "owned"
    found = Page(done.stdout)
    assert done.stdout.count("<script") == 1
    assert not {tag for tag, _ in found.elements} & {"iframe"}
    assert not {name for _, name in found.elements if name and name.startswith("on")}

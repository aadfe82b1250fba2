"""The page: complete, self-contained, escaped, and there whatever is missing."""

from __future__ import annotations

import base64
import html.parser
import importlib.util
import io
import json
import re
import shutil
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest
from PIL import Image

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.omezarr import open_image
from linumpy.report.build import build_report

SCRIPT = Path(__file__).parents[2] / "scripts" / "linum_generate_pipeline_report.py"
VOID = {"meta", "img", "br", "link", "hr", "input"}


class Page(html.parser.HTMLParser):
    """Text, pictures and links of a page; complains about tags that do not pair."""

    def __init__(self, source: str) -> None:
        super().__init__()
        self.text = ""
        self.tags: list[str] = []
        self.references: list[str] = []
        self.pictures: list[dict[str, str | None]] = []
        self._open: list[str] = []
        self.feed(source)
        assert self._open == []
        self.text = " ".join(self.text.split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        values = dict(attrs)
        self.references += [values[k] or "" for k in ("src", "href", "srcset") if k in values]
        if tag == "img":
            self.pictures.append(values)
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1] not in ("style", "script"):
            self.text += data + " "


@pytest.fixture(scope="module")
def source(pristine_run: Path) -> str:
    """The page of the whole run."""
    return build_report(pristine_run)


@pytest.fixture
def no_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make figures but do not render them, which is what takes the time."""
    buffer = io.BytesIO()
    Image.new("L", (1, 1)).save(buffer, format="PNG")
    monkeypatch.setattr("linumpy.report.build.figure_png", lambda *_, **__: buffer.getvalue())


def test_everything_is_told(source: str) -> None:
    """Seen to fail without the findings on tiles."""
    page = Page(source)
    for words in (
        "Tile positions, RMS an axis 0.1 px ≤ 0.25 12\u202f345 tiles ✓ pass",
        "Correlation with the truth 0.91 of ideal ≥ 0.95",
        "✗ missed",
        "not measured no pairs at all",
        "Left out of the brain: torn slice.",
        "z04 Not there: interpolated from its neighbours (zmorph).",
        "z05 Not there, and its neighbours do not tell what was: low overlap ncc.",
        "z06 Not there; the deeper part of the slice above shows its tissue.",
        "z02 The stage told a wrong place, or lost its zero, here",
        "Focus 260 µm below the top of what is imaged, Rayleigh length 400 µm",
        "issue attenuates 1.88 per mm",
        "Bias field: two pass; the fields span 0.80 to 1.25.",
        "The brain's axes (z, axis 1, axis 2) point to PRS Turned beyond that 3.2°",
        "· quality 0.93",
        "z00 yes 0.93",
        "z05 no data gap: low overlap ncc",
        "Diagnostics (1) shifts drift.png",
        "z02: 1 Tiles that were not imaged",
        "z02: 1 Tiles with flags: nan.",
        "z02: 1 Tiles that match no neighbour",
        "z01 – z02 Slices could not be matched (confidence 0.10)",
        "z00 – z01 Their distance in depth was not clear",
        "No z overlap was found",
        "The mosaic changed its shape",
        "27 tiles in 3 slices, 35 of 36 pairs accepted, 1 tile held by the stage alone",
        "linum_nextflow.py run main.nf --input raw --output out",
        "pyramid_resolutions [10, 25]",
        "Nextflow 24.10.0",
        "napari --plugin napari-ome-zarr brain.ome.zarr",
        "learn_models 1 0 0 0 1 min 38 s",
    ):
        assert " ".join(words.split()) in page.text, words
    # The terminal reads these; the page shows them at its top.
    summary = re.search('<meta name="linumpy-findings" content="([^"]*)">', source)
    assert summary is not None and re.fullmatch(r"[0-9]+ problems, [0-9]+ warnings", summary[1])
    told = re.findall('<meta name="linumpy-problem" content="([^"]*)">', source)
    assert 1 <= len(told) <= 5 and any("Accuracy target missed" in text for text in told)
    assert page.text.index(summary[1]) < page.text.index("Against the known truth")
    # Gravest first.
    order = [page.text.index(w) for w in ("Accuracy target missed", "torn slice", "Tile pairs rej")]
    assert order == sorted(order)


def test_pictures_are_real_and_described(source: str) -> None:
    page = Page(source)
    # Brain, 2 slices, confidence, seams, 3 slices' tiles, axes, fields, axial response, bias,
    # shifts, overlap, atlas, time.
    assert len(page.pictures) == 16
    for picture in page.pictures:
        assert picture["alt"]
        kind, data = str(picture["src"]).split(",", 1)
        assert kind == "data:image/png;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        image.load()
        assert np.ptp(np.asarray(image.convert("L"))) > 50


def test_page_refers_to_nothing_outside_its_folder(source: str, pristine_run: Path) -> None:
    assert re.search(r"https?:", source, re.IGNORECASE) is None
    page = Page(source)
    assert page.references
    beside = [r for r in page.references if not r.startswith(("data:", "#"))]
    assert not {picture["src"] for picture in page.pictures} & set(beside)
    # Spaces are quoted, and every link leads somewhere.
    assert "diagnostics/shifts%20drift.png" in beside
    assert "brain_ras_transform.tfm" in beside
    assert all((pristine_run / unquote(r)).exists() for r in beside)
    assert not {"script", "link", "iframe", "object"} & set(page.tags)
    assert "@import" not in source
    assert "url(" not in source
    assert len(source) < 3_000_000


def test_viewer_state_points_at_the_brain(source: str, pristine_run: Path) -> None:
    page = Page(source)
    link = next(r for r in page.references if r.startswith("data:application/json"))
    state = json.loads(base64.b64decode(link.split(",", 1)[1]))
    assert state["layers"][0]["source"].endswith("/brain.ome.zarr")
    assert state["dimensions"]["z"] == [pytest.approx(12.5e-6), "m"]
    brain = open_image(pristine_run / "brain.ome.zarr")
    centre = [
        t / v + (n - 1) / 2
        for t, v, n in zip(brain.translation_um, brain.voxel_um, brain.array.shape, strict=True)
    ]
    assert state["position"] == pytest.approx(centre)


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
def test_names_cannot_become_markup(full_run: Path) -> None:
    evil = "<script>alert('x')</script>\"><img src=x onerror=y>"
    (full_run / "slice_config.csv").write_text(
        f'slice_id,use,exclude_reason\n00,true,\n02,false,"{evil.replace(chr(34), chr(34) * 2)}"\n'
    )
    info = {
        "subject": evil,
        "command_line": evil,
        "params": {evil: evil, "nested": {"a": evil}},
        "versions": {evil: evil},
        "tasks": [{"process": evil, "tag": evil, "seconds": 3}],
    }
    shutil.rmtree(full_run / "pipeline_info")
    source = build_report(full_run, info)
    page = Page(source)
    assert "script" not in page.tags
    assert "onerror" not in [key for picture in page.pictures for key in picture]
    assert page.text.count("<script>alert('x')</script>") >= 6


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("accuracy.json", "The truth is not known here"),
        ("brain.ome.zarr", "There is no brain volume in this folder."),
        ("slices", "no picture"),
        ("models/z00", "18 tiles in 2 slices"),
        ("models/z00/register_tiles.json", "18 tiles in 2 slices"),
        ("models/detect_focal_curvature.json", "flat field 0."),
        ("models/register_slices.json", "Motor positions"),
        ("models/stack_slices_motor.json", "The slices were not stacked."),
        ("models", "Tiles were not registered"),
        ("shifts_xy.csv", "Alignment of slices"),
        ("slice_config.csv", "1 tile missing"),
        ("z_matches.csv", "Depth that each slice fills"),
        ("pipeline_info", "No trace of the workflow was found"),
        ("pipeline_info/trace_2025.tsv", "1 min 38 s of computing"),
    ],
)
def test_any_part_may_be_missing(full_run: Path, part: str, words: str) -> None:
    place = full_run / part
    if place.is_dir():
        shutil.rmtree(place)
    else:
        place.unlink()
    page = Page(build_report(full_run))
    everything = page.text + " ".join(str(p["alt"]) for p in page.pictures)
    assert words in everything


def test_empty_folder_still_gives_a_page(tmp_path: Path) -> None:
    (tmp_path / "empty_run").mkdir()
    page = Page(build_report(tmp_path / "empty_run"))
    assert page.text.startswith("empty_run")
    assert page.pictures == []
    for words in ("No slices were found", "Parameters were not recorded", "Wall time unknown"):
        assert words in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
def test_missing_slice_shows_as_a_gap(full_run: Path) -> None:
    shutil.rmtree(full_run / "models/z01")
    path = full_run / "models/register_slices.json"
    record = json.loads(path.read_text())
    record["slices"].pop(1)
    path.write_text(json.dumps(record))
    page = Page(build_report(full_run))
    assert "z01 No data: the brain has a gap here." in page.text
    assert "Slices 2 of 7" in page.text


@pytest.mark.usefixtures("no_drawing")
def test_previews_of_slices_are_used_when_there(full_run: Path) -> None:
    Image.new("L", (1000, 500), 200).save(full_run / "previews" / "slice_z01.png")
    page = Page(build_report(full_run))
    picture = next(p for p in page.pictures if p["alt"] == "Slice z01")
    image = Image.open(io.BytesIO(base64.b64decode(str(picture["src"]).split(",", 1)[1])))
    assert image.size == (420, 210)
    assert image.getpixel((5, 5)) == 200


def test_a_number_no_slice_can_have_is_an_error_that_names_it(full_run: Path) -> None:
    """A row was made of every id between. Seen to fail without the limit of `numbered`."""
    (full_run / "models/z9999999999").mkdir()
    with pytest.raises(InputError, match=r"z9999999999: expected slice ids up to 99999$"):
        build_report(full_run)


def test_broken_model_is_an_error_that_names_it(full_run: Path) -> None:
    (full_run / "models/register_slices.json").write_text("{")
    with pytest.raises(InputError, match=r"register_slices.json: not JSON"):
        build_report(full_run)


@pytest.mark.usefixtures("no_drawing")
def test_script_writes_the_page_once(
    full_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = importlib.util.spec_from_file_location("linum_generate_pipeline_report", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    output = tmp_path / "report.html"
    monkeypatch.setattr("sys.stdin", io.StringIO('{"subject": "mouse 7"}'))
    script.main([str(full_run), str(output), "--info", "-"])
    page = Page(output.read_text(encoding="utf-8"))
    assert page.text.startswith("mouse 7")
    assert "Nextflow 24.10.0" in page.text
    with pytest.raises(OutputExistsError):
        script.main([str(full_run), str(output)])
    monkeypatch.setattr("sys.stdin", io.StringIO("[1]"))
    with pytest.raises(InputError, match="JSON object"):
        script.main([str(full_run), str(output), "-f", "--info", "-"])

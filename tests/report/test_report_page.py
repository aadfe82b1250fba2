"""The page: complete, self-contained, escaped, and there whatever is missing."""

from __future__ import annotations

import base64
import csv
import gzip
import hashlib
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
from markupsafe import Markup
from PIL import Image

from linumpy.core.errors import InputError, OutputExistsError
from linumpy.io.omezarr import open_image
from linumpy.io.previews import slice_preview
from linumpy.quality.run import Run
from linumpy.report.build import _packed, _slices_of_tiles, build_report
from linumpy.report.pictures import jpeg
from linumpy.report.tile_figures import tile_plots

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
    monkeypatch.setattr("linumpy.report.plots.svg", lambda *_: Markup("<svg></svg>"))


def test_every_part_of_a_run_is_shown(source: str) -> None:
    """Seen to fail without the findings on tiles."""
    page = Page(source)
    for words in (
        "Tile positions, RMS an axis 0.1 px ≤ 0.25 12\u202f345 tiles ✓ pass",
        "Correlation with the truth 0.91 of ideal ≥ 0.95",
        "✗ missed",
        "not measured no pairs at all",
        "warning Slices left out of the brain They do not look like their neighbours",
        "Where z03 Found torn slice What to do Look at each below; to keep one",
        "Where z04 Found Not among the raw data, zmorph What to do Exclude them from measurements",
        "problem A gap stays",
        "Where z05 Found Not among the raw data, low overlap ncc What to do",
        "It does so in its deeper part, with less contrast. Where z06 Found Not among the raw data",
        "The stage lost its zero or told a wrong place",
        "warning All slices are rotated from here on The block, or what holds it,",
        "focus 260 µm below the top of what is imaged, Rayleigh length 400 µm",
        "tissue attenuates 1.88 per mm",
        "bias field: two pass; the fields span 0.80 to 1.25",
        "The brain's axes (z, axis 1, axis 2) point to PRS Rotated beyond that 3.2°",
        "· quality 0.93",
        "z00 yes 0.93",
        "z05 no data gap: low overlap ncc",
        "Diagnostics (1) shifts drift.png",
        "Tiles that were not imaged They are holes in the slice. Where z02: (1, 2)",
        "Tiles with remarks Parts of them were masked or mended. Where z02: (0, 1) Found nan",
        "Tiles with tissue that match no neighbour",
        "Neighbouring slices that could not be matched",
        "Where z01 – z02 Found confidence 0.10",
        "No overlap in depth was found The expected one is used. Where z01 – z02",
        "The mosaic changed its shape between two slices. Where z02",
        "27 tiles in 3 slices, 35 of 36 pairs accepted, 1 tile held by the stage alone",
        "linum_nextflow.py run main.nf --input raw --output out",
        "pyramid_resolutions [10, 25]",
        "Nextflow 24.10.0",
        "linum_view_omezarr.py brain.ome.zarr",
        "brain.nii.gz -r 50 --orientation PRS",
        "learn_models 1 0 0 0 1 min 38 s",
    ):
        assert " ".join(words.split()) in page.text, words
    # The terminal reads these; the page shows them at its top.
    summary = re.search('<meta name="linumpy-findings" content="([^"]*)">', source)
    assert summary is not None and re.fullmatch(r"[0-9]+ problems, [0-9]+ warnings", summary[1])
    told = re.findall('<meta name="linumpy-problem" content="([^"]*)">', source)
    assert 1 <= len(told) <= 8 and any("Accuracy target missed" in text for text in told)
    # Findings first, gravest first.
    assert f"Findings: {summary[1]}" in page.text
    order = [
        page.text.index(words)
        for words in ("Accuracy target missed", "Slices left out of the brain",
                      "No overlap in depth", "Sliders or a click move the planes",
                      "Against the known truth")
    ]  # fmt: skip
    assert order == sorted(order)


def test_pictures_are_real_and_described(source: str) -> None:
    page = Page(source)
    # The brain along three axes, 2 slices, atlas.
    assert len(page.pictures) == 6
    for picture in page.pictures:
        assert picture["alt"]
        kind, data = str(picture["src"]).split(",", 1)
        assert kind == "data:image/jpeg;base64"
        image = Image.open(io.BytesIO(base64.b64decode(data)))
        image.load()
        assert image.size == (int(str(picture["width"])), int(str(picture["height"])))
        assert np.ptp(np.asarray(image.convert("L"))) > 50
    # Confidence, seams, tiles and pairs of the first slice, 2 of stage axes, focal surface, flat
    # field, axial response, attenuation, bias, motors, offsets, rotation, slice pairs, 2 of
    # overlap, time.
    assert source.count("<svg") == 18


def test_plots_hold_their_data(source: str, pristine_run: Path) -> None:
    """Seen to fail with the angle of a slice exchanged for its id."""
    addresses = re.findall(
        r'download="(\w+)\.csv" href="data:text/csv;charset=utf-8,([^"]*)"', source
    )
    tables = {name: list(csv.reader(unquote(text).splitlines())) for name, text in addresses}
    assert len(tables) == len(addresses) == 18
    assert tables["slice_rotation"] == [
        ["slice", "rotation_deg"], ["0", "0"], ["1", "0.25"], ["2", "0.5"],
    ]  # fmt: skip
    record = json.loads((pristine_run / "models/register_slices.json").read_text())
    assert [float(v) for v in tables["slice_offsets"][3][1:]] == pytest.approx(
        record["slices"][2]["offset_um"], rel=1e-5
    )
    assert len(tables["tile_pair_confidence"]) == 37


def test_packed_plots_are_the_same_as_those_in_view(source: str) -> None:
    packed = re.findall('<div class="packed" hidden>([^<]*)</div>', source)
    assert len(packed) == 2
    page = gzip.decompress(base64.b64decode(packed[-1])).decode()
    assert page.count("<svg") == 2 and "z02: 11 of 12 tile pairs accepted" in page
    assert "z02_tiles.csv" in page


def test_of_too_many_slices_the_worst_are_shown(
    pristine_run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail with the slices taken in the order of their ids."""
    registrations = Run(pristine_run).tile_registrations
    packed = len(_packed([plot.render() for plot in tile_plots(registrations[2])]))
    monkeypatch.setattr("linumpy.report.build._PACKED_NBYTES", packed + 100)
    shown = _slices_of_tiles(registrations)
    assert [name for name, _ in shown["slices"]] == ["z00", "z02"]
    assert shown["left_out"] == 1


def test_images_are_as_small_as_asked_for() -> None:
    noise = np.random.default_rng(0).integers(0, 255, (200, 200), dtype="u1")
    large, small = (jpeg(noise, most) for most in (10**6, 22_000))
    assert len(small) * 3 / 4 < 22_100 < len(large) * 3 / 4


def test_drawings_hold_nothing_but_shapes_and_text(source: str) -> None:
    """Seen to fail with `_clean` left out: metadata, links and a style sheet of their own."""
    drawings = re.findall("<svg.*?</svg>", source, re.DOTALL)
    tags = {tag for drawing in drawings for tag in re.findall(r"<([A-Za-z:]+)", drawing)}
    assert tags <= {"svg", "g", "path", "use", "defs", "clipPath", "rect", "text", "tspan", "image"}
    for drawing in drawings:
        for address in re.findall(r'href="([^"]*)"', drawing):
            assert address.startswith(("#", "data:image/png;base64,"))
        ids = re.findall(r' id="([^"]*)"', drawing)
        assert len(ids) == len(set(ids))
    every = re.findall(r' id="([^"]*)"', source)
    assert len(every) == len(set(every))
    # Ink and paper follow the page.
    assert "var(--ink)" in drawings[0] and "#1b1f24" not in "".join(drawings)


def test_the_policy_lets_one_script_run(source: str) -> None:
    policy = re.search('http-equiv="Content-Security-Policy" content="([^"]*)"', source)
    scripts = re.findall("<script>(.*?)</script>", source, re.DOTALL)
    assert policy is not None and len(scripts) == 1 == source.count("<script")
    digest = base64.b64encode(hashlib.sha256(scripts[0].encode()).digest()).decode()
    assert policy[1].startswith("default-src 'none'; img-src data:;")
    assert f"script-src 'sha256-{digest}'" in html.unescape(policy[1])


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
    assert not {"link", "iframe", "object"} & set(page.tags)
    assert "@import" not in source
    assert not re.search(r"url\((?!#)", source)
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
    assert page.tags.count("script") == 1
    assert "onerror" not in [key for picture in page.pictures for key in picture]
    assert page.text.count("<script>alert('x')</script>") >= 6


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
@pytest.mark.parametrize(
    ("part", "words"),
    [
        ("brain.ome.zarr", "There is no brain volume in this folder."),
        ("slices", "no picture"),
        ("models/z00", "18 tiles in 2 slices"),
        ("models/z00/register_tiles.json", "18 tiles in 2 slices"),
        ("models/detect_focal_curvature.json", "lat field 0."),
        ("models/register_slices.json", "Mosaic corner by the motors"),
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
    assert words in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
def test_without_a_truth_accuracy_is_not_shown(full_run: Path) -> None:
    (full_run / "accuracy.json").unlink()
    assert "ccuracy" not in Page(build_report(full_run)).text


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
    assert "No data for a slice The brain has a gap here. Where z01" in page.text
    assert "Slices 2 of 7" in page.text


@pytest.mark.usefixtures("no_drawing")
def test_maps_of_attenuation_are_not_read(full_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are as large as hundreds of pages, and the page shows none."""
    from linumpy.quality import run

    plain, read = run.read_arrays, []

    def noted(path: Path) -> dict[str, np.ndarray]:
        read.append(Path(path).name)
        return plain(path)

    monkeypatch.setattr(run, "read_arrays", noted)
    source = build_report(full_run)
    assert "1.88 per mm" in source and "attenuation" in source
    assert "compensate_psf.npz" in read and "compensate_attenuation.npz" not in read


def test_previews_of_slices_are_used_when_there(full_run: Path) -> None:
    Image.new("L", (1000, 500), 200).save(full_run / "previews" / "slice_z01.png")
    page = Page(build_report(full_run))
    picture = next(p for p in page.pictures if p["alt"] == "Slice z01")
    image = Image.open(io.BytesIO(base64.b64decode(str(picture["src"]).split(",", 1)[1])))
    assert image.size == (420, 210)
    assert image.getpixel((5, 5)) == 200
    assert "each with its own contrast" in page.text


@pytest.mark.slow
@pytest.mark.usefixtures("no_drawing")
def test_all_slices_have_one_contrast(full_run: Path) -> None:
    """Seen to fail with every preview taken as it is."""
    for slice_id, brightness in ((0, 1.0), (1, 0.5), (2, 1.0)):
        mean = np.full((200, 200), 0.5 * brightness)
        mean[:, :100] = brightness
        slice_preview(mean, (10.0, 10.0), full_run / "previews" / f"slice_z{slice_id:02d}.png")
    page = Page(build_report(full_run))
    assert "with one contrast for all" in page.text
    found = {}
    for picture in page.pictures:
        if str(picture["alt"]).startswith("Slice"):
            data = base64.b64decode(str(picture["src"]).split(",", 1)[1])
            image = np.asarray(Image.open(io.BytesIO(data)))
            found[picture["alt"]] = image[50, [50, 150]].tolist()
    assert found["Slice z00"] == pytest.approx([255, 128], abs=3)
    assert found["Slice z01"] == pytest.approx([128, 64], abs=3)


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

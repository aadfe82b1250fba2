"""Every mistake of a launch is named before anything is submitted, all at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from linumpy.launch import places
from linumpy.launch.parameters import defaults, read_schema
from linumpy.launch.preflight import preflight
from linumpy.launch.problems import ProblemsError
from linumpy.launch.protocol import REFUSAL, answer
from tests.launch.asking import SCHEMA
from tests.planning.conftest import SIDE, write_headers

INFO_NBYTES = 4 * 150 * 220 * 100


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return acquisition(tmp_path / "raw", {n: (3, 2) for n in range(4)})


def acquisition(root: Path, slices: Any, **options: Any) -> Path:
    """Make an acquisition whose samples are holes of sparse files."""
    write_headers(root, slices, **options)
    for header in root.rglob("info.txt"):
        with (header.parent / "image_00000.bin").open("wb") as file:
            file.truncate(INFO_NBYTES)
    return root


def found(raw: Path, **given: Any) -> dict[str, Any]:
    schema = read_schema(str(SCHEMA))
    given = {"input": str(raw), "output": str(raw.parent / "out"), **given}
    more = {name: given.pop(name) for name in ("work_dir", "configs") if name in given}
    return preflight({**defaults(schema), **given}, schema, more)


def refused(raw: Path, **given: Any) -> list[str]:
    with pytest.raises(ProblemsError) as error:
        found(raw, **given)
    return error.value.lines()


def change(raw: Path, key: str, value: object, tiles: str = "tile_*") -> None:
    for path in raw.rglob(f"{tiles}/info.txt"):
        lines = path.read_text().splitlines()
        path.write_text(
            "\n".join(f"{key}: {value}" if n.startswith(f"{key}:") else n for n in lines)
        )


def side(raw: Path, **values: Any) -> None:
    for path in raw.rglob("metadata.json"):
        kept = {k: v for k, v in {**SIDE, **values}.items() if v is not None}
        path.write_text(json.dumps(kept))


def test_a_good_acquisition_has_no_problem_and_no_warning(raw: Path) -> None:
    assert (found(raw)["warnings"], len(found(raw)["slices"])) == ([], 4)


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({"resolution": 0.01}, "0.5 to 400 um (0.01 mm would be 10 um), or -1 for the voxels"),
        ({"resolution": 0}, "--resolution 0: expected 0.5 to 400 um, or -1 for the voxels"),
        ({"resolution": 5000}, "--resolution 5000: expected 0.5 to 400 um"),
        ({"slicing_interval_mm": 200}, "200: expected 0.005 to 5 mm (200 um would be 0.2 mm)"),
        ({"axial_resolution": 0.005}, "0.005: expected 0.1 to 100 um (0.005 mm would be 5 um)"),
    ],
)
def test_units_that_cannot_be(raw: Path, given: dict[str, float], text: str) -> None:
    """Seen to fail where the unit that was meant is not named."""
    (line,) = refused(raw, **given)
    assert line.startswith(f"--{next(iter(given))} ") and text in line


def test_lengths_of_side_files_that_cannot_be_or_are_missing(raw: Path) -> None:
    """Seen to fail where a missing interval is passed over."""
    side(raw, axial_resolution_um=0.004, slice_thickness=200)
    lines = refused(raw)
    first = raw / "slice_z00/metadata.json"
    assert f"{first}: axial_resolution_um 0.004: expected 0.1 to 100 um (0.004 mm" in lines[1]
    assert f"{first}: slice_thickness 200: expected 0.005 to 5 mm" in lines[-1]
    side(raw, axial_resolution_um=None, slice_thickness=None)
    assert refused(raw) == [
        "2 problems, nothing was started:",
        '  axial resolution unknown (slices 0-3): write "axial_resolution_um" to '
        f"{first}, or give --axial_resolution UM",
        f'  distance of the slices unknown: write "slice_thickness" (mm) to {first}, or give '
        "--slicing_interval_mm MM",
    ]
    assert found(raw, axial_resolution=4, slicing_interval_mm=0.2)["warnings"] == []
    # One slice has no neighbour to be apart from.
    one = acquisition(raw.parent / "one", {17: (1, 1)}, side={"axial_resolution_um": 4})
    assert [row[0] for row in found(one)["slices"]] == ["17"]


def test_an_interval_that_the_stage_contradicts(raw: Path) -> None:
    side(raw, slice_thickness=0.4)
    (line,) = refused(raw)
    assert "slice interval is 400 um, but stage_z_pos_mm moves by 200 um a slice" in line
    assert found(raw, slicing_interval_mm=0.4)["warnings"] == []


def test_headers_in_other_units(raw: Path) -> None:
    """Seen to fail without the check of the pixels' size."""
    change(raw, "width", 1.6)
    header = raw / "slice_z00/tiles/tile_x00_y00_z00/info.txt"
    assert refused(raw)[0] == (
        f"{header}: width 1.6 um over 200 pixels is 0.008 um a pixel, expected 0.1 to 200 um "
        "(slices 0-3); width is in um"
    )


def test_positions_in_micrometres(raw: Path) -> None:
    """Seen to fail where the length of a step is not looked at."""
    for tile in raw.rglob("tile_*"):
        change(tile.parent, "stage_x_pos_mm", 1200 * int(tile.name[6:8]), tile.name)
    (line,) = refused(raw)
    assert "from a tile to the next the stage moves by 1200 mm, a tile is 1.6 x 0.8 mm" in line


@pytest.mark.parametrize("given", ["-x,+y", "+x,-y", "+y,+x", "-y,-x"])
def test_stage_axes_that_the_headers_contradict(raw: Path, given: str) -> None:
    """Seen to fail with signs alone, and with axes alone."""
    (line,) = refused(raw, stage_to_array=given)
    assert line.startswith(f"--stage_to_array {given}: contradicts the headers of 4 of 4 slices")
    assert line.endswith("they fit --stage_to_array=+x,+y")


def test_a_stage_that_falls_along_an_axis(raw: Path) -> None:
    """Seen to fail where the sign of a step is not looked at."""
    for tile in raw.rglob("tile_*"):
        change(tile.parent, "stage_x_pos_mm", -1.2 * int(tile.name[6:8]), tile.name)
    (line,) = refused(raw)
    assert line.endswith("they fit --stage_to_array=-x,+y")
    assert found(raw, stage_to_array="-x,+y")["warnings"] == []


def test_one_row_determines_one_axis_and_one_slice_may_differ(tmp_path: Path, raw: Path) -> None:
    """Seen to fail where one slice that differs contradicts the map."""
    row = acquisition(tmp_path / "row", {0: (4, 1), 1: (4, 1)})
    assert found(row, stage_to_array="+x,-y")["warnings"] == []
    (line,) = refused(row, stage_to_array="-x,+y")
    assert line.endswith("the stage moves by 1200 um in x and 0 um in y; expected -x there")
    for tile in (raw / "slice_z02").rglob("tile_*"):
        change(tile.parent, "stage_x_pos_mm", -1.2 * int(tile.name[6:8]), tile.name)
    assert len(found(raw)["slices"]) == 4


def test_all_kinds_of_mistakes_are_named_at_once(raw: Path) -> None:
    """Seen to fail where the first kind ends the search."""
    tile = raw / "slice_z01/tiles/tile_x02_y01_z01"
    (tile / "image_00000.bin").write_bytes(bytes(100))
    lines = refused(
        raw,
        output=str(raw / "results"),
        gpu_count="two",
        slices="9",
        resolution=0.01,
        stage_to_array="-x,+y",
        slice_config="none.csv",
    )
    assert lines[0] == "7 problems, nothing was started:"
    assert [line.split(":")[0].split(" /")[0] for line in lines[1:]] == [
        "  --gpu_count two",
        "  --slice_config none.csv",
        "  --slices 9",
        "  --input",
        "   ",
        "  --output",
        "  --resolution 0.01",
        "  --stage_to_array -x,+y",
    ]
    assert lines[
        5
    ] == f"    {tile}/image_00000.bin: 100 bytes, expected {INFO_NBYTES} (4 x 150 " + (
        "samples x (200 + 20) A-lines x 100 B-scans)"
    )


def test_what_only_speaks_against_a_run_may_be_skipped(raw: Path) -> None:
    given = {"resolution": 0.01, "stage_to_array": "-x,+y", "skip_preflight": True}
    warned = found(raw, **given)["warnings"]
    assert [text.split(":")[0] for text in warned] == [
        "--resolution 0.01",
        "--stage_to_array -x,+y",
    ]
    (raw / "slice_z01/tiles/tile_x02_y01_z01/image_00000.bin").unlink()
    (line, _) = refused(raw, **given)
    assert line.startswith(f"--input {raw}: 1 tile in 1 slice (z01) cannot be read")


def test_doubled_tiles_and_several_acquisitions(tmp_path: Path) -> None:
    """Seen to fail with two subjects let through."""
    raw = acquisition(tmp_path / "raw", {0: (2, 2)})
    twin = raw / "slice_z00/tiles/tile_x0_y1_z0"
    (twin.parent / "tile_x01_y00_z00").rename(twin.parent / "tile_x00_y001_z00")
    (line, *_) = refused(raw)
    assert line == (
        f"{twin.parent}/tile_x00_y001_z00 and {twin.parent}/tile_x00_y01_z00: two "
        "tiles at grid index x 0, y 1 of slice z00; expected one"
    )
    for name in ("first", "second"):
        acquisition(tmp_path / "both" / name, {0: (2, 2), 1: (2, 2)})
    root = tmp_path / "both"
    assert refused(root)[0] == (
        f"--input {root}: {root}/first and {root}/second both hold 8 tiles of the same indices "
        "(slices 0-1): two acquisitions, or a copy; name one of them"
    )
    for name in ("sub-01", "sub-02"):
        acquisition(tmp_path / "bids" / name / "raw", {int(name[-1]): (2, 2)})
    root = tmp_path / "bids"
    assert refused(root)[0] == (
        f"--input {root}: holds 2 subjects (sub-01, sub-02); name one of them"
    )


def test_two_tiles_at_one_place_and_names_that_are_none(raw: Path) -> None:
    tiles = raw / "slice_z03/tiles"
    change(tiles, "stage_x_pos_mm", "1.2300", "tile_x02_y01*")
    (line,) = refused(raw)
    assert line == (
        f"{tiles}/tile_x01_y01_z03 and {tiles}/tile_x02_y01_z03: two tiles at one stage position "
        "(1.23, 0.6) mm; expected tiles a step apart"
    )
    change(tiles, "stage_x_pos_mm", "2.4300", "tile_x02_y01*")
    (tiles / "tile_x02_y01_z03").rename(tiles / "tile_x02_y01_z03 copy")
    (line,) = refused(raw)
    assert line.startswith(f"{tiles}/tile_x02_y01_z03 copy: not the name of a tile; expected")


def test_holes_gaps_and_empty_slices_are_warned_of(tmp_path: Path) -> None:
    places = [(x, y) for x in range(3) for y in range(2) if (x, y) != (1, 1)]
    raw = acquisition(tmp_path / "raw", {17: (3, 2), 19: places})
    (raw / "slice_z20/tiles").mkdir(parents=True)
    assert found(raw)["warnings"] == [
        f"{raw}/slice_z20: empty slice, holds no tile; left out",
        "places of the tile grid without a tile stay empty and masked: z19 1 of 6",
        "slices 18 are missing between the others",
    ]


@pytest.mark.parametrize(
    ("config", "count", "is_refused"),
    [("", 1, True), ("process.executor = 'slurm'", 1, False), ("", 0, False)],
)
def test_a_gpu_that_is_not_there(
    raw: Path, monkeypatch: pytest.MonkeyPatch, config: str, count: int, is_refused: bool
) -> None:
    """Seen to fail where tasks of a batch system are asked for a GPU of this machine."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    path = raw.parent / "my.config"
    path.write_text(config)
    given = {"use_gpu": True, "gpu_count": count, "configs": [str(path)]}
    if is_refused:
        (line,) = refused(raw, **given)
        assert line == (
            "--use_gpu: no NVIDIA GPU is visible on this machine (CUDA_VISIBLE_DEVICES is ''); "
            "leave it out, or let a batch system run the tasks (docs/hpc.md)"
        )
    else:
        assert len(found(raw, **given)["slices"]) == 4


@pytest.mark.parametrize(("config", "count"), [("", 1), ("process.executor = 'slurm'", 2)])
def test_fewer_gpus_than_the_run_counts(
    raw: Path, monkeypatch: pytest.MonkeyPatch, config: str, count: int
) -> None:
    """Steps that use all of them would end the run after all slices were made."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(places, "list_gpus", lambda: ["a GPU"])
    monkeypatch.setattr(places, "visible_gpus", list)
    path = raw.parent / "my.config"
    path.write_text(config)
    given = {"use_gpu": True, "configs": [str(path)]}
    assert len(found(raw, **given, gpu_count=count)["slices"]) == 4
    path.write_text("")
    (line,) = refused(raw, **given, gpu_count=2)
    assert line.startswith("--gpu_count 2: 1 GPUs are visible on this machine; expected as many")


def test_hard_links_across_disks(raw: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = Path("/dev/shm")
    if not elsewhere.is_dir() or elsewhere.stat().st_dev == raw.stat().st_dev:
        pytest.skip("one file system")
    given = {"publish_mode": "link", "work_dir": "/dev/shm/linumpy-none/work"}
    (line,) = refused(raw, **given)
    assert "--publish_mode link: impossible from /dev/shm/linumpy-none/work to" in line
    assert len(found(raw, **{**given, "publish_mode": "symlink"})["slices"]) == 4


def test_names_in_other_languages(tmp_path: Path) -> None:
    raw = acquisition(tmp_path / "Gehirn Nº 3 — мозг é 脳".replace("—", "-"), {0: (2, 2)})
    assert len(found(raw)["slices"]) == 1


@pytest.mark.slow
def test_headers_of_a_whole_brain_are_read_once(tmp_path: Path) -> None:
    """Of 12,000 tiles two small reads each, of the text and its end; no tile itself is read."""
    raw = acquisition(tmp_path / "raw", {n: (10, 10) for n in range(120)})
    wide = acquisition(tmp_path / "wide", {0: (50, 40)})
    before = reads_of_this_process()
    assert len(found(raw)["slices"]) == 120
    n_reads, n_bytes = (b - a for a, b in zip(before, reads_of_this_process(), strict=True))
    assert n_reads < 2.5 * 12000 and n_bytes < 400 * 12000
    assert len(found(wide)["slices"]) == 1


def reads_of_this_process() -> tuple[int, int]:
    """Return how often it read, and how many bytes."""
    lines = Path("/proc/self/io").read_text(encoding="ascii").splitlines()
    counts = dict(line.split(": ") for line in lines)
    return int(counts["syscr"]), int(counts["rchar"])


def test_where_the_launcher_says_all_nextflow_says_the_head(
    raw: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: dict[str, Any]) -> dict[str, Any]:
        return found(raw, resolution=0, slices="9")

    monkeypatch.delenv("LINUMPY_FAILURE", raising=False)
    whole = answer(refuse, {})["error"]
    lines = whole.splitlines()
    assert [line[:12] for line in lines] == ["2 problems, ", "  --slices 9", "  --resoluti"]
    place = raw.parent / "end.txt"
    monkeypatch.setenv("LINUMPY_FAILURE", str(place))
    assert answer(refuse, {})["error"] == whole
    place.touch()
    assert answer(refuse, {})["error"] == "2 problems, nothing was started:"
    assert (raw.parent / REFUSAL).read_text() == whole

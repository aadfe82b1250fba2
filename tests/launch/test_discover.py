"""What the launch finds in an input: links, digests, and the same from a listing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from linumpy.core.errors import InputError
from linumpy.launch.discover import checked_path, find_input, manual_transforms
from tests.launch.asking import find_request
from tests.pipeline.conftest import REPOSITORY, make_raw

SCRIPT = REPOSITORY / "linumpy" / "launch" / "__main__.py"


def find(root: Path, **more: Any) -> dict[str, Any]:
    return find_input({"input": str(root), **more})


def make_grids(root: Path, ids: tuple[int, ...]) -> Path:
    for number in ids:
        folder = root / f"mosaic_grid_3d_z{number:02d}.ome.zarr"
        (folder / "0/c/0").mkdir(parents=True)
        (folder / "zarr.json").write_text("{}")
        (folder / "0/c/0/1").write_bytes(bytes(number + 1))
    return root


def test_raw_tiles_are_found_with_ids_digests_and_bytes(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "sub-01" / "raw", [0, 7, 110])
    found = find(raw)
    assert (found["kind"], found["root"], found["subject"]) == ("raw", str(raw), "sub-01")
    assert [row[:2] for row in found["slices"]] == [["00", ""], ["07", ""], ["110", ""]]
    assert len({row[2] for row in found["slices"]}) == 3
    size = (raw / "slice_z00/tiles/tile_x00_y00_z00/info.txt").stat().st_size + 8
    assert found["bytes"] == 3 * 2 * size


LINKED: dict[str, Callable[[Path, Path], None]] = {
    "input": lambda raw, store: swap(raw, store),
    "slice": lambda raw, store: swap(raw / "slice_z01", store),
    "tile": lambda raw, store: swap(raw / "slice_z01/tiles/tile_x01_y00_z01", store),
    "file": lambda raw, store: swap(
        raw / "slice_z01/tiles/tile_x01_y00_z01/image_00000.bin", store
    ),
    "metadata": lambda raw, store: swap(raw / "slice_z01/metadata.json", store),
}


def swap(path: Path, store: Path) -> None:
    """Move something to a store, and leave a relative link to it."""
    path.rename(store)
    path.symlink_to(os.path.relpath(store, path.parent))


@pytest.mark.parametrize("what", LINKED)
def test_links_are_followed_and_digests_see_what_they_lead_to(tmp_path: Path, what: str) -> None:
    """Seen to fail where folders are told without following links: no tile was found."""
    raw, store = make_raw(tmp_path / "raw", [0, 1]), tmp_path / "elsewhere"
    plain = find(raw)
    LINKED[what](raw, store)
    linked = find(raw)
    assert linked["slices"] == plain["slices"]
    # A change behind the link is seen, and by the slice that it belongs to alone.
    files = [store] if store.is_file() else sorted(store.rglob("image_00000.bin"))
    behind = next(p for p in files if what != "input" or "_z01/" in str(p))
    os.utime(behind, ns=(1, 1))
    changed = find(raw)
    assert changed["slices"][0] == plain["slices"][0]
    assert changed["slices"][1][2] != plain["slices"][1][2]


def test_circles_of_links_end(tmp_path: Path) -> None:
    """Seen to fail where a folder on the way is entered again."""
    raw = make_raw(tmp_path / "raw", [0])
    before = find(raw)
    (raw / "slice_z00" / "up").symlink_to("..")
    (raw / "again").symlink_to(raw / "slice_z00")
    (raw / "itself").symlink_to("itself")
    assert find(raw)["slices"] == before["slices"]
    grids = make_grids(tmp_path / "grids", (3,))
    plain = find(grids)
    (grids / "mosaic_grid_3d_z03.ome.zarr/0/up").symlink_to("..")
    assert [row[0] for row in find(grids)["slices"]] == ["03"]
    assert find(grids)["bytes"] == plain["bytes"]


@pytest.mark.parametrize("name", ["image_00000.bin", "info.txt"])
def test_a_file_that_is_a_link_to_nowhere_is_named_at_launch(tmp_path: Path, name: str) -> None:
    """Seen to fail without the error of `LocalTree._measured`."""
    raw = make_raw(tmp_path / "raw", [0])
    path = raw / "slice_z00/tiles/tile_x00_y00_z00" / name
    path.unlink()
    path.symlink_to("/gone/away")
    with pytest.raises(InputError) as caught:
        find(raw)
    assert str(caught.value) == (
        f"--input {raw}: {path}: cannot be reached (No such file or directory); "
        "a link to /gone/away"
    )


def test_grids_that_are_links_keep_their_names(tmp_path: Path) -> None:
    """Seen to fail where links are no folders."""
    grids = make_grids(tmp_path / "brain" / "mosaic_grids", (0, 2))
    plain = find(tmp_path / "brain")
    swap(grids, tmp_path / "b")
    swap(tmp_path / "b/mosaic_grid_3d_z02.ome.zarr", tmp_path / "a.ome.zarr")
    linked = find(tmp_path / "brain")
    assert linked["slices"] == plain["slices"]
    assert [row[1] for row in linked["slices"]] == [
        "mosaic_grid_3d_z00.ome.zarr",
        "mosaic_grid_3d_z02.ome.zarr",
    ]


def test_a_grid_that_is_a_link_to_nowhere_is_an_error(tmp_path: Path) -> None:
    """Seen to fail without the error of `LocalTree.folders`: the slice was missed in silence."""
    make_grids(tmp_path, (0,))
    (tmp_path / "mosaic_grid_3d_z01.ome.zarr").symlink_to("gone")
    with pytest.raises(InputError, match=r"z01.ome.zarr: a link to gone, which cannot be reached"):
        find(tmp_path)


def test_an_empty_slice_and_folders_of_the_disk_do_not_stop_a_launch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen to fail without the exception for folders of the root."""
    raw = make_raw(tmp_path / "raw", [0])
    before = find(raw)["slices"]
    for name in ("slice_z01/tiles", "lost+found", "private"):
        (raw / name).mkdir(parents=True)
    real = os.scandir

    def scandir(path: Any) -> Any:
        if Path(path).name in ("lost+found", "private"):
            raise PermissionError(13, "Permission denied")
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = find(raw)
    assert found["slices"] == before
    assert found["warnings"] == [
        f"{raw / 'private'}: cannot be listed (Permission denied); passed over",
        f"{raw / 'slice_z01'}: empty slice, holds no tile; left out",
    ]


def test_own_work_within_the_input_is_not_searched(tmp_path: Path) -> None:
    raw = make_raw(tmp_path / "raw", [0])
    make_raw(raw / "work", [5])
    (tmp_path / "link").symlink_to(raw / "work")
    assert find(raw, work_dir=str(tmp_path / "link"))["ids"] == [0]
    assert find(raw, work_dir=str(raw / "gone"))["ids"] == [0, 5]


@pytest.mark.parametrize("nested", ["", "mosaic_grids"])
def test_listing_equals_the_folder(tmp_path: Path, nested: str) -> None:
    """As of an object store, which Nextflow lists."""
    for root in (make_raw(tmp_path / "raw", [0, 12]), tmp_path / "grids"):
        if root.name == "grids":
            make_grids(root / nested, (4, 6))
            (root / nested / "slice_config.csv").write_text("slice_id,use\n4,\n6,no\n")
        rows = [
            [str(p.relative_to(root)), p.stat().st_size, p.stat().st_mtime_ns]
            for p in root.rglob("*")
            if p.is_file()
        ]
        texts = {r[0]: (root / r[0]).read_text() for r in rows if r[0].endswith(".csv")}
        far = find_input(
            {
                "input": "s3://lab/x",
                "listing": rows,
                "texts": texts,
                "root_names": [root.name],
            }
        )
        near = find(root)
        for name in ("kind", "slices", "ids", "digest", "bytes"):
            assert far[name] == near[name], name
        if root.name == "grids":
            assert far["root"] == (nested or ".")
            assert near["slice_config"] == str(root / far["slice_config"])


def test_what_may_not_be_read_is_named_with_its_owner(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The system's answer stands in for a second user; seen to fail without the check."""
    raw = make_raw(tmp_path / "raw", [0])
    path = raw / "slice_z00/tiles/tile_x01_y00_z00/image_00000.bin"
    path.chmod(0o600)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 12345)
    monkeypatch.setattr(os, "access", lambda p, mode: Path(p) != path)
    with pytest.raises(InputError, match=r"image_00000.bin: may not be read by user \d+; it "):
        find(raw)


def test_only_the_standard_library_is_loaded_and_digits_are_plain(tmp_path: Path) -> None:
    """In a locale with digits of its own, from another folder, by the system's own Python.

    Seen to fail with an import of `linumpy.cli`, and with an Arabic digit.
    """
    raw = make_raw(tmp_path / "raw", [3])
    command = [sys.executable, "-I", "-S", "-X", "importtime", str(SCRIPT), "find"]
    done = subprocess.run(
        command,
        input=find_request(input=str(raw)),
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
        env={"LC_ALL": "ar_EG.UTF-8", "LANGUAGE": "ar"},
    )
    assert json.loads(done.stdout)["slices"][0][0] == "03"
    for heavy in ("numpy", "zarr", "linumpy.cli", "linumpy.io.raw\n"):
        assert f" {heavy}" not in done.stderr, heavy


def test_errors_are_answers(tmp_path: Path) -> None:
    for command, asked, said in (
        ("find", find_request(input="gone"), "--input gone: no such folder; expected raw"),
        ("find", find_request({"the launch folder": "/a;b"}, input="."), "the launch folder /a;b"),
        (
            "find",
            find_request({"the launch folder": "/a;b"}),
            "2 problems, nothing was started:\n  --input: missing; expected folder",
        ),
        (
            "path",
            '{"option": "--truth", "text": "x", "folder": true}\n',
            "--truth x: no such folder",
        ),
    ):
        done = subprocess.run(
            [sys.executable, "-I", "-S", str(SCRIPT), command],
            input=asked,
            capture_output=True,
            text=True,
            check=True,
            cwd=tmp_path,
        )
        assert json.loads(done.stdout)["error"].startswith(said)
        assert done.stderr == ""


def test_a_folder_with_a_digest_of_what_is_in_it(tmp_path: Path) -> None:
    atlas = tmp_path / "atlas"
    atlas.mkdir()
    (atlas / "a").write_text("1")
    shutil.copytree(atlas, tmp_path / "copy")
    path, first = checked_path("--atlas", str(atlas))
    assert path == atlas
    os.utime(atlas / "a", ns=(5, 5))
    assert checked_path("--atlas", str(atlas))[1] != first
    swap(atlas, tmp_path / "store")
    path, again = checked_path("--atlas", str(atlas))
    assert path == tmp_path / "store"
    os.utime(tmp_path / "store" / "a", ns=(6, 6))
    assert checked_path("--atlas", str(atlas))[1] != again
    with pytest.raises(InputError, match="copy/a: no such folder"):
        checked_path("--truth", str(tmp_path / "copy" / "a"), folder=True)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ("00,true\n1,true\n01.0,false\n", "line 4: a second row for slice z01, after line 3"),
        ("00,true\n7,true\n", "line 3: slice z07 is not in the input, whose ids are 0, 1"),
        ("00,true\nfirst,true\n", "line 3: slice_id first: expected a number"),
    ],
)
def test_a_wrong_table_of_slices_is_an_error(tmp_path: Path, rows: str, message: str) -> None:
    """Seen to fail without each of the three errors."""
    table = tmp_path / "decisions.csv"
    table.write_text("slice_id,use\n" + rows, encoding="utf-8")
    with pytest.raises(InputError, match=f"decisions.csv, {message}"):
        find(make_raw(tmp_path / "raw", [0, 1]), slice_config=str(table))


def test_transforms_by_hand_are_for_slices_of_the_input(tmp_path: Path) -> None:
    (tmp_path / "slice_z01").mkdir()
    (tmp_path / "slice_z01/transform.tfm").touch()
    (tmp_path / "notes").mkdir()
    assert manual_transforms(str(tmp_path), [0, 1])[0] == tmp_path
    with pytest.raises(InputError, match=r"slice_z01/transform.tfm is for no slice of the input"):
        manual_transforms(str(tmp_path), [0, 2])

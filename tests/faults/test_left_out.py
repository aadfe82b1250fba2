"""Excluded slices carry a reason; no slice is missing from the brain without one."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest

from linumpy.brain.auto_exclude_slices import auto_exclude_file
from linumpy.brain.gaps.files import (
    ManifestEntry,
    finalise_interpolation,
    write_manifest,
)
from linumpy.brain.manual.files import refine_manual_transforms
from linumpy.brain.output import register_folder, stack_folder
from linumpy.brain.slice_folder import find_slices, load_folder, load_slices
from linumpy.brain.stack_slices_motor import BrainModel
from linumpy.core.errors import InputError
from linumpy.flat.pictures import find_pictures
from linumpy.io.models import load_model
from linumpy.io.omezarr import open_image
from linumpy.io.tables import SliceConfig, read_slice_config, write_slice_config
from linumpy.mosaic.slice_config import generate_slice_config
from linumpy.quality.assess_folder import assess_folder
from linumpy.stage_params.gaps import AutoExcludeParams, RefineManualParams

from . import small

N = 9
MISSING = 7
QUALITY = {"assess_quality_sample_depth": 2, "moving_slice_first_index": 2}


def shifts_table(path, n=N):
    rows = "".join(f"{k},{k + 1},0,0,0,0\n" for k in range(n - 1))
    path.write_text("fixed_id,moving_id,x_shift,y_shift,x_shift_mm,y_shift_mm\n" + rows)
    return path


@pytest.fixture(scope="module")
def slices(tmp_path_factory):
    """Slices 0 to 8 but 7: 4 is noise, and 6 holds one value."""
    folder = tmp_path_factory.mktemp("run")
    tissue, rng = small.block(), np.random.default_rng(3)
    for k in range(N):
        data = small.cut_slice(tissue, k) * np.exp(0.1 * rng.normal(size=(24, 90, 100)))
        if k == 4:
            data = rng.permutation(data.ravel()).reshape(data.shape)
        if k == 6:
            data = np.full(data.shape, 0.5)
        if k != MISSING:
            small.write_slice(folder / "slices", k, data.astype(np.float32))
    shifts_table(folder / "shifts_xy.csv")
    return folder


def chain(run, out, **options):
    """The steps that decide on slices, one table after the other, and the brain."""
    slices, shifts = run / "slices", run / "shifts_xy.csv"
    rows = generate_slice_config(shifts, **options)
    # The stage was there, and nothing was imaged: the acquisition has no such slice.
    rows = tuple(row for row in rows if row.slice_id != MISSING)
    tables = [out / f"{n}.csv" for n in range(4)]
    write_slice_config(tables[0], rows)
    assess_folder(
        slices, out / "quality.json", QUALITY, shifts=shifts,
        config_in=tables[0], config_out=tables[1],
    )  # fmt: skip
    register_folder(slices, shifts, out / "register_slices.json", {}, config=tables[1])
    auto_exclude_file(out / "register_slices.json", tables[1], tables[2], AutoExcludeParams())
    entry = ManifestEntry(MISSING, "zmorph", "", "low_overlap_ncc", True, "")
    write_manifest(out / "slice_z07_manifest.csv", [entry])
    finalise_interpolation(tables[2], [out / "slice_z07_manifest.csv"], tables[3])
    stack_folder(
        slices, shifts, out / "brain.ome.zarr", {}, config=tables[3],
        registration=out / "register_slices.json", output_model=out / "stack.json",
    )  # fmt: skip
    return {row.slice_id: row for row in read_slice_config(tables[3])}


def test_every_slice_is_in_the_brain_or_in_the_table_with_its_reason(slices, tmp_path):
    """By hand, in a given table without a word, the first, not chosen, noise, constant, missing.

    Seen to fail without the reasons in `generate_slice_config`, and without `with_reason`.
    """
    given = tmp_path / "given.csv"
    given.write_text("slice_id,use\n8,false\n")
    rows = chain(
        slices, tmp_path, exclude_first=1, exclude=[2], given=given, only=[0, 1, 2, 3, 4, 5, 6, 8]
    )
    reasons = {k: row.exclude_reason for k, row in rows.items() if not row.used}
    assert set(rows) == set(range(N))
    assert reasons[0] == "calibration_slice" and reasons[2] == "excluded by hand"
    assert reasons[4] in ("low_quality", "no_match_but_neighbours_match", "consecutive_low_z_corr")
    assert reasons[6] == "constant_slice" and reasons[8] == "excluded by hand"
    assert reasons[7] == "missing" and rows[7].interpolation_failed is True
    assert all(reasons.values())
    used = [k for k in range(N) if k not in reasons]
    assert used == [1, 3, 5]
    assert open_image(tmp_path / "brain.ome.zarr").attributes["slice_ids"] == used
    model = load_model(tmp_path, "stack", BrainModel)
    assert [place["slice_id"] for place in model.slices] == used


def test_unselected_slices_carry_that_reason(slices, tmp_path):
    """`--slices 3-5` makes a brain of three slices; the table must not call the others used."""
    rows = chain(slices, tmp_path, only=[3, 5])
    assert {k for k, row in rows.items() if row.exclude_reason == "not_chosen"} == {
        0, 1, 2, 4, 6, 8
    }  # fmt: skip
    assert [k for k, row in rows.items() if row.used] == [3, 5]


def test_a_reason_that_was_given_stays(tmp_path):
    shifts = shifts_table(tmp_path / "shifts_xy.csv", 4)
    given = tmp_path / "given.csv"
    given.write_text("slice_id,use,exclude_reason\n0,no,torn\n1,no,\n2,yes,\n")
    rows = generate_slice_config(shifts, given=given, only=[2, 3], exclude=[3])
    assert [(r.used, r.exclude_reason) for r in rows] == [
        (False, "torn"), (False, "excluded by hand"), (True, ""), (False, "excluded by hand"),
    ]  # fmt: skip


# A slice that is wanted and is not there


@pytest.fixture
def lacking(slices, tmp_path):
    """A table that wants all slices, in a run where that of slice 3 has failed."""
    folder = tmp_path / "slices"
    shutil.copytree(slices / "slices", folder)
    config = tmp_path / "slice_config.csv"
    write_slice_config(config, [SliceConfig(k, use=True) for k in range(N) if k != MISSING])
    register_folder(folder, None, tmp_path / "register_slices.json", {}, config=config)
    shutil.rmtree(folder / "slice_z03.ome.zarr")
    (tmp_path / "manual").mkdir()
    return tmp_path


@pytest.mark.parametrize("step", ["assess", "register", "manual", "stack", "motors"])
def test_a_slice_that_is_wanted_and_has_no_volume_stops_every_step(slices, lacking, step):
    """Seen to fail without the comparison in `used_ids`."""
    folder, config, out = lacking / "slices", lacking / "slice_config.csv", lacking / "out"
    shifts, registration = slices / "shifts_xy.csv", lacking / "register_slices.json"
    with pytest.raises(InputError, match=r"slice_config\.csv: wants slice z03, of which .*slices"):
        if step == "assess":
            assess_folder(folder, out / "q.json", QUALITY, config_in=config, config_out=out / "c")
        elif step == "register":
            register_folder(folder, shifts, out / "r.json", {}, config=config)
        elif step == "manual":
            refine_manual_transforms(
                folder, shifts, registration, lacking / "manual", out, RefineManualParams(),
                config=config,
            )  # fmt: skip
        elif step == "stack":
            stack_folder(
                folder, shifts, out / "b.ome.zarr", {}, registration=registration, config=config
            )
        else:
            stack_folder(folder, shifts, out / "b.ome.zarr", {}, config=config)
    assert not out.exists()


def test_a_slice_that_was_registered_and_has_no_volume_stops_the_brain(slices, lacking):
    """Without a table, the registration tells. Seen to fail without `_check_complete`."""
    with pytest.raises(InputError, match=r"register_slices\.json: has slice z03, of which"):
        stack_folder(
            lacking / "slices", slices / "shifts_xy.csv", lacking / "b.ome.zarr", {},
            registration=lacking / "register_slices.json",
        )  # fmt: skip
    assert not list(lacking.glob("*b.ome.zarr*"))


def test_missing_preview_is_named(tmp_path):
    for k in (0, 2):
        (tmp_path / f"slice_2d_z{k:02d}.ome.zarr").mkdir()
    config = tmp_path / "c.csv"
    write_slice_config(config, [SliceConfig(k) for k in range(3)])
    with pytest.raises(InputError, match="wants slice z01, of which"):
        find_pictures(tmp_path, config)


def test_a_volume_under_the_name_of_another_slice_is_refused(slices, tmp_path):
    """The table would leave out the wrong one. Seen to fail without the check in `load_slices`."""
    shutil.copytree(slices / "slices/slice_z01.ome.zarr", tmp_path / "slice_z02.ome.zarr")
    with pytest.raises(InputError, match=r"slice_z02\.ome\.zarr: its metadata say slice z01"):
        load_folder(tmp_path, None)


def test_an_empty_slice_does_not_vanish_in_the_brain(slices, tmp_path):
    """All of it is masked. Seen to fail without `_Brain.check`."""
    folder = tmp_path / "slices"
    for k in (1, 2, 3):
        data = small.cut_slice(small.block(), k)
        valid = np.full(data.shape, k != 2, np.uint8)
        small.write_slice(folder, k, data * valid, valid)
    with pytest.raises(InputError, match="slice z02 has no voxel of data"):
        stack_folder(folder, slices / "shifts_xy.csv", tmp_path / "b.ome.zarr", {})
    assert [p.name for p in tmp_path.iterdir()] == ["slices"]


def test_missing_interpolated_slice_is_reported(slices, lacking, caplog):
    rows = [SliceConfig(k, use=k != 3) for k in range(N) if k != MISSING]
    rows[3] = SliceConfig(3, use=False, exclude_reason="low_quality", interpolated=True)
    write_slice_config(lacking / "slice_config.csv", rows, overwrite=True)
    stack_folder(
        lacking / "slices", slices / "shifts_xy.csv", lacking / "b.ome.zarr", {},
        registration=lacking / "register_slices.json", config=lacking / "slice_config.csv",
    )  # fmt: skip
    assert "slice z03 is said to be interpolated, but there is no volume of it" in caplog.text


# One broken slice among many


def break_chunk(path):
    chunk = max((path / "0/c").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    data = bytearray(chunk.read_bytes())
    data[len(data) // 3] ^= 1
    chunk.write_bytes(data)


def cut_short(path):
    chunk = max((path / "0/c").rglob("*"), key=lambda p: p.stat().st_size if p.is_file() else 0)
    chunk.write_bytes(chunk.read_bytes()[:1000])


def lose_metadata(path):
    (path / "zarr.json").unlink()


def no_slice(path):
    shutil.rmtree(path)
    path.mkdir()


@pytest.mark.parametrize("harm", [break_chunk, cut_short, lose_metadata, no_slice])
@pytest.mark.slow
def test_a_batch_with_one_broken_slice_fails_naming_it_and_makes_no_brain(
    script, slices, tmp_path, harm
):
    """The scripts as Nextflow calls them: exit status, message, and nothing that looks finished.

    Seen to fail where `load_slices` passes over what it cannot open.
    """
    folder = tmp_path / "slices"
    shutil.copytree(slices / "slices", folder)
    config = tmp_path / "slice_config.csv"
    write_slice_config(config, [SliceConfig(k, use=True) for k in range(N) if k != MISSING])
    harm(folder / "slice_z05.ome.zarr")
    shifts, options = slices / "shifts_xy.csv", ("--slice_config", config)
    steps = {
        "register_slices": (folder, shifts, tmp_path / "models/r.json"),
        "stack_slices_motor": (folder, shifts, tmp_path / "brain.ome.zarr"),
    }
    for name, arguments in steps.items():
        done = script(name, *arguments, *options, check=False)
        assert done.returncode not in (0, None), name
        assert "slice_z05" in done.stderr.splitlines()[-1], done.stderr
    assert sorted(p.name for p in tmp_path.iterdir() if not p.name.startswith(".")) in (
        ["slice_config.csv", "slices"], ["models", "slice_config.csv", "slices"],
    )  # fmt: skip
    assert not list(tmp_path.rglob("*.json.*")) and not list((tmp_path / "models").glob("*"))


def test_metadata_of_a_slice_is_read_once(slices, monkeypatch):
    from linumpy.brain import output, slice_folder, slice_volumes

    opened = []

    def count(path, **options):
        opened.append(path)
        return open_image(path, **options)

    for module in (output, slice_folder, slice_volumes):
        monkeypatch.setattr(module, "open_image", count)
    paths = find_slices(slices / "slices")
    load_slices(paths, None)
    assert opened == paths


def test_the_table_names_what_registration_left_out(slices, tmp_path):
    """What `auto_exclude_slices` leaves out is written with its reason, in both columns."""
    pairs = [
        {"fixed_id": a, "moving_id": b, "correlation": 0.02 if 2 in (a, b) else 0.4,
         "accepted": 2 not in (a, b), "reason": ""}
        for a in range(5) for b in (a + 1, a + 2) if b < 5
    ]  # fmt: skip
    record = {"slices": [{"slice_id": k} for k in range(5)], "pairs": pairs}
    (tmp_path / "r.json").write_text(json.dumps(record))
    write_slice_config(tmp_path / "in.csv", [SliceConfig(k, use=True) for k in range(5)])
    auto_exclude_file(
        tmp_path / "r.json", tmp_path / "in.csv", tmp_path / "out.csv", AutoExcludeParams()
    )
    row = read_slice_config(tmp_path / "out.csv")[2]
    assert (row.use, row.exclude_reason) == (False, "no_match_but_neighbours_match")
    assert row.auto_exclude_reason == row.exclude_reason

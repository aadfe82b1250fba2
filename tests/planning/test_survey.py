"""What headers tell, against the truth of the phantom and against folders made by hand."""

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest

from linumpy.core.errors import InputError
from linumpy.io.grid import open_grid
from linumpy.planning.plan_params import DEFAULTS, PlanParams
from linumpy.planning.survey import survey
from linumpy.store.manifest import adopt


def given(**values):
    return PlanParams.from_values(values)


def test_raw_tiles_and_their_grids_give_the_same_survey(tiny, tiny_grids):
    truth = json.loads((tiny / "truth" / "truth.json").read_text())
    raw, grids = survey(tiny / "raw", given()), survey(tiny_grids[0].parent, given())
    assert (raw.kind, grids.kind) == ("raw", "grids")
    for found in (raw, grids):
        assert found.ids == (0, 1, 2)
        assert found.interval_um == truth["slice_interval_um"]
        assert found.n_tiles == sum(len(s["tiles"]) for s in truth["slices"])
        assert found.missing_ids == () and found.notes() == []
        for scan, path in zip(found.slices, tiny_grids, strict=True):
            info = open_grid(path).info
            assert scan.tile_shape_px == info.tile_shape_px
            assert scan.voxel_um == pytest.approx(info.voxel_um)
            assert scan.grid_bytes == 4 * math.prod(info.shape)
            assert scan.corner_um == pytest.approx(info.corner_um().min(axis=0))
            expected = np.ptp(info.corner_um(), axis=0) + info.tile_fov_um
            assert scan.extent_um == pytest.approx(expected, abs=1)
    files = sum(p.stat().st_size for p in (tiny / "raw").rglob("image_*.bin"))
    assert raw.input_bytes == files
    assert grids.input_bytes == raw.grid_bytes < files


def test_one_header_a_slice_is_read_and_no_sample(headers):
    root = headers({0: (3, 4), 1: (3, 4)})
    for path in root.rglob("info.txt"):
        if "x00_y00" not in str(path):
            path.write_bytes(b"\xff\xfe not read")
    found = survey(root, given())
    assert found.n_tiles == 24
    assert found.slices[0].raw_bytes == 12 * 4 * 150 * 220 * 100
    assert found.slices[0].grid_bytes == 12 * 4 * 150 * 200 * 100
    assert found.slices[1].corner_um == pytest.approx((10 - 800, -400))
    assert found.slices[0].extent_um == pytest.approx((2 * 1200 + 1600, 3 * 600 + 800))


def test_missing_slices_and_uneven_counts_are_named(headers):
    root = headers({2: (2, 2), 3: (2, 2), 5: [(0, 1), (1, 0), (1, 1)], 9: (2, 3)})
    found = survey(root, given())
    assert found.missing_ids == (4, 6, 7, 8)
    assert found.gaps == (4,)
    # The first tile is not at the grid's low corner.
    assert found.slices[2].corner_um == pytest.approx((50 - 800, -400))
    assert found.notes() == [
        "slices 4, 6-8 are missing between the others",
        "tile counts differ: most slices have 4, z05 3, z09 6",
        "1 places of the tile grids have no tile (slices 5)",
    ]


def test_slices_are_left_out_as_the_pipeline_does(headers, tmp_path):
    root = headers({k: (1, 2) for k in range(8)})
    table = tmp_path / "slice_config.csv"
    table.write_text("slice_id,use\n03,false\n04,\n", encoding="utf-8")
    found = survey(root, given(slices="1-4,7", slice_config=str(table)))
    assert found.ids == (1, 2, 4, 7)
    assert found.left_out == (0, 3, 5, 6)
    # Nextflow gives a lone id as a number.
    assert survey(root, given(slices=6)).ids == (6,)


def test_overlap_without_metadata_is_that_of_the_stage(headers):
    side = {"slice_thickness": 0.2, "axial_resolution_um": 4.0}
    found = survey(headers({0: (3, 2)}, side=side), given())
    assert found.slices[0].step_um == pytest.approx((1200, 600))


@pytest.mark.parametrize(
    ("side", "info", "params", "message"),
    [
        ({"slice_thickness": 0.2}, {}, {}, r"axial resolution unknown; write .*metadata\.json"),
        ({"axial_resolution_um": 4}, {}, {}, r"distance of the slices unknown; .*metadata\.json"),
        ({"axial_resolution_um": "4"}, {}, {}, r"metadata\.json: axial_resolution_um is '4'"),
        (None, {"nx": "many"}, {}, r"tile_x00_y00_z00/info\.txt: nx is 'many'"),
        (None, {"width": 0}, {}, r"info\.txt: width is 0"),
        (None, {}, {"slices": "3-4"}, r"--slices 3-4: the input has slices 0-1"),
        (None, {}, {"slices": "one"}, r"--slices one: expected ids"),
        (None, {}, {"resolution": "fine"}, r"--resolution 'fine': expected a number"),
        (None, {}, {"fused": 1}, r"--fused 1: expected true or false"),
        (None, {}, {"pyramid_resolutions": "a"}, r"--pyramid_resolutions a: expected sizes"),
    ],
)
def test_bad_input_is_named(headers, side, info, params, message):
    """Seen to fail without the errors of `plan_params._checked` and
    `raw_slice.axial_resolution_um`.
    """
    options = {} if side is None else {"side": side}
    root = headers({0: (1, 2), 1: (1, 2)}, **options, **info)
    with pytest.raises(InputError, match=message):
        survey(root, given(**params))


def test_a_folder_without_slices_is_named(tmp_path):
    with pytest.raises(InputError, match=f"{tmp_path}: holds no raw tile"):
        survey(tmp_path, given())


def test_a_grid_without_unit_is_named(tiny_grids, tmp_path):
    copy = tmp_path / tiny_grids[0].name
    shutil.copytree(tiny_grids[0], copy)
    metadata = json.loads((copy / "zarr.json").read_text())
    for axis in metadata["attributes"]["ome"]["multiscales"][0]["axes"]:
        axis.pop("unit", None)
    (copy / "zarr.json").write_text(json.dumps(metadata))
    adopt(copy)
    with pytest.raises(InputError, match=rf"{copy.name}.*--assume_unit"):
        survey(tmp_path, given())
    assert survey(tmp_path, given(assume_unit="micrometer")).ids == (0,)


def test_defaults_are_those_of_the_pipeline():
    schema = json.loads((Path(__file__).parents[2] / "nextflow_schema.json").read_text())
    known = {k: v for group in schema["$defs"].values() for k, v in group["properties"].items()}
    assert DEFAULTS.keys() <= known.keys()
    for name, default in DEFAULTS.items():
        assert known[name].get("default") == default, name

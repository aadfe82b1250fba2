"""Attenuation and axial flatness of a run against truth that is exact."""

import json

import numpy as np
import pytest

from linumpy.io.models import save_model
from linumpy.quality.attenuation import attenuation_metrics
from linumpy.quality.axial import axial_flatness
from linumpy.quality.run import Run
from linumpy.quality.truth import load_truth

TISSUE = {
    "water": {"amplitude": 0.0, "mu_per_mm": 0.0},
    "agarose": {"amplitude": 20.0, "mu_per_mm": 0.5},
    "grey": {"amplitude": 100.0, "mu_per_mm": 1.6},
    "white": {"amplitude": 160.0, "mu_per_mm": 2.4},
}
N_PLANES, SIDE = 30, 64


@pytest.fixture
def exact(folders, synthetic):
    """A run whose slices show the clean truth and know each class' µ, and its truth."""
    run, truth = folders
    record = json.loads((truth / "truth.json").read_text())
    record["tissue"] = TISSUE
    (truth / "truth.json").write_text(json.dumps(record))
    # Stripes of the classes along axis 1, 250 um wide.
    classes = np.zeros((40, 44, 44), np.uint8) + (1 + (np.arange(44) // 10) % 3)[:, None]
    clean = np.array([0, 20, 100, 160], np.float32)[classes]
    for name, array in (("clean", clean), ("classes", classes)):
        synthetic.write_volume(
            truth / f"{name}.ome.zarr", array, 25.0, (-50.0, -50.0, -50.0)
        )  # fmt: skip
    for slice_id in synthetic.IDS:
        known = record["slices"][slice_id]
        offset = np.array(known["offset_um"])
        x1 = (np.arange(SIDE) + 0.5) * synthetic.VOXEL_UM + offset[0]
        label = 1 + (np.floor((x1 + 50) / 25).astype(int) // 10) % 3
        lines = np.array([0, 20, 100, 160], np.float32)[label]
        amplitude = np.broadcast_to(lines[None, :, None], (N_PLANES, SIDE, SIDE))
        top = known["gap_um"] + synthetic.RAW_UM[0] / 2
        synthetic.write_volume(
            run / f"slices/slice_z{slice_id:02d}.ome.zarr",
            ((amplitude - 20) / 100).astype("f4"),
            synthetic.VOXEL_UM,
            (top, 0.0, 0.0),
            np.ones((N_PLANES, SIDE, SIDE), "u1"),
        )
        folder = run / f"models/z{slice_id:02d}"
        (folder / "normalize_intensities_per_slice.json").write_text(
            json.dumps({"floor": [20.0] * N_PLANES, "cap": [200.0] * N_PLANES, "scale": 100.0})
        )
        mu = np.array([0, 0.5, 1.6, 2.4])[label]
        write_mu(folder, np.broadcast_to(mu[None, ::4, None], (N_PLANES, SIDE // 4, SIDE // 4)))
    return run, truth


def write_mu(folder, mu):
    (folder / "compensate_attenuation.json").write_text(json.dumps({"bin_px": 4}))
    np.savez(folder / "compensate_attenuation.npz", mu_per_mm=mu.astype(np.float16))


def test_exact_coefficients_have_no_error(exact):
    metrics = attenuation_metrics(Run(exact[0]), load_truth(exact[1]))
    assert list(metrics) == ["attenuation_grey_percent", "attenuation_white_percent"]
    for metric in metrics.values():
        assert metric.value == pytest.approx(0, abs=0.1) and metric.passed and metric.n > 1000


def test_median_error_is_reported_by_class(exact, synthetic):
    """Grey a fifth too low in the upper two thirds, anything below; white as it is."""
    for slice_id in synthetic.IDS:
        folder = exact[0] / f"models/z{slice_id:02d}"
        mu = np.load(folder / "compensate_attenuation.npz")["mu_per_mm"].astype(float)
        factor = np.repeat([0.8, 1.2, 5], [11, 9, 10])[:, None, None]
        wrong = np.where(np.abs(mu - 1.6) < 0.01, factor * mu, mu)
        # The face lies a plane lower than the volume begins, which does not count.
        wrong = np.concatenate([np.zeros_like(wrong[:1]), wrong[:-1]])
        write_mu(folder, wrong)
    metrics = attenuation_metrics(Run(exact[0]), load_truth(exact[1]))
    grey, white = metrics.values()
    assert grey.value == pytest.approx(20, abs=0.2) and grey.passed is False
    assert grey.details["signed"] < 0 and grey.details["true_per_mm"] == pytest.approx(1.6)
    assert white.value == pytest.approx(0, abs=0.1)


def test_what_lies_under_debris_does_not_count(exact, synthetic):
    record = json.loads((exact[1] / "truth.json").read_text())
    for slice_id in synthetic.IDS:
        known = record["slices"][slice_id]
        middle = np.array(known["offset_um"]) + SIDE * synthetic.VOXEL_UM / 2
        known["artefacts"] = [
            {"kind": "debris", "centre_um": middle.tolist(), "radius_um": 280.0, "transmission": 0}
        ]
        folder = exact[0] / f"models/z{slice_id:02d}"
        mu = np.load(folder / "compensate_attenuation.npz")["mu_per_mm"].astype(float)
        at = (np.arange(SIDE // 4) + 0.5) * 4 * synthetic.VOXEL_UM - SIDE * synthetic.VOXEL_UM / 2
        mu[:, np.hypot(at[:, None], at) < 280] *= 3
        write_mu(folder, mu)
    spoilt = attenuation_metrics(Run(exact[0]), load_truth(exact[1]))
    assert max(metric.value for metric in spoilt.values()) > 1
    (exact[1] / "truth.json").write_text(json.dumps(record))
    for metric in attenuation_metrics(Run(exact[0]), load_truth(exact[1])).values():
        assert metric.value == pytest.approx(0, abs=0.1) and metric.n > 100


def test_mixtures_have_a_mixtures_coefficient(exact, synthetic):
    """A voxel halfway in power between grey and white has halfway their attenuation."""
    truth = load_truth(exact[1])
    half = np.sqrt((100.0**2 + 160.0**2) / 2)
    image = np.full((40, 44, 44), half, "f4")
    synthetic.write_volume(exact[1] / "clean.ome.zarr", image, 25.0, (-50.0, -50.0, -50.0))
    grey, white = attenuation_metrics(Run(exact[0]), truth).values()
    assert grey.details["true_per_mm"] == pytest.approx(2.0)
    assert white.value == pytest.approx(20, abs=0.2)


def test_the_truth_of_attenuation_is_its_volume_where_there_is_one(exact, synthetic):
    """Amplitudes tell nothing of µ then: here all tissue has 3 /mm."""
    from linumpy.io.omezarr import open_image

    truth = load_truth(exact[1])
    shape = open_image(truth.clean_path).array.shape
    synthetic.write_volume(
        truth.mu_path, np.full(shape, 3.0, "f4"), 25.0, open_corner(truth.clean_path)
    )
    grey, white = attenuation_metrics(Run(exact[0]), truth).values()
    assert grey.details["true_per_mm"] == white.details["true_per_mm"] == pytest.approx(3.0)
    assert grey.details["signed"] == pytest.approx(100 * (1.6 / 3 - 1), abs=0.2)


def open_corner(path):
    from linumpy.io.omezarr import open_image

    image = open_image(path)
    return tuple(np.subtract(image.translation_um, np.divide(image.voxel_um, 2)))


def test_flat_tissue_is_flat_under_any_subtracted_floor(exact):
    metric = axial_flatness(Run(exact[0]), load_truth(exact[1]))
    assert metric.value == pytest.approx(0, abs=0.1) and metric.passed
    assert len(metric.details["ratio"]) == 7


def test_slope_along_depth_is_reported(exact, synthetic):
    """15 % from top to bottom: 6.4 % either way between the middles of the end steps."""
    from linumpy.io.omezarr import open_image

    for path in Run(exact[0]).slice_paths.values():
        image = open_image(path)
        data = np.asarray(image.array)
        slope = np.linspace(1.075, 0.925, N_PLANES, dtype="f4")[:, None, None]
        # What was subtracted from every plane is part of what is seen.
        tilted = ((data * 100 + 20) * slope - 20) / 100
        corner = np.array(image.translation_um) - synthetic.VOXEL_UM / 2
        synthetic.write_volume(path, tilted, synthetic.VOXEL_UM, tuple(corner),
                               np.asarray(image.valid))  # fmt: skip
    metric = axial_flatness(Run(exact[0]), load_truth(exact[1]))
    steps = 20 + 50 * (np.arange(7) + 0.5)
    expected = 1.075 - 0.15 * (steps - 6.25) / (29 * 12.5)
    assert metric.value == pytest.approx(100 * np.abs(expected / expected.mean() - 1).max(), abs=1)
    assert metric.passed is False


def test_without_models_nothing_is_measured(folders):
    run, truth = Run(folders[0]), load_truth(folders[1])
    metrics = {**attenuation_metrics(run, truth), "flat": axial_flatness(run, truth)}
    for metric in metrics.values():
        assert metric.value is None and metric.target is not None and "reason" in metric.details


def test_the_saved_model_is_what_is_read(exact, synthetic):
    """Fields and names are those that the stage saves."""
    from linumpy.intensity.compensate_attenuation import Attenuation

    folder = exact[0] / "models/z01"
    mu = np.load(folder / "compensate_attenuation.npz")["mu_per_mm"] * np.float16(1.5)
    model = Attenuation(1, "li", 1.0, 0.05, (12.5,) * 3, 4, mu, np.zeros((2, 2), "u2"), [], 2.0, 1)
    save_model(folder, "compensate_attenuation", model)
    grey, _ = attenuation_metrics(Run(exact[0]), load_truth(exact[1])).values()
    assert grey.details["slices"][1] == pytest.approx(50, abs=0.5)
    assert grey.details["slices"][0] == pytest.approx(0, abs=0.1)

"""Reasons against a slice by its files' times and its tiles' light."""

import numpy as np
import pytest

from linumpy.follow.reasons import (
    dead_reasons,
    scan_times_s,
    slow_limit,
    slow_reasons,
    stage_places_um,
)
from linumpy.follow.tile_checks import TileFigures


def line(duration_s, *kinds):
    return {"figures": {"duration_s": duration_s}, "reasons": [{"kind": k} for k in kinds]}


def test_slice_after_a_slow_one_is_compared_with_those_before_it():
    """Seen to fail where the median was of a usual time and a slow one."""
    lines = [line(48.0), line(189.0, "slow_scan")]
    assert scan_times_s(lines) == [48.0]
    (reason,) = slow_reasons(103.0, scan_times_s(lines))
    assert (reason.kind, reason.limit) == ("slow_scan", 72.0)
    assert slow_reasons(70.0, scan_times_s(lines)) == []


def test_time_of_ten_slow_slices_is_the_usual_one():
    lines = [line(189.0 + n, "slow_scan") for n in range(10)]
    assert slow_limit(scan_times_s(lines)) == pytest.approx(1.5 * 193.5)
    assert scan_times_s([{"figures": {"duration_s": None}}, {"figures": None}]) == []


def test_slice_after_a_glitch_is_compared_with_those_before_it():
    """Seen to fail where the glitch was all that the second slice after it was compared with."""
    lines = [{"figures": {"stage_um": [0.0, 0.0]}, "reasons": []}]
    lines.append({"figures": {"stage_um": [99.9, -1227.0]}, "reasons": [{"kind": "stage_glitch"}]})
    assert stage_places_um(lines) == [[0.0, 0.0]]
    assert stage_places_um(lines[1:]) == [[99.9, -1227.0]]


def tile(rng, light, dead):
    """Mean powers of 20 x 20 blocks of 16 A-lines: noise, and agarose below a face."""
    z = np.arange(100)
    signal = 40 * np.exp(-0.02 * (z - 20)) * (z >= 20)
    power = (1 + light**2 * signal)[:, None, None] * rng.gamma(16, 1 / 16, (100, 20, 20))
    return TileFigures(dead, 1.0, 1.0, power.astype(np.float32), np.zeros(1))


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_dead_and_little_light_is_dark(seed):
    rng = np.random.default_rng(seed)
    alive = {(x, 0): tile(rng, 1.0, dead=False) for x in range(3)}
    lights = {(0, 1): 0.0, (1, 1): 0.07, (2, 1): 0.05}
    dead = {key: tile(rng, light, dead=True) for key, light in lights.items()}
    dead[0, 2] = TileFigures(True, 0.0, 0.0, np.zeros((100, 20, 20), np.float32), np.zeros(1))
    names = {key: f"t{key[0]}{key[1]}" for key in dead}
    found = {r.kind: (r.level, r.tiles) for r in dead_reasons(dead, alive, names)}
    assert found == {"dead_tile": ("stop", ("t01", "t02")), "dark_tile": ("stop", ("t11", "t21"))}
    (alone,) = dead_reasons(dead, {}, names)
    assert (alone.kind, len(alone.tiles)) == ("dead_tile", 4)
    assert dead_reasons({}, alive, names) == []

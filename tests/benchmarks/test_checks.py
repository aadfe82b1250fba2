import subprocess
import sys

import numpy as np
import pytest

from linumpy.io.grid import GridInfo, GridTile, create_grid

from .conftest import BENCHMARKS


def test_runs_are_compared_with_their_neighbours(module):
    found = module("checks").summary({"on": [2.0, 3.3, 1.1], "off": [1.0, 3.0, 1.0]})
    assert found["ratio"] == pytest.approx(1.1)
    assert found["ratio_of_least"] == pytest.approx(1.1)
    assert found["median_s"] == {"on": 2.0, "off": 1.0}


@pytest.mark.slow
def test_the_switch_takes_the_checks_out_and_nothing_else(tmp_path):
    """A grid with a file too many, and one whose chunk has a wrong checksum."""
    grid = tmp_path / "grid.ome.zarr"
    info = GridInfo(
        3, (64, 64, 64), (10.0, 10.0, 10.0), 0.2, (GridTile(0, 0, 0.0, 0.0),), (640.0, 640.0)
    )
    with create_grid(grid, info, overwrite=False) as writer:
        writer.write_tile(0, 0, np.ones((64, 64, 64), np.float32))

    def ends(mode):
        script = BENCHMARKS / "read_grid.py"
        command = [sys.executable, BENCHMARKS / "unchecked.py", mode, script, grid, grid]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    (grid / "0/c/0/0/9").write_bytes(b"surplus")
    assert ends("on").returncode != 0
    done = ends("off")
    assert done.returncode == 0 and float(done.stdout) > 0, done.stderr
    (grid / "0/c/0/0/9").unlink()
    file = grid / "0/c/0/0/0"
    data = bytearray(file.read_bytes())
    # The last byte of the one inner chunk's checksum: 20 bytes of index follow.
    data[-21] ^= 1
    file.write_bytes(data)
    assert "altered" in ends("on").stderr
    assert ends("off").returncode == 0

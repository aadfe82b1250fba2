"""Following over a network file system: what a client sees comes late, and times are coarse.

A client of such a file system is simulated: it keeps the attributes of files for seconds, rounds
their times, has another clock, and at times does not answer. Files themselves are real.
"""

import random

import pytest

from linumpy.follow import watch
from linumpy.follow.watch import Watcher
from tests.follow.test_watch import INFO, WHOLE

TILES = 4


class Client:
    """What a client sees of folders whose files a server changes."""

    def __init__(self, cached_s, rounded_s, skew_s, failing=0.0, seed=0):
        self.now_s = 0.0
        self._cached_s, self._rounded_s, self._skew_s = cached_s, rounded_s, skew_s
        self._kept = {}
        self._failing, self._rng = failing, random.Random(seed)
        self._changed = {}

    def touch(self, path):
        self._changed[path] = self.now_s

    def signature(self, folder):
        if self._rng.random() < self._failing:
            raise OSError(116, "Stale file handle")
        seen_s, value = self._kept.get(folder, (-1e9, None))
        if self.now_s - seen_s >= self._cached_s:
            value = tuple(
                sorted((p.name, p.stat().st_size, self._time_ns(p)) for p in folder.iterdir())
            )
            self._kept[folder] = self.now_s, value
        return value

    def _time_ns(self, path):
        time_s = self._changed[path] + self._skew_s
        return int(time_s // self._rounded_s * self._rounded_s * 1e9)


def steps(root, client, rng, slice_id, *, preallocated=False, pause_s=1.5):
    """Write a slice by one step a yield, which says how long it is until the next."""
    for ix in range(TILES):
        folder = root / f"slice_z{slice_id:02d}" / "tiles" / f"tile_x{ix:02d}_y00_z{slice_id:02d}"
        folder.mkdir(parents=True)
        header_first = rng.random() < 0.5
        header, image = folder / "info.txt", folder / "image_00000.bin"

        def write_header(header=header, ix=ix):
            header.write_text(INFO.format(ix * 0.02))
            client.touch(header)

        if header_first:
            write_header()
            yield rng.uniform(0.1, pause_s)
        if preallocated:
            image.write_bytes(bytes(WHOLE))
            client.touch(image)
        pieces = rng.randint(1, 6)
        for n in range(1, pieces + 1):
            size = WHOLE * n // pieces
            with image.open("r+b" if preallocated else "wb") as stream:
                stream.write(b"\1" * size)
            client.touch(image)
            yield rng.uniform(0.1, pause_s)
        if not header_first:
            write_header()
            yield rng.uniform(0.1, pause_s)
    yield 100.0


def follow(root, client, writing, settle_s, n_slices):
    """Look every half second; return tiles that were not whole when their slice was finished."""
    watcher = Watcher(root, tiles_per_slice=TILES, settle_s=settle_s, quiet_s=1e6)
    next_s, halves, finished = 0.0, 0, []
    while len(finished) < n_slices and client.now_s < 3000:
        while writing and client.now_s >= next_s:
            wait = next(writing, None)
            if wait is None:
                writing = None
                break
            next_s += wait
        watcher.poll(client.now_s)
        for slice_id in watcher.slice_ids:
            found = watcher.finished(slice_id, client.now_s)
            if found is None:
                break
            assert len(found.tiles) == TILES and not found.short and not found.missing
            halves += sum(
                (tile.path / "image_00000.bin").read_bytes() != b"\1" * WHOLE
                for tile in found.tiles
            )
            watcher.done(slice_id)
            finished.append(slice_id)
        client.now_s += 0.5
    assert finished == list(range(n_slices))
    return halves


def run(root, monkeypatch, client, settle_s, seed, **how):
    rng = random.Random(seed)
    monkeypatch.setattr(watch, "signature_of", client.signature)
    writing = (wait for n in range(3) for wait in steps(root, client, rng, n, **how))
    return follow(root, client, writing, settle_s, 3)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("cached_s", [0.0, 3.0, 30.0])
def test_no_half_tile_is_read_whatever_a_client_sees(tmp_path, monkeypatch, cached_s, seed):
    # Times of 2 s, as of FAT, on a clock that is a day off; one look in ten fails.
    client = Client(cached_s, 2.0, random.Random(seed).uniform(-9e4, 9e4), failing=0.1, seed=seed)
    assert run(tmp_path, monkeypatch, client, 2.0, seed) == 0


def test_files_that_have_their_size_before_their_samples_need_a_longer_settling(
    tmp_path, monkeypatch
):
    halves = [
        run(
            tmp_path / f"{settle_s} {seed}", monkeypatch, Client(3.0, 2.0, 0.0, seed=seed),
            settle_s, seed, preallocated=True,
        )
        for settle_s in (2.0, 7.0) for seed in range(6)
    ]  # fmt: skip
    # Attributes of 3 s, times of 2 s and pauses of 1.5 s together.
    assert sum(halves[:6]) > 0 and sum(halves[6:]) == 0


def test_server_that_does_not_answer_is_looked_at_again(tmp_path, monkeypatch, caplog):
    folder = tmp_path / "slice_z00" / "tiles" / "tile_x00_y00_z00"
    folder.mkdir(parents=True)
    watcher = Watcher(tmp_path, tiles_per_slice=1)
    real = watch.walk_raw_folders

    def stale(*_):
        raise watch.InputError(f"{tmp_path}: cannot be listed (Stale file handle)")

    monkeypatch.setattr(watch, "walk_raw_folders", stale)
    for now_s in (0.0, 1.0):
        watcher.poll(now_s)
    assert caplog.text.count("it is looked at again") == 1
    monkeypatch.setattr(watch, "walk_raw_folders", real)
    (folder / "info.txt").write_text(INFO.format(0.0))
    (folder / "image_00000.bin").write_bytes(bytes(WHOLE))
    watcher.poll(2.0)
    watcher.poll(5.0)
    assert len(watcher.finished(0, 5.0).tiles) == 1

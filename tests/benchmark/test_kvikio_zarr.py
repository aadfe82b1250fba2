"""The benchmark's record and arithmetic, never its times."""

import json
import os
import statistics
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import zarr
from zarr.codecs import Crc32cCodec, ZstdCodec

from linumpy.benchmark import kvikio_zarr as benchmark
from linumpy.benchmark import machine
from linumpy.benchmark.array import create_array, sample, sample_shape
from linumpy.benchmark.limits import chunk_table, launch_sizes, read_limits, stored_files
from linumpy.benchmark.rows import Row, best, format_table, format_time, same_bits, timed
from linumpy.core.errors import InputError

from ..conftest import run_script
from ..gpu import needs_gpu

TINY = ["--size_gib", 0.008, "--repeats", 2]


def check_arithmetic(record):
    """Every rate follows from bytes and times, every fraction from rates."""
    for row in (row for group in ("limits", "reads", "writes", "lazy") for row in record[group]):
        assert len(row["seconds"]) == record["repeats"] and min(row["seconds"]) > 0
        assert row["median_s"] == statistics.median(row["seconds"])
        for nbytes, rate in (("decoded_nbytes", "gb_per_s"), ("stored_nbytes", "stored_gb_per_s")):
            if row[nbytes]:
                assert row[rate] == pytest.approx(row[nbytes] / row["median_s"] / 1e9)
            else:
                assert row[rate] is None
    for row in record["reads"]:
        assert row["verified"] and row["cache"] in ("warm", "cold")
        limit = record["limit"].get(row["cache"])
        expected = None if limit is None else pytest.approx(row["gb_per_s"] / limit["gb_per_s"])
        assert row["of_limit"] == expected
    whole = [row for row in record["reads"] if "% of the array" not in row["note"]]
    array = record["array"]
    assert {row["decoded_nbytes"] for row in whole} == {array["decoded_nbytes"]}
    assert {row["stored_nbytes"] for row in whole} == {array["stored_nbytes"]}


@pytest.mark.slow
@pytest.mark.parametrize("codec", ["zstd", "raw"])
def test_the_script_without_a_gpu(tmp_path, codec):
    output = tmp_path / "record.json"
    arguments = [*TINY, "--codec", codec, "--folder", tmp_path, "--output", output]
    done = run_script("benchmark_kvikio_zarr", *arguments)
    record = json.loads(output.read_text())
    assert list(tmp_path.iterdir()) == [output]
    check_arithmetic(record)
    array = record["array"]
    assert array["shape"] == [64, 128, 256] and array["dtype"] == "float32"
    assert array["chunks"] == [64, 64, 64] and array["shards"] == [64, 64, 128]
    assert array["decoded_nbytes"] == 64 * 128 * 256 * 4 and array["n_files"] == 4
    # A shard's index: two numbers of eight bytes a chunk, and a checksum.
    index_nbytes = 4 * (2 * 16 + 4)
    raw = codec == "raw"
    assert (array["stored_nbytes"] == array["decoded_nbytes"] + index_nbytes) == raw
    assert array["has_crc32c"] == (not raw)
    names = {row["name"] for row in record["reads"]}
    assert names == {"zarr to numpy", "zarrs, guarded, to numpy"}
    assert len(record["reads"]) == 4 and len(record["lazy"]) == 2 and not record["writes"]
    assert set(record["limit"]) == (set() if raw else {"warm", "cold"})
    cores = len(os.sched_getaffinity(0))
    decoding = [row["name"] for row in record["limits"]]
    assert decoding == [] if raw else decoding[-1].startswith(f"decode by {cores} core")
    assert record["missing"][0]["name"] == "all rows of the GPU"
    assert "all rows of the GPU: the GPU is not used (--use_gpu)" in done.stdout
    assert record["versions"]["zarr"] == zarr.__version__
    assert record["machine"]["cores"] == cores
    again = run_script("benchmark_kvikio_zarr", *arguments, check=False)
    assert again.returncode == 1 and "exists already" in again.stderr


def test_an_array_that_is_there_is_left_as_it_is(tmp_path, rng):
    path = tmp_path / "given"
    values = rng.random((10, 21, 33)).astype(">f8")
    values[9, 20, 30:] = np.nan
    # Fill value alone: a chunk that has no file.
    values[:4, :8, :16] = 0
    array = zarr.create_array(
        path, shape=values.shape, dtype=">f8", chunks=(4, 8, 16), zarr_format=2, compressors=None
    )
    array[...] = values
    before = {p: p.stat().st_mtime_ns for p in path.rglob("*")}
    record = benchmark.benchmark_kvikio_zarr(path, folder=tmp_path, repeats=1)
    assert {p: p.stat().st_mtime_ns for p in path.rglob("*")} == before
    check_arithmetic(record)
    assert record["array"]["n_files"] == 3 * 3 * 3 - 1 and record["array"]["zarr_format"] == 2
    assert record["array"]["stored_nbytes"] == 26 * 4 * 8 * 16 * 8
    assert record["array"]["name"] == "given" and list(tmp_path.iterdir()) == [path]


def test_bad_arguments_are_named(tmp_path):
    with pytest.raises(InputError, match="no such Zarr array"):
        benchmark.benchmark_kvikio_zarr(tmp_path / "nothing")
    with pytest.raises(InputError, match="no such folder"):
        benchmark.benchmark_kvikio_zarr(None, folder=tmp_path / "nothing")
    with pytest.raises(InputError, match="codec 'lz4'"):
        benchmark.benchmark_kvikio_zarr(None, codec="lz4")
    with pytest.raises(InputError, match="repeats 0"):
        benchmark.benchmark_kvikio_zarr(None, repeats=0)
    with pytest.raises(InputError, match="GB are needed"):
        benchmark.benchmark_kvikio_zarr(None, size_gib=1e9)
    zarr.create_array(tmp_path / "empty", shape=(0, 3), dtype="f4")
    with pytest.raises(InputError, match="nothing to measure"):
        benchmark.benchmark_kvikio_zarr(tmp_path / "empty")


def test_wrong_result_has_no_rate(tmp_path, monkeypatch):
    def off_by_a_bit(path):
        def read(selection):
            values = zarr.open_array(path)[selection]
            values.view("u4")[0, 0, 0] ^= 1
            return values

        return read

    monkeypatch.setattr("linumpy.benchmark.readers.by_zarrs", off_by_a_bit)
    with pytest.raises(InputError, match="zarrs, guarded, to numpy differs from the reference"):
        benchmark.benchmark_kvikio_zarr(None, size_gib=0.001, folder=tmp_path, repeats=1)


def test_unmeasurable_rows_carry_a_reason(tmp_path, monkeypatch):
    def broken(path):
        def read(selection):
            raise MemoryError("out of it")

        return read

    monkeypatch.setattr("linumpy.benchmark.readers.by_zarr", broken)
    record = benchmark.benchmark_kvikio_zarr(None, size_gib=0.001, folder=tmp_path, repeats=1)
    assert {"name": "zarr to numpy", "reason": "MemoryError: out of it"} in record["missing"]
    assert {row["name"] for row in record["reads"]} == {"zarrs, guarded, to numpy"}
    assert "zarr to numpy: MemoryError: out of it" in benchmark.format_record(record)


def test_slow_readers_read_a_part_of_a_large_array(tmp_path, rng, monkeypatch):
    monkeypatch.setattr(benchmark, "SLOW_NBYTES", 1000)
    values = rng.integers(1, 9, (4, 10, 60)).astype("u2")
    array = zarr.create_array(
        tmp_path / "a", shape=values.shape, dtype="u2", chunks=(2, 5, 4), shards=(4, 5, 8)
    )
    array[...] = values
    record = benchmark.benchmark_kvikio_zarr(tmp_path / "a", folder=tmp_path, repeats=1)
    check_arithmetic(record)
    slow = [row for row in record["reads"] if row["name"] == "zarr to numpy"]
    # Two of the eight shards of the first row.
    assert {row["decoded_nbytes"] for row in slow} == {4 * 5 * 16 * 2}
    assert {row["note"] for row in slow} == {"of 13 % of the array"}
    assert slow[0]["stored_nbytes"] == round(record["array"]["stored_nbytes"] * 320 / 2400)


@pytest.mark.parametrize(
    ("size_gib", "shape", "tile"),
    [
        (4, (256, 2048, 2048), (256, 512, 512)),
        (1, (256, 1024, 1024), (256, 512, 512)),
        (1.5, (256, 1024, 1536), (256, 512, 512)),
        (0.25, (256, 512, 512), (256, 256, 256)),
        (1 / 1024, (64, 64, 64), (64, 64, 64)),
    ],
)
def test_the_shape_of_the_array_that_is_made(size_gib, shape, tile):
    assert sample_shape(size_gib) == (shape, tile)


def test_the_array_that_is_made_compresses_and_no_two_tiles_are_the_same(tmp_path):
    values = sample((64, 128, 256), (64, 64, 128))
    tiles = [values[:, y : y + 64, x : x + 128] for y in (0, 64) for x in (0, 128)]
    assert len({tile.tobytes() for tile in tiles}) == 4
    array = create_array(tmp_path / "a", values, (64, 64, 64), (64, 64, 128), "zstd")
    array[...] = values
    files = stored_files(array)
    share = sum(path.stat().st_size for path in files) / values.nbytes
    assert len(files) == 4 and 0.2 < share < 0.6
    layout, plan = chunk_table(array)
    assert layout.compression == "zstd" and layout.has_crc32c
    assert len(plan.present) == 8 and plan.present.all()
    stored = sum(path.stat().st_size for path in files) - 4 * (2 * 16 + 4)
    assert plan.nbytes.sum() == stored
    codecs = array.metadata.to_dict()["codecs"][0]["configuration"]["codecs"]
    assert [codec["name"] for codec in codecs] == ["bytes", "zstd", "crc32c"]


def test_the_slower_of_reading_and_decoding_is_the_limit():
    rows = [
        Row("kvikio read, 1 threads", "warm", [0.5], stored_nbytes=10**9),
        Row("kvikio read, 8 threads", "warm", [0.1], stored_nbytes=10**9),
        Row("kvikio read, 8 threads", "cold", [4.0, 1.0, 2.0], stored_nbytes=10**9),
        Row("nvCOMP decode, 256", "", [0.5], 3 * 10**9),
        Row("nvCOMP decode, 512", "", [0.25], 3 * 10**9),
        Row("decode by 1 core", "", [0.001], 3 * 10**9),
        Row("nvCOMP encode, 512", "", [9.0], 3 * 10**9),
    ]
    assert read_limits(rows, "nvCOMP decode", 3 * 10**9) == {
        "warm": {"name": "nvCOMP decode, 512", "gb_per_s": 12.0},
        "cold": {"name": "kvikio read, 8 threads", "gb_per_s": 1.5},
    }
    reads_alone = read_limits(rows[:3], "nvCOMP decode", 3 * 10**9)
    assert reads_alone["warm"] == {"name": "kvikio read, 8 threads", "gb_per_s": 30.0}
    assert read_limits([], "nvCOMP decode", 1) == {}


def test_launches_are_powers_of_two_and_everything():
    assert launch_sizes(4096) == [256, 512, 1024, 2048, 4096]
    assert launch_sizes(700) == [256, 512, 700]
    assert launch_sizes(3) == [3]


def test_rows():
    row = Row("a", "warm", [3.0, 1.0, 2.0], 4 * 10**9, 10**9)
    assert (row.median, row.gb_per_s, row.stored_gb_per_s) == (2.0, 2.0, 0.5)
    faster = Row("b", "warm", [1.0], 4 * 10**9)
    assert best([row, faster]) is faster and best([]) is None
    text = format_table({"reads": [row.to_json(), faster.to_json()], "writes": []})
    assert "writes" not in text
    assert text.splitlines()[3].split() == ["a", "warm", "2", "s", "2.00", "0.50"]
    assert [format_time(t) for t in (12.3456, 0.5, 2e-3, 1.5e-6)] == [
        "12.3 s",
        "500 ms",
        "2 ms",
        "1.5 µs",
    ]


def test_the_clock_runs_around_the_work_alone(monkeypatch):
    events = []
    ticks = iter([1.0, 3.0, 10.0, 15.0])

    def clock():
        events.append("clock")
        return next(ticks)

    monkeypatch.setattr("linumpy.benchmark.rows.time.perf_counter", clock)
    seconds = timed(
        lambda: events.append("work"),
        2,
        before=lambda: events.append("before"),
        synchronize=lambda: events.append("sync"),
    )
    assert seconds == [2.0, 5.0]
    assert events == ["before", "sync", "clock", "work", "sync", "clock"] * 2


@pytest.mark.parametrize("dtype", ["?", "u1", "f2", ">f4", "f8", "c8", "c16"])
def test_bits_are_compared(dtype):
    values = np.arange(6).reshape(2, 3).astype(dtype)
    native = values.astype(np.dtype(dtype).newbyteorder("="))
    assert same_bits(values, native)
    assert not same_bits(values.T, native)
    assert not same_bits(np.zeros((2, 3), "i8"), native)
    other = native.copy()
    other.reshape(-1).view("u1")[-1] ^= 1
    assert not same_bits(other, native)


def test_nans_and_zeros_differ():
    assert same_bits(np.array([np.nan]), np.array([np.nan]))
    assert not same_bits(np.array([-0.0]), np.array([0.0]))


def test_the_page_cache_is_asked(tmp_path, monkeypatch):
    path = tmp_path / "a"
    path.write_bytes(os.urandom(1 << 20))
    (tmp_path / "empty").touch()
    files = [path, tmp_path / "empty"]
    path.read_bytes()
    assert machine.resident_fraction(files) in (None, 1.0)
    state = machine.cold_state(files)
    assert state["works"] == (state["resident"] is not None and state["resident"] <= 0.01)
    assert bool(state["note"]) == (not state["works"])
    for resident, words in ((1.0, "100 % of the files"), (None, "does not say")):
        monkeypatch.setattr(machine, "resident_fraction", lambda files, r=resident: r)
        state = machine.cold_state(files)
        assert not state["works"] and words in state["note"]


def test_file_systems_are_named():
    assert machine.filesystem_of(Path("/proc/self")) == "proc"


@pytest.mark.parametrize("available", [True, False])
def test_reason_of_emulated_reads_is_reported(monkeypatch, available):
    package = types.ModuleType("kvikio")
    driver, defaults = types.ModuleType("kvikio.cufile_driver"), types.ModuleType("kvikio.defaults")
    driver.libcufile_version = lambda: (1, 15) if available else (0, 0)
    driver.get = {"is_gds_available": available}.get
    defaults.is_compat_mode_preferred = lambda: not available
    package.cufile_driver, package.defaults = driver, defaults
    for module in (package, driver, defaults):
        monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setenv("KVIKIO_COMPAT_MODE", "ON")
    native, reason = machine.gds_state()
    assert native == available
    assert "KVIKIO_COMPAT_MODE=ON" in reason
    assert ("libcufile" in reason) == (not available)
    assert ("reports no GPUDirect Storage" in reason) == (not available)


@needs_gpu
@pytest.mark.parametrize("codec", ["zstd", "raw"])
def test_the_script_on_a_gpu(tmp_path, codec):
    output = tmp_path / "record.json"
    arguments = [*TINY, "--codec", codec, "--folder", tmp_path, "--output", output, "--use_gpu"]
    run_script("benchmark_kvikio_zarr", *arguments)
    record = json.loads(output.read_text())
    check_arithmetic(record)
    missing = {row["name"]: row["reason"] for row in record["missing"]}
    limits = {row["name"] for row in record["limits"]}
    reads = {row["name"] for row in record["reads"]}
    expected = {"host to device, pinned", "device to host, pageable", "copy on the device"}
    expected |= {"kvikio read, compatibility mode, 1 threads", "nvCOMP encode, 8 chunks a launch"}
    common = {"zarr.open(...)[...] in the context", "zarrs, guarded, to numpy to cupy"}
    common |= {"read_zarr_to_gpu, host", "read_zarr_to_gpu, zarr", "zarr to numpy to cupy"}
    if codec == "zstd":
        assert limits >= expected | {"nvCOMP decode, 8 chunks a launch", "decode by 1 core"}
        assert reads == common | {"read_zarr_to_gpu, nvcomp"}
        assert "compressed with zstd" in missing["read_raw_zarr"]
    else:
        assert limits >= expected
        assert reads >= common | {"read_raw_zarr, compatibility mode, 1 threads"}
        assert "read_zarr_to_gpu, nvcomp" in missing
    assert record["gds"]["native"] or missing["kvikio native"]
    assert {row["name"].split()[-1] for row in record["writes"]} == {"zstd", "raw"}
    encode = max(r["gb_per_s"] for r in record["limits"] if r["name"].startswith("nvCOMP encode"))
    for row in record["writes"]:
        assert row["verified"] and row["peak_device_nbytes"] > 0
        assert row["object_nbytes"] == 64 * 64 * 128 * 4
        zstd = row["name"].endswith("zstd")
        assert row["of_limit"] == (pytest.approx(row["gb_per_s"] / encode) if zstd else None)
    assert {row["name"] for row in record["lazy"]} == {
        f"get_array({intent!r}) on {where}" for intent in ("ro", "rw") for where in ("cpu", "cuda")
    }
    assert record["machine"]["gpu"] and record["versions"]["kvikio"]


@needs_gpu
def test_a_foreign_array_on_a_gpu(tmp_path, rng):
    """Whole-object zstd chunks that do not divide the array, some never written."""
    values = rng.integers(0, 9, (20, 30, 40)).astype("u2")
    array = zarr.create_array(
        tmp_path / "a",
        shape=values.shape,
        dtype="u2",
        chunks=(8, 16, 16),
        compressors=[ZstdCodec(level=3), Crc32cCodec()],
    )
    values[:8, :16] = 0
    array[...] = values
    from linumpy.core.device import Device

    record = benchmark.benchmark_kvikio_zarr(
        tmp_path / "a", folder=tmp_path, repeats=1, device=Device("cuda")
    )
    check_arithmetic(record)
    assert record["array"]["n_files"] == 3 * 2 * 3 - 3
    assert {row["name"] for row in record["reads"]} >= {"read_zarr_to_gpu, nvcomp"}

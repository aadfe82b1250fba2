"""A retried task takes smaller batches on the device."""

import sys
from types import SimpleNamespace

import pytest

from linumpy import cli
from linumpy.core import device
from linumpy.slices.engine import resting_bytes

FREE = 16 << 30


@pytest.fixture
def memory(monkeypatch):
    """A GPU with memory, as far as asking for its free bytes goes."""
    pool = SimpleNamespace(free_bytes=lambda: 0, get_limit=lambda: 0, used_bytes=lambda: 0)
    runtime = SimpleNamespace(
        memGetInfo=lambda: (FREE, FREE),
        getDeviceCount=lambda: 1,
        CUDARuntimeError=RuntimeError,
    )
    fake = SimpleNamespace(
        get_default_memory_pool=lambda: pool, cuda=SimpleNamespace(runtime=runtime)
    )
    monkeypatch.setitem(sys.modules, "cupy", fake)
    yield
    device.set_batch_share(1)


def test_share_lessens_what_rests_on_the_device(memory):
    gpu = device.Device("cuda", 0)
    assert resting_bytes(gpu) == FREE // 2
    device.set_batch_share(0.25)
    assert resting_bytes(gpu) == FREE // 8
    # A budget that was given is kept to.
    assert resting_bytes(gpu, 7) == 7


def test_command_line_sets_the_share(memory, monkeypatch):
    monkeypatch.setattr(cli, "begin_cuda", lambda *_, **__: None)
    parser = cli.make_parser("Test.", gpu=True)
    cli.parse(parser, ["--use_gpu", "--gpu_batch", "0.5"])
    assert device.batch_share() == 0.5


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "half", "nan"])
def test_what_is_no_share_is_refused(text, capsys):
    with pytest.raises(SystemExit):
        cli.make_parser("Test.", gpu=True).parse_args([f"--gpu_batch={text}"])
    assert "expected a number above 0, to 1" in capsys.readouterr().err

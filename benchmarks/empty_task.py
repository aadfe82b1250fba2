"""Measure a slice's process without its work: imports, GPU lease, CUDA start, exit.

What it takes is the system's and the driver's; how it grows with the number of such processes at a
time bounds what many GPUs of one machine can do.
"""

from __future__ import annotations

from linumpy.cli import make_parser, parse, run


def main() -> None:
    """Take what the command line asks for, and use it once."""
    args = parse(make_parser("Start and leave.", gpu=True, gpus=True), None)
    import linumpy.slices.reconstruct_slice  # noqa: F401
    from linumpy.core.device import resolve
    from linumpy.core.timeline import span

    device = resolve(args.use_gpu, args.gpu_memory)
    if device.is_gpu:
        import cupy

        with span("compute", "nothing"):
            cupy.zeros(1)
            cupy.cuda.Device().synchronize()
    else:
        with span("compute", "nothing"):
            pass


if __name__ == "__main__":
    run(main)

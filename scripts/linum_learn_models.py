#!/usr/bin/env python
"""Learn the focal surface and the flat field of an acquisition from its mosaic grids."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, build, read_params
from linumpy.slices.learn_models import LearnParams, learn_models
from linumpy.slices.tile_stages import FocalParams, IlluminationParams, ResampleParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Learn the focal surface and the flat field of an acquisition from its mosaic grids.",
        gpu=True,
    )
    parser.add_argument("grids", type=Path, nargs="+", help="mosaic grids (*.ome.zarr)")
    parser.add_argument("--output", type=Path, required=True, help="folder for the models")
    add_arguments(parser, ResampleParams, FocalParams, IlluminationParams, LearnParams)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Learn the models."""
    args = parse(build_parser(), argv)

    from linumpy.device import resolve
    from linumpy.io.atomic import refuse_existing

    for stem in ("detect_focal_curvature", "fix_illumination_3d"):
        refuse_existing(args.output / f"{stem}.json", args.overwrite)
    values = read_params(args)
    models = learn_models(
        sorted(args.grids),
        resample=build(ResampleParams, values),
        focal=build(FocalParams, values),
        illumination=build(IlluminationParams, values),
        learn=build(LearnParams, values),
        device=resolve(args.use_gpu),
    )
    models.save(args.output)


if __name__ == "__main__":
    run(main)

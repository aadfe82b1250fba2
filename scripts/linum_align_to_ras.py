#!/usr/bin/env python
"""Align a brain to an atlas and resample it there."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_arguments, add_assume_unit, add_pyramid_resolutions, read_params
from linumpy.stage_params.atlas import AlignParams
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        (
            "Align a brain to an atlas and resample it there.\n\n"
            "Finds which way round the brain lies, registers it, and writes it with axes that grow "
            "to superior, anterior, right (RAS in NIfTI), in the atlas' coordinates. A part of a "
            "brain, such as a few slices, finds its place in a whole atlas."
        ),
        gpu=True,
        parts=True,
    )
    parser.add_argument("input", type=as_path, help="brain (*.ome.zarr)")
    parser.add_argument("output", type=Path, help="aligned brain to write (*.ome.zarr)")
    parser.add_argument(
        "--atlas", type=as_path, required=True, help="atlas: .nii, .nii.gz, .nrrd or .ome.zarr"
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for what was found")
    parser.add_argument(
        "--output_transform", type=Path, help="ITK transform (.tfm) from atlas to brain"
    )
    parser.add_argument("--preview", type=Path, help="PNG of brain and atlas in three planes")
    parser.add_argument(
        "--store_transform_only",
        action="store_true",
        help="write the brain as it is, with the transform in its metadata",
    )
    parser.add_argument(
        "--orientation_preview_only",
        action="store_true",
        help="only find the orientation and write the preview; no output",
    )
    add_assume_unit(parser)
    add_arguments(parser, AlignParams)
    add_pyramid_resolutions(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Align the brain."""
    args = parse(build_parser(), argv)

    from linumpy.brain.align_brain import align_brain
    from linumpy.core.device import resolve

    model = align_brain(
        args.input,
        args.output,
        args.atlas,
        read_params(args),
        output_model=args.output_model,
        output_transform=args.output_transform,
        preview=args.preview,
        store_transform_only=args.store_transform_only,
        orientation_preview_only=args.orientation_preview_only,
        assume_unit=args.assume_unit,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
        parts=args.parts,
    )
    scale = " x ".join(f"{s:.3f}" for s in model.scale)
    print(
        f"{args.input}: axes point to {model.orientation}, tilt {model.tilt_deg:.1f} degrees, "
        f"scale {scale}, {100 * model.overlap:.0f} % of its tissue in the atlas"
    )


if __name__ == "__main__":
    run(main)

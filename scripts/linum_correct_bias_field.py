#!/usr/bin/env python
"""Correct the bias field of a stacked brain."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import parse, run
from linumpy.params import build, make_stage_parser, read_params
from linumpy.stage_params.bias import BiasParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_stage_parser(
        "Correct the bias field of a stacked brain.\n\n"
        "Planes get one distribution of brightness, then N4 fits smooth fields to the sections\n"
        "and to the whole. Outside the tissue the brain stays as it is.",
        "brain (OME-Zarr), normalised",
        "OME-Zarr to write",
        BiasParams,
        parts=True,
    )
    parser.add_argument(
        "--stack_model",
        type=Path,
        metavar="JSON",
        help="stack_slices_motor.json: which planes belong to which slice; without it sections of "
        "equal height are taken",
    )
    parser.add_argument(
        "--n_serial_slices",
        type=int,
        metavar="N",
        help="number of sections of equal height; as many as the brain names slices when not given",
    )
    parser.add_argument(
        "--save_bias_field", type=Path, metavar="OUT", help="OME-Zarr for what was divided by"
    )
    parser.add_argument("--output_model", type=Path, help="JSON file for what was learned")
    parser.add_argument("--preview", type=Path, help="PNG of three planes")
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Correct the brain."""
    args = parse(build_parser(), argv)

    from linumpy.brain.correct_bias_field import correct_bias_field
    from linumpy.core.device import resolve
    from linumpy.core.host_memory import map_arrays, share_heap
    from linumpy.io.models import model_place, save_model
    from linumpy.io.previews import brain_preview
    from linumpy.store.atomic import refuse_any

    share_heap()
    map_arrays()
    refuse_any(args.overwrite, args.preview, args.output_model)
    model = correct_bias_field(
        args.input,
        args.output,
        build(BiasParams, read_params(args)),
        stack_model=args.stack_model,
        n_sections=args.n_serial_slices,
        field_path=args.save_bias_field,
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
        parts=args.parts,
    )
    if args.output_model is not None:
        save_model(*model_place(args.output_model), model)
    if args.preview is not None:
        brain_preview(args.output, args.preview, overwrite=args.overwrite)


if __name__ == "__main__":
    run(main)

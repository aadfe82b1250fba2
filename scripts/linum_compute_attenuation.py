#!/usr/bin/env python
"""Map the attenuation coefficient of a cropped slice."""

import argparse
from collections.abc import Sequence

from linumpy.cli import parse, run
from linumpy.params import make_stage_parser, run_step
from linumpy.stage_params.intensity import AttenuationParams


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    return make_stage_parser(
        "Map the attenuation coefficient of a cropped slice.\n\n"
        "In 1/mm, along depth as fine as the slice, across in bins of about 40 um.",
        "cropped slice volume, axial response corrected (*.ome.zarr)",
        "volume of coefficients to write",
        AttenuationParams,
    )


def main(argv: Sequence[str] | None = None) -> None:
    """Map the attenuation coefficient of a cropped slice."""
    args = parse(build_parser(), argv)

    from linumpy.slices.single_stages import attenuation_map

    run_step(attenuation_map, args)


if __name__ == "__main__":
    run(main)

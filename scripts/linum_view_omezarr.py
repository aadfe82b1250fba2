#!/usr/bin/env python
"""Look at an OME-Zarr volume in napari or in a browser."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from linumpy.cli import make_parser, parse, run
from linumpy.params import add_assume_unit, add_choice, chosen
from linumpy.store.addresses import is_remote
from linumpy.store.remote import as_path


def build_parser() -> argparse.ArgumentParser:
    """Return the command line."""
    parser = make_parser(
        "Look at an OME-Zarr volume in napari, or with --neuroglancer in a browser.\n\n"
        "For a browser the volume is served to this computer alone, until the command is stopped;\n"
        "the links that it prints open neuroglancer and vizarr, which read it from there. One on\n"
        "a web server is read where it is."
    )
    parser.add_argument("input", type=as_path, help="OME-Zarr volume")
    parser.add_argument(
        "--neuroglancer", action="store_true", help="serve the volume and print links to it"
    )
    parser.add_argument("--port", type=int, default=8000, help="port to serve on")
    parser.add_argument(
        "--state",
        type=Path,
        metavar="FILE",
        help=".json or .html to write neuroglancer's state to, instead of serving",
    )
    add_choice(parser)
    add_assume_unit(parser)
    return parser


def main(argv: Sequence[str] | None = None) -> None:
    """Show the volume, serve it, or write its state."""
    args = parse(build_parser(), argv)

    import json
    import shlex
    from urllib.parse import unquote

    from linumpy.core.errors import InputError
    from linumpy.io.channels import open_channels
    from linumpy.io.viewer import (
        contrast_limits,
        neuroglancer_state,
        open_in_napari,
        serve,
        state_page,
        viewer_links,
        web_address,
    )
    from linumpy.store.atomic import write_text

    if not (args.neuroglancer or args.state):
        open_in_napari(args.input, assume_unit=args.assume_unit, choice=chosen(args))
        return
    channels = open_channels(args.input, assume_unit=args.assume_unit, choice=chosen(args))
    _, image = channels[0]
    remote = is_remote(args.input)
    name = unquote(args.input.name) if remote else args.input.resolve().name

    def state_at(port: int) -> dict[str, object]:
        base_url = web_address(args.input) if remote else f"http://localhost:{port}"
        return neuroglancer_state(name, image, base_url=base_url, limits=contrast_limits(image))

    def show_links(port: int) -> None:
        for viewer, link in viewer_links(state_at(port)).items():
            print(f"{viewer}: {link}\n")

    if args.state is not None:
        state = state_at(args.port)
        if args.state.suffix == ".json":
            text = json.dumps(state, indent=1) + "\n"
        elif args.state.suffix == ".html":
            command = None
            if not remote:
                words = ("linum_view_omezarr.py", str(args.input.resolve()), "--neuroglancer")
                command = shlex.join((*words, "--port", str(args.port)))
            text = state_page(name, state, command)
        else:
            raise InputError(f"{args.state}: expected a name that ends in .json or .html")
        write_text(args.state, text, overwrite=args.overwrite)
        return
    if remote:
        show_links(args.port)
        return
    with serve(args.input, args.port) as server:
        show_links(server.server_port)
        print("Serving until stopped by Ctrl-C.", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    run(main)

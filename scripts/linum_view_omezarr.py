#!/usr/bin/env python
"""View an OME-Zarr volume in a browser, or in napari."""

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
        "View an OME-Zarr volume: three planes in a browser, without a network.\n\n"
        "The page is served to this computer alone, until the command is stopped. Over ssh the\n"
        "command that leads your own browser there is printed. --napari opens napari instead, and\n"
        "--neuroglancer serves the volume to neuroglancer and vizarr, whose pages come from the\n"
        "network."
    )
    parser.add_argument("input", type=as_path, help="OME-Zarr volume")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--napari", action="store_true", help="open it in napari")
    kind.add_argument(
        "--neuroglancer", action="store_true", help="serve the volume and print links to it"
    )
    parser.add_argument(
        "--port", type=int, help="port to serve on; 8000 when not given, or one that is free"
    )
    parser.add_argument(
        "--no_browser", action="store_true", help="print the page's address, and open no browser"
    )
    parser.add_argument(
        "--orientation",
        default="",
        metavar="CODE",
        help="where z, axis 1 and axis 2 point in the body, such as PRS; planes are upright then, "
        "with letters",
    )
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

    if args.state is not None or args.neuroglancer:
        _neuroglancer(args)
    elif args.napari:
        from linumpy.io.viewer import open_in_napari

        open_in_napari(args.input, assume_unit=args.assume_unit, choice=chosen(args))
    else:
        _planes(args)


def _planes(args: argparse.Namespace) -> None:
    import os
    import webbrowser

    from linumpy.geometry.orientation import parse_orientation
    from linumpy.io.anatomy import stated_orientation
    from linumpy.io.channels import open_channels
    from linumpy.io.plane_server import PlaneSource, has_screen, serve_planes, tunnel_command

    code = parse_orientation(args.orientation, "--orientation") if args.orientation else ""
    channels = open_channels(args.input, assume_unit=args.assume_unit, choice=chosen(args))
    names, images = zip(*channels, strict=True)
    source = PlaneSource(
        args.input.name, images, code or stated_orientation(images[0]), [n or "" for n in names]
    )
    with serve_planes(source, args.port) as (server, address):
        tunnel = tunnel_command(os.environ, server.server_port)
        if tunnel:
            print(f"On your own computer, leave this running:\n  {tunnel}")
        print(f"Open in a browser: {address}")
        print("Serving until stopped by Ctrl-C.", flush=True)
        if has_screen(os.environ) and not args.no_browser:
            webbrowser.open(address)
        server.serve_forever()


def _neuroglancer(args: argparse.Namespace) -> None:
    import json
    import shlex
    from urllib.parse import unquote

    from linumpy.core.errors import InputError
    from linumpy.io.channels import open_channels
    from linumpy.io.viewer import (
        PORT,
        contrast_limits,
        neuroglancer_state,
        serve,
        state_page,
        viewer_links,
        web_address,
    )
    from linumpy.store.atomic import write_text

    asked_port = PORT if args.port is None else args.port
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
        state = state_at(asked_port)
        if args.state.suffix == ".json":
            text = json.dumps(state, indent=1) + "\n"
        elif args.state.suffix == ".html":
            command = None
            if not remote:
                words = ("linum_view_omezarr.py", str(args.input.resolve()), "--neuroglancer")
                command = shlex.join((*words, "--port", str(asked_port)))
            text = state_page(name, state, command)
        else:
            raise InputError(f"{args.state}: expected a name that ends in .json or .html")
        write_text(args.state, text, overwrite=args.overwrite)
        return
    if remote:
        show_links(asked_port)
        return
    with serve(args.input, asked_port) as server:
        show_links(server.server_port)
        print("Serving until stopped by Ctrl-C.", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    run(main)

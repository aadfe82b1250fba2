"""Parameters of stages: one dataclass each, the same from the command line and from JSON.

A field carries its unit, help and bounds, and the name it has in the pipeline
(``nextflow_schema.json``); scripts make their flags from the same fields.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar, get_type_hints

from linumpy.cli import make_parser
from linumpy.core.errors import InputError
from linumpy.store.remote import as_path

P = TypeVar("P")


def param(
    default: Any,
    name: str,
    help: str,
    *,
    minimum: float | None = None,
    maximum: float | None = None,
    choices: Sequence[str] | None = None,
) -> Any:
    """Declare a stage parameter as a dataclass field.

    Parameters
    ----------
    default
        Value when nothing is given; its type is the parameter's type.
    name
        Name in the pipeline and, with ``--`` before it, on the command line.
    help
        One line, with the unit.
    minimum, maximum, choices
        What values are taken.
    """
    return dataclasses.field(
        default=default,
        metadata={
            "name": name,
            "help": help,
            "minimum": minimum,
            "maximum": maximum,
            "choices": choices,
        },
    )


def make_stage_parser(
    description: str,
    source: str,
    result: str,
    *kinds: type[Any],
    short: Mapping[str, str] | None = None,
    parts: bool = False,
) -> argparse.ArgumentParser:
    """Return the parser of a script that runs one stage from a file to a file.

    Parameters
    ----------
    description
        First lines of ``--help``.
    source, result
        Help of the positionals ``input`` and ``output``.
    kinds, short
        As in `add_arguments`.
    parts
        As in `linumpy.cli.make_parser`.
    """
    parser = make_parser(description, gpu=True, parts=parts)
    parser.add_argument("input", type=as_path, help=source)
    parser.add_argument("output", type=Path, help=result)
    add_slice_id(parser)
    if kinds:
        add_arguments(parser, *kinds, short=short)
    return parser


def add_arguments(
    parser: argparse.ArgumentParser, *kinds: type[Any], short: Mapping[str, str] | None = None
) -> None:
    """Add ``--params`` and a flag for every parameter of the given dataclasses.

    Parameters
    ----------
    parser
        Gets a group of arguments.
    kinds
        Parameter dataclasses; what several of them share gets one flag.
    short
        One-letter flags by parameter name.
    """
    group = parser.add_argument_group("parameters (flags win over --params)")
    group.add_argument(
        "--params",
        metavar="JSON",
        help="file with parameters under their pipeline names; - reads standard input",
    )
    added: set[str] = set()
    for kind in kinds:
        for field in dataclasses.fields(kind):
            meta = field.metadata
            if meta["name"] in added:
                continue
            added.add(meta["name"])
            if isinstance(field.default, bool):
                options: dict[str, Any] = {"action": argparse.BooleanOptionalAction}
            else:
                options = {"type": type(field.default), "choices": meta["choices"]}
                if meta["choices"] is None:
                    options["metavar"] = type(field.default).__name__.upper()
            names = [f"--{meta['name']}"]
            if short and meta["name"] in short:
                names.insert(0, short[meta["name"]])
            group.add_argument(
                *names,
                default=argparse.SUPPRESS,
                help=f"{meta['help']} (default: {field.default})",
                **options,
            )


def add_models(parser: argparse.ArgumentParser) -> None:
    """Add ``--models`` to the script of a stage that `linum_learn_models.py` learns for."""
    parser.add_argument(
        "--models",
        type=Path,
        help="folder of linum_learn_models.py; without it the model is learned from this grid "
        "alone and saved beside the output",
    )


def add_slice_id(parser: argparse.ArgumentParser, *, several: bool = False) -> None:
    """Add ``--slice_id`` to a script whose inputs may have no slice id in their metadata."""
    if several:
        text = "ids of inputs whose metadata have none, one an input in their order"
    else:
        text = "id of the slice, where the input's metadata have none; else zNN of its name, or 0"
    parser.add_argument(
        "--slice_id", type=int, nargs="+" if several else 1, metavar="ID", help=text
    )


def add_assume_unit(parser: argparse.ArgumentParser) -> None:
    """Add ``--assume_unit`` to a script that may read volumes without a unit."""
    parser.add_argument(
        "--assume_unit",
        metavar="UNIT",
        help="unit of volumes whose metadata has none, such as millimeter",
    )


def add_choice(parser: argparse.ArgumentParser) -> None:
    """Add ``--channel`` and ``--time`` to a script that reads images with such axes."""
    for name, axis in (("channel", "c"), ("time", "t")):
        parser.add_argument(
            f"--{name}",
            type=int,
            metavar="N",
            help=f"place along axis {axis}, from 0, of images that have such an axis",
        )


def chosen(args: argparse.Namespace) -> dict[str, int | None]:
    """Return what the options of `add_choice` say, by axis."""
    return {"c": args.channel, "t": args.time}


def add_pyramid_resolutions(parser: argparse.ArgumentParser, *, of_pipeline: bool = True) -> None:
    """Add ``--pyramid_resolutions``.

    Parameters
    ----------
    of_pipeline
        Whether it is the pipeline's parameter, with its default, as `read_params` gives it; a
        conversion has None when it is not given.
    """
    if of_pipeline:
        kwargs: dict[str, Any] = {"default": argparse.SUPPRESS}
        text = "voxel sizes of the pyramid, um (default: 10,25,50,100)"
    else:
        kwargs = {}
        text = "voxel sizes of the coarser levels, um; 2, 4 and 8 times the finest when not given"
    parser.add_argument("--pyramid_resolutions", metavar="UM,UM", help=text, **kwargs)


def read_params(args: argparse.Namespace) -> dict[str, Any]:
    """Return the parameters that the command line gives: ``--params``, then single flags.

    Raises
    ------
    InputError
        When the JSON cannot be read or does not hold an object.
    """
    values: dict[str, Any] = {}
    source = getattr(args, "params", None)
    if source is not None:
        text = sys.stdin.read() if source == "-" else _read(Path(source))
        try:
            values = json.loads(text)
        except json.JSONDecodeError as error:
            raise InputError(f"--params {source}: not JSON ({error})") from error
        if not isinstance(values, dict):
            raise InputError(f"--params {source}: expected a JSON object")
    given = {name: value for name, value in vars(args).items() if name != "params"}
    return {**values, **given}


def run_step(step: Callable[..., Any], args: argparse.Namespace, **more: Any) -> Any:
    """Call a step between two files as the options of `make_stage_parser` ask for it.

    Parameters
    ----------
    step
        Takes input, output, parameters, ``overwrite`` and ``device``.
    more
        Further arguments of the step.
    """
    from linumpy.core.device import resolve

    return step(
        args.input,
        args.output,
        read_params(args),
        overwrite=args.overwrite,
        device=resolve(args.use_gpu, args.gpu_memory),
        **more,
    )


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"--params {path}: cannot be read ({error})") from error


def build(kind: type[P], values: Mapping[str, Any]) -> P:
    """Build a parameter dataclass from pipeline names; unknown names belong to other stages.

    Raises
    ------
    InputError
        When a value has the wrong type or lies outside its bounds; names the parameter.
    """
    chosen = {}
    for field in dataclasses.fields(kind):  # type: ignore[arg-type]
        name = field.metadata["name"]
        if name in values and values[name] is not None:
            chosen[field.name] = _checked(field, values[name])
    return kind(**chosen)


class ParamsGroup:
    """Parameters of several stages: a dataclass whose fields are their dataclasses."""

    @classmethod
    def kinds(cls) -> tuple[type[Any], ...]:
        """Return the dataclasses of its fields."""
        return tuple(get_type_hints(cls).values())

    @classmethod
    def from_values(cls, values: Mapping[str, Any]) -> Self:
        """Build all stages' parameters from pipeline names."""
        return cls(**{name: build(kind, values) for name, kind in get_type_hints(cls).items()})

    def of(self, kind: type[P]) -> P:
        """Return the parameters of one kind."""
        return next(value for value in vars(self).values() if type(value) is kind)


def _checked(field: dataclasses.Field[Any], value: Any) -> Any:
    meta, expected = field.metadata, type(field.default)
    if expected is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value)
    if type(value) is not expected:
        raise InputError(f"--{meta['name']} {value!r}: expected {expected.__name__}")
    if meta["choices"] is not None and value not in meta["choices"]:
        raise InputError(
            f"--{meta['name']} {value!r}: expected one of {', '.join(meta['choices'])}"
        )
    low, high = meta["minimum"], meta["maximum"]
    if (low is not None and not value >= low) or (high is not None and not value <= high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise InputError(f"--{meta['name']} {value!r}: expected {bounds}")
    return value

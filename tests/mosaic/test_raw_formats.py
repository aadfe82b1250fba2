"""The registry of raw formats: command line and openers."""

from __future__ import annotations

import argparse
from importlib import import_module

import pytest

from linumpy.mosaic.psoct_options import PsoctOptions
from linumpy.mosaic.raw_formats import RAW_FORMATS, add_format_flags, chosen_format


def chosen(*arguments: str) -> tuple[str, object]:
    parser = argparse.ArgumentParser()
    add_format_flags(parser)
    return chosen_format(parser, parser.parse_args(arguments))


def test_folders_of_tiles_are_the_default() -> None:
    assert chosen() == ("OCT", None)


def test_flags_of_a_format_become_its_options() -> None:
    options = PsoctOptions(polarization=2, depth_px=(1, 5))
    arguments = ("--polarization", "2", "--depth_range", "1", "5")
    assert chosen("--data_type", "PSOCT", *arguments) == ("PSOCT", options)
    assert chosen("--data_type", "PSOCT") == ("PSOCT", PsoctOptions())


def test_flags_of_another_format_are_rejected(capsys: pytest.CaptureFixture[str]) -> None:
    """Seen to fail without the comparison with defaults."""
    with pytest.raises(SystemExit) as error:
        chosen("--n_angles", "2")
    assert error.value.code == 2
    assert "flags of PSOCT come with --data_type PSOCT alone" in capsys.readouterr().err


@pytest.mark.parametrize("name", RAW_FORMATS)
def test_opener_is_there(name: str) -> None:
    module, function = RAW_FORMATS[name].opener.split(":")
    assert RAW_FORMATS[name].name == name
    assert callable(getattr(import_module(module), function))

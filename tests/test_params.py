import argparse
import io
import json
import sys
from dataclasses import dataclass

import pytest

from linumpy.core.errors import InputError
from linumpy.params import add_arguments, build, param, read_params


@dataclass(frozen=True)
class Params:
    size_um: float = param(10.0, "size", "a size, um", minimum=1, maximum=50)
    count: int = param(3, "count", "a count", minimum=0)
    method: str = param("linear", "method", "a method", choices=("linear", "none"))
    enabled: bool = param(True, "on", "whether")


def parse(*words):
    parser = argparse.ArgumentParser()
    add_arguments(parser, Params, short={"size": "-s"})
    return read_params(parser.parse_args(words))


def test_defaults_hold_where_nothing_is_given():
    assert build(Params, parse()) == Params()


def test_flags_win_over_the_file(tmp_path):
    file = tmp_path / "p.json"
    file.write_text(json.dumps({"size": 20, "count": 7, "on": False, "of_another_stage": 1}))
    values = parse("--params", str(file), "-s", "30")
    assert build(Params, values) == Params(30.0, 7, "linear", False)


def test_standard_input_is_read(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO('{"method": "none", "count": null}'))
    assert build(Params, parse("--params", "-")) == Params(method="none")


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"size": 0.5}, "--size 0.5: expected between 1 and 50"),
        ({"size": float("nan")}, "--size nan: expected between"),
        ({"size": "10"}, "--size '10': expected float"),
        ({"count": -1}, "--count -1: expected at least 0"),
        ({"count": 2.5}, "--count 2.5: expected int"),
        ({"count": True}, "--count True: expected int"),
        ({"on": "yes"}, "--on 'yes': expected bool"),
        ({"method": "cubic"}, "--method 'cubic': expected one of linear, none"),
    ],
)
def test_bad_values_name_the_parameter(values, message):
    with pytest.raises(InputError, match=message):
        build(Params, values)


@pytest.mark.parametrize("text", ["{", "[1, 2]"])
def test_bad_files_are_named(tmp_path, text):
    (tmp_path / "p.json").write_text(text)
    with pytest.raises(InputError, match=r"p\.json"):
        parse("--params", str(tmp_path / "p.json"))
    with pytest.raises(InputError, match="cannot be read"):
        parse("--params", str(tmp_path / "none.json"))

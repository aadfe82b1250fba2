"""Secrets and places that are not handed on, and all else that is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from linumpy.records.privacy import (
    from_home,
    short_command,
    short_text,
    short_word,
    without_secrets,
)

NAME = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._]{0,8}", fullmatch=True)


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("https://me:pw@host.org/a/b", "https://host.org/a/b"),
        ("s3://key@bucket/raw", "s3://bucket/raw"),
        ("https://host/raw?X-Amz-Signature=abc&b=1 -resume", "https://host/raw -resume"),
        ("--input 'https://u@host/a?b' x", "--input 'https://host/a' x"),
        ("+x,+y", "+x,+y"),
        ("what? a@b", "what? a@b"),
        ({"a": ["https://u:p@h/x", 1, None]}, {"a": ["https://h/x", 1, None]}),
    ],
)
def test_secrets_of_addresses_go(given, kept):
    assert without_secrets(given) == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("run main.nf --input raw", "run main.nf --input raw"),
        ("run /home/me/main.nf --output=/data/out/", "run main.nf --output=out"),
        ("--input '/home/me/raw tiles' -c ~/my.config", "--input 'raw tiles' -c my.config"),
        ("--input ../up/raw -w s3://bucket/work", "--input raw -w s3://bucket/work"),
        ("--stage_to_array=-y,+x org/pipeline", "--stage_to_array=-y,+x org/pipeline"),
        ("an odd ' /home/me/quote", "an odd ' quote"),
    ],
)
def test_commands_keep_names_alone(given, kept):
    assert short_command(given) == kept


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        ("/home/me/z01/tile.bin: truncated", "tile.bin: truncated"),
        ("read '/scratch/x/a.zarr/zarr.json', not ~/b/c", "read 'a.zarr/zarr.json', not c"),
        ("0.25/mm and 1/2, 3 / 4, https://a.org/b", "0.25/mm and 1/2, 3 / 4, https://a.org/b"),
        ("file:///home/me/x (see ../../y/z)", "x (see z)"),
    ],
)
def test_messages_keep_names_alone(given, kept):
    assert short_text(given) == kept.replace("a.zarr/zarr.json", "zarr.json")


@given(st.lists(NAME, min_size=1, max_size=5), st.sampled_from(["/", "~/", "../"]))
def test_no_folder_is_left_of_any_path(parts, begin):
    path = begin + "/".join(parts)
    assert short_word(path) == short_text(path) == parts[-1]
    assert short_command(f"run --input={path}") == f"run --input={parts[-1]}"


def test_the_home_folder_is_a_tilde():
    home = Path("/home/me")
    assert from_home("run /home/me/main.nf /home/me2/x '/home/me' y/home/me", home) == (
        "run ~/main.nf /home/me2/x '~' y/home/me"
    )
    assert from_home(3.5, home) == 3.5
    assert from_home("/x", Path("/")) == "/x"

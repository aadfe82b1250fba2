"""Requests as the workflow makes them."""

from __future__ import annotations

import json
from typing import Any

from tests.pipeline.conftest import REPOSITORY

SCHEMA = REPOSITORY / "nextflow_schema.json"


def find_request(places: dict[str, str] | None = None, **given: Any) -> str:
    """Return the line that asks for the input, with all parameters."""
    groups = json.loads(SCHEMA.read_text(encoding="utf-8"))["$defs"].values()
    rules = {name: rule for group in groups for name, rule in group["properties"].items()}
    params = {name: rule.get("default") for name, rule in rules.items()} | given
    asked = {"params": params, "schema": str(SCHEMA), "work_dir": "work", "preview": False}
    return json.dumps({**asked, "places": places or {}}) + "\n"

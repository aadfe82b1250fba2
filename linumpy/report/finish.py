"""Finish a launch that has ended: record, report, tables and crate."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from linumpy.records.launches import finish_launches, page_record
from linumpy.records.rocrate import METADATA, build_crate
from linumpy.report.run_section import fill_run_parts, has_parts
from linumpy.report.tables import write_tables
from linumpy.store.atomic import write_json, write_text

REPORT = "report.html"


def finish_run(
    output: Path, *, license_text: str | None = None, agent: str | None = None
) -> list[Path]:
    """Complete the records of an output folder; bring report, tables and RO-Crate up to them.

    It can be done again at any time. The report is that of its own launch: one that failed before
    does not change it.

    Parameters
    ----------
    output
        Output folder of the pipeline.
    license_text, agent
        For the crate (`linumpy.records.rocrate.build_crate`); what the folder's crate says when
        None.

    Returns
    -------
    The files that were written.

    Raises
    ------
    InputError
        When there is no record, or a launch is still under way.
    """
    launches = finish_launches(output)
    written = [list(launches)[-1]]
    page, record = output / REPORT, page_record(output)
    if record is not None and page.is_file():
        text = page.read_text(encoding="utf-8")
        # An older report, or a user's own, stays as it is.
        if has_parts(text):
            write_text(page, fill_run_parts(text, record))
            written.append(page)
    # Before the crate, which lists them.
    written += write_tables(output)
    before = _said(output / METADATA)
    crate = build_crate(
        output,
        {path.stem.removeprefix("run_"): record for path, record in launches.items()},
        license_text=license_text or before.get("license"),
        agent=agent or before.get("agent"),
    )
    write_json(output / METADATA, crate)
    return [*written, output / METADATA]


def _said(path: Path) -> dict[str, str]:
    """Return licence and agent of a crate, as `build_crate` takes them."""
    try:
        entities = {e["@id"]: e for e in json.loads(path.read_text(encoding="utf-8"))["@graph"]}
        return _license_of(entities) | _agent_of(entities)
    # It is third-party, or was edited: what cannot be read there is not kept.
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def _license_of(entities: dict[str, Any]) -> dict[str, str]:
    licence = entities[entities["./"]["license"]["@id"]]
    if "description" in licence:
        return {}
    return {"license": licence["name"]}


def _agent_of(entities: dict[str, Any]) -> dict[str, str]:
    for entity in entities.values():
        if entity["@type"] == "CreateAction" and "agent" in entity:
            who = entities[entity["agent"]["@id"]]
            place = who["@id"] if who["@id"].startswith("http") else ""
            return {"agent": " ".join(filter(None, [who["name"], place]))}
    return {}

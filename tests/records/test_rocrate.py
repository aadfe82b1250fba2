"""The RO-Crate, read and judged by other implementations."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from rocrate.model.computationalworkflow import ComputationalWorkflow
from rocrate.rocrate import ROCrate

from linumpy.records.rocrate import METADATA
from linumpy.report.finish import finish_run

from .conftest import FAILED_AT, HOME, RESUMED_AT, write_launch

VALIDATOR = Path(sys.prefix) / "rocrate" / "bin" / "python"


@pytest.fixture
def crate(output: Path) -> ROCrate:
    """The crate of a run that was resumed after it failed."""
    finish_run(output)
    return ROCrate(str(output))


def ids(found: Any) -> set[str]:
    """Return the ids of one entity, or of several."""
    return {entity.id for entity in (found if isinstance(found, list) else [found])}


def test_the_workflow_is_the_main_entity(crate: ROCrate) -> None:
    workflow = crate.mainEntity
    assert isinstance(workflow, ComputationalWorkflow)
    assert workflow.id == "pipeline_info/main.nf"
    assert workflow["programmingLanguage"]["name"] == "Nextflow"
    assert workflow["programmingLanguage"]["version"] == "24.10.0"
    assert workflow["version"] == "a" * 40 + ", with changes"
    assert {"pkg:pypi/numpy@2.4.0", "pkg:generic/linumpy@0.1.0"} <= ids(
        workflow["softwareRequirements"]
    )
    numpy = crate.get("pkg:pypi/numpy@2.4.0")
    assert numpy.type == "SoftwareApplication"
    assert numpy["softwareVersion"] == "2.4.0"


def test_the_action_made_the_results_with_the_parameters(crate: ROCrate) -> None:
    (action,) = (entity for entity in crate.get_by_type("CreateAction"))
    assert ids(crate.root_dataset["mentions"]) == {action.id}
    assert action["instrument"] is crate.mainEntity
    assert action["startTime"] == "2025-01-05T11:00:00.250Z"
    assert action["endTime"] == "2025-01-05T11:30:00.750Z"
    assert action["actionStatus"] == "http://schema.org/CompletedActionStatus"
    results = {"mouse.ome.zarr/", "slices/", "accuracy.json", "slice_config.csv"}
    assert ids(action["result"]) == results
    assert "agent" not in action.properties()
    given = {value["name"]: value["value"] for value in action["object"]}
    assert given == {
        "input": "raw tiles", "resolution": 10.0, "fused": True, "stage_to_array": "+x,+y"
    }  # fmt: skip
    for value in action["object"]:
        assert value["exampleOfWork"].id in ids(crate.mainEntity["input"])
        assert value["exampleOfWork"]["name"] == value["name"]
    kinds = {p["name"]: p["additionalType"] for p in crate.mainEntity["input"]}
    assert kinds == {
        "input": "Text", "resolution": "Float", "fused": "Boolean", "stage_to_array": "Text"
    }  # fmt: skip


def test_parts_are_what_the_workflow_makes_and_is_there(crate: ROCrate, output: Path) -> None:
    parts = {p.id for p in crate.root_dataset["hasPart"]}
    assert parts == {
        "mouse.ome.zarr/", "slices/", "accuracy.json", "slice_config.csv", "pipeline_info/",
        "pipeline_info/main.nf",
    }  # fmt: skip
    assert all((output / part).exists() for part in parts)


def test_no_path_or_machine_name_is_recorded(output: Path) -> None:
    finish_run(output)
    text = (output / METADATA).read_text()
    assert "raw tiles" in text
    assert "my.config run main.nf --input 'raw tiles' --output=out -resume" in text
    for word in ("somebody", HOME, str(output), "def-secret", os.uname().nodename + '"', "c0ffee"):
        assert word not in text, word
    # No word begins like a path of a machine.
    assert re.findall(r'["\' =](?:/|~/|\.\./|file:)[\w.]+', text) == []
    for entity in json.loads(text)["@graph"]:
        assert re.match(r"[a-z]+:|#|\./$|[\w.-]+(/|$)", entity["@id"]), entity["@id"]


def test_licence_and_agent_are_recorded_when_known(output: Path) -> None:
    finish_run(output)
    root = ROCrate(str(output)).root_dataset
    assert root["license"]["name"] == "No licence is stated"
    orcid = "0000-0002-1825-0097"
    licence = "https://creativecommons.org/licenses/by/4.0/"
    finish_run(output, license_text=licence, agent=f"A. Person <{orcid}>")
    for _ in range(2):
        crate = ROCrate(str(output))
        assert crate.root_dataset["license"].id == licence
        agent = crate.get_by_type("CreateAction")[0]["agent"]
        assert agent.id == f"https://orcid.org/{orcid}"
        assert agent["name"] == "A. Person"
        finish_run(output)


def test_failed_run_has_no_results_but_a_reason(output: Path) -> None:
    (output / "pipeline_info" / f"run_{RESUMED_AT}.json").unlink()
    (output / "mouse.ome.zarr").rmdir()
    finish_run(output)
    (action,) = ROCrate(str(output)).get_by_type("CreateAction")
    assert action.id == f"#run-{FAILED_AT}"
    assert action["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert "result" not in action.properties()
    assert action["error"] == (
        "reconstruct_slice (z01): linum_reconstruct_slice.py: error: tile.bin: truncated"
    )


def test_failure_after_a_good_run_is_recorded_beside_it(output: Path) -> None:
    write_launch(output, "2025-01-05_13-00-00", [], status="running")
    finish_run(output)
    good, bad = ROCrate(str(output)).get_by_type("CreateAction")
    assert good.id == f"#run-{RESUMED_AT}"
    assert "mouse.ome.zarr/" in ids(good["result"])
    assert bad["actionStatus"] == "http://schema.org/FailedActionStatus"
    assert bad["error"] == "The launch was stopped before it could say why."


@pytest.mark.parametrize(
    ("engine", "image", "said", "expected"),
    [
        (
            "docker",
            "registry.lab.org:5000/group/linumpy:cpu",
            "sha256:01 registry.lab.org:5000/group/linumpy@sha256:02",
            ("group/linumpy", "cpu", "registry.lab.org:5000", "02", "DockerImage"),
        ),
        ("podman", "linumpy:cuda", "sha256:03", ("linumpy", "cuda", None, "03", "DockerImage")),
        ("docker", "lab/linumpy", None, ("lab/linumpy", None, None, None, "DockerImage")),
        (
            "apptainer",
            "/home/somebody/linumpy_cpu.sif",
            "sha256:04",
            ("linumpy_cpu.sif", None, None, "04", "SIFImage"),
        ),
    ],
)
def test_the_container_is_known_by_its_digest(
    output: Path, engine: str, image: str, said: str | None, expected: tuple[str | None, ...]
) -> None:
    path = output / "pipeline_info" / f"run_{RESUMED_AT}.json"
    told = {"container": {"engine": engine, "images": {image: said}}}
    path.write_text(json.dumps(json.loads(path.read_text()) | told))
    finish_run(output)
    crate = ROCrate(str(output))
    (action,) = crate.get_by_type("CreateAction")
    found = action["containerImage"]
    told = [found.get(key) for key in ("name", "tag", "registry", "sha256")]
    assert tuple(told) == expected[:4]
    kind = found.properties()["additionalType"]["@id"]
    assert kind == f"https://w3id.org/ro/terms/workflow-run#{expected[4]}"


@pytest.mark.skipif(
    not VALIDATOR.exists(), reason="make test-all makes the validator's environment"
)
@pytest.mark.slow
def test_a_validator_finds_all_that_the_profiles_require(output: Path) -> None:
    told = {"engine": "docker", "images": {"lab/linumpy:cpu": "sha256:" + "0" * 64}}
    write_launch(output, "2025-01-05_13-00-00", [], status="failed", container=told)
    finish_run(output, agent="A. Person")
    answers = {}
    for name in ("whole", "spoilt"):
        if name == "spoilt":
            (output / "accuracy.json").unlink()
            crate = json.loads((output / METADATA).read_text())
            for entity in crate["@graph"]:
                if entity["@type"] == "CreateAction":
                    del entity["instrument"]
            (output / METADATA).write_text(json.dumps(crate))
        done = subprocess.run(
            [
                VALIDATOR,
                Path(__file__).with_name("validate_crate.py"),
                output,
                "workflow-run-crate",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        answers[name] = done.stdout.splitlines()
    (checked,) = answers["whole"]
    assert int(checked.removeprefix("checked ")) >= 50
    assert any("instrument" in line for line in answers["spoilt"])

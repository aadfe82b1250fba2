"""RO-Crate metadata of an output folder, by the profile Workflow Run Crate.

The crate says what lies in the folder, which workflow made it, with which parameters and which
software. It is made to be handed on: no path or machine name is in it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from linumpy.records.privacy import short_command, short_text, short_word
from linumpy.records.timing import duration_label

METADATA = "ro-crate-metadata.json"
WORKFLOW = "pipeline_info/main.nf"

Entity = dict[str, Any]

_SPECIFICATION = "https://w3id.org/ro/crate/1.1"
_PROFILES = {
    "https://w3id.org/ro/wfrun/process/0.5": ("Process Run Crate", "0.5"),
    "https://w3id.org/ro/wfrun/workflow/0.5": ("Workflow Run Crate", "0.5"),
    "https://w3id.org/workflowhub/workflow-ro-crate/1.0": ("Workflow RO-Crate", "1.0"),
}
_TERMS = "https://w3id.org/ro/terms/workflow-run#"
_PARAMETER_PROFILE = "https://bioschemas.org/profiles/FormalParameter/1.0-RELEASE"
_WORKFLOW_PROFILE = "https://bioschemas.org/profiles/ComputationalWorkflow/1.0-RELEASE"
_LANGUAGE = "https://w3id.org/workflowhub/workflow-ro-crate#nextflow"
_WORKFLOW_LICENSE = "https://spdx.org/licenses/BSD-3-Clause"
_NO_LICENSE: Entity = {
    "@id": "#license",
    "@type": "CreativeWork",
    "name": "No licence is stated",
    "description": "Ask those who made these data before using them.",
}
_STATUS = {
    "completed": "http://schema.org/CompletedActionStatus",
    "failed": "http://schema.org/FailedActionStatus",
    "interrupted": "http://schema.org/FailedActionStatus",
}

# What a run makes, by name: description and media type. The last one that fits counts.
_PARTS = {
    "*.ome.zarr": ("The brain, OME-Zarr 0.5", None),
    "*_2d.ome.zarr": ("An image of each slice in one volume, OME-Zarr 0.5", None),
    "*_ras.ome.zarr": ("The brain in the frame of an atlas, OME-Zarr 0.5", None),
    "*_ras_transform.tfm": ("From points of the atlas to those of the brain, ITK", "text/plain"),
    "*.nii.gz": ("The brain, NIfTI", "application/gzip"),
    "report.html": ("Results and problems of the run, to read", "text/html"),
    "accuracy.json": ("Metrics against the known truth", "application/json"),
    "slice_config.csv": ("What was decided about each slice, and why", "text/csv"),
    "shifts_xy.csv": ("Steps of the stage between slices, as reported", "text/csv"),
    "shifts_xy_clean.csv": ("Steps of the stage between slices, without glitches", "text/csv"),
    "slice_config.parquet": ("slice_config.csv as Parquet", "application/vnd.apache.parquet"),
    "shifts_xy.parquet": ("shifts_xy.csv as Parquet", "application/vnd.apache.parquet"),
    "shifts_xy_clean.parquet": ("shifts_xy_clean.csv as Parquet", "application/vnd.apache.parquet"),
    "tiles.parquet": ("Where the tiles of all slices lie", "application/vnd.apache.parquet"),
    "z_matches.csv": ("Planes that each slice shares with those above it", "text/csv"),
    "mosaic_grids": ("The raw tiles of each slice, side by side", None),
    "slices": ("Each slice, stitched and corrected", None),
    "slices_2d": ("An image of each slice", None),
    "aips": ("Average intensity projections of the slices", None),
    "previews": ("Small images of slices and brain", None),
    "models": ("What was learned and solved on the way", None),
    "diagnostics": ("The run seen from other sides", None),
    "manual_align": ("A package to align slices by hand", None),
    "pipeline_info": ("Records of all launches of the workflow", None),
}
# Parameters that say where and how, and change nothing of the results.
_ELSEWHERE = (
    *("output", "publish_mode", "overwrite", "help", "use_gpu", "gpu_*", "container_*"),
    *("slurm_*", "k8s_*", "aws_*", "cloud_*"),
)
_PACKAGES = {
    "numpy": ("NumPy", "pypi"),
    "scipy": ("SciPy", "pypi"),
    "zarr": ("Zarr-Python", "pypi"),
    "zarrs": ("zarrs", "pypi"),
    "numcodecs": ("numcodecs", "pypi"),
    "simpleitk": ("SimpleITK", "pypi"),
    "nibabel": ("NiBabel", "pypi"),
    "tifffile": ("tifffile", "pypi"),
    "nextflow": ("Nextflow", "maven/io.nextflow"),
    "java": ("Java", "generic"),
    "python": ("Python", "generic"),
    "cupy": ("CuPy", "pypi"),
    "kvikio": ("KvikIO", "generic"),
    "nvcomp": ("nvCOMP", "generic"),
}


def build_crate(
    output: Path,
    launches: Mapping[str, Mapping[str, Any]],
    *,
    license_text: str | None = None,
    agent: str | None = None,
) -> dict[str, Any]:
    """Return the metadata of an output folder.

    Parameters
    ----------
    output
        The folder; what lies in it by a name that the workflow gives is part of the crate.
    launches
        Complete records of its launches by name (``2025-01-31_10-00-00``), first one first. The
        last that was completed made the results; a later one that failed is listed too.
    license_text
        Licence of the data: an address, or words.
    agent
        Who ran it: a name, an ORCID, or ``name <ORCID>``.
    """
    chosen = actions_of(launches)
    made = chosen[0][1]
    parts = _parts(output)
    steps = [
        _Action(name, record, parts if record["status"] == "completed" else [])
        for name, record in chosen
    ]
    software = _software(made["versions"])
    licence = _license(license_text)
    who = _agent(agent)
    workflow = _workflow(made, steps, software)
    root: Entity = {
        "@id": "./",
        "@type": "Dataset",
        "name": f"{made['subject']}: brain from serial-section OCT",
        "description": "Volumes, models and tables that linumpy made of the raw tiles of "
        "serial-section optical coherence tomography, with the record of how.",
        "datePublished": made.get("ended") or made["started"],
        "license": {"@id": licence["@id"]},
        "conformsTo": _links(_PROFILES),
        "hasPart": _links([WORKFLOW, *(part["@id"] for part in parts)]),
        "mainEntity": {"@id": WORKFLOW},
        "mentions": _links([step.entity["@id"] for step in steps]),
    }
    if who is not None:
        for entity, role in [(root, "author"), *((step.entity, "agent") for step in steps)]:
            entity[role] = {"@id": who["@id"]}
    descriptor: Entity = {
        "@id": METADATA,
        "@type": "CreativeWork",
        "about": {"@id": "./"},
        "conformsTo": _links(
            [_SPECIFICATION, "https://w3id.org/workflowhub/workflow-ro-crate/1.0"]
        ),
    }
    profiles = [
        {"@id": address, "@type": "CreativeWork", "name": name, "version": version}
        for address, (name, version) in _PROFILES.items()
    ]
    graph = [descriptor, root, licence, *([] if who is None else [who]), *profiles, *workflow]
    graph += [*parts, *software]
    for step in steps:
        graph += [step.entity, *step.others]
    return {"@context": _context(), "@graph": list({e["@id"]: e for e in graph}.values())}


def actions_of(
    launches: Mapping[str, Mapping[str, Any]],
) -> list[tuple[str, Mapping[str, Any]]]:
    """Return the launch that made the results, and the last one if that was not completed."""
    complete = [(name, r) for name, r in launches.items() if r["status"] == "completed"][-1:]
    last = list(launches.items())[-1:]
    return complete if complete == last else complete + last


class _Action:
    """A launch: the action itself, and what it took and was done with."""

    def __init__(self, name: str, record: Mapping[str, Any], results: Sequence[Entity]) -> None:
        self.inputs: dict[str, tuple[str, str]] = {}
        """Of each parameter its type, and the id of its value."""
        self.others: list[Entity] = []
        base = f"#run-{name}"
        for key, value in record["params"].items():
            if value is None or any(fnmatch(key, pattern) for pattern in _ELSEWHERE):
                continue
            entity = _value(f"{base}/{key}", key, value)
            self.inputs[key] = (_type(value), entity["@id"])
            self.others.append(entity)
        images = [_image(f"{base}/image-{n}", i) for n, i in enumerate(record["container"], 1)]
        self.others += images
        self.entity: Entity = {
            "@id": base,
            "@type": "CreateAction",
            "name": f"Reconstruction of {record['subject']}, {name.replace('_', ' ')}",
            "description": describe(record),
            "instrument": {"@id": WORKFLOW},
            "startTime": record["started"],
            "actionStatus": _STATUS[record["status"]],
            "object": _links([place for _, place in self.inputs.values()]),
        }
        if record.get("ended"):
            self.entity["endTime"] = record["ended"]
        if results:
            self.entity["result"] = _links(
                [part["@id"] for part in results if part["@id"] != "pipeline_info/"]
            )
        if images:
            self.entity["containerImage"] = _links([image["@id"] for image in images])
        if record["status"] != "completed":
            self.entity["error"] = short_text(failure(record))


def describe(record: Mapping[str, Any]) -> str:
    """Return one launch in a few words: command line, tasks and machines."""
    tasks = record["tasks"]
    cached = sum(task["status"] == "CACHED" for task in tasks)
    words = [
        f"{len(tasks)} tasks" + (f", {cached} of them from earlier launches" if cached else "")
    ]
    if record.get("wall_s") is not None:
        words.append(duration_label(record["wall_s"]))
    words += [
        f"{gpu['name']}, driver {gpu['driver'] or 'unknown'}, CUDA {gpu['cuda_runtime']}"
        for gpu in record["gpus"] or []
    ]
    if record["gpus"] == []:
        words.append("no GPU")
    command = record.get("command_line")
    return "; ".join(words) + "." + (f" {short_command(command)}" if command else "")


def failure(record: Mapping[str, Any]) -> str:
    """Return why a launch came to no good end."""
    if record["status"] == "interrupted":
        return "The launch was stopped before it could say why."
    names = [f"{task['process']} ({task['tag']})" for task in record["failed_tasks"]]
    told = " ".join((record.get("error") or "").split())
    return ": ".join(filter(None, [", ".join(names), told])) or "No task is known to have failed."


def _parts(output: Path) -> list[Entity]:
    found = []
    for path in sorted(output.iterdir()):
        known = [told for pattern, told in _PARTS.items() if fnmatch(path.name, pattern)]
        if not known:
            continue
        description, kind = known[-1]
        part: Entity = {
            "@id": path.name + ("/" if path.is_dir() else ""),
            "@type": "Dataset" if path.is_dir() else "File",
            "name": path.name,
            "description": description,
        }
        found.append(part | ({"encodingFormat": kind} if kind else {}))
    return found


def _workflow(
    record: Mapping[str, Any], actions: Sequence[_Action], software: Sequence[Entity]
) -> list[Entity]:
    """Return the workflow, its language and its parameters."""
    values: dict[str, list[str]] = {}
    kinds: dict[str, str] = {}
    for action in actions:
        for name, (kind, place) in action.inputs.items():
            kinds[name] = kind
            values.setdefault(name, []).append(place)
    parameters: list[Entity] = [
        {
            "@id": f"#param-{name}",
            "@type": "FormalParameter",
            "name": name,
            "additionalType": kinds[name],
            "conformsTo": {"@id": _PARAMETER_PROFILE},
            "workExample": _links(places),
        }
        for name, places in values.items()
    ]
    revision = record.get("revision") or {}
    version = revision.get("commit") or record["versions"].get("linumpy", "unknown")
    workflow: Entity = {
        "@id": WORKFLOW,
        "@type": ["File", "SoftwareSourceCode", "ComputationalWorkflow"],
        "name": "linumpy: from the raw tiles of serial-section OCT to one brain volume",
        "conformsTo": {"@id": _WORKFLOW_PROFILE},
        "encodingFormat": "text/x-nextflow",
        "version": version + (", with changes" if revision.get("modified") else ""),
        "license": {"@id": _WORKFLOW_LICENSE},
        "programmingLanguage": {"@id": _LANGUAGE},
        "input": _links([parameter["@id"] for parameter in parameters]),
        "softwareRequirements": _links([entity["@id"] for entity in software]),
    }
    if revision.get("repository"):
        workflow["codeRepository"] = revision["repository"]
    language: Entity = {
        "@id": _LANGUAGE,
        "@type": "ComputerLanguage",
        "name": "Nextflow",
        "identifier": {"@id": "https://www.nextflow.io/"},
        "url": {"@id": "https://www.nextflow.io/"},
        "version": record["versions"].get("nextflow", "unknown"),
    }
    licence: Entity = {
        "@id": _WORKFLOW_LICENSE,
        "@type": "CreativeWork",
        "name": "BSD 3-Clause",
    }
    profiles: list[Entity] = [
        {"@id": place, "@type": "CreativeWork", "name": f"Bioschemas {name}", "version": "1.0"}
        for place, name in (
            (_PARAMETER_PROFILE, "FormalParameter"),
            (_WORKFLOW_PROFILE, "ComputationalWorkflow"),
        )
    ]
    return [workflow, language, licence, *profiles, *parameters]


def _software(versions: Mapping[str, str]) -> list[Entity]:
    found = []
    for key, version in versions.items():
        name, kind = _PACKAGES.get(key, (key, "generic"))
        found.append(
            {
                "@id": f"pkg:{kind}/{key}@{version}",
                "@type": "SoftwareApplication",
                "name": name,
                "softwareVersion": version,
            }
        )
    return found


def _value(place: str, name: str, value: Any) -> Entity:
    """Return a parameter's value; what was read from elsewhere is known by its name alone."""
    shown = short_word(value) if isinstance(value, str) else value
    return {
        "@id": place,
        "@type": "PropertyValue",
        "name": name,
        "value": shown if isinstance(shown, (str, int, float)) else json.dumps(shown),
        "exampleOfWork": {"@id": f"#param-{name}"},
    }


def _type(value: Any) -> str:
    kinds = {bool: "Boolean", int: "Integer", float: "Float"}
    return kinds.get(type(value), "Text")


def _image(place: str, image: Mapping[str, Any]) -> Entity:
    """Return a container image; its digest is that of the registry, where it comes from one."""
    name = image["image"]
    kind = "SIFImage" if image["engine"] in ("apptainer", "singularity") else "DockerImage"
    entity: Entity = {
        "@id": place,
        "@type": "ContainerImage",
        "additionalType": {"@id": f"{_TERMS}{kind}"},
    }
    if name.startswith("/"):
        entity["name"] = Path(name).name
    else:
        bare = name.partition("@")[0].removeprefix("docker://")
        first, _, rest = bare.partition("/")
        if rest and re.search(r"[.:]|^localhost$", first):
            entity["registry"], bare = first, rest
        entity["name"], _, tag = bare.partition(":")
        if tag:
            entity["tag"] = tag
    digests = [digest.rpartition("@")[2] for digest in image["digests"]]
    known = next(filter(None, [*digests, image["id"]]), "")
    if known.startswith("sha256:"):
        entity["sha256"] = known.removeprefix("sha256:")
    return entity


def _license(text: str | None) -> Entity:
    if not text:
        return dict(_NO_LICENSE)
    if re.match(r"https?://", text):
        return {"@id": text, "@type": "CreativeWork", "name": text}
    return {"@id": "#license", "@type": "CreativeWork", "name": text}


def _agent(text: str | None) -> Entity | None:
    if not text:
        return None
    match = re.search(r"\b(\d{4}-\d{4}-\d{4}-\d{3}[\dX])\b", text)
    name = re.sub(r"[<(]?(https?://)?[\w./]*\d{4}-\d{4}-\d{4}-\d{3}[\dX][>)]?", "", text).strip()
    place = f"https://orcid.org/{match[1]}" if match else "#agent"
    return {"@id": place, "@type": "Person", "name": name or text.strip()}


def _links(places: Sequence[str] | Mapping[str, Any]) -> Any:
    """Return references; a single one without a list, as in compact JSON-LD."""
    found = [{"@id": place} for place in places]
    return found[0] if len(found) == 1 else found


def _context() -> list[Any]:
    terms = ("ContainerImage", "containerImage", "registry", "tag", "sha256")
    return [f"{_SPECIFICATION}/context", {term: f"{_TERMS}{term}" for term in terms}]

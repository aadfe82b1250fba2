"""Validate an RO-Crate with roc-validator, which lives in an environment of its own.

    python validate_crate.py FOLDER PROFILE

prints what the profile requires and the crate lacks, a line each. Nothing is fetched: in the place
of the context that the crate names, the one that the package rocrate brings is put in.
"""

import json
import shutil
import sys
import tempfile
from pathlib import Path

import rocrate
from rocrate_validator import models, services

# These are from RO-Crate 1.3; what is not the same in 1.1.
BIOSCHEMAS = "https://bioschemas.org/"
IN_1_1 = {
    "ComputationalWorkflow": f"{BIOSCHEMAS}ComputationalWorkflow",
    "FormalParameter": f"{BIOSCHEMAS}FormalParameter",
    "input": f"{BIOSCHEMAS}ComputationalWorkflow#input",
    "output": f"{BIOSCHEMAS}ComputationalWorkflow#output",
}


def main(folder: Path, profile: str) -> None:
    bundled = Path(rocrate.__file__).parent / "data" / "ro-crate.jsonld"
    context = json.loads(bundled.read_text(encoding="utf-8"))["@context"] | IN_1_1
    with tempfile.TemporaryDirectory() as place:
        copy = Path(place) / "crate"
        shutil.copytree(folder, copy)
        path = copy / "ro-crate-metadata.json"
        crate = json.loads(path.read_text(encoding="utf-8"))
        assert crate["@context"][0] == "https://w3id.org/ro/crate/1.1/context"
        crate["@context"] = [context, *crate["@context"][1:]]
        path.write_text(json.dumps(crate), encoding="utf-8")
        settings = services.ValidationSettings(
            rocrate_uri=copy,
            profile_identifier=profile,
            requirement_severity=models.Severity.REQUIRED,
            offline=True,
            cache_path=Path(place) / "cache",
        )
        result = services.validate(settings)
    print("checked", len(result.executed_checks))
    for issue in result.get_issues():
        print(issue.check.identifier, issue.message)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])

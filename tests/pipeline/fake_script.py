#!/usr/bin/env python
"""Stands in for any linum_*.py: notes how it was called and makes what it was to write.

FAKE_LOG names the folder for the notes. FAKE_FAIL, such as "reconstruct_slice z01", makes the
call fail whose script and arguments hold these words.
"""

import json
import os
import sys
from pathlib import Path

name = Path(sys.argv[0]).stem.removeprefix("linum_")
arguments = sys.argv[1:]
text = sys.stdin.read() if "-" in arguments else ""

log = Path(os.environ["FAKE_LOG"])
log.mkdir(parents=True, exist_ok=True)
note = {"script": name, "arguments": arguments, "stdin": text}
(log / f"{name}.{os.getpid()}.json").write_text(json.dumps(note), encoding="utf-8")

words = os.environ.get("FAKE_FAIL", "").split()
if words and words[0] == name and all(w in " ".join(arguments) for w in words[1:]):
    sys.exit(f"linum_{name}.py: error: tile (1, 2) cannot be read")

made = [Path(a) for a in arguments if Path(a).suffix in {".zarr", ".json", ".csv", ".png", ".html"}]
for flag, stems in {
    "--output": ("detect_focal_curvature", "fix_illumination_3d"),
    "--diagnostics": ("rehoming_report",) if name == "detect_rehoming" else (),
    "--output_models": (
        "register_tiles",
        "crop_3d_mosaic_below_interface",
        "normalize_intensities_per_slice",
    ),
}.items():
    folder = Path(arguments[arguments.index(flag) + 1]) if flag in arguments else Path("x.json")
    if not folder.suffix:
        made += [folder / f"{stem}.json" for stem in stems]
if name == "analyze_shifts":
    made.append(Path(arguments[1]) / "analyze_shifts.json")
for path in made:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zarr":
        path.mkdir(exist_ok=True)
    elif not path.exists():
        path.write_text("slice_id,use\n" if path.suffix == ".csv" else "{}", encoding="utf-8")

#!/usr/bin/env python
"""Stand-in for any linum_*.py: notes its arguments and makes its outputs.

FAKE_LOG names the folder for the notes. FAKE_FAIL, such as "reconstruct_slice z01", makes the
call fail whose script and arguments hold these words; of a group of slices, that slice. FAKE_KILL,
such as "z01", kills the first attempt at its group before that slice. FAKE_ONCE, such as
"learn_models 102 aip vanish", has scripts' first calls end with a status, or ends the whole task,
wrapper and all, as a node does that fails. FAKE_NOTHING names a script that makes nothing.
FAKE_SECONDS is how long calls for a GPU take.
"""

import itertools
import json
import os
import signal
import sys
import time
from pathlib import Path

# A report, as far as it matters to what tells it how the run ended.
PAGE = "<!--linumpy:wall--><!--/linumpy:wall--><!--linumpy:run--><!--/linumpy:run-->"

name = Path(sys.argv[0]).stem.removeprefix("linum_")
arguments = sys.argv[1:]
text = sys.stdin.read() if "-" in arguments else ""

log = Path(os.environ["FAKE_LOG"])
log.mkdir(parents=True, exist_ok=True)
told = (
    *("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "TMPDIR"),
    *("SLURM_ARRAY_JOB_ID", "SLURM_JOB_ID", "SLURM_MEM_PER_NODE"),
)
note = {
    "script": name,
    "arguments": arguments,
    "stdin": text,
    "environment": {key: os.environ[key] for key in told if key in os.environ},
    "folder": str(Path.cwd()),
    "began": time.time(),
}
place = log / f"{name}.{os.getpid()}.json"
place.write_text(json.dumps(note), encoding="utf-8")

GROUP = "--keep_going" in arguments
words = os.environ.get("FAKE_FAIL", "").split()
if not GROUP and words and words[0] == name and all(w in " ".join(arguments) for w in words[1:]):
    sys.exit(f"linum_{name}.py: error: tile (1, 2) cannot be read")


def make_group(failing: list[str]) -> None:
    """Make the slices of a group, in their order."""
    place = arguments.index("--slices" if "--slices" in arguments else "--grids")
    for word in itertools.takewhile(lambda text: text[0] != "-", arguments[place + 1 :]):
        slice_id = f"z{int(word):02d}" if word.isdigit() else word.split(".")[0].split("_")[-1]
        record = Path("records") / f"slice_{slice_id}.json"
        if "--take_over" in arguments and record.exists():
            continue
        if "--take_over" not in arguments and os.environ.get("FAKE_KILL") == slice_id:
            os.kill(os.getpid(), signal.SIGKILL)
        (log / f"made.{slice_id}.{os.getpid()}").touch()
        broken = slice_id in failing
        if not broken:
            (Path("slices") / f"slice_{slice_id}.ome.zarr").mkdir(parents=True, exist_ok=True)
            for model in ("register_tiles", "crop_3d_mosaic_below_interface"):
                (Path("models") / slice_id).mkdir(parents=True, exist_ok=True)
                (Path("models") / slice_id / f"{model}.json").write_text("{}", encoding="utf-8")
            for picture in (f"aips/aip_{slice_id}.png", f"previews/slice_{slice_id}.png"):
                Path(picture).parent.mkdir(exist_ok=True)
                Path(picture).touch()
        record.parent.mkdir(exist_ok=True)
        error = f"{slice_id}: /data/'it' $x: tile (1, 2) cannot be read" if broken else ""
        told = {"slice_id": int(slice_id[1:]), "error": error, "seconds": 1.0}
        told["status"] = "failed" if broken else "done"
        record.write_text(json.dumps(told), encoding="utf-8")


if GROUP:
    make_group(words[1:] if words and words[0] == name else [])
    note["ended"] = time.time()
    place.write_text(json.dumps(note), encoding="utf-8")
    sys.exit()


def is_first() -> bool:
    """Whether no call of the script was before this one; of calls at a time, one is the first."""
    try:
        (log / f"{name}.once").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True


words = os.environ.get("FAKE_ONCE", "").split()
once = dict(zip(words[::2], words[1::2], strict=True))
if name in once and is_first():
    if once[name] == "vanish":
        os.killpg(0, signal.SIGKILL)
    sys.exit(int(once[name]))

if "--use_gpu" in arguments:
    time.sleep(float(os.environ.get("FAKE_SECONDS", "0")))
note["ended"] = time.time()
place.write_text(json.dumps(note), encoding="utf-8")
if name == os.environ.get("FAKE_NOTHING"):
    sys.exit()

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
if name == "measure_pairs":
    first = arguments[arguments.index("--ids") + 1]
    made.append(Path(arguments[1]) / f"register_pairs_z{first}.json")
if name == "analyze_shifts":
    made.append(Path(arguments[1]) / "analyze_shifts.json")
for path in made:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".zarr":
        path.mkdir(exist_ok=True)
    elif not path.exists():
        text = {".csv": "slice_id,use\n", ".html": PAGE}.get(path.suffix, "{}")
        path.write_text(text, encoding="utf-8")

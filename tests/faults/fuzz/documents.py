"""JSON documents: models, side files, what a run left. The first byte chooses the reader."""

import json

from linumpy.brain.bias.model import BiasModel
from linumpy.io.models import load_model, read_json
from linumpy.io.side_data import read_side_data
from linumpy.quality.run import Run
from tests.faults.fuzz.common import Plain, folder, mutate_json, survive

FOLDER = folder()
MODELS = FOLDER / "models"
(MODELS / "z01").mkdir(parents=True)
TILE = FOLDER / "tile_x00_y00_z01"


def mutate(data: bytes, max_size: int, seed: int, plain: Plain) -> bytes:
    return data[:1] + mutate_json(data[1:], max_size - 1, seed, plain)


def one(data: bytes) -> None:
    kind, text = data[:1], data[1:]
    if kind == b"t":
        (MODELS / "z01" / "register_tiles.json").write_bytes(text)
        survive(lambda: Run(FOLDER).tile_registrations)
    elif kind == b"r":
        (MODELS / "register_slices.json").write_bytes(text)
        survive(lambda: Run(FOLDER).slice_registration)
    elif kind == b"k":
        (MODELS / "stack_slices_motor.json").write_bytes(text)
        survive(lambda: Run(FOLDER).stack)
    elif kind == b"m":
        (FOLDER / "metadata.json").write_bytes(text)
        survive(lambda: read_side_data(TILE, FOLDER))
    elif kind == b"n":
        (FOLDER / "m.npz").write_bytes(text)
        (FOLDER / "m.json").write_text("{}")
        survive(lambda: load_model(FOLDER, "m", BiasModel))
    else:
        (FOLDER / "any.json").write_bytes(text)
        value = survive(lambda: read_json(FOLDER / "any.json"))
        if value is not None:
            json.dumps(value, allow_nan=False)
            survive(lambda: load_model(FOLDER, "any", BiasModel))

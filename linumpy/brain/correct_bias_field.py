"""Correct the bias field of a brain: learned from a downsampled copy, applied by blocks.

The brain is read a few times over, but never held: once for its cells
(`linumpy.brain.bias.model`), twice more when planes are matched first, and once to be
corrected. What a voxel is multiplied by passes over to 1 within two cells outside the tissue:
agarose and what lies beyond stay as they are, and so does the mask of valid data.
"""

from __future__ import annotations

import shutil
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from linumpy.brain.bias.correction import Correction, thin
from linumpy.brain.bias.learning import Block, learn, read_block, sections
from linumpy.brain.bias.model import BiasModel
from linumpy.brain.depth_parts import can_be_shared, depth_parts, usual_parts
from linumpy.brain.stacking import SLAB_PX, cuts
from linumpy.core.device import CPU, Array, Device, namespace
from linumpy.core.errors import InputError
from linumpy.core.host_memory import trim_heap
from linumpy.core.log import progress
from linumpy.core.stream import stream
from linumpy.core.timeline import span
from linumpy.io.omezarr import Image, ImageWriter, open_image
from linumpy.io.pyramid import Box, Part, Pyramid, pyramid_levels, write_parts
from linumpy.io.slice_layout import CHUNK_PX, SHARD_PX, volume_spec
from linumpy.stage_params.bias import BiasParams
from linumpy.store.atomic import atomic_path, refuse_any
from linumpy.store.manifest import check_all, write_manifest
from linumpy.store.untrusted_zarr import check_links


def correct_bias_field(
    image_path: Path | str,
    output: Path | str,
    params: BiasParams,
    *,
    stack_model: Path | None = None,
    n_sections: int | None = None,
    field_path: Path | None = None,
    overwrite: bool = False,
    device: Device = CPU,
    parts: int | None = None,
) -> BiasModel:
    """Take the bias field off a stacked brain.

    Parameters
    ----------
    image_path
        The brain (OME-Zarr), normalised: agarose about 0, tissue mostly up to 1.
    output
        OME-Zarr to write, with the same levels, labels and attributes.
    params
        What to correct and how strongly.
    stack_model
        ``stack_slices_motor.json``: which planes belong to which slice.
    n_sections
        Number of sections of equal height when there is no model; as many as the brain names
        slices when None.
    field_path
        OME-Zarr for what the brain was divided by (mean brightness of planes and N4's fields; the
        matching of histograms is no field). None for none.
    overwrite
        Whether existing outputs may be replaced.
    device
        Where to compute, with all its GPUs.
    parts
        Of depth, each worked on by a process of its own; None for `usual_parts`.

    Returns
    -------
    What was learned.

    Raises
    ------
    InputError
        When the brain cannot be read, the model belongs to another, its levels are not those of a
        pyramid of linumpy, or it has too many voxels for the shrink factor.
    OutputExistsError
        When an output exists and `overwrite` is false.
    """
    refuse_any(overwrite, output, field_path)
    image = open_image(image_path)
    resolutions = level_resolutions(image)
    labels, shares = sections(image, stack_model, n_sections)
    if not can_be_shared([image]):
        parts = 1
    count = usual_parts(device, image.array.shape) if parts is None else parts
    one = device.first()
    with ExitStack() as stack:
        processes = stack.enter_context(depth_parts(device, count))
        attributes = {
            **{k: v for k, v in image.attributes.items() if k != "version"},
            "bias_field": {"mode": params.mode, "strength": params.strength},
        }
        copies = [_Copy(stack, Path(output), image, attributes, resolutions, overwrite, one)]
        if field_path is not None:
            attributes = {**attributes, "kind": "bias_field"}
            copies.append(_Copy(stack, field_path, image, attributes, resolutions, overwrite, one))
        scratch = copies[0].beside("quantiles")
        model, reach = learn(image, labels, shares, params, one, processes, scratch)
        # Cells, and what fits made of them, are many.
        trim_heap()
        work = _Correcting(image, Correction(model, reach, one), copies, one)
        planes = processes.divide(image.array.shape[0])
        processes.write(work, planes, [copy.pyramid for copy in copies])
        for copy in copies:
            copy.finish()
        copies[0].take_labels(image)
        for copy in copies:
            copy.seal()
        model = replace(model, plane_quantiles=model.plane_quantiles[:])
        scratch.unlink(missing_ok=True)
    return model


@dataclass(frozen=True)
class _Correcting:
    """Write some planes of the copies, whole layers of shards."""

    image: Image
    correction: Correction
    copies: list[_Copy]
    device: Device

    def __call__(self, planes: slice) -> None:
        image, device = self.image, self.device
        windows = [
            (z, i, j)
            for slab in cuts(planes, SLAB_PX)
            for i in cuts(slice(0, image.array.shape[1]), SHARD_PX)
            for j in cuts(slice(0, image.array.shape[2]), SHARD_PX)
            for z in cuts(slab, SHARD_PX)
        ]
        done = stream(
            windows,
            lambda window: read_block(image, window, device),
            self._correct,
            lambda _, parts: write_parts(parts),
            # Fewer blocks at a time make their sum less a matter of chance.
            depth=2 if device.is_gpu else 1,
        )
        shown = progress(done, len(windows), "correct bias field") if planes.start == 0 else done
        for _ in shown:
            pass
        for copy in self.copies:
            copy.pyramid.leave()

    def _correct(self, window: Box, block: Block | None) -> list[Part]:
        copies, correction, device = self.copies, self.correction, self.device
        if block is None:
            return [part for copy in copies for part in copy.add(window, None, None)]
        with span("compute"):
            parts: list[Part] = []
            if len(copies) > 1:
                field = namespace(block.data).empty_like(block.data)
                for planes, part in thin(window, device):
                    field[planes] = correction.divisor(part)
                if block.valid is not None:
                    field *= block.valid
                parts += copies[1].add(window, field, block.valid)
            for planes, part in thin(window, device):
                block.data[planes] = correction.apply(block.data[planes], part)
            return parts + copies[0].add(window, block.data, block.valid)


class _Copy:
    """An image like another that is being written: the same levels, mask and place."""

    def __init__(
        self,
        stack: ExitStack,
        path: Path,
        image: Image,
        attributes: dict[str, Any],
        resolutions_um: list[float],
        overwrite: bool,
        device: Device,
    ) -> None:
        corner = [t - v / 2 for t, v in zip(image.translation_um, image.voxel_um, strict=True)]
        spec = volume_spec(
            tuple(image.array.shape),
            image.voxel_um,
            (corner[0], corner[1], corner[2]),
            attributes,
        )
        self._path = stack.enter_context(atomic_path(path, overwrite=overwrite, directory=True))
        self._writer = ImageWriter(
            self._path,
            spec,
            with_valid=image.valid is not None,
            name=path.name.removesuffix(".zarr").removesuffix(".ome"),
        )
        cell = (SHARD_PX,) * 3 if device.is_gpu else (CHUNK_PX, CHUNK_PX, SHARD_PX)
        self.pyramid = Pyramid(self._writer, resolutions_um, cell, device=device)

    def add(self, window: Box, data: Array | None, valid: Array | None) -> list[Part]:
        """Add a block of level 0; returns what can be written."""
        parts = self.pyramid.add(window, data, valid)
        if data is not None:
            parts.append(Part(self._writer.array, window, data))
        if valid is not None:
            parts.append(Part(self._writer.valid, window, valid))
        return parts

    def beside(self, name: str) -> Path:
        """Return a place for a file that does not become part of the image."""
        return self._path.with_name(f"{self._path.name}.{name}")

    def finish(self) -> None:
        """Write the metadata."""
        self._writer.finish()

    def seal(self) -> None:
        """Write the manifest: nothing may change after."""
        write_manifest(self._path)

    def take_labels(self, image: Image) -> None:
        """Copy the labels of the brain beside its mask, whatever made them."""
        import zarr

        check_all(image.path, "labels/")
        check_links(image.path, "labels")
        source = image.path / "labels"
        names = [p.name for p in source.iterdir() if p.is_dir()] if source.is_dir() else []
        others = sorted(name for name in names if name != "valid")
        for name in others:
            shutil.copytree(source / name, self._path / "labels" / name)
        if others:
            group = zarr.open_group(self._path, mode="a").require_group("labels")
            known = ["valid"] if image.valid is not None else []
            group.attrs["ome"] = {"version": "0.5", "labels": [*known, *others]}


def level_resolutions(image: Image) -> list[float]:
    """Return the resolutions by which `Pyramid` makes the levels of an image again.

    Raises
    ------
    InputError
        When it would make others.
    """
    found = []
    for scale in image.level_scales_um[1:]:
        coarser = [v for v, v0 in zip(scale, image.voxel_um, strict=True) if v > v0]
        if not coarser or pyramid_levels(image.voxel_um, [max(coarser)]) != [tuple(scale)]:
            raise InputError(
                f"{image.path}: a level has voxels of {scale} um over {image.voxel_um} um; "
                "expected a pyramid that linumpy made, whose levels are coarser to one size"
            )
        found.append(max(coarser))
    return found

"""Bounds of the correlation: reconstructions in which the places and more are known.

The slices of the ideal run lie where the truth says, their deformation is undone, and they are
averaged with the weights that their true signal to noise deserves. Where debris, a bubble or a tear
hides a slice, others go before it. "Placed" keeps the ideal run's compensation of attenuation;
"bound" undoes it, and normalisation, and compensates the true attenuation instead.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from linumpy.intensity.compensate_attenuation import Attenuation, attenuation_gain
from linumpy.intensity.compensate_attenuation import compensate_attenuation as multiply
from linumpy.io.models import load_model, read_json
from linumpy.quality.positions import slice_z_errors
from linumpy.quality.rotation import BlockFrame
from linumpy.quality.run import Run
from linumpy.quality.slice_truth import beside_artefacts, tissue_of
from linumpy.quality.truth import Truth
from linumpy.quality.truth_grid import (
    MIN_SHARE,
    PlainVolume,
    TruthSlab,
    on_truth_grid,
    slice_frame,
    undeformed,
)
from linumpy.store.untrusted import read_arrays

_HIDDEN_WEIGHT = 1e-6
"""Of a slice where a body hides it: it counts where no other shows the tissue."""

_ATTENUATION, _NORMALIZATION = "compensate_attenuation", "normalize_intensities_per_slice"


class TrueSignal:
    """Optical depth and signal to noise of the phantom's tissue, on the truth's grid."""

    def __init__(self, truth: Truth, clean: Any) -> None:
        record = read_json(truth.path / "truth.json")
        tissue = tissue_of(truth)
        axial = record.get("axial", {})
        volume = truth.path / "mu.ome.zarr"
        told = tissue is not None or volume.exists()
        self.known = told and "noise_rms" in record and "focus_um" in axial
        if not self.known:
            return
        from scipy.ndimage import uniform_filter

        from linumpy.io.omezarr import open_image

        self._noise = float(record["noise_rms"])
        self._focus, self._rayleigh = float(axial["focus_um"]), float(axial["rayleigh_um"])
        self._clean = np.asarray(clean.array, np.float32)
        self._voxel_mm = clean.voxel_um[0] / 1000
        if volume.exists():
            self._mu = np.asarray(open_image(volume).array, np.float32)
        elif tissue is not None:
            # Speckle-free texture is no attenuation: as of `truth_block`.
            self._mu = tissue.mu(np.asarray(uniform_filter(self._clean, 3)))
        self._mu = self._mu * (self._clean > 0)
        fields = truth.path / "fields.npz"
        self._rolloff = read_arrays(fields).get("rolloff") if fields.exists() else None
        self._sample_um = float(record["voxel_um"][0]) if self._rolloff is not None else 0.0
        self._depth_um = clean.translation_um[0] + np.arange(len(self._clean)) * clean.voxel_um[0]

    def gain_and_snr(
        self, face_um: float, gap_um: float, planes: slice
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return exp(∫µ) from a face to planes of the truth, and the signal to noise in power."""
        # A voxel that the face crosses counts in proportion.
        edge = (self._depth_um - face_um) / (1000 * self._voxel_mm) + 0.5
        share = np.clip(edge, 0, 1)[:, None, None]
        step = self._mu * share * self._voxel_mm
        optical = (np.cumsum(step, axis=0) - step / 2)[planes]
        place = self._depth_um[planes] - face_um + gap_um
        response = 1 / (1 + ((place - self._focus) / self._rayleigh) ** 2)
        if self._rolloff is not None:
            response = response * np.interp(
                place, np.arange(len(self._rolloff)) * self._sample_um, self._rolloff
            )
        signal = self._clean[planes] ** 2 * np.exp(-2 * optical) * response[:, None, None]
        return np.exp(optical), signal / self._noise**2


def uncorrected(run: Run, slice_id: int, image: Any) -> PlainVolume | None:
    """Return a slice's amplitudes before attenuation was compensated; None without its models."""
    normal = run.slice_models(_NORMALIZATION).get(slice_id)
    if normal is None:
        return None
    data = np.asarray(image.array, np.float32) * np.float32(normal["scale"])
    data += np.asarray(normal["floor"], np.float32)[:, None, None]
    folder = run.models / f"z{slice_id:02d}"
    if (folder / f"{_ATTENUATION}.json").exists():
        model = load_model(folder, _ATTENUATION, Attenuation)
        gain = np.maximum(np.asarray(attenuation_gain(model)), np.float32(1e-3))
        ones = np.ones_like(data)
        window = (slice(0, data.shape[1]), slice(0, data.shape[2]))
        data /= np.asarray(multiply(ones, gain, window, model.bin_px))
    valid = None if image.valid is None else np.asarray(image.valid)
    return PlainVolume(data, valid, image.voxel_um, image.translation_um)


def lateral_um(image: Any) -> np.ndarray:
    """Return the positions across of an image's voxels, micrometres, shape (axis 1, axis 2, 2)."""
    places = [
        start + step * np.arange(n)
        for start, step, n in zip(
            image.translation_um[1:], image.voxel_um[1:], image.array.shape[1:], strict=True
        )
    ]
    return np.stack(np.meshgrid(*places, indexing="ij"), axis=-1)


class Bound:
    """Planes of two brains with true places and weights by true signal to noise."""

    def __init__(self, ideal: Run, truth: Truth, frame: BlockFrame, clean: Any) -> None:
        from linumpy.io.omezarr import open_image

        self._truth, self._clean, self._signal = truth, clean, TrueSignal(truth, clean)
        self._slices = []
        if not self._signal.known or ideal.slice_registration is None:
            return
        placed = slice_z_errors(ideal, truth)
        for slice_id, path in ideal.slice_paths.items():
            image = open_image(path)
            if slice_id not in placed:
                continue
            volumes = {"placed": image, "bound": uncorrected(ideal, slice_id, image)}
            own = slice_frame(ideal, truth, slice_id, image, frame)
            hidden = beside_artefacts(truth.slices[slice_id], lateral_um(clean))
            known = {
                name: undeformed(ideal, slice_id, volume)
                for name, volume in volumes.items()
                if volume is not None
            }
            self._slices.append((slice_id, known, own, hidden))

    def planes(self, slab: TruthSlab) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Return averages and covered shares on the slab's planes, as `on_truth_grid` does.

        By name, "placed" and "bound"; none where the truth or the ideal run lacks what it takes.
        """
        shape, planes = slab.clean.shape, slice(slab.start, slab.stop)
        totals: dict[str, list[np.ndarray]] = {}
        for slice_id, volumes, frame, hidden in self._slices:
            known = self._truth.slices[slice_id]
            gain, snr = self._signal.gain_and_snr(known.face_um, known.gap_um, planes)
            shown = snr / (1 + snr)
            for name, volume in volumes.items():
                data, share = on_truth_grid(volume, frame, self._clean, slab.start, slab.stop)
                weight = np.where(share >= MIN_SHARE, shown**2, 0)
                weight *= np.where(hidden, _HIDDEN_WEIGHT, 1)
                total, weights, covered = totals.setdefault(
                    name, [np.zeros(shape) for _ in range(3)]
                )
                total += weight * data * (gain * np.sqrt(shown) if name == "bound" else 1)
                weights += weight
                np.maximum(covered, share, out=covered)
        return {
            name: (total / np.maximum(weights, 1e-30), covered)
            for name, (total, weights, covered) in totals.items()
        }

"""Refine the alignment of a brain to an atlas with SimpleITK, coarse to fine.

Lengths are in units of the brain's radius, so that a rotation by one radian, a stretch by one and a
shift by one move its border alike, and one step length serves all parameters.

The brain is the fixed image: each way of lying is judged on the same voxels, and where the atlas
ends its background goes on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from linumpy.brain.atlas.volume import Volume, tissue_mask
from linumpy.core.device import to_host

BINS = 50
SAMPLES = 100_000
SEED = 20_260

_WORK_UNITS = 1
"""ITK adds up what its threads find in the order they come: one thread, the same digits again."""

_MARGIN = 0.15
_FIRST_STEP_VOXELS = 1.0
_LAST_STEP_VOXELS = 0.05
_RELAXATION = 0.6
_STEPS_A_VOXEL = 3.0


@dataclass(frozen=True)
class RefineSettings:
    """How to refine.

    Attributes
    ----------
    kind
        ``rigid``, ``similarity`` or ``affine``.
    metric
        ``MI`` (Mattes), ``MSE``, ``CC`` or ``AntsCC``.
    iterations
        Most steps at each voxel size.
    """

    kind: str
    metric: str
    iterations: int


def refine(brain: Volume, atlas: Volume, start: np.ndarray, settings: RefineSettings) -> np.ndarray:
    """Improve a brain's place in the atlas at one voxel size.

    Parameters
    ----------
    brain, atlas
        Made by `contrast`, NumPy.
    start
        4 × 4, from brain to atlas, um.
    settings
        What may change, and what is compared.

    Returns
    -------
    The improved matrix. The same input gives the same digits on any number of cores.
    """
    import SimpleITK as sitk

    unit_um, mask = _radius_um(brain), _sampled(brain)
    fixed, fixed_frame = _image(brain, unit_um)
    moving, moving_frame = _image(_padded(atlas), unit_um)
    inner = np.linalg.inv(moving_frame) @ start @ fixed_frame
    where = sitk.GetImageFromArray(mask.astype(np.uint8))
    where.CopyInformation(fixed)

    change = _transform(settings.kind, _centre(mask, fixed))
    method = sitk.ImageRegistrationMethod()
    method.SetNumberOfWorkUnits(_WORK_UNITS)
    _set_metric(method, settings.metric)
    method.SetMetricFixedMask(where)
    share = SAMPLES / max(1, int(mask.sum()))
    if settings.metric != "AntsCC" and share < 1:
        method.SetMetricSamplingStrategy(method.RANDOM)
        method.SetMetricSamplingPercentage(share, SEED)
    method.SetInterpolator(sitk.sitkLinear)
    method.SetMovingInitialTransform(_affine(inner))
    method.SetInitialTransform(change, inPlace=True)
    voxel = max(brain.voxel_um) / unit_um
    _approach(method, settings.iterations, voxel, len(change.GetParameters()))
    method.Execute(fixed, moving)
    value, near = method.GetMetricValue(), _matrix(change)
    _settle(method, settings.iterations, voxel, len(change.GetParameters()))
    try:
        method.Execute(fixed, moving)
        better = method.GetMetricValue() < value
    except RuntimeError:
        # A line search that leaves the atlas ends in an error: the last approach is kept.
        better = False
    moved = inner @ (_matrix(change) if better else near)
    return np.asarray(moving_frame @ moved @ np.linalg.inv(fixed_frame))


def _approach(method: Any, iterations: int, voxel: float, n: int) -> None:
    """Descend in steps that shrink each time, from a few voxels off to near the optimum."""
    method.SetOptimizerAsRegularStepGradientDescent(
        learningRate=_FIRST_STEP_VOXELS * voxel,
        minStep=_LAST_STEP_VOXELS * voxel,
        numberOfIterations=iterations,
        relaxationFactor=_RELAXATION,
        gradientMagnitudeTolerance=0.0,
    )
    method.SetOptimizerScales([1.0] * n)


def _settle(method: Any, iterations: int, voxel: float, n: int) -> None:
    """Use curvature for the rest: size and outline pull on each other in a narrow valley."""
    method.SetOptimizerAsLBFGS2(
        solutionAccuracy=1e-6, numberOfIterations=iterations, lineSearchMaximumStep=2.0
    )
    method.SetOptimizerScales([_STEPS_A_VOXEL / voxel] * n)


def _set_metric(method: Any, metric: str) -> None:
    if metric == "MI":
        method.SetMetricAsMattesMutualInformation(BINS)
    elif metric == "MSE":
        method.SetMetricAsMeanSquares()
    elif metric == "CC":
        method.SetMetricAsCorrelation()
    else:
        method.SetMetricAsANTSNeighborhoodCorrelation(4)


def _transform(kind: str, centre: Sequence[float]) -> Any:
    import SimpleITK as sitk

    made = {
        "rigid": sitk.VersorRigid3DTransform,
        "similarity": sitk.Similarity3DTransform,
    }.get(kind)
    change: Any = sitk.AffineTransform(3) if made is None else made()
    change.SetCenter([float(c) for c in centre])
    return change


def _radius_um(brain: Volume) -> float:
    """Return the RMS distance of the volume's voxels from its middle."""
    sides = np.array(brain.data.shape) * np.array(brain.voxel_um)
    return float(np.sqrt((sides**2).sum() / 12))


def _sampled(brain: Volume) -> np.ndarray:
    """Return the voxels to compare at: tissue, and as much around it as shows its outline."""
    from scipy.ndimage import uniform_filter

    tissue = tissue_mask(brain).astype(np.float32)
    width = [max(3, int(2 * _MARGIN * n)) for n in tissue.shape]
    near = uniform_filter(tissue, width, mode="constant") > 1e-6
    mask = near & (brain.valid > 0)
    return mask if mask.any() else brain.valid > 0


def _centre(mask: np.ndarray, fixed: Any) -> list[float]:
    """Return the middle of the compared voxels, in the fixed image's (x, y, z)."""
    index = [float(i.mean()) for i in np.nonzero(mask)]
    return [i * s for i, s in zip(index[::-1], fixed.GetSpacing(), strict=True)]


def _padded(atlas: Volume) -> Volume:
    """Return the atlas with background around it, a quarter of its sides."""
    width = [-(-n // 4) for n in atlas.data.shape]
    shift = np.eye(4)
    shift[:3, 3] = [-w for w in width]
    pads = [(w, w) for w in width]
    data, valid = (np.pad(to_host(part), pads) for part in (atlas.data, atlas.valid))
    return Volume(data, valid, atlas.index_to_um @ shift)


def _image(volume: Volume, unit_um: float) -> tuple[Any, np.ndarray]:
    """Return a volume as an ITK image, and the map from its space (x, y, z) to um (z, y, x)."""
    import SimpleITK as sitk

    image = sitk.GetImageFromArray(np.ascontiguousarray(volume.data, np.float32))
    voxel = np.array(volume.voxel_um) / unit_um
    image.SetSpacing([float(v) for v in voxel[::-1]])
    reverse = np.eye(4)[[2, 1, 0, 3]]
    return image, volume.index_to_um @ np.diag([*(1 / voxel), 1.0]) @ reverse


def _affine(matrix: np.ndarray) -> Any:
    import SimpleITK as sitk

    transform = sitk.AffineTransform(3)
    transform.SetMatrix(matrix[:3, :3].ravel().tolist())
    transform.SetTranslation(matrix[:3, 3].tolist())
    return transform


def _matrix(transform: Any) -> np.ndarray:
    """Return a linear transform with a centre as 4 × 4."""
    matrix = np.eye(4)
    matrix[:3, :3] = np.reshape(transform.GetMatrix(), (3, 3))
    centre, shift = np.array(transform.GetCenter()), np.array(transform.GetTranslation())
    matrix[:3, 3] = centre + shift - matrix[:3, :3] @ centre
    return matrix


def mutual_information(brain: Volume, atlas: Volume, matrix: np.ndarray) -> float:
    """Return the mutual information of a brain and the atlas around it, in nats.

    All places of one brain are judged on the same voxels; where the atlas ends its background
    goes on.

    Parameters
    ----------
    brain, atlas
        Made by `contrast`, NumPy.
    matrix
        4 × 4, from brain to atlas, um.
    """
    from linumpy.brain.atlas.volume import affine_sample

    seen, _ = affine_sample(atlas, matrix, brain.index_to_um, brain.data.shape)
    mask = _sampled(brain)
    bins = np.linspace(0, 1, BINS + 1)
    joint, _, _ = np.histogram2d(brain.data[mask], np.clip(seen[mask], 0, 1), bins=(bins, bins))
    share = joint / joint.sum()
    apart = share.sum(axis=1, keepdims=True) * share.sum(axis=0, keepdims=True)
    there = share > 0
    return float((share[there] * np.log(share[there] / apart[there])).sum())

"""Synthetic brain without symmetry, as a smooth function of position."""

import numpy as np

from linumpy.brain.atlas.volume import Volume

RADII_UM = np.array([300.0, 550.0, 400.0])
"""Half axes to superior, anterior, right."""


class Brain:
    """Tissue in an ellipsoid, with parts that are brighter or darker.

    Values are 0 outside; `contrast` picks one of two modalities of the same anatomy.
    """

    def __init__(self, seed):
        rng = np.random.default_rng(seed)
        self.places = rng.uniform(-0.65, 0.65, (14, 3)) * RADII_UM
        self.sizes = rng.uniform(70, 160, 14)
        self.heights = rng.uniform(-0.7, 0.9, 14)
        # One lobe that sticks out, to one side.
        self.lobe = np.array([0.45, 0.75, 0.55]) * RADII_UM

    def at(self, points, modality=0):
        """Return values at points (..., 3): superior, anterior, right, um from the middle."""
        radius = np.sqrt(((points / RADII_UM) ** 2).sum(-1))
        inside = 1 / (1 + np.exp(25 * (radius - 0.9)))
        lobe = np.sqrt(((points - self.lobe) ** 2).sum(-1)) / 200
        inside = np.maximum(inside, 1 / (1 + np.exp(12 * (lobe - 0.9))))
        detail = np.zeros(points.shape[:-1])
        for place, size, height in zip(self.places, self.sizes, self.heights, strict=True):
            detail += height * np.exp(-((points - place) ** 2).sum(-1) / (2 * size**2))
        # The second modality shows the same parts the other way round.
        shown = 1 + 0.5 * detail if modality == 0 else 1.1 - 0.4 * detail
        return (inside * np.clip(shown, 0.3, None)).astype(np.float32)


def grid_points(shape, index_to_um):
    """Return the um of all voxels, shape (*shape, 3)."""
    index = np.stack(np.meshgrid(*map(np.arange, shape), indexing="ij"), axis=-1)
    return index @ index_to_um[:3, :3].T + index_to_um[:3, 3]


def sampled(brain, shape, index_to_um, to_brain, modality=0, noise=0.0, rng=None):
    """Return the brain on a grid, of which `to_brain` leads to superior, anterior, right."""
    points = grid_points(shape, to_brain @ index_to_um)
    data = brain.at(points, modality)
    if noise:
        # Speckle: amplitudes of a circular Gaussian field, over a floor.
        data = data * np.sqrt(-np.log(rng.random(data.shape)) * noise + 1 - noise)
        data += 0.02 * rng.random(data.shape)
    return Volume(data.astype(np.float32), np.ones(shape, np.uint8), index_to_um)

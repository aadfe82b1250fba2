"""Match two slices: search by FFT, fits of whole planes and of parts, search along depth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from linumpy.brain.local_fit import LocalFit, fit_locally, has_room
from linumpy.brain.pair_depths import (
    MIN_PLANES,
    clear_maximum,
    compare_planes,
    depth_scores,
    level,
    nearest_first,
    pixels_met,
)
from linumpy.brain.rigid import fit_rigid, half_diagonal_px, middle_px
from linumpy.brain.slice_planes import (
    LOCAL_SIGMA_PX,
    Planes,
    SliceVolume,
    Window,
    flatten_tissue,
)
from linumpy.core.device import Array
from linumpy.geometry.correlation_peaks import (
    ACCEPT_Z_SCORE,
    NOISE_RADIUS_PX,
    Peak,
    correlation_peak,
)
from linumpy.geometry.turned import rotation_matrix, turn_planes
from linumpy.stage_params.brain import EULER, RegisterParams

MAX_COARSE_SIDE_PX = 1024
MAX_PARTS_SIDE_PX = 4096
MAX_PLANES = 10
MAX_TURNED_SIDE_PX = 256

_MAX_PIXELS = 2 * MAX_PLANES * MAX_COARSE_SIDE_PX**2
_FINE_RADIUS_PX = 3
_CLEAR_Z_SCORE = 12.0
_EDGE_REACH_PX = 1.5
_MAX_EDGE_PX = 24
_MIN_SHARE_OF_FACE = 0.7
_MIN_KNOWN_SHARE = 0.01
_MIN_OVERLAP_SHARE = 0.1
_MIN_CONFIDENCE = 0.25
_MOST_AGREE = 0.5
"""Where fewer of the blocks or windows agree with the match that was found, another is tried."""
_SPECKLE_PX = 8.0
"""Pixels of one plane that vary together, about."""
_SAME_DEPTH = 1.5
"""Planes between two looks along depth of one match."""
_DEPTHS_TRIED = 3
_TURNED_DEPTHS = 3
"""Depths at which angles are tried: a slice both rotated and far off in depth is not expected."""


@dataclass(frozen=True)
class Guess:
    """About how the moving slice lies: its rotation about `centre_px`, and where that point goes.

    Attributes
    ----------
    deeper
        Planes deeper than expected.
    reach_deg, reach_px
        How far off it may be.
    """

    rotation_deg: float
    displacement_px: np.ndarray
    centre_px: np.ndarray
    deeper: int
    reach_deg: float
    reach_px: float

    def displacement_at(self, point_px: np.ndarray) -> np.ndarray:
        """Return the displacement of another point of the moving slice."""
        away = point_px - self.centre_px
        return np.asarray(self.displacement_px + rotation_matrix(self.rotation_deg) @ away - away)


@dataclass(frozen=True)
class Fit:
    """Fitted displacement and rotation of the moving slice at `centre_px`."""

    rotation_deg: float
    displacement_px: np.ndarray
    centre_px: np.ndarray
    peak: Peak
    agreement: float
    plane: int
    windows: tuple[Window, Window]
    turned: Array
    reason: str
    local: LocalFit | None = None
    depth: float | None = None
    depth_sigma: float = 0.0


class PairMatch:
    """Two slices, the planes of both that are compared, and the steps of the comparison.

    Parameters
    ----------
    offset
        Plane of the fixed slice that is expected to show what plane 0 of the moving one shows.
    """

    def __init__(
        self,
        fixed: SliceVolume,
        moving: SliceVolume,
        voxel_um: np.ndarray,
        offset: int,
        params: RegisterParams,
    ) -> None:
        self.params = params
        self.lateral_um = voxel_um[1:]
        self.expected = np.subtract(moving.corner_um, fixed.corner_um) / self.lateral_um
        self.euler = params.transform == EULER and params.max_rotation_deg > 0
        self._factor = max(coarse_factor(fixed.shape), coarse_factor(moving.shape))
        first, stop = params.first_plane, min(moving.shape[0], fixed.shape[0] - offset)
        self.moving = Planes(moving, first, min(stop, first + 3 * MAX_PLANES), self._factor)
        self.top = self._trusted_plane()
        self.count = min(MAX_PLANES, self.moving.high - self.top)
        self.start = offset + self.top
        self.reach = 0 if params.expected_z else round(params.drift_mm * 1e3 / voxel_um[0])
        low = max(0, self.start - self.reach)
        high = min(fixed.shape[0], self.start + self.count + self.reach)
        self.fixed = Planes(fixed, low, high, self._factor)

    def _trusted_plane(self) -> int:
        """Return the moving slice's first plane to compare.

        Under an uneven cut the first planes show only part of the slice: they are passed over as
        long as there are enough others.
        """
        top, high = self.moving.low, self.moving.high
        while high - top >= 2 * MIN_PLANES:
            below = self.moving.known(min(top + MAX_PLANES, high) - 1)
            if self.moving.known(top) >= _MIN_SHARE_OF_FACE * below:
                break
            top += 1
        return top

    def nothing_to_compare(self) -> str:
        """Return why there is nothing to compare; empty when there is something."""
        for planes, plane in ((self.fixed, self.start), (self.moving, self.top)):
            known = planes.known(min(plane + self.count // 2, planes.high - 1))
            if known < _MIN_KNOWN_SHARE:
                return f"slice z{planes.volume.slice_id:02d} is empty or constant there"
        low = np.maximum(0, self.expected)
        high = np.minimum(
            self.fixed.volume.shape[1:], np.add(self.moving.volume.shape[1:], self.expected)
        )
        shared = np.maximum(0, high - low + 2 * self.params.max_translation_px)
        smaller = min(np.prod(p.volume.shape[1:]) for p in (self.fixed, self.moving))
        return "" if np.prod(shared) >= _MIN_OVERLAP_SHARE * smaller else "too small an overlap"

    def measure(self) -> Fit | None:
        """Search, fit, look along depth, and fit again where the depth is another."""
        guess = self._search()
        fit = None if guess is None else self._fit(guess)
        if guess is None or fit is None:
            return None
        if self.params.expected_z:
            return self._fit_everywhere(fit)
        place, sigma = self._search_depth(fit)
        # A match beyond what is sought may be seen, but not as many planes of it.
        deeper = min(round(place), self.fixed.high - self.count - self.start)
        if self.start + deeper != fit.plane:
            edge_deg = float(np.rad2deg(2 / half_diagonal_px(fit.turned.shape)))
            again = self._fit(
                Guess(
                    fit.rotation_deg,
                    fit.displacement_px,
                    fit.centre_px,
                    max(deeper, self.fixed.low - self.start),
                    edge_deg,
                    2.0,
                )
            )
            if again is not None:
                # Planes that match better have a sharper maximum, and may be the first to have one.
                found = self._search_depth(again)
                # Where they send each other elsewhere, neither is the depth.
                alike = abs(found[0] - place) <= _SAME_DEPTH
                if alike and found[1] is not None:
                    place, sigma = found
                if sigma is not None:
                    fit = again
        fit = self._fit_everywhere(fit)
        return fit if sigma is None else replace(fit, depth=place, depth_sigma=sigma)

    def _fit_everywhere(self, fit: Fit) -> Fit:
        """Fit the parts of all that both slices share, where that is not what was fitted.

        A guess may have been off by pixels, and a large slice was fitted in its middle alone:
        deformation has no shift and no rotation over whole slices.
        """
        turn, origin = rotation_matrix(fit.rotation_deg), fit.centre_px + fit.displacement_px
        guess = Guess(fit.rotation_deg, fit.displacement_px, fit.centre_px, 0, 0.0, 0.0)
        windows = self._windows(guess, MAX_PARTS_SIDE_PX)
        shape = [part.stop - part.start for part in windows[1]]
        if fit.local is None or shape == list(fit.local.warped.shape[1:]):
            return fit
        # Memory is bounded, whatever the slice: of a large one there are fewer planes.
        count = _MAX_PIXELS // (shape[0] * shape[1])
        count = max(MIN_PLANES, min(self.count, count))
        first, second = (
            flatten_tissue(*each.volume.read(slice(start, start + count), window), LOCAL_SIGMA_PX)
            for each, start, window in zip(
                (self.fixed, self.moving), (fit.plane, self.top), windows, strict=True
            )
        )
        corners = [np.array([part.start for part in window]) for window in windows]
        centre = corners[1] + middle_px(shape)
        about = turn @ (centre - fit.centre_px) + origin - centre - corners[0] + corners[1]
        local = fit_locally(
            first,
            second,
            fit.rotation_deg,
            about,
            turn=self.euler,
            dense=self.params.elastic,
        )
        if local is None:
            return fit
        displacement = local.displacement_px + corners[0] - corners[1]
        return replace(
            fit,
            rotation_deg=local.rotation_deg,
            displacement_px=displacement,
            centre_px=centre,
            windows=windows,
            local=local,
        )

    def _search(self) -> Guess | None:
        """Find about where the match lies.

        Slices are hardly rotated as a rule: other angles are tried where they match poorly.
        """
        steps = nearest_first(
            self.reach,
            self.fixed.volume.shape[0] - self.count - self.start,
            self.fixed.low - self.start,
        )
        z_score, upright = 0.0, None
        for n, deeper in enumerate(steps):
            # Planes beside the right ones match too, but less.
            if n >= _DEPTHS_TRIED and z_score >= _CLEAR_Z_SCORE:
                break
            here = self._search_upright(deeper)
            if here is not None and here[0] > z_score:
                z_score, upright = here
        if z_score >= _CLEAR_Z_SCORE or not self.euler:
            return upright
        if upright is None:
            turned = (self._search_angles(deeper) for deeper in steps[:_TURNED_DEPTHS])
            other = next((guess for guess in turned if guess is not None), None)
        else:
            other = self._search_angles(upright.deeper)
        # Candidates seen at scales of their own: full resolution decides. Deformed planes may
        # match nowhere as a whole, but their parts about where the motors put them.
        guesses = [guess for guess in (upright, other) if guess is not None]
        fits = [self._fit(guess) for guess in guesses]
        scores = [-1.0 if fit is None else fit.peak.z_score for fit in fits]
        best = fits[int(np.argmax(scores))] if fits else None
        agree = best.agreement if best is not None and best.local is not None else 0.0
        room = has_room(self.fixed.volume.shape) and has_room(self.moving.volume.shape)
        if agree < _MOST_AGREE and room:
            motors = self._motor_guess()
            fit = self._fit(motors)
            if fit is not None and fit.local is not None and fit.agreement > agree:
                return motors
        return guesses[int(np.argmax(scores))] if guesses else None

    def _motor_guess(self) -> Guess:
        shape = self.moving.volume.shape
        edge_deg = float(np.rad2deg(2 / half_diagonal_px(shape)))
        return Guess(0.0, self.expected, middle_px(shape), 0, edge_deg, 2.0)

    def _search_upright(self, deeper: int) -> tuple[float, Guess] | None:
        """Search the whole plane without a rotation; answer also how far the match stands out."""
        first = self.fixed.coarse(self.start + deeper, self.count)
        second = self.moving.coarse(self.top, self.count)
        peak = self._peak(first, second, self._factor)
        if peak is None:
            return None
        edge_deg = float(np.rad2deg(_MAX_EDGE_PX / (half_diagonal_px(second.shape) * self._factor)))
        return peak.z_score, self._guess(0.0, peak, second, self._factor, deeper, edge_deg)

    def _search_angles(self, deeper: int) -> Guess | None:
        """Search angles, and at each the whole plane, on coarser planes."""
        largest = max(*self.fixed.volume.shape[1:], *self.moving.volume.shape[1:])
        extra = max(1, -(-largest // (MAX_TURNED_SIDE_PX * self._factor)))
        factor = extra * self._factor
        first = self.fixed.coarse(self.start + deeper, self.count, extra)
        second = self.moving.coarse(self.top, self.count, extra)
        middle, limit = middle_px(second.shape), self.params.max_rotation_deg
        step = 2 * float(np.rad2deg(_EDGE_REACH_PX / half_diagonal_px(second.shape)))
        n = int(np.ceil(limit / step))
        found: list[tuple[float, float, Peak]] = []
        for angle in np.linspace(-limit, limit, 2 * n + 1).tolist():
            peak = self._peak(first, turn_planes(second, angle, middle), factor)
            if peak is not None:
                found.append((peak.z_score, angle, peak))
        if not found:
            return None
        _, angle, peak = max(found, key=lambda each: each[0])
        return self._guess(angle, peak, second, factor, deeper, 1.5 * step)

    def _peak(self, first: Array, second: Array, factor: int) -> Peak | None:
        centre = np.rint(self.expected / factor).astype(int)
        radius = max(2, -(-self.params.max_translation_px // factor))
        peak = correlation_peak(
            first,
            second,
            (int(centre[0]), int(centre[1])),
            (radius, radius),
            min_overlap_share=0.25,
        )
        return None if peak is None or peak.z_score < ACCEPT_Z_SCORE else peak

    def _guess(
        self,
        rotation_deg: float,
        peak: Peak,
        planes: Array,
        factor: int,
        deeper: int,
        reach_deg: float,
    ) -> Guess:
        # Bins begin at the corners of both slices: displacements scale, and nothing else.
        centre = (middle_px(planes.shape) + 0.5) * factor - 0.5
        displacement = np.multiply(peak.displacement_px, factor)
        reach_px = float(_FINE_RADIUS_PX * factor)
        return Guess(rotation_deg, displacement, centre, deeper, reach_deg, reach_px)

    def _windows(self, guess: Guess, most: int = MAX_COARSE_SIDE_PX) -> tuple[Window, Window]:
        """Return windows, of at most a side, that show the same tissue in both slices."""
        windows_fixed, windows_moving = [], []
        for axis in (0, 1):
            shift = round(float(guess.displacement_px[axis]))
            low = max(0, shift)
            high = min(
                self.fixed.volume.shape[axis + 1], self.moving.volume.shape[axis + 1] + shift
            )
            middle, half = (low + high) // 2, max(0, min(high - low, most) // 2)
            windows_fixed.append(slice(middle - half, middle + half))
            windows_moving.append(slice(middle - half - shift, middle + half - shift))
        return (windows_fixed[0], windows_fixed[1]), (windows_moving[0], windows_moving[1])

    def _fit(self, guess: Guess) -> Fit | None:
        """Fit at full resolution."""
        windows = self._windows(guess, MAX_COARSE_SIDE_PX)
        plane = self.start + guess.deeper
        if not self.params.expected_z:
            # All of them will be asked for: flattened at once.
            self.fixed.within(windows[0], self.fixed.low, self.fixed.count)
        first = self.fixed.within(windows[0], plane, self.count)
        planes = turned = self.moving.within(windows[1], self.top, self.count)
        if not first.size:
            return None
        corners = [np.array([part.start for part in window]) for window in windows]
        centre = corners[1] + middle_px(turned.shape)
        origin = corners[0] - corners[1]
        about = guess.displacement_at(centre) - origin
        starts = [(guess.rotation_deg if self.euler else 0.0, about)]
        displacement, rotation, agreement, reason = about, 0.0, 1.0, ""
        within_px = guess.reach_px
        if self.euler:
            fit = fit_rigid(
                first,
                planes,
                guess.rotation_deg,
                about,
                reach_deg=guess.reach_deg,
                reach_px=guess.reach_px,
                max_rotation_deg=self.params.max_rotation_deg,
            )
            if fit is None:
                return None
            rotation, agreement, turned = fit.rotation_deg, fit.agreement, fit.turned
            displacement, within_px = np.array(fit.displacement_px), float(_FINE_RADIUS_PX)
            reason = "rotated as far as is allowed" if fit.at_limit else ""
            starts.insert(0, (rotation, displacement))
        peak = _rate(first, turned, displacement, within_px)
        local = self._fit_parts(first, planes, starts)
        if local is not None:
            found = _rate(first, local.warped, np.zeros(2), float(_FINE_RADIUS_PX))
            if found is not None and (peak is None or found.z_score > peak.z_score):
                peak = replace(found, displacement_px=tuple(local.displacement_px.tolist()))
                rotation, turned, reason = local.rotation_deg, local.warped, ""
                agreement = max(agreement, local.share)
            else:
                local = None
        if peak is None:
            return None
        if peak.z_score < ACCEPT_Z_SCORE or peak.confidence * agreement < _MIN_CONFIDENCE:
            reason = "weak match"
        return Fit(
            rotation,
            np.add(peak.displacement_px, origin),
            centre,
            peak,
            agreement,
            plane,
            windows,
            turned,
            reason,
            local,
        )

    def _fit_parts(
        self, first: Array, planes: Array, starts: Sequence[tuple[float, np.ndarray]]
    ) -> LocalFit | None:
        """Fit parts of the planes, about the first rotation and displacement that they match at."""
        for rotation, displacement in starts:
            local = fit_locally(
                first, planes, rotation, displacement, turn=self.euler, dense=self.params.elastic
            )
            if local is not None and abs(local.rotation_deg) < self.params.max_rotation_deg:
                return local
        return None

    def _search_depth(self, fit: Fit) -> tuple[float, float | None]:
        """Find how many planes deeper than expected the match lies, and the standard error.

        The error is None where the depth is not clear; then the maximum is where to look again.
        """
        first = self.fixed.within(fit.windows[0], self.fixed.low, self.fixed.count)
        sums = compare_planes(first, fit.turned)
        scores = depth_scores(sums)
        noise = np.sqrt(_SPECKLE_PX / pixels_met(sums))
        found = clear_maximum(scores, noise, levelled=level(scores, sums))
        if found is not None:
            return found[0] + self.fixed.low - self.start, found[1]
        best = int(scores.argmax())
        inside = 0 < best < len(scores) - 1
        return float((self.fixed.low + best if inside else fit.plane) - self.start), None


def coarse_factor(shape: tuple[int, int, int]) -> int:
    """Return how many pixels a side of a slice of that shape are one when it is searched whole."""
    return -(-max(shape[1:]) // MAX_COARSE_SIDE_PX)


def _rate(first: Array, second: Array, about_px: np.ndarray, within_px: float) -> Peak | None:
    """Return the peak of two stacks near a displacement; a wide window serves as its noise."""
    middle = np.rint(about_px).astype(int)
    return correlation_peak(
        first,
        second,
        (int(middle[0]), int(middle[1])),
        (NOISE_RADIUS_PX, NOISE_RADIUS_PX),
        min_overlap_share=0.25,
        expected_px=(float(about_px[0]), float(about_px[1])),
        within_px=within_px,
    )

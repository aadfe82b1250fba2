"""When the slicing interval contradicts the stage's heights."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
import pytest

from linumpy.io.raw_interval import _STUDENT_T, interval_contradiction


def heights(steps_um: list[float]) -> list[tuple[int, float]]:
    return list(enumerate(accumulate((step / 1e3 for step in steps_um), initial=0.0)))


def is_sure(interval_um: float, steps_um: list[float]) -> bool:
    found = interval_contradiction(interval_um, heights(steps_um), len(steps_um) + 1)
    return found is not None and found[1]


def test_student_s_quantiles_are_those_of_scipy() -> None:
    stats = pytest.importorskip("scipy.stats")
    expected = stats.t.ppf(0.9995, np.arange(2, 12))
    np.testing.assert_allclose(_STUDENT_T, expected, rtol=2e-3)


def test_an_acquisition_with_uneven_cuts_is_not_refused() -> None:
    """Four cuts of a whole run, 200 um asked for, 11 um RMS apart.

    Seen to fail where three standard errors of the median decided.
    """
    steps = [182.9, 187.1, 188.8, 191.4]
    text, sure = interval_contradiction(200.0, heights(steps), 5) or ("", True)
    assert text.startswith("slice interval is 200 um, but stage_z_pos_mm moves by 187.95 um")
    assert not sure


@pytest.mark.parametrize("law", ["normal", "laplace", "uniform", "double"])
@pytest.mark.parametrize("n", [3, 4, 6, 10, 30])
def test_few_fair_acquisitions_are_refused(law: str, n: int) -> None:
    """Cuts spread by a tenth, of 400 acquisitions: 1 in 1000 is expected, 3 where few are uniform.

    Seen to fail where three standard errors of the median decided: 18 % of three steps.
    """
    rng = np.random.default_rng()
    draw = {
        "normal": lambda: rng.normal(size=n),
        "laplace": lambda: rng.laplace(size=n) / np.sqrt(2),
        "uniform": lambda: rng.uniform(-1, 1, n) * np.sqrt(3),
        "double": lambda: rng.normal(size=n) + 10 * (np.arange(n) == rng.integers(n)),
    }[law]
    refused = sum(is_sure(200.0, list(200 + 20 * draw())) for _ in range(400))
    assert refused <= 9


@pytest.mark.parametrize("n", [3, 5, 40])
@pytest.mark.parametrize("wrong_um", [100.0, 150.0, 250.0, 400.0])
def test_a_wrong_interval_is_refused(n: int, wrong_um: float) -> None:
    """Steps of a stage that moves evenly, and one double cut among forty."""
    steps = list(200 + np.random.default_rng().uniform(-0.5, 0.5, n))
    if n == 40:
        steps[7] = 400.0
    assert is_sure(wrong_um, steps)
    assert not is_sure(201.0, steps)

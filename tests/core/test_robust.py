"""Against SciPy."""

import numpy as np
import pytest
from scipy.stats import median_abs_deviation

from linumpy.core.robust import robust_spread


def test_spread_is_scipys_and_of_nothing_none(rng):
    values = rng.normal(0, 3, 40)
    values[:5] = 1e9
    # About 0, where SciPy takes the median.
    both = np.concatenate([values, -values])
    # Our factor has five digits.
    expected = median_abs_deviation(both, scale="normal")
    assert robust_spread(values) == pytest.approx(expected, rel=1e-5)
    assert robust_spread(np.zeros(0)) == 0

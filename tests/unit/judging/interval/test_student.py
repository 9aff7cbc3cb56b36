"""Student's t, compared with scipy."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.judging.interval.student import quantile


@given(st.floats(0.501, 0.999999), st.floats(0.3, 1e6))
def test_it_is_that_of_scipy(probability: float, freedom: float) -> None:
    from scipy import stats  # noqa: PLC0415  # a second of each worker's start

    assert quantile(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-7, abs=1e-8)


@given(st.floats(0.51, 0.99), st.floats(0.5, 1e4))
def test_more_freedom_and_less_confidence_are_nearer(probability: float, freedom: float) -> None:
    """The quantile falls with the degrees of freedom and rises with the probability."""
    assert quantile(probability, 2 * freedom) < quantile(probability, freedom) < quantile(probability + 0.005, freedom)


@pytest.mark.parametrize(("probability", "freedom"), [(0.5, 4.0), (1.0, 4.0), (0.99, 0.0), (float("nan"), 4.0)])
def test_what_has_no_quantile_is_refused(probability: float, freedom: float) -> None:
    with pytest.raises(ValueError, match="degrees of freedom"):
        quantile(probability, freedom)

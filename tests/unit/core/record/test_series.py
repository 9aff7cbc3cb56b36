"""What a run logged, as data."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.record.series import RankInfo, Step, StepSeries

COUNTS = st.integers(0, 2**63)
STEPS = st.builds(
    Step, step=COUNTS, seconds=st.floats(), tokens=COUNTS, samples=COUNTS, loss=st.floats(), grad_norm=st.floats(),
    peak_memory_bytes=st.none() | COUNTS, ranks=COUNTS,
)  # fmt: skip
RANKS = st.builds(
    RankInfo, rank=COUNTS, host=st.text(max_size=9), pid=COUNTS, local_rank=COUNTS, device=st.text(max_size=9),
    versions=st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2),
    matmul_flops_per_s=st.none() | st.floats(), ended=st.booleans(), failure=st.none() | st.text(max_size=9),
    failed_at=st.none() | st.floats(),
)  # fmt: skip


@given(st.lists(STEPS, max_size=3), st.lists(RANKS, max_size=2), st.lists(st.text(max_size=9), max_size=2))
def test_every_series_survives_json(steps: list[Step], ranks: list[RankInfo], unreadable: list[str]) -> None:
    """Whatever a run logged, NaN and infinities too, reads back from JSON as it was."""
    series = StepSeries(ranks=tuple(ranks), steps=tuple(steps), unreadable=tuple(unreadable))
    again = StepSeries.model_validate_json(series.model_dump_json())
    assert repr(again) == repr(series)  # a NaN is not equal to itself

"""Time limits in Slurm's notation."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.durations import format_minutes, parse_minutes
from pytest_llmbench.core.errors import ConfigError


@pytest.mark.parametrize(("text", "minutes"), [
    ("30", 30), (" 30 ", 30), ("90:00", 90), ("1:30", 2), ("0:01", 1), ("01:30:00", 90), ("00:00:01", 1),
    ("1-0", 1440), ("1-12", 2160), ("1-12:30", 2190), ("1-12:30:01", 2191), ("100:00:00", 6000),
])  # fmt: skip
def test_every_form_of_slurm_is_read(text: str, minutes: int) -> None:
    assert parse_minutes(text) == minutes


NO_TIME = ("0", "00:00:00", "0-0")


@pytest.mark.parametrize(
    "text", [*NO_TIME, "", "soon", "-5", "1.5", "1:2:3:4", "1-", "1-2-3", "30m", "1h", "٣", "9" * 5000]
)
def test_other_text_and_no_time_at_all_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="leaves no time" if text in NO_TIME else "write minutes, minutes:seconds"):
        parse_minutes(text)


@given(st.integers(1, 10**7))
def test_what_is_written_is_read_back(minutes: int) -> None:
    assert parse_minutes(format_minutes(minutes)) == minutes


@given(st.text(alphabet="0123456789:- ", max_size=24) | st.text(max_size=24))
def test_any_text_is_a_time_limit_or_refused(text: str) -> None:
    try:
        minutes = parse_minutes(text)
    except ConfigError:
        return
    assert minutes >= 1

"""What is a number, and what makes a line unreadable."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.readers.items import Unreadable
from pytest_llmbench.readers.numbers import as_number, count, duration, number

ARABIC_FIVE = "\N{ARABIC-INDIC DIGIT FIVE}"


@given(st.floats(allow_nan=False))
def test_every_float_is_read_as_it_is_printed(value: float) -> None:
    for text in (repr(value), f" {value:.17e} ", f"{value:.17E}"):
        assert as_number(text) == value
    assert as_number(value) == value


@pytest.mark.parametrize("value", ["", "-", ".", "1_000", "1,5", "0x10", "1e", "5 %", ARABIC_FIVE, None, True, [1], {}])
def test_what_is_no_number(value: object) -> None:
    assert as_number(value) is None
    with pytest.raises(Unreadable, match=r"loss is .*, not a number"):
        number("loss", value)


def test_numbers_beyond_a_float() -> None:
    """A text is infinite as a float; an integer of JSON cannot become one."""
    assert as_number("9" * 5000) == math.inf
    assert as_number(10**400) is None
    assert math.isnan(number("loss", "nan"))


@pytest.mark.parametrize("value", [
    "0", "-1", "1.0", "1e3", "9" * 16, "9" * 5000, ARABIC_FIVE, "", "\x1f 8 ", 0, True, 1.0, 10**15,
], ids=lambda value: repr(value)[:20])  # fmt: skip
def test_what_is_no_count(value: object) -> None:
    with pytest.raises(Unreadable, match=r"step is .*, not a whole number >= 1"):
        count("step", value)


def test_counts() -> None:
    assert [count("step", value) for value in ("1", "    40", "007", 12)] == [1, 40, 7, 12]


@pytest.mark.parametrize("value", ["0", "0.0", "-3", "nan", "inf", "1e999", "x"])
def test_what_is_no_duration(value: str) -> None:
    with pytest.raises(Unreadable, match=r"elapsed \(ms\) is"):
        duration("elapsed (ms)", value)

"""Quantities and time limits: what text is one, what it equals, and that nothing else is ever compared."""

import math
import operator
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from pytest_llmbench.core.durations import format_minutes, parse_minutes
from pytest_llmbench.core.errors import ConfigError, UnitError
from pytest_llmbench.core.quantity import UNITS, Quantity, bounds_for_people, counted, for_people, listed, told_apart

# Far enough from the largest float that every unit's factor leaves it finite.
NUMBERS = st.floats(min_value=-1e280, max_value=1e280)
QUANTITIES = st.builds(Quantity, NUMBERS, st.sampled_from(sorted(UNITS)))
COMPARISONS: list[Callable[[Any, Any], bool]] = [operator.lt, operator.le, operator.gt, operator.ge]


@st.composite
def alike(draw: st.DrawFn) -> tuple[Quantity, Quantity]:
    """Two quantities of one dimension, in the same unit or not."""
    first = draw(QUANTITIES)
    units = [unit for unit, (dimension, _) in UNITS.items() if dimension == first.dimension]
    return first, Quantity(draw(NUMBERS | st.just(first.value)), draw(st.sampled_from(units)))


@pytest.mark.parametrize(("text", "value", "unit"), [
    ("200K words/s", 200_000, "words/s"), ("200k words/s", 200_000, "words/s"),
    ("200 K words/s", 200_000, "words/s"), ("1.5M tokens/s", 1_500_000, "tokens/s"), ("5%", 5, "%"),
    ("  5 %  ", 5, "%"), ("-0.5 nat", -0.5, "nat"), (".5 s", 0.5, "s"), ("5. s", 5, "s"), ("2.5e-3 s", 0.0025, "s"),
    ("1,234,567 tokens/s", 1_234_567, "tokens/s"), ("1_000_000 tokens/s", 1_000_000, "tokens/s"),
    ("16 GB", 16, "GB"), ("16GiB", 16, "GiB"), ("3 ms", 3, "ms"), ("312 TFLOP/s", 312, "TFLOP/s"),
    ("0.5 1", 0.5, "1"),
])  # fmt: skip
def test_text_is_read_as_it_is_meant(text: str, value: float, unit: str) -> None:
    quantity = Quantity(text)
    assert (quantity.value, quantity.unit) == (value, unit)


@pytest.mark.parametrize(("text", "message"), [
    ("200000", "has no unit; legal units: tokens/s, words/s"), ("200K", "has no unit"),
    ("200K word/s", r"unknown unit 'word/s' \(did you mean 'words/s'\?\)"), ("5 bananas", "unknown unit 'bananas'"),
    ("", "is not a quantity"), ("fast", "is not a quantity"), ("1,5 %", "is not a quantity"),
    ("1,5%", "unknown unit ',5%'"), ("5 % of it", "is not a quantity"), ("nan words/s", "is not a quantity"),
    ("inf words/s", "is not a quantity"), ("1e999 s", "is not a finite number"),
    ("1e308 h", "is not a finite number"),
])  # fmt: skip
def test_any_other_text_is_refused(text: str, message: str) -> None:
    with pytest.raises(UnitError, match=message):
        Quantity(text)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 10**400])
def test_a_number_that_is_not_finite_is_no_quantity(value: float) -> None:
    """A missing or overflown measurement never becomes a value that could pass a comparison."""
    with pytest.raises(UnitError, match="not a finite number"):
        Quantity(value, "words/s")


def test_a_unit_is_given_once_and_known() -> None:
    with pytest.raises(UnitError, match="has no unit"):
        Quantity(5)
    with pytest.raises(UnitError, match="as one text"):
        Quantity("5 s", "s")
    with pytest.raises(UnitError, match="unknown unit 'weeks'"):
        Quantity("1 h").to("weeks")


@given(
    st.text(
        alphabet="0123456789.,_+-eEKkMG %wordstkn/sgpuFLOPGiBTminh\N{ARABIC-INDIC DIGIT ONE}\N{SUPERSCRIPT TWO}",
        max_size=20,
    )
    | st.text(max_size=20)
)
def test_any_text_is_a_finite_quantity_or_refused(text: str) -> None:
    try:
        quantity = Quantity(text)
    except UnitError:
        return
    assert math.isfinite(quantity.base)


@given(QUANTITIES)
def test_exact_text_reads_back_as_the_same_number(quantity: Quantity) -> None:
    again = Quantity(quantity.exact)
    assert (again.value, again.unit) == (quantity.value, quantity.unit)


@given(QUANTITIES.filter(lambda quantity: quantity.unit != "1"))
def test_text_reads_back_rounded(quantity: Quantity) -> None:
    for text, rounded in ((quantity.plain, 1e-5), (str(quantity), 1e-3)):
        again = Quantity(text)
        assert again.unit == quantity.unit
        assert again.value == pytest.approx(quantity.value, rel=rounded)


@pytest.mark.parametrize(("value", "text"), [
    (921990.42, "921,990"), (1802020.0, "1,802,020"), (9e8, "900,000,000"), (2435.169, "2,435"),
    (16.81912, "16.82"),
    (2.0368, "2.037"), (0.05, "0.05"), (100.0, "100"), (0.0, "0"), (-1234.5, "-1,234"), (0.000123456, "0.0001235"),
    (1.5e-6, "1.5e-06"), (1e15, "1e+15"), (float("inf"), "inf"),
])  # fmt: skip
def test_numbers_for_people(value: float, text: str) -> None:
    assert for_people(value) == text


@given(QUANTITIES, QUANTITIES)
def test_two_numbers_are_told_apart(one: Quantity, other: Quantity) -> None:
    assume(math.isfinite(other.value * UNITS[one.unit][1]))
    texts = told_apart(one, Quantity(other.value, one.unit))
    assert (texts[0] == texts[1]) == (one.value == other.value)
    texts = told_apart(Quantity("199999.5 words/s"), Quantity("200K words/s"))
    assert texts == ("199,999.5 words/s", "200,000 words/s")


def test_a_word_is_a_token_a_sample_is_none_and_a_rate_per_gpu_is_another() -> None:
    """Rates of different things are never compared, however alike their units look."""
    assert Quantity("200K words/s") == Quantity("200K tokens/s")
    assert hash(Quantity("200K words/s")) == hash(Quantity("200K tokens/s"))
    assert Quantity("5 words/s/gpu") == Quantity("5 tokens/s/gpu")
    with pytest.raises(UnitError, match=r"\(token rate\) cannot be compared with 1 samples/s \(sample rate\)"):
        _ = Quantity("200K words/s") >= Quantity("1 samples/s")
    with pytest.raises(UnitError, match="token rate per GPU"):
        _ = Quantity("200K words/s") >= Quantity("1 words/s/gpu")


@pytest.mark.parametrize(("one", "other"), [
    ("1 s", "1000 ms"), ("1 min", "60 s"), ("1 h", "60 min"), ("1 GFLOP/s", "1e9 FLOP/s"),
    ("1 TFLOP/s", "1000 GFLOP/s"), ("1 GB", "1e9 B"), ("1 GiB", "1073741824 B"), ("5 %", "0.05 1"),
])  # fmt: skip
def test_units_of_one_dimension_are_in_proportion(one: str, other: str) -> None:
    """The same amount in two units is equal; a GiB is binary and a GB decimal."""
    assert Quantity(one) == Quantity(other)


@pytest.mark.parametrize("compare", COMPARISONS)
def test_a_bare_number_is_never_compared(compare: Callable[[Any, Any], bool]) -> None:
    rate = Quantity("200K words/s")
    with pytest.raises(UnitError, match=r"has no unit; write Quantity\(200000, 'words/s'\)"):
        compare(rate, 200_000)
    with pytest.raises(UnitError, match="has no unit"):
        compare(200_000, rate)
    assert rate != 200_000


@given(alike())
def test_comparison_is_a_total_order(pair: tuple[Quantity, Quantity]) -> None:
    a, b = pair
    assert [a < b, a == b, a > b].count(True) == 1
    assert (a < b, a <= b, a > b, a >= b) == (b > a, b >= a, b < a, b <= a)
    assert (a <= b) == (a < b or a == b)
    assert a != b or hash(a) == hash(b)


@given(QUANTITIES, QUANTITIES)
def test_other_dimensions_raise_unit_errors_only(a: Quantity, b: Quantity) -> None:
    acts: list[Callable[[], object]] = [
        *(partial(compare, a, b) for compare in COMPARISONS), partial(a.difference_percent, b), partial(a.to, b.unit),
    ]  # fmt: skip
    for act in acts:
        try:
            act()
        except UnitError:
            assert a.dimension != b.dimension
        else:
            assert a.dimension == b.dimension
    if a.dimension != b.dimension:
        assert a != b


@given(alike())
def test_conversion_changes_the_unit_alone(pair: tuple[Quantity, Quantity]) -> None:
    a, b = pair
    assert a.to(b.unit).unit == b.unit
    assert a.to(b.unit).base == pytest.approx(a.base, rel=1e-14)
    assert a.to(a.unit) is a


def test_the_distance_to_a_threshold_is_signed() -> None:
    assert Quantity("180K words/s").difference_percent(Quantity("200K tokens/s")) == pytest.approx(-10)
    assert Quantity("90 s").difference_percent(Quantity("1 min")) == pytest.approx(50)
    assert Quantity("1 nat").difference_percent(Quantity("0 nat")) is None


def test_many_things_are_named_in_part_and_counted() -> None:
    assert listed(range(3)) == "0, 1, 2"
    assert listed("abc", 2, "; ") == "a; b and 1 more"
    assert [counted(number, "node") for number in (0, 1, 2)] == ["0 nodes", "1 node", "2 nodes"]


@pytest.mark.parametrize("text", ["2" + " " * 100_000 + "\n", "9" * 100_000 + " s s", "1," * 100_000])
def test_a_very_long_text_is_refused_at_once(text: str) -> None:
    """A pattern may take quadratic time for it, and a message shows its beginning."""
    with pytest.raises(UnitError, match="is not a quantity") as error:
        Quantity(text)
    assert len(str(error.value)) < 300


def test_bounds_are_written_like_what_was_measured() -> None:
    """Each number behind a comparison, and nothing else, also where a text has two."""
    assert bounds_for_people(">= 9e+08 words/s") == ">= 900,000,000 words/s"
    assert bounds_for_people(">= 387000 and <= 1.5e+06 tokens/s") == ">= 387,000 and <= 1,500,000 tokens/s"
    assert bounds_for_people("no worse than 54207.9 words/s") == "no worse than 54,208 words/s"
    assert bounds_for_people("no bound in 20000 words") == "no bound in 20000 words"


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

"""References: which bounds can be written down, and which numbers meet them."""

import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.errors import ConfigError, InconclusiveError, UnitError
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, Quantity
from pytest_llmbench.core.recipe.reference import AppliesTo, Reference, refuse_contradictions
from pytest_llmbench.core.recipe.topology import Topology
from pytest_llmbench.core.schema import validate

FINITE = st.floats(-1e12, 1e12)


def reference(**changes: Any) -> Reference:
    """Build an absolute reference with some of its values replaced; None leaves one out."""
    plain = {
        "name": "fast", "statistic": "throughput", "at_least": "200K words/s", "why": "because", "source": "a document",
        "date": "2023-03-20", "applies_to": {"gpu": "A100-SXM4-80GB", "gpus": 8, "nodes": 1},
    }  # fmt: skip
    given = {key: value for key, value in (plain | changes).items() if value is not None}
    return validate(Reference, given, "here")


@pytest.mark.parametrize(("changes", "message"), [
    ({"at_least": None}, "here: give at_least, at_most, or both"),
    ({"at_least": 200_000}, "here: at_least: 200000 has no unit; write it with one, such as '200000 words/s'"),
    ({"at_least": "nan words/s"}, "here: at_least: 'nan words/s' is not a quantity"),
    ({"at_most": "100K words/s"}, "no number is at least 200,000 words/s and at most 100,000 words/s"),
    ({"at_most": "5 s"}, "here: 200,000 words/s (token rate) cannot be compared with 5 s (time)"),
    ({"applies_to": None}, "a bound in words/s belongs to a machine: add applies_to"),
    ({"at_least": None, "at_most": "150 s", "applies_to": None}, "a bound in s belongs to a machine"),
    ({"applies_to": {}}, "here: applies_to: name the hardware"),
    ({"applies_to": {"gpu": None, "nodes": None}}, "name the hardware"),
    ({"applies_to": {"gpu": ""}}, "here: applies_to.gpu: "),
    ({"applies_to": {"gpus": 0}}, "here: applies_to.gpus: "),
    ({"applies_to": {"node": 1}}, "unknown key 'node' (did you mean 'nodes'?); legal: gpu, gpus, nodes, system"),
    ({"atleast": "5 %"}, "unknown key 'atleast' (did you mean 'at_least'?)"),
    ({"between_runs": "0 %", "runs": 5}, "between_runs: 0 % is not a share above 0: runs always differ"),
    ({"between_runs": "3 s", "runs": 5}, "between_runs: 3 s is not a share above 0"),
    ({"between_runs": "0.2 %"}, "between_runs and runs belong together"),
    ({"runs": 5}, "between_runs and runs belong together"),
    ({"between_runs": "0.2 %", "runs": 1}, "here: runs: "),
    ({"claim": "run", "between_runs": "0.2 %"}, "claim: run leaves the differences between runs out"),
    ({"claim": "cluster"}, "here: claim: "),
    ({"date": "yesterday"}, "here: date: "),
    ({"xfail": {"until": "2026-12-31"}}, "here: xfail.reason: missing"),
    ({"xfail": {"reason": " ", "until": "2026-12-31"}}, "here: xfail.reason: "),
    ({"xfail": {"reason": "known"}}, "here: xfail.until: missing"),
    ({"xfail": {"reason": "known", "until": "soon"}}, "here: xfail.until: must be a day, such as 2026-12-31"),
    ({"xfail": {"reason": "known", "until": 1798675200}}, "here: xfail.until: must be a day"),
    ({"xfail": {"reason": "known", "until": "2026-02-30"}}, "here: xfail.until: "),
    ({"xfail": True}, "here: xfail: "),
    ({"at_most": "1M words/s", "xfail": {"reason": "known", "until": "2026-12-31"}},
     "here: xfail is about one bound: leave out the other"),
])  # fmt: skip
def test_a_bound_that_cannot_be_meant_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as error:
        reference(**changes)
    assert message in str(error.value)
    assert str(error.value).startswith("here: ")


@pytest.mark.parametrize("why", ["why", "source", "date"])
def test_a_number_without_its_story_is_refused(why: str) -> None:
    with pytest.raises(ConfigError, match=f"{why}: missing"):
        reference(**{why: None})


@pytest.mark.parametrize("bound", ["5 %", "0.5 1", "0.1 nat"])
def test_a_fraction_or_a_loss_needs_no_machine(bound: str) -> None:
    assert reference(at_least=bound, applies_to=None).applies_to is None


@given(FINITE, FINITE, FINITE)
def test_bounds_are_inclusive_on_both_sides(low: float, width: float, value: float) -> None:
    high = low + abs(width)
    both = reference(at_least=f"{low!r} words/s", at_most=f"{high!r} tokens/s")
    missed = both.missed_by(Quantity(value, "words/s"))
    if value < low:
        assert missed == (">=", Quantity(low, "words/s"))
    elif value > high:
        assert missed == ("<=", Quantity(high, "words/s"))
    else:
        assert missed is None
    assert (Quantity(value, "words/s") in both) == (missed is None)
    assert Quantity(low, "words/s") in both
    assert Quantity(high, "words/s") in both


def test_a_number_of_another_kind_is_never_in_a_reference() -> None:
    with pytest.raises(UnitError, match="cannot be compared"):
        _ = Quantity("300K samples/s") in reference()
    with pytest.raises(TypeError, match="300000 is not a Quantity"):
        _ = 300_000 in reference()


def test_it_reads_as_a_phrase() -> None:
    assert reference().threshold == ">= 200000 words/s"
    assert reference(at_most="1M words/s").threshold == ">= 200000 words/s and <= 1e+06 words/s"
    assert str(reference().applies_to) == "8 × A100-SXM4-80GB, 1 node"
    assert str(AppliesTo(gpus=16, system="here")) == "16 GPUs, system here"
    assert str(AppliesTo(gpu="H200", system="here")) == "H200, system here"


def test_it_survives_json_to_the_last_digit() -> None:
    precise = reference(at_least="199999.99999 words/s", xfail={"reason": "known", "until": dt.date(2026, 12, 31)})
    again = Reference.model_validate_json(precise.model_dump_json())
    assert again == precise
    assert Quantity("199999.9 words/s") not in again


def test_bounds_per_node_grow_with_the_nodes() -> None:
    plain = reference(at_least="900 samples/s", per_node=True, applies_to={"gpu": "H100 80GB HBM3", "gpus": 8})
    three = plain.on(Topology(nodes=3, gpus_per_node=8))
    assert three.bounds == [(">=", Quantity("2700 samples/s"))]
    assert three.applies_to == AppliesTo(gpu="H100 80GB HBM3", gpus=24)
    assert three.on(Topology(nodes=5, gpus_per_node=8)) == three
    assert plain.on(Topology(nodes=1, gpus_per_node=8)).bounds == plain.bounds
    fixed = reference()
    assert fixed.on(Topology(nodes=3, gpus_per_node=8)) is fixed


def test_a_verdict_is_about_the_system_unless_it_says_otherwise() -> None:
    """The differences between its runs are those measured, else those of healthy clusters, else left out."""
    assert reference().between == USUAL_BETWEEN_RUNS
    measured = reference(between_runs="0.2 %", runs=9).between
    assert measured is not None
    assert measured.spread == pytest.approx(0.002)
    assert measured.freedom == 8
    assert reference(claim="run").between is None
    assert reference(claim="run", runs=5).between == BetweenRuns(spread=0.0, freedom=4)


HERE = {"system": "here"}


@pytest.mark.parametrize("upper", [
    {}, {"applies_to": {"gpu": "A100-SXM4-80GB"}},
    {"applies_to": {"gpu": "A100-SXM4-80GB", "gpus": 8, "system": "here"}}, {"at_most": "150 words/s"},
])  # fmt: skip
def test_two_that_cannot_both_hold_are_refused(upper: dict[str, Any]) -> None:
    """No run can be faster than one bound and slower than another below it; both are named, in either order."""
    other = reference(name="cap", **{"at_least": None, "at_most": "150K tokens/s", **upper})
    for both in ([reference(), other], [other, reference()]):
        with pytest.raises(
            ValueError, match=r"references fast and cap cannot both hold: no throughput is at least 200,"
        ):
            refuse_contradictions(both)


@pytest.mark.parametrize(("lower", "upper"), [
    ({}, {"at_most": "200K words/s"}), ({}, {"statistic": "tokens_per_s_per_gpu"}),
    ({}, {"applies_to": {"gpu": "H200", "gpus": 8, "nodes": 1}}),
    ({}, {"applies_to": {"gpu": "A100-SXM4-80GB", "gpus": 4}}),
    ({}, {"applies_to": {"gpu": "A100-SXM4-80GB", "nodes": 2}}), ({}, {"applies_to": HERE}),
    ({}, {"per_node": True}), ({"applies_to": HERE}, {"applies_to": {"system": "there"}}),
])  # fmt: skip
def test_two_that_no_number_has_to_meet_may_stand_together(lower: dict[str, Any], upper: dict[str, Any]) -> None:
    given = {"at_least": None, "at_most": "150K words/s", **upper}
    refuse_contradictions([reference(**lower), reference(name="cap", **given)])


class Vague(Quantity):
    """A measured number that is known to 5 %."""

    def meets(self, op: Any, bound: Quantity, between: BetweenRuns | None = None) -> bool:
        """For certain, or not at all."""
        if abs(self.base / bound.base - 1) < 0.05:
            raise InconclusiveError(f"{self} {op} {bound}")
        return super().meets(op, bound, between)


@pytest.mark.parametrize(
    ("measured", "ends"), [(150, "misses"), (195, "undecided"), (250, "meets"), (310, "undecided"), (350, "misses")]
)
def test_two_bounds_of_a_number_that_is_not_known_exactly(measured: int, ends: str) -> None:
    bounds = reference(at_most="300K words/s")
    number = Vague(measured * 1e3, "words/s")
    if ends == "undecided":
        with pytest.raises(InconclusiveError):
            _ = number in bounds
    else:
        assert (number in bounds) == (ends == "meets")

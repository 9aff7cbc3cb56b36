"""YAML in, strict models out, and errors that say where and what."""

import copy
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import Field, ValidationError

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.schema import MinutesField, QuantityField, Strict, merge, to_json, validate

KEYS = st.sampled_from("abcd")
TREES = st.recursive(
    st.dictionaries(KEYS, st.integers(0, 3), max_size=3), lambda inner: st.dictionaries(KEYS, inner | st.integers(0, 3))
)

Read = Callable[[str | bytes], dict[str, Any]]


class Apple(Strict):
    """One of two kinds."""

    kind: Literal["apple"] = "apple"
    seeds: int = 5


class Pear(Strict):
    """The other kind."""

    kind: Literal["pear"]
    length: float


class Basket(Strict):
    """A model with every way to nest another."""

    name: str
    fruit: Annotated[Apple | Pear, Field(discriminator="kind")] = Apple()
    more: tuple[Apple, ...] = ()
    named: Mapping[str, Apple] = {}
    maybe: Apple | None = None
    least: QuantityField | None = None
    limit: MinutesField = 1


def test_json_nested_without_end_is_no_json() -> None:
    with pytest.raises(ValueError, match="nested too deep"):
        read_json("[" * 100_000)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"nmae": 1}, "w: nmae: unknown key 'nmae' (did you mean 'name'?); legal: fruit, least, limit, maybe, more, "),
        ({}, "w: name: missing"),
        ({"name": []}, "w: name: Input should be a valid string"),
        ({"name": 5}, "w: name: Input should be a valid string (given: 5)"),
        ({"fruit": {"kind": "apple", "lenght": 1}}, "w: fruit.apple.lenght: unknown key 'lenght'; legal: kind, seeds"),
        (
            {"fruit": {"kind": "pear", "length": 1, "seeds": 1}},
            "w: fruit.pear.seeds: unknown key 'seeds'; legal: kind, length",
        ),
        ({"fruit": {"kind": "plum"}}, "does not match any of the expected tags: 'apple', 'pear'"),
        ({"more": [{}, {"sed": 1}]}, "w: more.1.sed: unknown key 'sed' (did you mean 'seeds'?); legal: kind, seeds"),
        ({"named": {"a": {"sed": 1}}}, "w: named.a.sed: unknown key 'sed' (did you mean 'seeds'?); legal: kind, seeds"),
        ({"maybe": {"sed": 1}}, "w: maybe.sed: unknown key 'sed' (did you mean 'seeds'?); legal: kind, seeds"),
        ({"least": 5}, "w: least: 5 has no unit; write it with one, such as '5 words/s'"),
        ({"least": "5"}, "w: least: '5' has no unit"),
        ({"least": "5 bits"}, "w: least: unknown unit 'bits'"),
        ({"limit": 1.5}, "w: limit: 1.5 is not a time limit; write it in quotes"),
        ({"limit": True}, "w: limit: True is not a time limit"),
        ({"limit": 0}, "w: limit: a time limit of '0' leaves no time to run"),
        ({"limit": -5}, "w: limit: '-5' is not a time limit"),
        ({1: 2}, "w: 1"),
    ],
)
def test_an_error_names_place_key_and_choices(data: dict[Any, Any], message: str) -> None:
    """Every problem is one line with where it is; an unknown key comes with those its own mapping may have."""
    with pytest.raises(ConfigError) as error:
        validate(Basket, {"name": "x"} | data if data else {}, "w")
    assert message in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_are_told_at_once() -> None:
    with pytest.raises(ConfigError) as error:
        validate(Basket, {"nmae": "x"}, "w")
    assert [line.split(":")[1] for line in str(error.value).splitlines()] == [" name", " nmae"]


def test_quantities_and_time_limits_survive_json() -> None:
    basket = validate(Basket, {"name": "x", "least": "0.123456789012345 1", "limit": "1-02:03"}, "w")
    assert basket.least == Quantity(0.123456789012345, "1")
    assert basket.limit == 1563
    assert Basket.model_validate_json(basket.model_dump_json()) == basket
    assert validate(Basket, basket.model_dump(mode="json"), "w") == basket


def test_numbers_that_are_not_finite_survive_json() -> None:
    for value in (math.nan, math.inf, -math.inf):
        text = Pear(kind="pear", length=value).model_dump_json()
        assert "null" not in text
        assert str(Pear.model_validate_json(text).length) == str(value)


def test_names_that_are_not_utf_8_are_spelled_out_in_json() -> None:
    """So is nothing else: numbers that are not finite stay what they are."""

    class Names(Strict):
        user: str
        path: Path
        values: tuple[float, ...]

    names = Names(user="m\udce9ller", path=Path("/home/m\udce9ller"), values=(1.5, math.nan, -math.inf))
    again = Names.model_validate_json(to_json(names, indent=1))
    assert (again.user, again.path) == ("m\\xe9ller", Path("/home/m\\xe9ller"))
    assert repr(again.values) == "(1.5, nan, -inf)"
    plain = names.model_copy(update={"user": "müller", "path": Path("/home")})
    assert to_json(plain) == plain.model_dump_json()


def test_a_model_is_never_changed() -> None:
    apple = Apple()
    with pytest.raises(ValidationError, match="frozen"):
        apple.seeds = 6  # type: ignore[misc]


@given(TREES, TREES)
def test_merging_lays_one_tree_over_another(base: dict[str, Any], over: dict[str, Any]) -> None:
    before = copy.deepcopy((base, over))
    merged = merge(base, over)
    assert (base, over) == before
    assert merged.keys() == base.keys() | over.keys()
    for key, value in merged.items():
        old, new = base.get(key), over.get(key)
        if isinstance(old, dict) and isinstance(new, dict):
            assert value == merge(old, new)
        else:
            assert value == (new if key in over else old)


@given(TREES)
def test_merging_nothing_or_the_same_changes_nothing(tree: dict[str, Any]) -> None:
    assert merge(tree, {}) == merge({}, tree) == merge(tree, tree) == tree


def test_lists_are_replaced_whole() -> None:
    assert merge({"a": [1, 2], "b": {"c": [3]}}, {"a": [4], "b": {"c": []}}) == {"a": [4], "b": {"c": []}}

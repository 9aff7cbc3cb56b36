"""Runs that are made when they are asked for, compared with all of them made at once."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.cluster.runs import ReplayChoices, RunChoices, RunSpec
from pytest_llmbench.core.recipe.recipes import Recipe
from tests.conftest import TINY

NAMES = ("a", "a-group1", "a-group", "a-group2-group1", "b-repeat2", "group")
RECIPES = {name: Recipe.model_validate({**TINY, "name": name}) for name in NAMES}


def all_of(groups: int) -> dict[str, RunSpec]:
    if groups == 1:
        return {name: RunSpec(key=name, recipe=recipe) for name, recipe in RECIPES.items()}
    return {
        f"{name}-group{group}": RunSpec(key=f"{name}-group{group}", recipe=recipe, group=group)
        for name, recipe in RECIPES.items()
        for group in range(1, groups + 1)
    }


@pytest.mark.parametrize("groups", [1, 2, 3, 11])
def test_runs_are_those_that_were_made_at_once(groups: int) -> None:
    """Keys, order, number and runs are the same, whole and recipe by recipe."""
    choices, whole = RunChoices(RECIPES, groups), all_of(groups)
    assert list(choices) == list(whole)
    assert len(choices) == len(whole)
    assert dict(choices) == whole
    for name in (*NAMES, "unknown"):
        assert choices.of(name) == [spec for spec in whole.values() if spec.recipe.name == name]


@given(
    st.integers(1, 12),
    st.one_of(
        st.text(max_size=9),
        st.builds("{}-group{}".format, st.sampled_from(NAMES), st.text("0123456789x٣²-", max_size=11)),
    ),
)
def test_a_key_of_no_run_is_none(groups: int, key: str) -> None:
    choices, whole = RunChoices(RECIPES, groups), all_of(groups)
    assert (key in choices) == (key in whole)
    assert choices.get(key) == whole.get(key)


def test_replays_are_found_by_recipe() -> None:
    """The repeats of a run are those of its recipe; a recipe without logs has none."""
    first = RunSpec(key="a", recipe=RECIPES["a"])
    choices = ReplayChoices({"a": first, "a-repeat2": first.repeated(2)})
    assert choices.of("a") == [first, first.repeated(2)]
    assert choices.of("b-repeat2") == []
    assert choices.names == ["a"]
    assert choices["a-repeat2"].series == "a"

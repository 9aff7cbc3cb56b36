"""Runs of recipes, and their references, become test cases."""

from collections import Counter
from collections.abc import Collection
from typing import Self

import pytest

from pytest_llmbench.cluster.recipes import RECIPES, is_of_another_size
from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.plugin.bench import Bench, bench_of
from pytest_llmbench.plugin.collection import checks
from pytest_llmbench.plugin.ours import is_ours

EVERY = "*"


class RunKey(str):
    """The parameter of our `run`; its type separates it from parameters of other fixtures of that name."""

    __slots__ = ("repeats",)

    repeats: int  # number of runs that are judged together; the key is that of the first

    def __new__(cls, key: str, repeats: int) -> Self:
        """Make a key with the number of runs."""
        run_key = super().__new__(cls, key)
        run_key.repeats = repeats
        return run_key


def make_cases(metafunc: pytest.Metafunc) -> None:
    """Make a test case of every recipe, or of every reference of every recipe, or of every check.

    Raises ConfigError if the test, or its recipe or check, is wrong.
    """
    refuse_forked(metafunc)
    bench = bench_of(metafunc.config)
    if is_ours(metafunc, "health"):
        checks.parametrize(metafunc, bench.nodes_to_check)
    if is_ours(metafunc, "run") or is_ours(metafunc, "reference"):
        parametrize(metafunc, bench)


def parametrize(metafunc: pytest.Metafunc, bench: Bench) -> None:
    """Give a test that asks for `run` one case per possible run, and with `reference` one per reference of each.

    Raises ConfigError if the marker names an unknown recipe or an illegal number of runs, or if `run` is another
    fixture where `reference` is asked for.
    """
    if not is_ours(metafunc, "run"):
        raise ConfigError(
            f"{metafunc.function.__name__}: the fixture `reference` of pytest-llmbench needs its `run`, and here "
            "another fixture has that name: rename that one"
        )
    choices, unmarked = bench.choices, bench.recipes_of_unmarked
    names = _marked_recipes(metafunc, choices.names, bench.recipes)
    names = names or [name for name in choices.names if name in unmarked]
    runs = [spec for name in names for spec in choices.of(name)]
    chosen = [spec for spec in runs if spec.repeat == 1]
    marked = _read_repeats(metafunc)
    asked = marked if bench.settings.repeat is None else bench.settings.repeat
    there = Counter(spec.series for spec in runs)
    keys = {spec.key: RunKey(spec.key, max(asked or 1, there[spec.key])) for spec in chosen}
    if is_ours(metafunc, "reference"):
        pairs = [
            (spec.key, reference) for spec in chosen for reference in spec.recipe.references
            if spec.replayed is None or not is_of_another_size(reference, spec.replayed.topology)
        ]  # fmt: skip
        metafunc.parametrize(
            ("run", "reference"),
            [(keys[key], reference) for key, reference in pairs],
            indirect=True,
            ids=[f"{key}-{reference.name}" for key, reference in pairs],
        )
    else:
        metafunc.parametrize("run", list(keys.values()), indirect=True, ids=list(keys))


def refuse_forked(metafunc: pytest.Metafunc) -> None:
    """Refuse a test that pytest-forked would run in a child process.

    Raises ConfigError because a child of pytest-forked lacks the parent's threads, and would wait for ever.
    """
    option = metafunc.config.getoption("forked", False)
    if option or metafunc.definition.get_closest_marker("forked") is not None:
        raise ConfigError(
            f"{metafunc.function.__name__}: pytest-forked would run this test in a child process, where it waits for "
            f"its run for ever: leave out {'--forked' if option else 'the marker `forked`'}; runs have processes of "
            "their own anyway"
        )


def _read_repeats(metafunc: pytest.Metafunc) -> int | None:
    """The number of runs that the closest marker asks for; None without such a marker."""
    name, asked = metafunc.function.__name__, None
    for marker in metafunc.definition.iter_markers("recipe"):
        if strangers := set(marker.kwargs) - {"repeats"}:
            raise ConfigError(f"{name}: marker `recipe`: {unknown('argument', min(strangers), ['repeats'])}")
        number = marker.kwargs.get("repeats")
        if "repeats" in marker.kwargs and (type(number) is not int or number < 1):
            raise ConfigError(f"{name}: marker `recipe`: repeats={number!r} must be a whole number >= 1")
        asked = asked or number
    return asked


def _marked_recipes(metafunc: pytest.Metafunc, at_hand: Collection[str], recipes: Collection[str]) -> list[str]:
    marked = [name for marker in metafunc.definition.iter_markers("recipe") for name in marker.args]
    if EVERY in marked:
        return list(at_hand)
    there = frozenset(at_hand)
    for name in marked:
        if name not in recipes:
            message = "; ".join(
                [f"{unknown('recipe', name, recipes)}; `llmbench list recipes` shows them", *RECIPES.broken().values()]
            )
            raise ConfigError(f"{metafunc.function.__name__}: {message}")
        if name not in there:
            raise ConfigError(f"{metafunc.function.__name__}: there are no logs of recipe {name} to replay")
    return list(dict.fromkeys(marked))

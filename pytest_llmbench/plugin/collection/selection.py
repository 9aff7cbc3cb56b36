"""`-k`: an expression that names recipes only keeps the checks; one that names no recipe gets a hint."""

import difflib
import re
from collections.abc import Container, Generator, Iterable

import pytest

from pytest_llmbench.core.quantity import listed
from pytest_llmbench.plugin.bench import bench_of
from pytest_llmbench.plugin.collection.checks import CheckKey, key_of
from pytest_llmbench.plugin.collection.parametrize import RunKey

# A word of an expression, and whether it is denied.
_WORD = re.compile(r"\b(not\s+)?(?!(?:and|or|not)\b)([^\s()]+)")


_HINT = pytest.StashKey[str]()
_CLOSE, _FEW = 3, 8


@pytest.hookimpl(tryfirst=True, wrapper=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> Generator[None]:
    """Prepare the items for `-k`, and keep a hint for the user if it left none of the runs."""
    _keep_checks(config, items)
    runs = _runs(items)
    yield
    if config.option.keyword and runs and not _runs(items):
        names = sorted({str(key_of(item, "run", RunKey)) for item in runs})
        words = [word for denied, word in _WORD.findall(config.option.keyword) if not denied]
        recipes = bench_of(config).recipes
        hints = (_find_hint(word, runs, names, recipes) for word in words)
        config.stash[_HINT] = "; ".join(hint for hint in hints if hint)


def pytest_report_collectionfinish(config: pytest.Config) -> list[str]:
    """Give the hint."""
    hint = config.stash.get(_HINT, "")
    return [f"llmbench: {hint}"] if hint else []


def _runs(items: Iterable[pytest.Item]) -> list[pytest.Item]:
    return [item for item in items if key_of(item, "run", RunKey) is not None]


def _find_hint(word: str, runs: list[pytest.Item], names: list[str], recipes: Container[str]) -> str:
    """The runs that a word of an expression may mean; empty if it is about a test of theirs."""
    if _is_about(word, runs):
        return ""
    if word in recipes:
        return f"-k {word}: the tests here have no case of that recipe, such as for want of a reference in it"
    close = difflib.get_close_matches(word, names, n=_CLOSE)
    advice = f"did you mean {' or '.join(close)}?" if close else f"the tests here have {listed(names, _FEW)}"
    return f"-k {word} matches no recipe; {advice}"


def _keep_checks(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every check match an expression that names runs only, so that nodes are checked in a session of both suites.

    An expression that names a check, or the test of the checks, selects as pytest reads it.
    """
    checks = [item for item in items if key_of(item, "health", CheckKey) is not None]
    words = _WORD.findall(config.option.keyword or "")
    if not checks or len(checks) == len(items) or any(_is_about(word, checks) for _, word in words):
        return
    for item in checks:
        item.extra_keyword_matches.update(word for denied, word in words if not denied)


def _is_about(word: str, checks: list[pytest.Item]) -> bool:
    """True if an expression's word is about any of these items, by their own names or those of their files."""
    return any(word.lower() in part.name.lower() for item in checks for part in item.listchain()[1:])

"""`-k opt175b` together with a validation suite: an expression that names no check leaves the checks alone."""

import re

import pytest

from pytest_llmbench.plugin.health import CheckKey, key_of

# A word of an expression, and whether it is denied.
_WORD = re.compile(r"\b(not\s+)?(?!(?:and|or|not)\b)([^\s()]+)")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Let every check match an expression that names runs only: who asks for both suites wants the nodes checked.

    One that names a check, or the test of the checks, means what it says.
    """
    checks = [item for item in items if key_of(item, "health", CheckKey) is not None]
    words = _WORD.findall(config.option.keyword or "")
    if not checks or len(checks) == len(items) or any(_names(word, checks) for _, word in words):
        return
    for item in checks:
        item.extra_keyword_matches.update(word for denied, word in words if not denied)


def _names(word: str, checks: list[pytest.Item]) -> bool:
    """Whether an expression's word is about any of these items, by their own names or those of their files."""
    return any(word.lower() in part.name.lower() for item in checks for part in item.listchain()[1:])

"""Kinds of findings: a family declares its own in its folder, and finds no other."""

import ast
from collections import Counter
from itertools import chain

import pytest

from pytest_llmbench.checks.base import FAMILIES
from tests.support.kinds import CHECKS, SHARED, declared, references


def constants(family: str) -> tuple[set[str], set[str]]:
    """The texts of a family's code, and those that it gives to a `Finding` as its kind; without its declaration."""
    texts: set[str] = set()
    kinds: set[str] = set()
    for path in (CHECKS / family).rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        tree.body = [node for node in tree.body if not is_declaration(node)]
        for node in ast.walk(tree):
            if isinstance(node, ast.Constant) and isinstance(node.value, str):
                texts.add(node.value)
            elif isinstance(node, ast.keyword) and node.arg == "kind" and isinstance(node.value, ast.Constant):
                kinds.add(str(node.value.value))
    return texts, kinds


def is_declaration(node: ast.stmt) -> bool:
    return isinstance(node, ast.Assign) and ast.unparse(node.targets[0]).endswith("Kind")


def test_each_kind_has_one_owner() -> None:
    owned = Counter([*chain(*map(declared, (*FAMILIES, "findings"))), *references()])
    assert [kind for kind, count in owned.items() if count > 1] == []
    assert len(owned) > 70


@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_finds_the_kinds_that_it_declares(family: str) -> None:
    """All of them, and no other but those that several share. `finding` is typed; `Finding` takes any text."""
    texts, kinds = constants(family)
    assert {*declared(family)} - texts == set(), "declared, and never found"
    assert kinds <= {*declared(family)} | SHARED, "found, and not declared"
    assert declared(family) or family == "collectives"


def test_a_kind_that_several_share_is_found_by_several() -> None:
    found = Counter(kind for family in FAMILIES for kind in constants(family)[0] & SHARED)
    assert {kind for kind, count in found.items() if count > 1} == SHARED

"""docs/glossary.md: every term is used, and every word that the documents lean on is explained."""

import re

import pytest

from tests.docs.documents import CHECKOUT, PAGES

GLOSSARY = (CHECKOUT / "docs" / "glossary.md").read_text(encoding="utf-8")
TERMS = [term for term in re.findall(r"^\| ([^|]+?) \| .+ \|$", GLOSSARY, re.MULTILINE) if term != "Term"]
OTHERS = "\n".join(
    re.sub(r"```.*?```", "", (CHECKOUT / page).read_text(encoding="utf-8"), flags=re.DOTALL)
    for page in PAGES
    if page != "docs/glossary.md"
)
# Nouns for parts that act, or that are acted upon; a reader meets them before anything explains them.
ROLES = ("driver", "launcher", "owner", "suspect", "gate", "lease", "dialect", "clause", "slot", "label", "tournament",
         "bisection", "quarantine", "preparation", "floor", "replay", "provenance")  # fmt: skip


@pytest.mark.parametrize("term", TERMS)
def test_a_term_is_used(term: str) -> None:
    """A term that no other document uses explains nothing."""
    words = "[ _]".join(re.escape(word) for word in term.split())
    assert re.search(rf"\b{words}s?\b", OTHERS, re.IGNORECASE)


def test_a_term_is_explained_once() -> None:
    assert len(TERMS) == len(set(TERMS))


def test_every_word_of_the_rules_is_explained() -> None:
    (rule,) = re.findall(r"\*\*One word per idea\.\*\* ([^:]+):", (CHECKOUT / "CONTRIBUTING.md").read_text("utf-8"))
    words = [" ".join(word.split()).lower() for word in rule.split(",")]
    assert len(words) > 10
    assert [word for word in words if word not in TERMS] == []


@pytest.mark.parametrize("role", ROLES)
def test_a_role_noun_is_explained(role: str) -> None:
    assert re.search(rf"\b{role}", OTHERS, re.IGNORECASE)
    assert role in TERMS

"""The docs site has every page, and leaves out links that it cannot have; `make docs` builds it strictly."""

import ast
import functools
import re
import tomllib
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.docs.documents import CHECKOUT, PAGES
from tests.docs.tools import load


def test_every_page_is_in_the_navigation() -> None:
    navigation = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:\n")[2]
    listed = re.findall(r"([\w./-]+\.md)$", navigation, re.MULTILINE)
    assert sorted(f"docs/{page}" for page in listed) == PAGES


def test_guides_are_grouped_in_the_navigation_as_on_their_page() -> None:
    guides = (CHECKOUT / "mkdocs.yml").read_text(encoding="utf-8").partition("- how-to/index.md\n")[2]
    shown = re.findall(r"^ {6}- (.+):\n((?: {10}.+\n)+)", guides.partition("  - Troubleshooting")[0], re.MULTILINE)
    page = (CHECKOUT / "docs" / "how-to" / "index.md").read_text(encoding="utf-8")
    listed = re.findall(r"^## (.+)\n\n((?:- .+\n)+)", page, re.MULTILINE)
    assert len(listed) > 3
    assert [(group, re.findall(r"how-to/(.+\.md)", entries)) for group, entries in shown] == [
        (group, re.findall(r"\]\((.+\.md)\)", entries)) for group, entries in listed
    ]


def test_a_link_out_of_the_documents_becomes_a_path() -> None:
    """One to another page, or to nothing that is there, stays as it is: MkDocs checks those."""
    hook = load("site_links").on_page_markdown
    page = SimpleNamespace(file=SimpleNamespace(src_uri="how-to/x.md"))
    text = "See [the recipe](../../suites/recipes/opt.yaml), [`opt.yaml`](../../suites/recipes/opt.yaml)"
    assert hook(text, page) == "See the recipe (`suites/recipes/opt.yaml`), `suites/recipes/opt.yaml`"
    for stays in ("[a](../reference.md#options)", "[a](../../suites/gone.yaml)", "[a](write-a-test.md)"):
        assert hook(stays, page) == stays


def test_the_links_of_the_readme_lead_to_files() -> None:
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    links = re.findall(r"\]\(([^)\s#]+)", (CHECKOUT / "README.md").read_text(encoding="utf-8"))
    for link in links:
        path = re.fullmatch(rf"{re.escape(project['urls']['Source'])}/(?:blob|raw)/main/(.+)", link)
        assert path, link
        assert (CHECKOUT / path[1]).is_file(), link
    assert len(links) > 10


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


TEXT = (CHECKOUT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
SYMPTOMS = re.findall(r"^### `(.+)`$", TEXT, re.MULTILINE)


@functools.cache
def messages() -> tuple[str, ...]:
    return tuple(_messages())


def _messages() -> Iterator[str]:
    """Every text of the package; what is filled in, or goes on in another text, is `...`."""
    for path in (CHECKOUT / "pytest_llmbench").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.JoinedStr):
                yield "".join(part.value if isinstance(part, ast.Constant) else "..." for part in node.values)  # type: ignore[misc]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                yield node.value


@pytest.mark.parametrize("symptom", SYMPTOMS)
def test_a_message_is_one_of_the_code(symptom: str) -> None:
    words = [re.escape(part.strip()) for part in symptom.split("...") if part.strip()]
    assert any(re.search(".*".join(words), message, re.DOTALL) for message in messages()), symptom


def test_every_symptom_has_a_cause_and_a_remedy() -> None:
    entries = re.split(r"^### ", TEXT, flags=re.MULTILINE)[1:]
    assert len(entries) == len(SYMPTOMS) + 1  # pytest's own message
    for entry in entries:
        assert "**Cause.**" in entry, entry
        assert "**Remedy.**" in entry, entry

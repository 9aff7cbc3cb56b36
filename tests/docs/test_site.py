"""The docs site has every page, and leaves out links that it cannot have; `make docs` builds it strictly."""

import re
import tomllib
from types import SimpleNamespace

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

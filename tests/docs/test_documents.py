"""Every document does what it says: its files are written, its commands run, its outputs compared."""

import re
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.conftest import require_slurm, slurm_nodes
from tests.docs.documents import CHECKOUT, DOCUMENTS, Reader, check_marks, needs_slurm, read_blocks
from tests.support.priority import before_others

BLOCKS = {name: read_blocks(name, (CHECKOUT / name).read_text(encoding="utf-8")) for name in DOCUMENTS}
# Its trainings are judged by a share of what the processor can do.
JUDGED_BY_SPEED = "docs/tutorial.md"
# Guides that link to the small recipe start with its files.
SMALL = "docs/how-to/index.md"
STARTS_SMALL = {name for name in DOCUMENTS if "index.md#the-small-recipe" in (CHECKOUT / name).read_text("utf-8")}
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def _parts() -> Iterator[object]:
    for name, blocks in BLOCKS.items():
        yield pytest.param(name, False, id=name)
        if needs_slurm(blocks):
            yield pytest.param(name, True, id=f"{name}-slurm", marks=pytest.mark.slurm)


@pytest.mark.parametrize(("name", "slurm"), list(_parts()))
def test_a_document_does_what_it_says(name: str, slurm: bool, tmp_path: Path) -> None:
    """Blocks run in order, in a fresh folder. Those that need a Slurm are a test of their own."""
    if slurm:
        require_slurm()
    with slurm_nodes() if slurm else nullcontext(), before_others() if name == JUDGED_BY_SPEED else nullcontext():
        start = BLOCKS[SMALL] if name in STARTS_SMALL else ()
        Reader(folder=tmp_path / "reader", slurm=slurm).follow(BLOCKS[name], start)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_block_of_a_document_is_executed(name: str) -> None:
    check_marks(BLOCKS[name])


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_reader_sees_the_name_of_every_file(name: str) -> None:
    """Readers do not see comments, so the paragraph before a file's block has its name."""
    lines = (CHECKOUT / name).read_text(encoding="utf-8").splitlines()
    for block in BLOCKS[name]:
        if block.kind == "file":
            before = "\n".join(lines[: block.line - 2]).rstrip().rpartition("\n\n")[2]
            assert block.what in before, block.where


@pytest.mark.parametrize("name", [*DOCUMENTS, "CHANGELOG.md"])
def test_every_link_leads_somewhere(name: str) -> None:
    """Links within the project name a file that is there, and a heading that is in it."""
    document = CHECKOUT / name
    for target in LINK.findall(document.read_text(encoding="utf-8")):
        if target.startswith(("http://", "https://")):
            continue
        path, _, anchor = target.partition("#")
        file = document.parent / path if path else document
        assert file.exists(), f"{name} links to {target}"
        if anchor:
            assert anchor in anchors(file), f"{name} links to {target}"


@pytest.mark.parametrize("name", DOCUMENTS)
def test_every_make_target_named_exists(name: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (CHECKOUT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    assert set(re.findall(r"`make ([a-z-]+)", (CHECKOUT / name).read_text(encoding="utf-8"))) <= targets


def test_every_folder_of_the_house_is_there() -> None:
    """The table of floors in CONTRIBUTING.md names each folder of the package, and parts that exist."""
    text = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)/` \| (.*) \|$", text, re.MULTILINE)
    package = CHECKOUT / "pytest_llmbench"
    folders = {path.parent.name for path in package.glob("*/__init__.py")} - {"suites"}
    assert {name for name, _ in rows} == folders
    parts = [package / name / part for name, content in rows for part in re.findall(r"`([\w.]+/|\w+\.py)`", content)]
    assert len(parts) > 10
    assert [str(part) for part in parts if not part.exists()] == []


def anchors(file: Path) -> set[str]:
    """The anchors that GitHub gives to a document's headings."""
    headings = re.findall(r"^#+ (.+)$", file.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}

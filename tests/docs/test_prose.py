"""The prose lint finds what a native reader stumbles over, and leaves plain sentences alone."""

from pathlib import Path

import pytest

from tests.docs.documents import CHECKOUT
from tests.docs.tools import load

prose = load("prose")


def found(text: str, tmp_path: Path, name: str = "page.md") -> list[tuple[int, str]]:
    """Lines and names of all faults of a file with this text."""
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return [(sentence.line, each.name) for sentence in prose.of_file(path) for each in prose.faults(sentence)]


@pytest.mark.parametrize(("sentence", "name"), [
    ("What was not measured is never a pass.", "what-clause"),
    ("Who is slow with most of them is bad.", "what-clause"),
    ("How far is the host's affair.", "where-clause"),
    ("Where the logs are.", "where-clause"),
    ("Where a node has no GPU, the checks are skipped.", "where-clause"),
    ("Why it cannot be judged.", "where-clause"),
    ("What could not be looked at", "what-clause"),
    ("`x` is no number of at least 1.", "is-no"),
    ("The lines are none.", "is-no"),
    ("With two nodes, nobody can say which is bad.", "nobody"),
    ("The kernel does not vouch for it, and the node is accused.", "talks"),
    ("Each line is held against the recipe.", "talks"),
    ("Of `deepspeed`.", "leftover"),
    ("The numbers stand beside them.", "german"),
    ("The run got not that far.", "german"),
    ("Every so many of them are logged.", "german"),
])  # fmt: skip
def test_a_sentence_to_decode_is_found(sentence: str, name: str, tmp_path: Path) -> None:
    assert (3, name) in found(f"# A page\n\n{sentence}\n", tmp_path)


@pytest.mark.parametrize("sentence", [
    "An unmeasured check never passes.",
    "What does a run need?",
    "When Slurm is slow, it waits.",
    "There is no GPU on this machine.",
    "It is no longer there, and is no more than 5 % slower.",
    "The record names what was measured.",
    "Run `what is no number` in a shell; see [nobody](#what-nobody-says).",
    "Of course, it does not wait.",
])  # fmt: skip
def test_a_plain_sentence_is_left_alone(sentence: str, tmp_path: Path) -> None:
    found_there = [name for _, name in found(f"# A page\n\n{sentence}\n", tmp_path)]
    assert found_there == (["nobody"] if "[nobody]" in sentence else [])


def test_code_is_no_prose_and_tables_are(tmp_path: Path) -> None:
    """Fenced blocks and comments are left out; each cell of a table is a sentence; lines are counted right."""
    text = "<!-- file: a -->\n```text\nnobody\n```\n| A | Nobody |\n\n- One line,\n  and what\n  follows beside it.\n"
    assert found(text, tmp_path) == [(5, "nobody"), (7, "german")]


def test_docstrings_and_messages_are_read(tmp_path: Path) -> None:
    """An f-string without its values; an entry of a docstring as a sentence; short texts are names."""
    text = (
        '"""What a module is."""\n\n\ndef f(x):\n'
        '    """Do it.\n\n    Attributes:\n        x: what nobody needs.\n    """\n'
        "    raise ValueError(f\"{x!r} is no {'nobody'} number\")\n\n\nNAME = 'what is'\n"
    )
    assert found(text, tmp_path, "m.py") == [
        (1, "what-clause"), (8, "what-clause"), (8, "nobody"), (10, "is-no"),
    ]  # fmt: skip


def test_a_fault_is_reported_with_its_place_and_its_cure(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "bad.md").write_text("It is no number.\n")
    (tmp_path / "good.md").write_text("It must be a number.\n")
    assert prose.main([str(tmp_path / "good.md")]) == 0
    assert prose.main([str(tmp_path / "bad.md")]) == 1
    shown = capsys.readouterr().out
    assert f"{tmp_path / 'bad.md'}:1: is-no: It is no number." in shown
    assert "must be" in shown


def test_a_guide_speaks_to_its_reader(tmp_path: Path) -> None:
    """The share counts sentences of paragraphs and lists, not headings and cells; lists of pages are no guides."""
    page = tmp_path / "page.md"
    page.write_text("# You\n\nYou can do it. It works. It ends.\nIt is short.\n\n| you |\n")
    assert prose.you_share(prose.of_file(page)) == pytest.approx(0.25)
    assert prose.is_guide(CHECKOUT / "docs" / "how-to" / "write" / "write-a-test.md")
    assert not prose.is_guide(CHECKOUT / "docs" / "how-to" / "index.md")
    assert not prose.is_guide(CHECKOUT / "docs" / "reference.md")


def test_comments_of_scripts_and_texts_of_yaml_are_read(tmp_path: Path) -> None:
    """Paragraphs of comments without directives, with their lines; a text that an alias repeats counts once."""
    script = "#!/bin/bash\n# shellcheck disable=SC1 # nobody\n# One line and\n# what\n#SBATCH --nobody\n# Nobody.\n"
    assert found(script, tmp_path, "a.sh") == [(6, "nobody")]
    text = "# Beside it.\na: &a\n  why: It is no number.\n  nodes: 2\nb: *a\nc: [It is no list., x]\n"
    assert found(text, tmp_path, "a.yaml") == [(1, "leftover"), (1, "german"), (3, "is-no"), (6, "is-no")]


@pytest.mark.parametrize(("guide", "missed"), [
    ("You can do it. It works. It ends.", []), ("It works. It ends.", ["with `you`"]),
    ("You know: it is no number.", ["with `is no ...`"]), ("You do. What it needs is time.", ["that begin with"]),
])  # fmt: skip
def test_each_goal_is_missed_by_itself(guide: str, missed: list[str]) -> None:
    page = CHECKOUT / "docs" / "how-to" / "page.md"
    goals = prose.goals(list(prose.sentences(page, 1, guide)))
    assert len(goals) == 7
    assert [any(words in goal.name for words in missed) for goal in goals] == [not goal.met for goal in goals]


@pytest.mark.parametrize(("code", "missed"), [
    ('"""Does not work."""\n', "docstrings that deny"),
    ("# It never works.\nx = 1\n", "comments that deny"),
    ("x = 1  # Slurm knows it\n", "comments that have things"),
    ('"""The log says it."""\n', "docstrings that have things"),
    ("# noqa: no word of it\nx = 1  # noqa: X  # works\n", None),
])  # fmt: skip
def test_docstrings_and_comments_have_goals_of_their_own(tmp_path: Path, code: str, missed: str | None) -> None:
    (tmp_path / "module.py").write_text(code)
    names = [goal.name for goal in prose.goals(prose.of_file(tmp_path / "module.py")) if not goal.met]
    assert len(names) == (missed is not None)
    assert all(name.startswith(str(missed)) for name in names)


def test_comments_are_read(tmp_path: Path) -> None:
    """Sentence by sentence, on lines of their own or behind code; of tests and benchmarks nothing else."""
    assert found("# Where it is.\nx = 1  # nobody waits\n", tmp_path, "m.py") == [(1, "where-clause"), (2, "nobody")]
    assert {sentence.place for sentence in prose.of_file(CHECKOUT / "tests" / "conftest.py")} == {"comment"}


def test_comments_of_the_package_may_only_become_plainer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One more comment with a fault than today is reported with all the others."""
    (tmp_path / "pytest_llmbench").mkdir()
    (tmp_path / "pytest_llmbench" / "m.py").write_text("# Where it is.\nx = 1  # as slow as others, which wait\n")
    monkeypatch.setattr(prose, "ROOT", tmp_path)
    for most, status in ((1, 0), (0, 1)):
        monkeypatch.setattr(prose, "COMMENTS_TO_MEND", most)
        assert prose.main([str(tmp_path)]) == status

"""Tables that tools/reference.py writes: they are what the code says, and a change of either is noticed."""

import re

import pytest

from tests.docs.tools import load

reference = load("reference")
TEXTS = [page.read_text(encoding="utf-8") for page in reference.PAGES]
MARKS = [mark for text in TEXTS for mark in re.findall(r"<!-- generated: ([\w ]+) -->", text)]


@pytest.mark.parametrize("text", TEXTS, ids=[page.stem for page in reference.PAGES])
def test_the_tables_are_what_the_code_says(text: str) -> None:
    assert reference.written(text)[1] == []


def test_a_table_that_differs_is_named_and_written() -> None:
    fresh = reference.table("engines")
    text = f"Before.\n\n<!-- generated: engines -->\n{fresh}\nAfter.\n"
    assert reference.written(text) == (text, [])
    for changed in (text.replace("`torch`", "`torche`"), text.replace(fresh.splitlines()[-1] + "\n", "")):
        assert reference.written(changed) == (text, ["engines"])


@pytest.mark.parametrize("name", sorted(reference.TABLES))
def test_every_table_that_has_rows_is_in_a_document(name: str) -> None:
    _, rows = reference.TABLES[name]
    assert MARKS.count(name) == bool(rows())
    assert [row for row in rows() if not all(row)] == []


def test_a_comment_explains_a_name() -> None:
    text = (
        "x = 1  #: problem hang: no step\n    #: suite property slot: a number,\n    #:  from 0\ny = 2\n"
        "#: another y: z\n# problem hang: no\n"
    )
    assert list(reference.notes_in(text)) == [
        ("problem", "hang", "no step"), ("suite property", "slot", "a number, from 0"),
    ]  # fmt: skip
    assert reference.notes()["problem"]["wrong_hardware"].count("; ") == 2


def test_every_statistic_that_a_comment_explains_exists() -> None:
    assert set(reference.notes()["left out"]) <= set(reference.STATISTICS)


def test_the_engines_of_nemo_share_their_statistics() -> None:
    """The section of `nemo_torchrun` refers to those of `nemo_launcher`."""
    assert reference.statistics("nemo_torchrun") == reference.statistics("nemo_launcher")


@pytest.mark.parametrize(("key", "shown"), [
    ("nodes", "N > 0 (1)"), ("model.dropout", "x ≥ 0, < 1 (0.1)"), ("time_limit", "Slurm time, required"),
    ("end", "`steps`, `time_limit`, `target` (steps)"), ("compile", "true, false (true)"), ("options", "mapping"),
    ("data.kind", "`synthetic`, `token_file` (synthetic)"), ("optimizer.clip_grad_norm", "x > 0 (1.0)"),
    ("references", "list of references"), ("optimizer.betas", "list (0.9, 0.95)"), ("global_batch_size", "N > 0"),
])  # fmt: skip
def test_the_values_of_a_key_follow_from_its_type(key: str, shown: str) -> None:
    assert {row[0]: row[1] for row in reference.keys(reference.Recipe)}[f"`{key}`"] == shown


def test_every_key_of_results_is_one_of_the_record() -> None:
    assert set(reference.OF_RESULTS) <= set(reference.RunRecord.model_fields)

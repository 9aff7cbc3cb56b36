"""benchmarks/history/labelled.py: which series it takes, and how it scores them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.history.labelled import f1, main, read_labelled


@pytest.mark.parametrize(
    ("marks", "found", "score"),
    [
        ([[10], [10]], [12], 1.0),
        # Precision 2 of 3: the first value counts as found, as it counts as a mark.
        ([[10]], [12, 40], 0.8),
        # Two points at one mark are one that is found and one that is not.
        ([[10]], [9, 11], 0.8),
        # One of two people saw it: precision 1, recall the mean of 1 and 1/2.
        ([[], [10]], [], 6 / 7),
        ([[]], [], 1.0),
        ([[10]], [20], 0.5),
    ],
)
def test_the_score_counts_marks_of_everybody(marks: list[list[int]], found: list[int], score: float) -> None:
    """Precision against all marks, recall as the mean over the people."""
    assert f1(marks, found, 5) == pytest.approx(score)


def test_a_series_with_gaps_or_several_numbers_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the reason; the others are scored."""
    raw: dict[str, list[list[float | None]]] = {
        "step": [[*[1.0, 1.1] * 20, *[2.0, 2.1] * 20]], "gap": [[1.0, None, 2.0]], "two": [[1.0], [2.0]],
    }  # fmt: skip
    for name, columns in raw.items():
        folder = tmp_path / name
        folder.mkdir()
        told = {"name": name, "series": [{"raw": values} for values in columns]}
        (folder / f"{name}.json").write_text(json.dumps(told), encoding="utf-8")
    marks = tmp_path / "marks.txt"
    marks.write_text(json.dumps({name: {"6": [40]} for name in (*raw, "absent")}), encoding="utf-8")
    taken, left_out = read_labelled(tmp_path, marks)
    assert [one.name for one in taken] == ["step"]
    assert left_out == {"absent": "is not in the folder", "gap": "has gaps", "two": "has 2 numbers"}
    assert main(["--series-from", str(tmp_path), "--annotations", str(marks)]) == 0
    assert "step (80 values): llmbench 1.000 with 1 points" in capsys.readouterr().out

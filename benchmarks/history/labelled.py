"""How well change points that people marked in real series are found, by us and by Apache Otava in the same series.

    python -m benchmarks.history.labelled --series-from DIR --annotations FILE [--otava PYTHON]

DIR and FILE are as in the Turing Change Point Dataset (arXiv:2003.06222): `**/NAME.json` with the values of a series,
and for each name the positions that each of several people marked. Only series of one number without gaps are taken.
The score is the one that is published with that data: of the points that are found, those within the margin of a mark
of anybody count for precision; recall is the mean over the people of the share of their marks that were found; the
first value counts as a mark and as found. PYTHON is an interpreter that has Apache Otava.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from benchmarks.history.change_points import points_of_otava
from pytest_llmbench.history.change_points import P_VALUE, WINDOW, change_points

_P_VALUES = (1e-2, P_VALUE, 1e-4, 1e-5)


@dataclass(frozen=True, kw_only=True, slots=True)
class Labelled:
    """A series that people looked at.

    Attributes:
        values: in order.
        marks: positions at which one of them saw a change, from 0; one set a person, perhaps empty.
    """

    name: str
    values: tuple[float, ...]
    marks: tuple[frozenset[int], ...]


def read_labelled(folder: Path, annotations: Path) -> tuple[list[Labelled], dict[str, str]]:
    """The series of a folder that can be taken, and why the others are left out, by name."""
    marks: Mapping[str, Mapping[str, Sequence[int]]] = json.loads(annotations.read_text(encoding="utf-8"))
    files = {path.stem: path for path in folder.rglob("*.json")}
    taken, left_out = [], {}
    for name, by_person in sorted(marks.items()):
        if name not in files:
            left_out[name] = "is not in the folder"
            continue
        told = json.loads(files[name].read_text(encoding="utf-8"))
        values = told["series"][0]["raw"]
        if len(told["series"]) != 1:
            left_out[name] = f"has {len(told['series'])} numbers"
        elif not all(isinstance(value, int | float) and math.isfinite(value) for value in values):
            left_out[name] = "has gaps"
        else:
            sets = tuple(frozenset(each) for each in by_person.values())
            taken.append(Labelled(name=name, values=tuple(map(float, values)), marks=sets))
    return taken, left_out


def f1(marks: Iterable[Collection[int]], found: Collection[int], margin: int) -> float:
    """The score of a series, as its text above has it."""
    sets = [{0, *each} for each in marks]
    points = {0, *found}
    everybody = set().union(*sets)
    precision = _matched(everybody, points, margin) / len(points)
    recall = fmean(_matched(each, points, margin) / len(each) for each in sets)
    return 2 * precision * recall / (precision + recall)


def _matched(marks: Collection[int], points: Collection[int], margin: int) -> int:
    """How many marks have a point of their own within the margin, each taking the nearest that is left."""
    left, count = set(points), 0
    for mark in sorted(marks):
        near = [point for point in left if abs(point - mark) <= margin]
        if near:
            left.remove(min(near, key=lambda point: (abs(point - mark), point)))
            count += 1
    return count


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the score of each series at our own p, and the means for several."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--series-from", type=Path, required=True, metavar="DIR")
    parser.add_argument("--annotations", type=Path, required=True, metavar="FILE")
    parser.add_argument("--margin", type=int, default=5, help="positions that a point may lie beside a mark")
    parser.add_argument("--otava", metavar="PYTHON", help="an interpreter that has Apache Otava")
    asked = parser.parse_args(arguments)
    taken, left_out = read_labelled(asked.series_from, asked.annotations)
    for name, why in left_out.items():
        print(f"left out: {name} {why}")
    if not taken:
        parser.error(f"no series of {asked.annotations} can be taken from {asked.series_from}")
    print(f"{len(taken)} series, windows of {WINDOW}, margin {asked.margin}")
    series = [one.values for one in taken]
    for p_value in _P_VALUES:
        found = {"llmbench": [[each.index for each in change_points(one, p_value=p_value)] for one in series]}
        if asked.otava:
            found["otava"] = points_of_otava(asked.otava, series, p_value)
        scores = {
            who: [f1(one.marks, points, asked.margin) for one, points in zip(taken, every, strict=True)]
            for who, every in found.items()
        }
        if p_value == P_VALUE:
            for number, one in enumerate(taken):
                told = (f"{who} {scores[who][number]:.3f} with {len(found[who][number])} points" for who in found)
                print(f"  {one.name} ({len(one.values)} values): {', '.join(told)}")
        means = (
            f"{who}: mean F1 {fmean(each):.3f}, {sum(map(len, found[who]))} points" for who, each in scores.items()
        )
        print(f"p {p_value:g}, {'; '.join(means)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

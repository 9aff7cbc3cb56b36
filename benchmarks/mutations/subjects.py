"""The logs that are damaged: real ones as far as there are any, each with what its run was."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.mutations.damage import Log
from benchmarks.mutations.forms import EVENTS, TEXT, Form
from benchmarks.mutations.judging import Files, Judge, Judgement, Runs
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import Recipe, load_recipes
from pytest_llmbench.core.schema import validate
from tests.support.samples import DATA, find

ROOT = Path(__file__).parents[2]


@dataclass(frozen=True, kw_only=True)
class Subject:
    """A log, how it is judged, and what it has to prove."""

    name: str  # its kind
    files: Files  # by name
    judge: Judge  # the way that a session takes
    telling: re.Pattern[bytes]  # pattern of lines about the run
    # Whether files hold what proves that the run did all its work; None where nothing in them has to.
    proves: Callable[[Files], bool] | None = None
    targets: tuple[str, ...] = ()  # the files that are damaged; by default all of them
    whole: Judgement = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "whole", self.judge(self.files))

    @property
    def bare(self) -> bool:
        """Whether its files lack their proof."""
        return self.proves is not None and not self.proves(self.files)

    def log(self, file: str, others: Iterable[Subject]) -> Log:
        """One of its files, to be damaged; `others` are of the same reader."""
        form = form_of(file)
        pieces = form.split(self.files[file])
        telling = [index for index, piece in enumerate(pieces) if form is EVENTS or self.telling.search(piece)]
        similar = [data for other in others if other.bare or not self.bare
                   for name, data in other.files.items() if form_of(name) is form]  # fmt: skip
        return Log(form=form, pieces=pieces, telling=telling, others=similar)


def form_of(file: str) -> Form:
    """How a file is taken apart."""
    return EVENTS if "tfevents" in file else TEXT


def with_bare(subject: Subject, proof: bytes) -> Iterator[Subject]:
    """A log, and the same without the lines that match its proof."""
    yield subject
    files = {name: b"".join(line for line in TEXT.split(data) if not re.search(proof, line))
             if form_of(name) is TEXT else data for name, data in subject.files.items()}  # fmt: skip
    yield Subject(
        name=f"{subject.name}, without its proof", files=files, judge=subject.judge, telling=subject.telling,
        proves=subject.proves,
    )  # fmt: skip


def recipe(name: str, engine: str, **fields: Any) -> Recipe:
    """A recipe of a small run on CPU ranks, or as told."""
    small = {
        "gpus_per_node": 0, "model": {"layers": 2, "hidden_size": 64, "attention_heads": 4, "vocab_size": 128},
        "precision": "fp32", "optimizer": {"learning_rate": 1.0e-3}, "warm_up": {"steps": 5}, "time_limit": 5,
    }  # fmt: skip
    return validate(Recipe, {"name": name, "engine": engine, **small, **fields}, name)


@cache
def published() -> Mapping[str, Recipe]:
    """The recipes of the package."""
    return load_recipes([shipped("recipes")])


def runs(recipe: Recipe, system: str = "elsewhere", nodes: int = 1, gpus: int = 0, **more: Any) -> Runs:
    """What judges the logs of a run; of two CPU ranks, where nothing else is told."""
    shape = {"nodes": nodes, "gpus_per_node": gpus, "ranks_per_node": more.pop("ranks", gpus or 2)}
    return Runs(recipe, load_system(system, [shipped("systems")]), **shape, **more)


def data(*names: str) -> dict[str, bytes]:
    """Files of the project by their last name."""
    return {Path(name).name: (DATA / name).read_bytes() for name in names}


def sample(name: str) -> bytes | None:
    """A log of our own runs or a public sample; None where it is not here."""
    path = find(name)
    return path.read_bytes() if path else None

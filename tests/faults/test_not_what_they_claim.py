"""Runs of our own ranks that are not what they claim to be: a real training's logs, damaged in one way each."""

from __future__ import annotations

import json
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.cluster.replay import find_replays
from pytest_llmbench.cluster.replayer import Replayer
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipes import load_recipes
from pytest_llmbench.core.records import RunRecord
from tests.conftest import TINY, UserFolder

DAY_S = 86400.0
Event = dict[str, Any]
Damage = Callable[["Logs"], object]


@dataclass
class Logs:
    """The session of a real run, to be damaged: `tiny`, 12 steps of two CPU ranks."""

    session: Path

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.session / "runs" / "tiny"

    def path(self, rank: int) -> Path:
        """The step log of a rank."""
        return self.run / "steps" / f"rank-{rank:05d}.jsonl"

    def events(self, rank: int) -> list[Event]:
        """What a rank wrote."""
        return [json.loads(line) for line in self.path(rank).read_text().splitlines()]

    def write(self, rank: int, events: list[Event]) -> None:
        """Replace what a rank wrote."""
        self.path(rank).write_text("".join(json.dumps(event) + "\n" for event in events))

    def change(self, name: str, change: Callable[[Event], object], ranks: tuple[int, ...] = (0, 1)) -> None:
        """Change every event of one name; `change` returns what to replace of it."""
        for rank in ranks:
            events = self.events(rank)
            assert any(event["event"] == name for event in events)
            self.write(rank, [e | change(e) if e["event"] == name else e for e in events])  # type: ignore[operator]

    def judge(self, tmp_path: Path) -> RunRecord:
        """Judge the logs as a replay does."""
        settings = Settings(
            system=load_system("elsewhere", [shipped("systems")]), cluster="replay", replay=self.session
        )
        recipes = load_recipes([self.session.parent.parent / "recipes"])
        (spec,) = find_replays(self.session, recipes, settings).values()
        replayer = Replayer(settings, Session(id="judged", folder=tmp_path / "judged"))
        return replayer._record(spec, spec.replayed)  # type: ignore[arg-type]  # it has one

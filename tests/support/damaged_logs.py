"""The session of a real run, whose logs are damaged and then judged as a replay judges them."""

import json
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.system import load_system
from pytest_llmbench.core.errors import LLMBenchError
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.recipe.recipes import load_recipes
from pytest_llmbench.core.record.records import RunRecord, write_model
from pytest_llmbench.session.replay import as_replayed, find_replays, recount, replayed_record

Damaged = TypeVar("Damaged")


@dataclass
class RecordedLogs:
    """The session with its run `tiny`, and the folder of its recipe."""

    session: Path
    recipes: Path

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.session / "runs" / "tiny"

    def record(self, **changes: Any) -> None:
        """Change the run's record."""
        path = self.run / "record.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | changes))

    def judge(self) -> RunRecord:
        """Judge the logs as a replay does, beside a record that was made of them."""
        path, system = self.run / "record.json", load_system("elsewhere", [shipped("systems")])
        with suppress(LLMBenchError):
            record = RunRecord.read(path)
            again = recount(record.recipe, as_replayed(record, self.run), system)
            write_model(path, record.model_copy(update={**dict(again.outcome), "problem": None}))
        nodes = json.loads(path.read_text())["nodes"]
        settings = Settings(
            system=system, cluster="replay", allocation="session", run_dir=self.session, replay=self.session,
            nodes=nodes,
        )  # fmt: skip
        (spec,) = find_replays(self.session, load_recipes([self.recipes]), settings).values()
        assert spec.replayed is not None
        return replayed_record(spec, spec.replayed, settings, Session(id="again", folder=self.session))


def copy_of(session: Path, folder: Path) -> Path:
    """Copy a session without the files that would name each change of its record."""
    ignored = shutil.ignore_patterns("journal", "live.json", "verdicts.json", "job.json")
    return Path(shutil.copytree(session, folder, ignore=ignored))


def all_of(*damages: Callable[[Damaged], object]) -> Callable[[Damaged], object]:
    """Damage logs in several ways."""
    return lambda logs: [damage(logs) for damage in damages]

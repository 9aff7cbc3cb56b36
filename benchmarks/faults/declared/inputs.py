"""Input that is wrong or hostile, and files of a session that were altered before they are judged again."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import yaml

from benchmarks.faults.declared.ranks import error
from benchmarks.faults.judging import Expected
from benchmarks.faults.scenes import Fault, Struck
from pytest_llmbench.core.record.records import ProblemKind
from tests.conftest import TINY, UserFolder
from tests.faults.test_not_what_they_claim import DAMAGES, Logs


@dataclass
class LogsOf(Logs):
    """The logs of one of several runs."""

    key: str

    @property
    def run(self) -> Path:
        """The run's folder."""
        return self.session / "runs" / self.key


def damaged(name: str, done: str, kind: ProblemKind, damage: Callable[[Logs], object] | None = None) -> Fault:
    """Two healthy ranks, whose logs are damaged and judged again; by default by a damage of the tests."""
    damage = damage or DAMAGES[name.replace("-", " ")][0]
    return Fault(
        name=name.replace(" ", "-"), family="logs", scene="replayed", done=done, recipe={"nodes": 2},
        strike=lambda run: damage(LogsOf(run.session, run.user.path / "recipes", run.key)), expected=error(kind),
    )  # fmt: skip


def no_log(logs: Logs) -> None:
    """Rank 1 has written nothing."""
    logs.path(1).unlink()


def no_steps(logs: Logs) -> None:
    """Some steps of rank 1 are gone."""
    logs.write(1, [event for event in logs.events(1) if event.get("step") not in {4, 5}])


def cut(logs: Logs) -> None:
    """The log of rank 1 ends in the middle of a line."""
    logs.path(1).write_bytes(logs.path(1).read_bytes()[:-20])


def yaml_of(change: Callable[[str], str]) -> Callable[[UserFolder], None]:
    """Change the text of the recipe."""

    def prepare(user: UserFolder) -> None:
        for path in (user.path / "recipes").iterdir():
            path.write_text(change(path.read_text()))

    return prepare


def refused(
    name: str, done: str, prepare: Callable[[UserFolder], None], *told: str, damage: str = ""
) -> Fault:  # fmt: skip
    """Input that is refused before anything runs."""
    return Fault(
        name=name, family="input", scene="alone", done=done, prepare=prepare, damage=damage,
        expected=Expected(exit=4, verdict=None, told=told),
    )  # fmt: skip


def outside(user: UserFolder) -> None:
    """The recipe's name leads out of the folder."""
    text = yaml.safe_dump({"family": "out", "recipes": {"../../fault_out": dict(TINY)}})
    (user.path / "recipes" / "out.yaml").write_text(text)


def edit_record(run: Struck) -> None:
    """Say that it ran elsewhere."""
    path = run.run / "record.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"hosts": ["elsewhere", "nowhere"]}))


TAG = "!!python/object/apply:os.system [touch executed]"
# Nine lines that stand for a thousand million values.
BOMB = "a0: &a0 [x]\n" + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10))

FAULTS = [
    damaged("no-end-of-one-rank", "Rank 1 ends without the event that says so", "no_evidence_of_completion"),
    damaged("no-log-of-one-rank", "Rank 1 has no log", "ranks_missing", no_log),
    damaged("steps-gone", "Rank 1 did not log two of its steps", "steps_missing", no_steps),
    damaged("log-cut", "The log of rank 1 ends in the middle of its last line", "unreadable_log", cut),
    damaged("token-of-another-run", "The logs have the token of another run", "other_run"),
    damaged("a-day-before", "The logs are of the day before", "other_run"),
    damaged("one-rank-says-another-world", "Rank 1 says that there are four ranks", "wrong_ranks"),
    damaged("loss-of-one-rank-that-stands-still", "The loss of rank 1 stays the same", "no_training"),
    damaged("durations-halved", "All steps take half their time by their log", "implausible"),
    damaged("half-of-the-tokens", "Each step has half of the tokens by its log", "wrong_work"),
    damaged("a-file-too-many", "The folder has a step log too many", "restarted"),
    damaged("a-smaller-model", "The ranks count fewer parameters than the recipe has", "wrong_work"),
    Fault(
        name="record-altered", family="logs", scene="replayed", done="The record names other hosts",
        recipe={"nodes": 2}, strike=edit_record, expected=error("wrong_nodes", words=("elsewhere",)),
    ),
    refused("yaml-tag", "A recipe has `!!python/object/apply:os.system`",
            yaml_of(lambda text: text.replace("precision: fp32", f"precision: {TAG}")), "os.system", damage="executed"),
    refused("yaml-bomb", "A recipe is made of aliases of aliases",
            yaml_of(lambda text: text + BOMB), "aliases included"),
    refused("path-outside", "A recipe's name leads out of the folder", outside, "../../fault_out"),
    refused("unknown-key", "A recipe has a key that there is not",
            yaml_of(lambda text: text.replace("precision:", "precison:")), "precison"),
    refused("wrong-unit", "A threshold is in a unit of something else",
            yaml_of(lambda text: text.replace("0.01 nat", "1 %")), "1 % is a fraction; nat is for a loss"),
    Fault(
        name="unknown-engine", family="input", scene="alone", done="A recipe wants an engine that is not installed",
        recipe={"engine": "nonesuch"}, expected=Expected(exit=4, verdict=None, told=("nonesuch",)),
    ),
    Fault(
        name="impossible-batch", family="input", scene="alone", done="A batch cannot be divided among the ranks",
        recipe={"nodes": 2, "global_batch_size": 7},
        expected=error("impossible", words=("a global batch of 7 does not divide",)),
    ),
    Fault(
        name="fault-that-cannot-strike", family="input", scene="alone", options=("--llmbench-simulate", "die@1000"),
        done="`--llmbench-simulate` names a step that the recipe does not have",
        expected=error("not_struck", words=("can never strike",)),
    ),
]  # fmt: skip

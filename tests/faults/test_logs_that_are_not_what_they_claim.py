"""Framework logs that are not what they claim to be: those of a real session, damaged in one way each."""

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import TEST_REFERENCES, UserFolder, trained_in
from tests.support.damaged_logs import RecordedLogs, all_of, copy_of
from tests.support.standin import MegatronLM

Damage = Callable[["Logs"], object]
DAY_S = 86400.0


class Logs(RecordedLogs):
    """The session of a real run, to be damaged: `tiny`, thirty steps of two CPU ranks of Megatron-LM."""

    @property
    def output(self) -> Path:
        return self.run / "logs" / "output.log"

    @property
    def label(self) -> str:
        return self.output.read_text().partition("\n")[0]

    def edit(self, change: Callable[[str], str]) -> None:
        """Change what was printed; a change that changes nothing is a mistake."""
        before = self.output.read_text()
        after = change(before)
        assert after != before
        self.output.write_text(after)

    def put(self, line: str) -> None:
        """Put a line behind the first one."""
        self.edit(lambda text: text.replace("\n", f"\n{line}\n", 1))

    def unlabel(self) -> None:
        self.edit(lambda text: re.sub(r"#llmbench .* #\n", "", text))

    def forget(self) -> None:
        """As if the logs had been handed in alone: no record and no task of ours says whose they are."""
        self.record(run_token=None)
        path = self.run / "command.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | {"token": None}))


@pytest.fixture(scope="session")
def launched(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the session of a real launch, for all of these tests."""
    folder = tmp_path_factory.mktemp("launched")
    (folder / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\nllmbench_require_verdict = no\n")
    (folder / "test_user.py").write_text(TEST_REFERENCES)
    user: Any = UserFolder(pytester=cast("Any", None), path=folder)
    megatron = MegatronLM(user)
    megatron.install()
    megatron.recipe()
    return trained_in(folder, "--system", "here.yaml")


@pytest.fixture
def logs(launched: Path, tmp_path: Path) -> Logs:
    (session,) = (launched / "reports").glob("*-*")
    return Logs(copy_of(session, tmp_path / "session"), launched / "recipes")


def test_a_true_run_is_judged(logs: Logs) -> None:
    """Replayed as it was, the run is sane; so it is when only its log is handed in, with its label or without."""
    record = logs.judge()
    assert record.problem is None
    assert record.run_token is not None
    assert logs.label.startswith(f"#llmbench run={record.run_token} launched=")
    assert f" of=1 host={record.hosts[0]} #" in logs.label
    logs.forget()
    assert logs.judge().problem is None
    logs.unlabel()
    assert logs.judge().problem is None


def relabelled(text: str, **changes: str) -> str:
    for name, value in changes.items():
        text = re.sub(rf"(#llmbench .*?{name}=)\S+", rf"\g<1>{value}", text)
    return text


def another_day(text: str) -> str:
    return re.sub(r"launched=([\d.]+)", lambda at: f"launched={float(at[1]) - DAY_S:.3f}", text)


def copied(text: str, by: int = 15, first: int = 16) -> str:
    """From a step on, each line has the numbers of an earlier one, at its own time and with its own counts."""
    numbers = re.compile(r"(elapsed time per iteration \(ms\): \S+|lm loss: \S+|grad norm: \S+)")
    lines = {int(line[1]): line[0] for line in re.finditer(r"iteration +(\d+)/.*", text)}
    for step in range(first, first + by):
        own, other = numbers.split(lines[step]), numbers.split(lines[step - by])
        lines[step] = "".join(other[at] if at % 2 else piece for at, piece in enumerate(own))
    return re.sub(r"iteration +(\d+)/.*", lambda line: lines[int(line[1])], text)


DAMAGES: dict[str, tuple[Damage, str]] = {
    # whose log it is
    "no label": (lambda x: x.unlabel(), "other_run"),
    "label of another run": (lambda x: x.edit(lambda t: relabelled(t, run="llmbench:another/tiny")), "other_run"),
    "labels of two runs": (lambda x: x.put(relabelled(x.label, run="llmbench:another/tiny")), "other_run"),
    "labels of two runs, nothing recorded": (
        all_of(lambda x: x.put(relabelled(x.label, run="llmbench:another/tiny")), lambda x: x.forget()), "other_run"
    ),
    "labels of two launches": (lambda x: x.put(relabelled(x.label, launched="1700000000.000")), "other_run"),
    "label of another day": (lambda x: x.edit(another_day), "other_run"),
    "label that was cut": (lambda x: x.edit(lambda t: t.replace(" #\n", "\n", 1)), "other_run"),
    "record without its token": (all_of(lambda x: x.unlabel(), lambda x: x.record(run_token=None)), "other_run"),
    # steps that are others again
    "second half is the first": (lambda x: x.edit(copied), "implausible"),
    "a stretch is another": (lambda x: x.edit(lambda t: copied(t, 8, 11)), "implausible"),
    "learning rate of nothing": (
        lambda x: x.edit(lambda t: re.sub(r"learning rate: \S+", "learning rate: 0.000000E+00", t)), "no_training"
    ),
    "consumed samples of a later part": (
        lambda x: x.edit(lambda t: re.sub(r"(consumed samples: +)(\d+)", lambda m: f"{m[1]}{int(m[2]) + 800}", t)),
        "implausible",
    ),
    # the nodes of the run
    "label of another node": (lambda x: x.edit(lambda t: relabelled(t, host="elsewhere")), "wrong_nodes"),
    "label of a node too many": (lambda x: x.put(relabelled(x.label, host="elsewhere")), "wrong_nodes"),
    "another lease": (lambda x: x.record(hosts=["elsewhere"]), "wrong_nodes"),
    "a node of two is silent": (lambda x: x.edit(lambda t: relabelled(t, of="2")), "wrong_nodes"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_log_that_is_not_what_it_claims_is_an_error(logs: Logs, name: str) -> None:
    """One thing that a fault or a wrong option changes, and no number comes of it."""
    damage, kind = DAMAGES[name]
    damage(logs)
    record = logs.judge()
    assert record.problem is not None
    assert (record.problem.kind, record.metrics) == (kind, {}), record.problem.message


@pytest.mark.parametrize("given", ["{}.site.example", "{}"])
def test_names_of_one_host_are_one(logs: Logs, given: str) -> None:
    host = logs.judge().hosts[0].partition(".")[0]
    logs.record(hosts=[given.format(host)])
    assert logs.judge().problem is None

"""Runs of our own ranks that are not what they claim to be: a real training's logs, damaged in one way each."""

import json
import re
import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import TEST_REFERENCES, TINY, known, trained_in
from tests.support.damaged_logs import RecordedLogs, all_of, copy_of

DAY_S = 86400.0
STEPS = TINY["steps"]
Event = dict[str, Any]
Damage = Callable[["Logs"], object]


class Logs(RecordedLogs):
    """The session of a real run, to be damaged: `tiny`, eight steps of two CPU ranks."""

    def path(self, rank: int) -> Path:
        return self.run / "steps" / f"rank-{rank:05d}.jsonl"

    def events(self, rank: int) -> list[Event]:
        return [json.loads(line) for line in self.path(rank).read_text().splitlines()]

    def pairs(self) -> list[tuple[Event, Event]]:
        """What rank 1 wrote, each with what rank 0 did."""
        return list(zip(self.events(1), self.events(0), strict=True))

    def write(self, rank: int, events: list[Event]) -> None:
        self.path(rank).write_text("".join(json.dumps(event) + "\n" for event in events))

    def change(self, name: str, change: Callable[[Event], Event], ranks: tuple[int, ...] = (0, 1)) -> None:
        """Change every event of one name; `change` returns what to replace of it."""
        for rank in ranks:
            events = self.events(rank)
            assert any(event["event"] == name for event in events)
            self.write(rank, [e | change(e) if e["event"] == name else e for e in events])

    def start(self, ranks: tuple[int, ...] = (0, 1), **changes: Any) -> None:
        """Change how ranks introduce themselves."""
        self.change("start", lambda _: changes, ranks)

    def later(self, by_s: float, ranks: tuple[int, ...] = (0, 1)) -> None:
        for rank in ranks:
            moved = [
                event | {name: event[name] + by_s for name in ("time", "logged") if name in event}
                for event in self.events(rank)
            ]
            self.write(rank, moved)

    def copy(self, **changes: Any) -> None:
        """Put the log of rank 0 in the place of rank 1's, with changes to how it introduces itself."""
        self.write(1, [e | {"rank": 1, **changes} if e["event"] == "start" else e for e in self.events(0)])


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A user's folder with the session of a real training of two CPU ranks, for all of these tests."""
    folder = tmp_path_factory.mktemp("trained")
    (folder / "recipes").mkdir()
    (folder / "pytest.ini").write_text("[pytest]\nllmbench_recipes = recipes\nllmbench_require_verdict = no\n")
    (folder / "recipes" / "tiny.yaml").write_text(json.dumps({"family": "tiny", "recipes": {"tiny": {**TINY}}}))
    (folder / "test_user.py").write_text(TEST_REFERENCES)
    return trained_in(folder, "--cluster", "local")


@pytest.fixture
def logs(trained: Path, tmp_path: Path, unigram: None) -> Logs:
    (session,) = (trained / "reports").glob("*-*")
    return Logs(copy_of(session, tmp_path / "session"), trained / "recipes")


def test_a_true_run_is_judged(logs: Logs) -> None:
    """Replayed as it was, with all its evidence, the run is sane; so is it when only its logs are handed in."""
    record = logs.judge()
    assert record.problem is None
    assert record.metrics["loss_drop"].value > 0
    assert record.findings == ()
    assert {info.token for info in record.rank_info} == {record.run_token}
    logs.record(run_token=None, hosts=[])
    assert "run_token: it has " in str(logs.judge().problem)
    (logs.run / "task.json").unlink()
    assert logs.judge().problem is None


def stretch(events: list[Event], share: float) -> list[Event]:
    """Make a rank's steps take another time by durations and time stamps, but not by the host's clock."""
    began = next(event["time"] - event["seconds"] for event in events if event["event"] == "step")
    return [
        event | {"seconds": share * event["seconds"], "time": began + share * (event["time"] - began)}
        if event["event"] == "step"
        else event
        for event in events
    ]


def splice(logs: Logs) -> None:
    """The second half of the steps is from a run a minute later."""
    for rank in (0, 1):
        events = logs.events(rank)
        late = [
            event | {name: event[name] + 60 for name in ("time", "logged") if name in event}
            if event["event"] == "end" or event.get("step", 0) > STEPS // 2
            else event
            for event in events
        ]
        logs.write(rank, late)


def resume(logs: Logs) -> None:
    """A rank died, and what began again wrote the rest into a second file."""
    events = logs.events(1)
    half = len(events) // 2
    logs.write(1, events[:half])
    (logs.run / "steps" / "rank-00001-1.jsonl").write_text("".join(json.dumps(e) + "\n" for e in events[half:]))


def resume_in_one(logs: Logs) -> None:
    """The same in one file, with a second introduction."""
    events = logs.events(1)
    half = len(events) // 2
    logs.write(1, [*events[:half], events[0], *events[half:]])


def rank_too_many(logs: Logs) -> None:
    start, *rest = logs.events(1)
    logs.write(2, [start | {"rank": 2, "local_rank": 2, "pid": 3}, *rest])


def idle(logs: Logs) -> None:
    """The ranks take as long again, and longer, after their last step."""
    logs.change("end", lambda e: {"time": e["time"] + 20})


def test_time_outside_of_steps_is_said(logs: Logs) -> None:
    idle(logs)
    record = logs.judge()
    assert record.problem is None
    assert record.outside_steps["around_s"] > 20
    assert "was outside of steps" in record.findings[0]


def forget_task(logs: Logs) -> None:
    (logs.run / "task.json").unlink(missing_ok=True)


def on_gpus(gpus: tuple[str, str], nodes: int = 1, watched: str | None = None) -> Damage:
    """The ranks trained on these GPUs, of one host or of two, and rank 0 watched one."""

    def damage(logs: Logs) -> None:
        for rank, gpu in enumerate(gpus):
            place = {"host": f"n{rank}", "node": None, "local_rank": 0} if nodes == 2 else {}
            logs.start((rank,), gpu=gpu, device="NVIDIA H200", **place)
            kind = {
                "event": "telemetry", "gpu": watched if watched and not rank else gpu, "period_s": 0.5, "trouble": None,
            }  # fmt: skip
            start, *rest = logs.events(rank)
            logs.write(rank, [start, kind, *rest])
        forget_task(logs)
        hosts = {"hosts": ["n0", "n1"]} if nodes == 2 else {}
        logs.record(gpus=2, nodes=nodes, device="NVIDIA H200", rank_info=[], **hosts)

    return damage


@pytest.mark.parametrize("nodes", [1, 2])
def test_two_gpus_are_two(logs: Logs, nodes: int) -> None:
    """Each rank has a GPU of its own, on one host or on two."""
    on_gpus(("GPU-0", "GPU-1"), nodes)(logs)
    record = logs.judge()
    assert record.problem is None, record.problem
    assert record.gpus == 2


def copied_steps(ranks: tuple[int, ...]) -> Damage:
    """The second half of the steps of ranks is the first half again, at times that go on."""

    def damage(logs: Logs) -> None:
        for rank in ranks:
            events = logs.events(rank)
            steps = {event["step"]: event for event in events if event["event"] == "step"}
            half, ended = STEPS // 2, steps[STEPS // 2]["time"]
            for step in range(half + 1, STEPS + 1):
                before = steps[step - half]
                ended += before["seconds"]
                same = {name: before[name] for name in ("seconds", "loss", "grad_norm")}
                steps[step] |= {**same, "time": ended, "logged": ended + 1e-3}
            logs.write(rank, [steps[e["step"]] if e["event"] == "step" else e for e in events])

    return damage


def less_memory(event: Event) -> Event:
    """From the sixth step on, the highest memory so far is what half of it was."""
    return {"peak_memory_bytes": event["peak_memory_bytes"] // (1 + (event["step"] > 5))}


DAMAGES: dict[str, tuple[Damage, str]] = {
    "one rank of another minute": (lambda x: x.later(60, (1,)), "other_run"),
    "memory of a smaller model": (
        lambda x: x.change("step", lambda _: {"peak_memory_bytes": 100}, (1,)), "wrong_work"
    ),
    # GPUs
    "two ranks on one GPU": (on_gpus(("GPU-0", "GPU-0")), "same_rank"),
    "one GPU on two hosts": (on_gpus(("GPU-0", "GPU-0"), nodes=2), "same_rank"),
    "a rank that does not name its GPU": (
        all_of(on_gpus(("GPU-0", "GPU-1")), lambda x: x.start((1,), gpu=None)), "wrong_ranks"
    ),
    "a rank that watched another GPU": (on_gpus(("GPU-0", "GPU-1"), watched="GPU-7"), "wrong_hardware"),
    "two ranks that watched one GPU": (on_gpus(("GPU-0", "GPU-1"), watched="GPU-1"), "same_rank"),
    # steps that are others again
    "second half is the first": (copied_steps((0, 1)), "implausible"),
    "second half of one rank is its first": (copied_steps((1,)), "ranks_differ"),
    "highest memory that falls": (lambda x: x.change("step", less_memory, (1,)), "implausible"),
    "gradient norm that stands still": (lambda x: x.change("step", lambda _: {"grad_norm": 1.5}), "no_training"),
    # ranks
    "one log copied": (lambda x: x.copy(), "wrong_ranks"),
    "one log copied, other local rank": (lambda x: x.copy(local_rank=1), "same_rank"),
    "one log copied, other process": (lambda x: x.copy(local_rank=1, pid=1), "same_rank"),
    "one log copied, other process, moved": (
        all_of(lambda x: x.copy(local_rank=1, pid=1), lambda x: x.later(1e-3, (1,))), "same_rank"
    ),
    "same process": (lambda x: x.start(pid=7, pid_namespace=1), "same_rank"),
    "same data on both ranks": (
        lambda x: x.write(1, [e | ({"loss": o["loss"]} if "loss" in o else {}) for e, o in x.pairs()]),
        "same_rank",
    ),
    "each rank alone in its world": (lambda x: x.start(world_size=1), "wrong_ranks"),
    "one rank says another world": (lambda x: x.start((1,), world_size=4), "wrong_ranks"),
    "a rank too many": (rank_too_many, "wrong_ranks"),
    "same local rank": (lambda x: x.start(local_rank=0), "wrong_ranks"),
    "local rank of a larger node": (lambda x: x.start((1,), local_rank=2), "wrong_ranks"),
    "other host": (lambda x: x.start(host="elsewhere", node=None), "wrong_nodes"),
    "one rank on another host": (lambda x: x.start((1,), host="elsewhere", node=None), "wrong_nodes"),
    "other lease": (lambda x: x.record(hosts=["elsewhere"]), "wrong_nodes"),
    "another device": (lambda x: x.start((1,), device="NVIDIA H200"), "wrong_hardware"),
    "token of another run": (lambda x: x.start(token="llmbench:another/tiny"), "other_run"),
    "token of another run on one rank": (lambda x: x.start((1,), token="llmbench:another/tiny"), "other_run"),
    "no token": (lambda x: x.start(token=None), "other_run"),
    "half of another run, nothing recorded": (
        all_of(
            lambda x: x.start((1,), token="llmbench:another/tiny"),
            lambda x: x.record(run_token=None),
            forget_task,
        ), "other_run"
    ),
    "step log of another schema": (lambda x: x.change("start", lambda _: {"schema": 2}), "unreadable_log"),
    "start without time and namespace": (
        lambda x: x.change("start", lambda _: {"token": None, "time": None, "pid_namespace": None}), "unreadable_log"
    ),
    "a day before": (lambda x: x.later(-DAY_S), "other_run"),
    "a day after": (lambda x: x.later(DAY_S), "other_run"),
    "one rank of another day": (lambda x: x.later(DAY_S, (1,)), "other_run"),
    "ten minutes before": (lambda x: x.later(-600), "other_run"),
    # steps and clocks
    "steps before the start": (lambda x: x.change("start", lambda e: {"time": e["time"] + 100}), "other_run"),
    "ended before its last step": (lambda x: x.change("end", lambda e: {"time": e["time"] - 100}), "other_run"),
    "end event with fewer steps": (lambda x: x.change("end", lambda _: {"steps": STEPS - 1}), "steps_missing"),
    "end event with more steps on one rank": (
        lambda x: x.change("end", lambda _: {"steps": STEPS + 1}, (1,)), "steps_missing"
    ),
    "no end of one rank": (lambda x: x.write(1, x.events(1)[:-1]), "no_evidence_of_completion"),
    "steps after the end": (lambda x: x.write(1, [*x.events(1), x.events(1)[-3]]), "unreadable_log"),
    "durations halved": (lambda x: x.change("step", lambda e: {"seconds": 0.5 * e["seconds"]}), "implausible"),
    "durations 5 % shorter": (lambda x: x.change("step", lambda e: {"seconds": 0.95 * e["seconds"]}), "implausible"),
    "durations of one rank halved": (
        lambda x: x.change("step", lambda e: {"seconds": 0.5 * e["seconds"]}, (1,)), "implausible"
    ),
    "one duration halved": (
        lambda x: x.change("step", lambda e: {"seconds": e["seconds"] / (2 if e["step"] == 5 else 1)}), "implausible"
    ),
    "pauses between the steps": (
        all_of(
            lambda x: x.change("step", lambda e: {name: e[name] + e["step"] for name in ("time", "logged")}),
            lambda x: x.change("end", lambda e: {"time": e["time"] + STEPS}),
        ),
        "implausible",
    ),
    "two runs spliced": (splice, "implausible"),
    "resumed in a second file": (resume, "restarted"),
    "resumed in one file": (resume_in_one, "unreadable_log"),
    # work
    "nothing is said of the training": (
        lambda x: x.write(1, [e for e in x.events(1) if e["event"] != "training"]), "wrong_work"
    ),
    "two layers in place of one": (lambda x: x.change("training", lambda _: {"layers": 2}), "wrong_work"),
    "a smaller model": (
        lambda x: x.change("training", lambda e: {"parameters": e["parameters"] - 32}), "wrong_work"
    ),
    "a larger model on one rank": (
        lambda x: x.change("training", lambda e: {"parameters": e["parameters"] + 32}, (1,)), "wrong_work"
    ),
    "half sequences": (lambda x: x.change("training", lambda _: {"sequence_length": 16}), "wrong_work"),
    "sequences of several lengths": (
        lambda x: x.change("training", lambda _: {"sequence_length": None}, (1,)), "wrong_work"
    ),
    "another micro batch": (lambda x: x.change("training", lambda _: {"micro_batch_size": 4}), "wrong_work"),
    "another precision": (lambda x: x.change("training", lambda _: {"precision": "bf16"}), "wrong_work"),
    "each rank in a group of its own": (lambda x: x.change("training", lambda _: {"world_size": 1}), "wrong_work"),
    "tensor parallel": (
        lambda x: x.change("training", lambda e: {"tensor": 2, "tensor_rank": e["copy_rank"], "copy_rank": 0}),
        "wrong_work",
    ),
    "one copy twice": (lambda x: x.change("training", lambda _: {"copy_rank": 0}), "wrong_work"),
    "half of the tokens": (lambda x: x.change("step", lambda e: {"tokens": e["tokens"] // 2}), "wrong_work"),
    "half of the sequences on one rank": (
        lambda x: x.change("step", lambda e: {"samples": e["samples"] // 2}, (1,)), "wrong_work"
    ),
    # losses
    "loss that stands still": (lambda x: x.change("step", lambda _: {"loss": 4.7}), "same_rank"),
    "loss of one rank that stands still": (lambda x: x.change("step", lambda _: {"loss": 4.7}, (1,)), "no_training"),
    "loss that stands still from the third step on": (
        lambda x: x.change("step", lambda e: {"loss": 4.7 if e["step"] > 2 else e["loss"]}, (0,)), "no_training"
    ),
    "gradient norm of nothing": (lambda x: x.change("step", lambda _: {"grad_norm": 0.0}), "no_training"),
    "gradient norm of nothing but for the first": (
        lambda x: x.change("step", lambda e: {"grad_norm": e["grad_norm"] if e["step"] == 1 else 0.0}), "no_training"
    ),
    "loss that falls to nothing": (
        lambda x: x.change("step", lambda e: {"loss": e["loss"] / e["step"] ** 2}), "implausible"
    ),
    "loss of a model that knows": (lambda x: x.change("step", lambda e: {"loss": e["loss"] - 1}), "implausible"),
    "loss of another vocabulary": (lambda x: x.change("step", lambda e: {"loss": e["loss"] + 1}), "implausible"),
    "a rank whose losses are others": (
        lambda x: x.change("step", lambda e: {"loss": e["loss"] + 4 * (e["step"] > 6)}, (1,)), "ranks_differ"
    ),
    "each rank with a gradient of its own": (
        lambda x: x.change("step", lambda e: {"grad_norm": 1.1 * e["grad_norm"]}, (1,)), "ranks_differ"
    ),
    "a file too many": (
        lambda x: (x.run / "steps" / "rank-00001.jsonl.1").write_text(x.path(1).read_text()), "restarted"
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGES)
def test_a_run_that_is_not_what_it_claims_is_an_error(logs: Logs, name: str) -> None:
    """One thing that a fault or a wrong option changes in the logs, and no number comes of them."""
    damage, kind = DAMAGES[name]
    damage(logs)
    record = logs.judge()
    assert record.problem is not None
    assert (record.problem.kind, record.metrics) == (kind, {}), record.problem.message


def test_losses_that_all_ranks_throw_up_need_not_be_alike(logs: Logs) -> None:
    """As Llama 3.1 8B on four GPUs in its third step, which became one model."""
    for rank, thrown in enumerate((2.0, 0.6)):
        events = logs.events(rank)
        next(event for event in events if event.get("step") == 2)["loss"] += thrown
        logs.write(rank, events)
    assert logs.judge().problem is None


def at_a_second_each(events: list[Event], rank: int) -> list[Event]:
    """Give every step of a rank a second, so that a busy machine does not matter."""
    second, first = 1 + 1e-6 * rank, events[0]["time"] + 1
    times = [{"seconds": second, "time": first + n * second, "logged": first + n * second + 1e-3} for n in range(1, 9)]
    steps = [event | times[event["step"] - 1] if event["event"] == "step" else event for event in events]
    return [*steps[:-1], steps[-1] | {"time": first + 10}]


def test_durations_by_a_slow_clock_are_found_by_the_hosts(logs: Logs) -> None:
    """Durations and stamps that agree with each other, at half of the true time, contradict the host's clock."""
    for rank in (0, 1):
        logs.write(rank, at_a_second_each(logs.events(rank), rank))
    logs.record(timings={}, made_by=None)
    assert logs.judge().problem is None
    for rank in (0, 1):
        logs.write(rank, stretch(logs.events(rank), 0.5))
    problem = known(logs.judge().problem)
    assert "by the host's clock" in problem.message


@pytest.mark.parametrize("share", [0.5, 0.75, 0.94])
@pytest.mark.parametrize("counted", [("cpu_s", "phases"), ("cpu_s", "ran_s", "delayed_s")])
def test_scaled_times_are_found_by_what_the_host_counted(logs: Logs, share: float, counted: tuple[str, ...]) -> None:
    """Durations, stamps and the clock of the lines are scaled alike, and whatever else the log has but these counts."""
    for rank in (0, 1):
        events = at_a_second_each(logs.events(rank), rank)
        for event in (event for event in events if event["event"] == "step"):
            event["spent"] |= {"phases": {"forward": 0.9, "sync": 0.1}, "ran_s": 0.6, "delayed_s": 0.4, "cpu_s": 1.9}
        logs.write(rank, events)
    logs.record(timings={}, made_by=None)
    assert logs.judge().problem is None
    for rank in (0, 1):
        began = next(e["time"] - e["seconds"] for e in logs.events(rank) if e["event"] == "step")
        scaled = stretch(logs.events(rank), share)
        for event in (event for event in scaled if event["event"] == "step"):
            event["logged"] = began + share * (event["logged"] - began)
            spent = {**event["spent"], "phases": {n: share * s for n, s in event["spent"]["phases"].items()}}
            spent |= {name: share * spent[name] for name in ("cpu_s", "ran_s", "delayed_s")}
            event["spent"] = spent | {name: event["spent"][name] for name in counted}
        logs.write(rank, scaled)
    problem = known(logs.judge().problem)
    assert re.search(r"add up to \d+\.?\d* % of the duration of a typical step", problem.message)


@pytest.mark.parametrize(("host", "node", "given"), [
    ("n1.site.example", None, "n1"),
    ("n1", None, "n1.site.example"),
    ("N1", None, "n1"),
    ("a6f0c2", "n1", "n1"),  # a container
    (socket.gethostname(), "n1", socket.gethostname()),  # this machine, inside a job of Slurm
    ("10.0.0.1", None, "10.0.0.1"),
])  # fmt: skip
def test_names_of_one_host_are_one(logs: Logs, host: str, node: str | None, given: str) -> None:
    logs.start(host=host, node=node)
    logs.record(hosts=[given])
    assert logs.judge().problem is None


def test_processes_of_two_containers_may_have_the_same_number(logs: Logs) -> None:
    logs.start((0,), pid=7, pid_namespace=1)
    logs.start((1,), pid=7, pid_namespace=2)
    assert logs.judge().problem is None

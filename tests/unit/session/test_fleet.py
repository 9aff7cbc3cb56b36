"""A fleet of this machine, with real ranks through submitit: every rank has exactly one answer."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from pytest_llmbench.checks.base import Answer, Probe
from pytest_llmbench.cluster.heartbeat import Heartbeat
from pytest_llmbench.cluster.jobs import FinishedJob, Job
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings
from pytest_llmbench.cluster.slurm.queue import Slurm
from pytest_llmbench.cluster.system import System
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import write_text
from pytest_llmbench.session.launch import Launcher, LostNodes
from pytest_llmbench.session.nodes.validation import HeldFleet, make_answers
from tests.support.fleet import cpu_site

ROOT = Path(__file__).parents[3]


@pytest.fixture
def fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> HeldFleet:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    system = System(name="here", cluster="local", gpus_per_node=0)
    settings = Settings(system=system, cluster="local", allocation="session", run_dir=tmp_path)
    session = Session(id="s", folder=tmp_path / "s")
    heartbeat = Heartbeat(session.folder)
    write_text(heartbeat.path, "0\n")
    lost = LostNodes(settings, session, print)
    launcher = Launcher(settings, session, heartbeat, Slurm(), lambda *_, **__: None, lost)
    return HeldFleet(
        cpu_site(1), ("here",), tmp_path / "s" / "checks" / "x", look=lambda: None, remembered={}, unreachable={},
        start=lambda probe, folder, hosts: launcher.start_probe(probe, folder, hosts, None),
    )  # fmt: skip


def probe(**deeds: str) -> Probe:
    config = {name.removeprefix("rank"): deed for name, deed in deeds.items()}
    return Probe(name="behave", entry="tests.support.probes:behave", config=config, ranks_per_node=3, deadline_s=60)


def test_every_rank_answers_whatever_becomes_of_it(fleet: HeldFleet) -> None:
    (answers, (empty, *_)) = fleet.run([probe(rank0="raise", rank1="die"), probe(rank0="nothing")])
    assert (empty.data, str(empty.why).partition(":")[0]) == (None, "its answer is empty")
    assert [answer.rank for answer in answers] == [0, 1, 2]
    assert answers[0].why == "ValueError: no such luck at all"
    assert answers[1].why is not None
    assert answers[1].why.startswith("died in phase `about to die`")
    assert answers[2].data is not None
    assert answers[2].data["rank"] == 2


def test_a_hang_names_the_rank_and_the_phase_and_is_ended(fleet: HeldFleet) -> None:
    """The others have answered by then; a number that is no number is no answer."""
    hangs = Probe(
        name="behave", entry="tests.support.probes:behave", config={"0": "hang", "1": "nan"}, ranks_per_node=3,
        deadline_s=15,
    )  # fmt: skip
    (answers,) = fleet.run([hangs])
    assert answers[0].why == "hangs in phase `about to hang`: no answer within 15 s"
    assert "JSON compliant" in str(answers[1].why)
    assert answers[2].data is not None
    assert not list(Path("/proc").glob(f"{answers[2].data['pid']}/task"))


@pytest.mark.parametrize(("first", "second", "names"), [
    ("n2", "n1", ["n2", "n1"]), ("n1.site", "n2", ["n1", "n2"]), ("n2", "n2", ["n1", "n2"]), ("n2", None, ["n1", "n2"]),
])  # fmt: skip
def test_each_node_has_an_answer_whatever_it_calls_itself(first: str, second: str | None, names: list[str]) -> None:
    """A finding about a name that no node of the session has would be lost, and its node pass."""
    contents = [{"host": host, "data": 1} if host is not None else {"why": "died"} for host in (first, second)]
    answers = make_answers(contents, ["n1", "n2"], 1)
    assert [answer.host for answer in answers] == names
    assert all((answer.data is None) == (answer.why is not None) for answer in answers)


def test_a_shared_probe_runs_once(fleet: HeldFleet) -> None:
    first, again, other = fleet.once(probe()), fleet.once(probe()), fleet.once(probe(rank0="raise"))
    assert first == again
    assert other[0].data is None
    assert len(fleet.commands) == 2


def test_a_node_that_is_left_out_later_keeps_the_answers_of_the_others(tmp_path: Path) -> None:
    """Counters that were read before a load must not be read anew because the load made a node unfit."""
    start, remembered = Node(), dict[str, tuple[float, list[tuple[str, Answer]]]]()
    shared = Probe(name="p", entry="a:b", deadline_s=5)
    for hosts in (("n1", "n3"), ("n3",)):
        fleet = HeldFleet(
            cpu_site(3), hosts, tmp_path, start=start.start, look=lambda: None, remembered=remembered, unreachable={}
        )
        assert [answer.host for answer in fleet.once(shared)] == [*hosts]
    assert fleet.shared_s == remembered.popitem()[1][0] > 0.0  # the second check took as long, by its record
    assert start.asked == [("n1", "n3")]


class Node:
    """Nodes of which one cannot be reached: nothing starts anywhere when it is among them."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, ...]] = []

    def start(self, _probe: Probe, folder: Path, hosts: Sequence[str]) -> Job:
        self.asked.append(tuple(hosts))
        if "n2" not in hosts:
            for rank, host in enumerate(hosts):
                name = f"rank-{rank:05d}"
                write_text(folder / "phase" / name, f"{host} done")
                write_text(
                    folder / "answers" / f"{name}.json", f'{{"host": "{host}", "data": {{"pid": {os.getpid()}}}}}'
                )
        return FinishedJob("x", "x", None)


def held(start: Node, unreachable: dict[str, str], folder: Path) -> HeldFleet:
    return HeldFleet(
        cpu_site(3), ("n1", "n2", "n3"), folder, start=start.start, look=lambda: None, remembered={},
        unreachable=unreachable,
    )  # fmt: skip


def answers_of(fleet: HeldFleet, *, together: bool) -> list[Answer]:
    return fleet.run([Probe(name="p", entry="a:b", deadline_s=5, together=together)])[0]


def test_a_node_that_cannot_be_reached_keeps_nobody_from_answering(tmp_path: Path) -> None:
    """The launcher starts nothing when one node does not answer: the others are asked by themselves."""
    node, unreachable = Node(), dict[str, str]()
    answers = answers_of(held(node, unreachable, tmp_path), together=False)
    assert [answer.data is not None for answer in answers] == [True, False, True]
    assert [answer.host for answer in answers] == ["n1", "n2", "n3"]
    assert list(unreachable) == ["n2"]
    assert node.asked == [("n1", "n2", "n3"), ("n1",), ("n2",), ("n3",)]


def test_ranks_that_talk_to_each_other_are_not_asked_apart(tmp_path: Path) -> None:
    node = Node()
    answers = answers_of(held(node, {}, tmp_path), together=True)
    assert all(answer.why is not None and answer.why.startswith("never started") for answer in answers)
    assert node.asked == [("n1", "n2", "n3")]


def test_the_end_of_the_session_ends_the_probes(tmp_path: Path) -> None:
    def over() -> None:
        raise ClusterError("the session ended")

    fleet = HeldFleet(
        cpu_site(1), ("n1",), tmp_path, start=Node().start, look=over, remembered={}, unreachable={}
    )  # fmt: skip
    with pytest.raises(ClusterError, match="session ended"):
        fleet.run([Probe(name="p", entry="a:b", deadline_s=5)])

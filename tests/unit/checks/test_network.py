"""Network checks: on real processes, one of which dies and one of which is slow, and on a stand-in for all else.

The stand-in computes what ranks would answer; `test_real_pairs` proves that real ones answer in the same words.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import Answer, CheckSettings, Probe, Site, get_check
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.recipe.topology import Places
from pytest_llmbench.core.record.health import Report, Severity
from pytest_llmbench.core.wire.machine import MachineFacts
from tests.support.fleet import ProcessFleet, cpu_site
from tests.support.hardware import node
from tests.support.nccl import lines
from tests.support.references import reference

Members = list[tuple[str, int]]
GAME = {"bytes": 2**32, "seconds": 1e-3, "busbw": 10.0, "latency_s": 1e-5, "wrong": 0}


def rate(busbw: float) -> dict[str, Any]:
    return {**GAME, "busbw": busbw}


@dataclass
class StandIn:
    """A fleet whose answers are computed."""

    site: Site
    hosts: tuple[str, ...]
    game: Callable[[Members], Mapping[str, Any]]  # answers of a group's ranks, given their hosts and local ranks
    dead: frozenset[str] = frozenset()  # nodes that give no answer
    folder: Path = Path()
    asked: list[Probe] = field(default_factory=list)
    machine: MachineFacts | None = None  # hardware of every node; None gives no answer
    # How NCCL's lines differ from those of a healthy machine, or None for no lines.
    nccl: Mapping[str, Any] | None = field(default_factory=dict)

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        return [self._answers(probe) for probe in probes]

    def once(self, probe: Probe) -> list[Answer]:
        return self.run([probe])[0]

    def _answers(self, probe: Probe) -> list[Answer]:
        self.asked.append(probe)
        if probe.name == "machine":
            facts = self.machine.model_dump(mode="json") if self.machine else None
            why = None if facts else "none"
            return [
                Answer(host=host, rank=rank, local_rank=0, data=facts, why=why) for rank, host in enumerate(self.hosts)
            ]
        hosts, per_node = probe.hosts or self.hosts, probe.ranks_per_node
        games: dict[int, list[dict[str, Any]]] = {rank: [] for rank in range(len(hosts) * per_node)}
        for number, groups in enumerate(probe.config["rounds"]):
            for index, ranks in enumerate(groups):
                members = [(hosts[rank // per_node], rank % per_node) for rank in ranks]
                missing = [rank for rank in ranks if hosts[rank // per_node] in self.dead]
                told = {"missing": missing} if missing else self.game(members)
                told = {"measured": told} if "busbw" in told else told
                for rank in ranks:
                    games[rank].append({"round": number, "group": index, **told})
        answers = [self._answer(rank, hosts[rank // per_node], rank % per_node, told) for rank, told in games.items()]
        alone = len(probe.config["rounds"][0][0]) == per_node
        return [self._add_nccl(answer, alone) for answer in answers] if probe.config.get("nccl") else answers

    def _add_nccl(self, answer: Answer, alone: bool) -> Answer:
        group = (answer.host,) if alone else (answer.host, "other")
        printed = [] if self.nccl is None else lines(group, self.site.gpus_per_node, **self.nccl)
        own = [line for line in printed if line.startswith(answer.host)]
        said = {"lines": own, "variables": {}}
        return replace(answer, data={**answer.data, "nccl": said} if answer.data is not None else None)

    def _answer(self, rank: int, host: str, local_rank: int, games: list[dict[str, Any]]) -> Answer:
        if host in self.dead:
            return Answer(host=host, rank=rank, local_rank=local_rank, data=None, why="died in phase `round 1`")
        data = {"device": self.site.gpu_model or "cpu", "games": games, "stopped": None}
        return Answer(host=host, rank=rank, local_rank=local_rank, data=data)


def gpu_site(nodes: int, **changes: Any) -> Site:
    return replace(Site(system="test", nodes=nodes, gpus_per_node=4, gpu_model="NVIDIA X1"), **changes)


def names(count: int) -> tuple[str, ...]:
    return tuple(f"n{number}" for number in range(count))


def fleet_of(count: int, game: Callable[[Members], Mapping[str, Any]], **changes: Any) -> StandIn:
    """Nodes with four GPUs each; `changes` are of the stand-in or of its site."""
    own = {name: changes.pop(name) for name in ("dead", "machine", "nccl") if name in changes}
    return StandIn(gpu_site(count, **changes), names(count), game, **own)


def hosts_of(members: Members) -> set[str]:
    return {host for host, _ in members}


def slow(*hosts: str) -> Callable[[Members], Mapping[str, Any]]:
    return lambda members: rate(5.0 if hosts_of(members) & set(hosts) else 10.0)


def check(
    name: str, fleet: StandIn | ProcessFleet, *, references: tuple[Reference, ...] = (), **options: Any
) -> Report:
    return get_check(name).run(fleet, CheckSettings(options=options, references=references))


def told(report: Report) -> list[tuple[str | None, str]]:
    return [(finding.host, finding.kind) for finding in report.findings]


@pytest.mark.parametrize("count", [3, 4, 7, 40])
def test_the_slow_node_is_named_with_its_numbers(count: int) -> None:
    """Out of an even or an odd number of nodes, and its partners are not."""
    report = check("pairs", fleet_of(count, slow("n2")))
    assert told(report) == [("n2", "slow_node")]
    finding = report.findings[0]
    assert finding.severity is Severity.ISOLATE
    assert (finding.measured, finding.threshold) == ("5 GB/s", ">= 9 GB/s")
    assert "with good nodes again: with n" in finding.message
    assert not report.unjudged
    medians = {each.host: each.value for each in report.readings if each.statistic == "pair_busbw_median"}
    # With two others, half of a good node's pairs are those with the bad one.
    assert medians == {host: 5.0 if host == "n2" else 10.0 if count > 3 else 7.5 for host in names(count)}


def test_all_is_well() -> None:
    report = check("pairs", fleet_of(4, slow()))
    assert not report.findings
    assert not report.unjudged
    count = {each.statistic: 0 for each in report.readings}
    for each in report.readings:
        count[each.statistic] += 1
        assert get_check("pairs").statistics[each.statistic] == each.unit
    assert count == {"pair_busbw": 6, "pair_busbw_median": 4, "pair_latency_median": 4, "group_busbw": 1}
    assert report.evidence["pairs"] == 6
    assert report.notes == (
        "no reference for pair_busbw: nodes are compared with each other alone",
        "no reference for group_busbw of 4 nodes: all of them together only have to work",
    )


def test_two_nodes_below_their_reference_are_both_without_verdict() -> None:
    bound = reference("pair_busbw", "20 GB/s", nodes=2)
    report = check("pairs", fleet_of(2, slow()), references=(bound,))
    assert set(report.unjudged) == {"n0", "n1"}
    assert not report.findings
    unbound = check("pairs", fleet_of(2, slow()))
    assert not unbound.unjudged
    assert "their pair works" in unbound.notes[1]


def test_a_reference_finds_a_slow_majority_and_comparison_says_that_it_may_be() -> None:
    fleet = fleet_of(8, slow(*names(5)))
    bound = reference("pair_busbw", "9 GB/s", nodes=2)
    assert {host for host, _ in told(check("pairs", fleet, references=(bound,)))} == set(names(5))
    report = check("pairs", fleet)
    assert not any(finding.severity.fails for finding in report.findings)
    assert set(told(report)) == {(host, "uneven") for host in names(5)}
    assert "set a reference for pair_busbw" in report.findings[0].action


def test_a_slow_link_is_told_of_both_ends_and_fails_neither() -> None:
    report = check("pairs", fleet_of(6, lambda members: rate(5.0 if hosts_of(members) == {"n1", "n3"} else 10.0)))
    assert set(told(report)) == {("n1", "slow_link"), ("n3", "slow_link")}
    assert not any(finding.severity.fails for finding in report.findings)


@pytest.mark.parametrize(
    ("game", "kind"), [({**GAME, "wrong": 3}, "wrong_values"), ({"error": "RuntimeError: reset"}, "failing_node")]
)
def test_a_node_whose_pairs_fail_is_named_by_how_they_fail(game: Mapping[str, Any], kind: str) -> None:
    report = check("pairs", fleet_of(5, lambda members: game if "n1" in hosts_of(members) else GAME))
    assert told(report) == [("n1", kind)]
    assert "n0 - n1" not in {each.subject for each in report.readings}


def test_a_wrong_sum_that_does_not_happen_again_is_no_pass() -> None:
    """Neither node of the pair passes."""
    seen: list[bool] = []

    def once(members: Members) -> Mapping[str, Any]:
        hit = hosts_of(members) == {"n0", "n3"} and not seen
        seen.extend([True] if hit else [])
        return {**GAME, "wrong": 1} if hit else GAME

    report = check("pairs", fleet_of(4, once))
    assert set(report.unjudged) == {"n0", "n3"}
    assert not any(finding.severity.fails for finding in report.findings)


def test_a_dead_node_is_named_and_where_most_are_silent_nobody_is_accused() -> None:
    fleet = fleet_of(6, slow("n5"), dead=frozenset({"n0"}))
    report = check("pairs", fleet)
    assert set(told(report)) == {("n0", "dead_node"), ("n5", "slow_node")}
    assert not report.unjudged
    pairs = [probe for probe in fleet.asked if probe.name != "machine"]
    assert all("n0" not in (probe.hosts or ()) for probe in pairs[1:])
    report = check("pairs", fleet_of(4, slow(), dead=frozenset({"n0", "n1", "n2"})))
    assert not report.findings
    assert set(report.unjudged) == set(names(4))


def test_bisection_finds_who_is_slow_among_many_alone() -> None:
    def game(members: Members) -> Mapping[str, Any]:
        hosts = hosts_of(members)
        return rate(2.0 if "n6" in hosts and len(hosts) > 3 else 10.0)

    fleet = fleet_of(16, game)
    report = check("pairs", fleet, references=(reference("group_busbw", "8 GB/s", nodes=16),))
    assert told(report) == [("n6", "slow_node")]
    assert report.findings[0].message.endswith(" 2 GB/s")
    assert len(report.evidence["bisection"]) <= 4 * 4 + 2
    alone = check("pairs", fleet, references=(reference("group_busbw", "8 GB/s", nodes=16),), bisect=False)
    assert not alone.findings
    assert alone.unjudged == dict.fromkeys(names(16), "a reference asks for group_busbw, which was not measured")


def test_bisection_finds_who_fails_among_many_alone() -> None:
    """A group without a number counts as slow, and needs no reference."""

    def game(members: Members) -> Mapping[str, Any]:
        hosts = hosts_of(members)
        return {"error": "NCCL"} if "n6" in hosts and len(hosts) > 3 else GAME

    assert told(check("pairs", fleet_of(16, game))) == [("n6", "failing_node")]


def test_what_fails_only_together_names_the_group_and_passes_nobody() -> None:
    report = check("pairs", fleet_of(4, lambda members: {"error": "NCCL"} if len(hosts_of(members)) == 4 else GAME))
    assert told(report) == [(None, "slow_together")]
    assert set(report.unjudged) == set(names(4))


def test_a_slow_rail_is_named() -> None:
    """Rail 2 of node 3 alone; one rail is measured at a time, and with the same one of other nodes."""

    def game(members: Members) -> Mapping[str, Any]:
        if len({local for _, local in members}) > 1:
            return GAME  # only to see which way NCCL takes
        return rate(5.0 if ("n3", 2) in members else 10.0)

    report = check("rail", fleet_of(5, game))
    assert [(each.host, each.subject, each.kind) for each in report.findings] == [("n3", "rail 2", "slow_node")]
    assert not report.unjudged


def test_links_inside_nodes() -> None:
    """A node slower than the others inside, one that raises, and one below a reference of its own."""

    def game(members: Members) -> Mapping[str, Any]:
        assert len(hosts_of(members)) == 1
        return {"n1": rate(5.0), "n2": {"error": "RuntimeError: NVLink"}}.get(members[0][0], GAME)

    fleet = fleet_of(6, game, dead=frozenset({"n4"}))
    report = check("nvlink", fleet)
    assert set(told(report)) == {("n1", "slow_node"), ("n2", "failing_node")}
    assert set(report.unjudged) == {"n4"}
    bound = check("nvlink", fleet, references=(reference("nvlink_busbw", "9 GB/s", nodes=1),))
    assert ("n1", "below_reference") in told(bound)


@pytest.mark.parametrize(("name", "site", "why"), [
    ("pairs", gpu_site(1), "one node"), ("rail", gpu_site(1), "one node"),
    ("rail", cpu_site(2), "one rank per node"), ("nvlink", cpu_site(1), "one rank per node"),
    ("nvlink", cpu_site(2, cpu_ranks_per_node=2), "the nodes of this system have no GPUs"),
])  # fmt: skip
def test_what_has_no_meaning_is_skipped(name: str, site: Site, why: str) -> None:
    report = check(name, StandIn(site, names(site.nodes), slow()))
    assert report.skip is not None
    assert report.skip.startswith(why)


_FAULTY = """
import os, signal, time
from pytest_llmbench.checks.network.nodes import pairs

class Faulty(pairs.DirectGroup):
    def __init__(self, store, ranks, rank, *rest):
        super().__init__(store, ranks, rank, *rest)
        if os.environ["SLURMD_NODENAME"] == "n1" and 0 in ranks:
            os.kill(os.getpid(), signal.SIGKILL)

    def gather_seconds(self, *how):
        seconds = super().gather_seconds(*how)
        # Ten times what a busy machine makes of the others.
        return seconds + 0.5 if os.environ["SLURMD_NODENAME"] == "n3" else seconds

pairs.DirectGroup = Faulty
play = pairs.play
"""


class FaultyFleet(ProcessFleet):
    """Real ranks, of which that of n1 dies in its pair with n0, and that of n3 is slow in every all_gather."""

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        return super().run([replace(probe, entry="faulty:play") for probe in probes])


def test_real_pairs(tmp_path: Path) -> None:
    """The dead node is named, and among those that are left, the slow one; the others are well."""
    (tmp_path / "faulty.py").write_text(_FAULTY)
    hosts = names(4)
    env = {host: {"PYTHONPATH": str(tmp_path)} for host in hosts}
    fleet = FaultyFleet(cpu_site(4), hosts, tmp_path, env=env, torch=True)
    # A pair of one busy machine may well be a few times slower than another.
    report = check("pairs", fleet, tolerance=0.9, bytes=2**16, iterations=3, warm_up=1, timeout_s=8.0)
    bad = {(finding.host, finding.kind) for finding in report.findings if finding.severity.fails}
    assert bad == {("n1", "dead_node"), ("n3", "slow_node")}  # one busy machine may have a hint at uneven pairs, too
    assert not report.unjudged
    assert {each.host for each in report.readings if each.statistic == "pair_busbw_median"} == {"n0", "n2", "n3"}
    assert [row["pair"][0] for row in report.evidence["second_pass"]] == ["n3"] * 3


def test_gpus_without_nvlink_are_skipped() -> None:
    """What goes over PCIe is no NVLink that passes; where NVML does not say, or lists links, it is judged."""
    for machine, skipped in ((node("H100", 4, each={"nvlinks": 0}), True), (node("H100", 4), False), (None, False)):
        report = check("nvlink", fleet_of(2, lambda _: GAME, machine=machine))
        assert (report.skip or "").startswith("these GPUs have no NVLink") == skipped


def test_what_no_reference_bounds_says_so() -> None:
    fleet = fleet_of(6, lambda _: GAME)
    assert check("nvlink", fleet).unbounded
    assert check("pairs", fleet).unbounded
    assert not check("nvlink", fleet, references=(reference("nvlink_busbw", "9 GB/s", nodes=1),)).unbounded
    assert check("nvlink", fleet, references=(reference("nvlink_busbw", "9 GB/s", nodes=3),)).unbounded


# 16 nodes behind four switches, two of which are in each of two racks.
NODES = names(16)
PLACES = Places({
    "leaf": {host: f"s{number // 4}" for number, host in enumerate(NODES)},
    "rack": {host: f"r{number // 8}" for number, host in enumerate(NODES)},
})  # fmt: skip
LEAF = NODES[4:8]  # behind s1, in r0


def apart(members: Members, level: str, *which: str) -> bool:
    """Whether the nodes of a group are in different places, the named ones among them."""
    names = {PLACES.levels[level][host] for host, _ in members}
    return len(names) > 1 and {*which} <= names


Placed = tuple[Callable[[Members], bool], list[tuple[str | None, str, str]], Sequence[str]]
# Whether a group is slow; findings as host, subject and severity; and the nodes without a verdict.
PLACED: dict[str, Placed] = {
    "nothing": (lambda _: False, [], ()),
    "a node": (lambda members: "n5" in dict(members), [("n5", "", "ISOLATE")], ()),
    "a switch": (lambda members: bool({*dict(members)} & {*LEAF}), [(None, "leaf s1", "ISOLATE")], LEAF),
    "the uplinks of a switch": (lambda members: apart(members, "leaf", "s1"), [(None, "leaf s1", "ISOLATE")], LEAF),
    "between two switches": (
        lambda members: apart(members, "leaf", "s1", "s2"), [(None, "leaf s1 - s2", "ISOLATE")], NODES[4:12],
    ),
    "between the racks": (lambda members: apart(members, "rack"), [(None, "rack", "MONITOR")], ()),
}  # fmt: skip


def subjects(report: Report) -> list[tuple[str | None, str, str]]:
    return [(finding.host, finding.subject, str(finding.severity)) for finding in report.findings]


@pytest.mark.parametrize("what", PLACED)
@pytest.mark.parametrize("bound", [False, True])
def test_what_is_slow_behind_a_switch_or_between_racks_is_not_the_fault_of_nodes(what: str, bound: bool) -> None:
    """Racks that are slow between each other are built so, or not: a bound decides."""
    is_slow, findings, unjudged = PLACED[what]
    fleet = fleet_of(16, lambda members: rate(5.0 if is_slow(members) else 10.0), places=PLACES)
    report = check(
        "pairs", fleet, references=(reference("pair_busbw", "9 GB/s", nodes=2),) if bound else (), bisect=False
    )
    if bound and what == "between the racks":
        findings, unjudged = [(None, "rack", "CONFIGURE")], NODES
    assert subjects(report) == findings
    assert {*report.unjudged} == {*unjudged}
    if what.endswith("a switch"):
        among = "well" if what.startswith("the uplinks") else "slow"
        assert f"slow with others (median 5 GB/s), and {among} among themselves" in report.findings[0].message


def test_a_boundary_has_a_bound_of_its_own() -> None:
    fleet = fleet_of(16, lambda members: rate(5.0 if apart(members, "rack") else 10.0), places=PLACES)
    bounds = (reference("pair_busbw", "9 GB/s", nodes=2), reference("across_busbw", "4 GB/s", name="across", nodes=2))
    report = check("pairs", fleet, references=bounds, bisect=False)
    assert (report.findings, report.unjudged) == ((), {})
    readings = {each.subject: each.value for each in report.readings if each.statistic == "across_busbw"}
    assert readings == {"leaf": 10.0, "rack": 5.0}


def test_a_bound_on_boundaries_that_judged_no_pair_says_so() -> None:
    bounds = (reference("across_busbw", "4 GB/s", nodes=2),)
    for places, silent in (({}, False), ({"places": PLACES}, True)):
        fleet = fleet_of(16, lambda _: rate(10.0), **places)
        notes = check("pairs", fleet, references=bounds, bisect=False).notes
        assert any("across_busbw judged none" in note for note in notes) != silent


def test_a_slow_node_is_named_although_all_pairs_between_racks_are_slow() -> None:
    def game(members: Members) -> Mapping[str, Any]:
        return rate((5.0 if apart(members, "rack") else 10.0) / (2 if "n5" in dict(members) else 1))

    report = check("pairs", fleet_of(16, game, places=PLACES), bisect=False)
    assert subjects(report) == [("n5", "", "ISOLATE"), (None, "rack", "MONITOR")]


def test_a_rail_that_is_slow_on_all_nodes_is_one_finding() -> None:
    fleet = fleet_of(16, lambda members: rate(5.0 if members[0][1] == 2 else 10.0))
    report = check("rail", fleet)
    assert subjects(report) == [(None, "rail 2", "ISOLATE")]
    assert {*report.unjudged} == {*NODES}


def test_groups_are_halved_at_racks_and_named_by_them() -> None:
    """All nodes together are slow as soon as both racks are among them, and each rack is well."""
    fleet = fleet_of(16, lambda all_: rate(5.0 if len(all_) > 8 and apart(all_, "rack") else 10.0), places=PLACES)
    report = check("pairs", fleet, references=(reference("group_busbw", "9 GB/s", nodes=16),))
    (found,) = (each for each in report.findings if each.kind == "slow_together")
    assert found.message.startswith("only together: rack r0, rack r1;")
    groups = [row["group"] for row in report.evidence["bisection"] if len(row["group"]) == 8]
    assert groups[:2] == [[*NODES[:8]], [*NODES[8:]]]


HGX = node(nics=8)
NVLS = {"nvls": "yes", "nvls_channels": 16, "algorithm": "NVLS"}


def hgx_of(count: int, game: Callable[[Members], Mapping[str, Any]], nccl: Mapping[str, Any] = NVLS) -> StandIn:
    return fleet_of(count, game, machine=HGX, nccl=nccl, gpus_per_node=8)


@pytest.mark.parametrize("count", [2, 3, 16])
@pytest.mark.parametrize("rate_", [380.0, 3.0])
def test_physics_judges_pairs_that_are_all_alike(count: int, rate_: float) -> None:
    """As where NCCL falls back to TCP everywhere: no pair is slower than another, and all fail with the reason."""
    tcp = {"between": "NET/Socket/0", "more": ("NCCL_IB_DISABLE set by environment to 1.",)}
    nccl = {**NVLS, **({} if rate_ > 100 else tcp)}
    fleet = hgx_of(count, lambda _: rate(rate_), nccl)
    report = check("pairs", fleet)
    assert not report.unbounded
    # 0.95 of the rings inside a node, which are slower than its NICs, at 4 GiB.
    assert any("pair_busbw: physics expects 334.6 GB/s" in bound for bound in report.bounds)
    assert report.unjudged == {}
    if rate_ > 100:
        assert told(report) == []
        assert report.evidence["transport"]["ways"][0]["transports"] == {"P2P/CUMEM": 7, "NET/IB/GDRDMA": 1}
        return
    kinds = {host: {kind for at, kind in told(report) if at == host} for host in names(count)}
    assert all(own >= {"below_physics", "over_tcp"} for own in kinds.values())
    below = next(found for found in report.findings if found.kind == "below_physics")
    assert below.severity is Severity.CONFIGURE  # it is a setting, and no broken hardware
    assert below.message.endswith("; cause: NCCL_IB_DISABLE=1 is set")
    assert below.action.startswith("check NCCL_IB_DISABLE")


def test_physics_names_the_bad_half_and_a_fabric_that_carries_pairs_alone() -> None:
    """If half of the nodes are slow, comparison alone cannot find them, nor what carries pairs and not all nodes."""
    fleet = hgx_of(4, lambda members: rate(100.0 if hosts_of(members) & {"n2", "n3"} else 380.0))
    assert set(told(check("pairs", fleet))) == {("n2", "slow_node"), ("n3", "slow_node")}
    fleet = hgx_of(4, lambda members: rate(250.0 if len(hosts_of(members)) > 2 else 380.0))
    report = check("pairs", fleet)
    assert told(report) == [(None, "slow_together")]
    assert any("of the median pair's 380 GB/s" in bound for bound in report.bounds)


@pytest.mark.parametrize(("rate_", "nccl", "kinds"), [
    (460.0, NVLS, set()),
    (29.0, {**NVLS, "inside": "SHM/direct/direct"}, {"below_physics", "no_p2p"}),
    (360.0, {"nvls": "yes", "more": ("NCCL_NVLS_ENABLE set by environment to 0.",)}, {"below_physics", "nvls_off"}),
    (25.0, {**NVLS, "more": ("NCCL_PROTO set by environment to LL.",)}, {"below_physics", "slow_setting"}),
])  # fmt: skip
def test_links_inside_nodes_by_physics_and_by_their_way(rate_: float, nccl: dict[str, Any], kinds: set[str]) -> None:
    report = check("nvlink", hgx_of(1, lambda _: rate(rate_), nccl))
    assert {kind for _, kind in told(report)} == kinds
    assert any(finding.severity.fails for finding in report.findings) == bool(kinds)
    assert not report.unbounded


def test_a_way_that_was_not_seen_is_no_pass() -> None:
    """Gloo has none to see."""
    fleet = fleet_of(2, lambda _: GAME, nccl=None)
    for name in ("pairs", "nvlink", "rail"):
        assert {host: reason[:18] for host, reason in check(name, fleet).unjudged.items()} == dict.fromkeys(
            names(2), "transport not seen"
        )
    report = check("pairs", StandIn(cpu_site(2), names(2), lambda _: GAME))
    assert (report.evidence["transport"], report.unjudged) == ("NCCL did not run: gloo", {})

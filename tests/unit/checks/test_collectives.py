"""The checks of collectives: between real ranks, by a stand-in for nccl-tests, and what they make of a curve."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.checks.base import CheckSettings, Site, get_check
from pytest_llmbench.checks.collectives import check as collectives
from pytest_llmbench.checks.collectives.check import STATISTICS, judge
from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.environments import Container, Environment
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.curves import COLLECTIVES, Curve, Point, Timing
from pytest_llmbench.core.record.health import Report
from tests.standins import nccl_tests as standin
from tests.support.fleet import ProcessFleet, cpu_site
from tests.support.references import reference

GIB = 1 << 30
SMALL = {"max_bytes": 4096, "iterations": 2, "checked": 1, "dtype": "bfloat16"}


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> ProcessFleet:
    """Two nodes with a CPU rank each, on which all checks of the module look at one measurement."""
    return ProcessFleet(site=cpu_site(2), hosts=("a", "b"), folder=tmp_path_factory.mktemp("fleet"), torch=True)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_seven_checks_share_one_measurement(two_nodes: ProcessFleet, name: str) -> None:
    """Each judges its own curve; bandwidths are reported for two nodes, and nothing is wrong."""
    report = get_check(name).run(two_nodes, CheckSettings(options=SMALL))
    assert len(two_nodes.asked) == 1
    assert (report.findings, report.unjudged, report.problem, report.skip) == ((), {}, None, None)
    statistics = [reading.statistic for reading in report.readings]
    assert {"busbw_1KiB", "busbw_4KiB", "busbw_peak"} < set(statistics) <= set(STATISTICS)
    assert ("latency_8B" in statistics) == (name not in ("all_gather", "reduce_scatter", "alltoall"))
    assert {(reading.nodes, reading.gpus, reading.host) for reading in report.readings} == {(2, 0, None)}
    assert Curve.model_validate(report.evidence["curve"]).collective == name
    assert report.notes == ("no reference is for this machine: bandwidths are reported, values were checked",)


def test_a_missed_bound_is_a_finding_and_one_on_what_was_not_measured_an_error(two_nodes: ProcessFleet) -> None:
    bounds = (
        reference("busbw_4KiB", "900000 GB/s"),
        reference("busbw_4KiB", "900000 GB/s", name="of_three_nodes", nodes=3),
        reference("busbw_4KiB", "900000 GB/s", name="of_another", system="other"),
    )
    report = get_check("reduce").run(two_nodes, CheckSettings(options=SMALL, references=bounds))
    assert [finding.kind for finding in report.findings] == ["below_reference"]
    assert report.findings[0].severity.fails
    settings = CheckSettings(options=SMALL, references=(reference("busbw_8GiB", "1 GB/s"),))
    report = get_check("reduce").run(two_nodes, settings)
    assert report.problem == "reference bound asks for busbw_8GiB, which was not measured: see max_bytes"


def test_only_the_selected_are_measured(tmp_path: Path) -> None:
    """Others of the seven that the session does not run are not waited for."""
    site = cpu_site(1, cpu_ranks_per_node=2, selected=("limits", "broadcast", "reduce"))
    fleet = ProcessFleet(site=site, hosts=("a",), folder=tmp_path, torch=True)
    report = get_check("broadcast").run(fleet, CheckSettings(options={"max_bytes": 64}))
    assert fleet.asked[0].config["collectives"] == ["broadcast", "reduce"]
    assert {(reading.nodes, reading.host) for reading in report.readings} == {(1, "a")}


def test_other_options_are_another_measurement() -> None:
    sizes = [collectives.CollectivesOptions(max_bytes=size).filled(cpu_site(2)) for size in (64, 64, 128)]
    names = [collectives._name_probe(each) for each in sizes]
    assert names[0] == names[1] != names[2]


def test_one_rank_is_no_collective(tmp_path: Path) -> None:
    fleet = ProcessFleet(site=cpu_site(1), hosts=("a",), folder=tmp_path)
    assert get_check("all_reduce").run(fleet, CheckSettings()).skip is not None
    assert not fleet.asked


def test_a_rank_that_does_not_come_is_an_error_of_its_node(tmp_path: Path) -> None:
    """No rank of the group can measure without it."""
    fleet = ProcessFleet(
        site=cpu_site(2), hosts=("a", "b"), folder=tmp_path, env={"b": {"SLURM_PROCID": "nonsense"}}, torch=True
    )  # fmt: skip
    report = get_check("reduce").run(fleet, CheckSettings(options=SMALL, deadline_s=2.0))
    assert set(report.unjudged) == {"a", "b"}
    assert not report.readings


@pytest.mark.parametrize(("site", "largest", "iterations"), [
    (cpu_site(2), 16 << 20, 5),
    (cpu_site(2, scale="smoke"), 1 << 20, 5),
    (Site(system="test", nodes=1, gpus_per_node=8), 8 * GIB, 20),
    (Site(system="test", nodes=1, gpus_per_node=8, scale="smoke"), 1 << 20, 20),
], ids=["cpu", "cpu smoke", "gpu", "gpu smoke"])  # fmt: skip
def test_the_usual_sizes(site: Site, largest: int, iterations: int) -> None:
    usual = collectives.CollectivesOptions().filled(site)
    assert (usual.sizes[0], usual.sizes[-1], usual.iterations) == (8, largest, iterations)
    assert usual.sizes == tuple(8 << power for power in range(len(usual.sizes)))
    told = collectives.CollectivesOptions(min_bytes=1000, max_bytes=9999, factor=3, iterations=7).filled(site)
    assert (told.sizes, told.iterations) == ((1000, 3000, 9000), 7)


@pytest.mark.parametrize(
    "options", [{"max_bytes": 4}, {"factor": 1}, {"min_bytes": 4}, {"backend": "mpi"}, {"size": 8}]
)
def test_options_that_mean_nothing_are_refused(two_nodes: ProcessFleet, options: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=r"validation: all_reduce: options"):
        get_check("all_reduce").run(two_nodes, CheckSettings(options=options))


def curve(busbw: float = 364.9, wrong: int | None = 0, **changes: Any) -> Curve:
    points = tuple(
        Point(
            size=size, count=size // 4, dtype="float32",
            out_of_place=Timing(time_us=9.0, algbw=busbw / 1.5, busbw=busbw, wrong=wrong),
        )
        for size in (8, 8 * GIB)
    )  # fmt: skip
    return Curve(**{"collective": "all_reduce", "points": points, "ranks": 4, "complete": True, **changes})


def judged(told: Curve, *bounds: Reference, wrong: dict[str, int] | None = None, **site: Any) -> Report:
    """What a check makes of a curve of one node with 4 GPUs."""
    described = Site(**{"system": "test", "nodes": 1, "gpus_per_node": 4, **site})
    fleet = ProcessFleet(site=described, hosts=("a", "b")[: described.nodes], folder=Path())
    return judge(told, CheckSettings(references=bounds), fleet, "NVIDIA H200", wrong or {})


@pytest.mark.parametrize(("busbw", "passes"), [(99.5, False), (180.0, True), (1000.0, True), (179.99, False)])
def test_numbers_are_compared_as_numbers(busbw: float, passes: bool) -> None:
    """As texts, 99.5 is more than 180 and 1000 is less, which is how a shell's `[[ a < b ]]` judges."""
    report = judged(curve(busbw), reference("busbw_8GiB", "180 GB/s", gpu="H200", gpus=4, nodes=1))
    assert (not report.findings) == passes
    assert report.problem is None
    assert {finding.host for finding in report.findings} <= {"a"}


def test_a_smoke_run_meets_no_bound_and_misses_none() -> None:
    report = judged(curve(1.0), reference("busbw_peak", "180 GB/s"), scale="smoke")
    assert (report.findings, report.problem) == ((), None)
    assert report.notes[0].startswith("no reference is for this machine")


@pytest.mark.parametrize(("told", "why"), [
    (curve(complete=False), "was cut off after 8GiB"),
    (curve(unreadable=2), "2 lines of the measurement cannot be read"),
    (curve(points=()), "no size of all_reduce was measured"),
    (curve(ranks=1), "1 ranks measured, 4 were asked for"),
    (curve(wrong=None), "no result was checked"),
    (curve(doubt="its busbw is 9 GB/s"), "the measurement contradicts itself: its busbw is 9 GB/s"),
], ids=["incomplete", "unreadable", "empty", "fewer ranks", "unchecked", "contradiction"])  # fmt: skip
def test_a_doubtful_curve_is_an_error(told: Curve, why: str) -> None:
    report = judged(told, reference("busbw_8GiB", "1000 GB/s"))
    assert report.findings == ()
    assert why in (report.problem or "")


def test_wrong_values_are_a_finding_even_in_a_doubtful_curve() -> None:
    report = judged(curve(complete=False), nodes=2, wrong={"a": 0, "b": 17})
    assert [(finding.host, finding.kind) for finding in report.findings] == [("b", "wrong_values")]
    assert "17 wrong elements on b" in report.findings[0].message
    assert report.problem is None
    assert "was cut off after" in report.notes[-1]
    everywhere = judged(curve(out_of_bounds=2), nodes=2, wrong={"a": 3, "b": 17})
    assert everywhere.findings[0].host is None
    assert "2 measurements out of bounds" in everywhere.findings[0].message


Theirs = Callable[..., Report]


@pytest.fixture
def theirs(tmp_path: Path) -> Theirs:
    """Run a check by the stand-in for nccl-tests on nodes with 4 GPUs."""
    root = standin.install(tmp_path / "nccl-tests", "all_reduce", "all_gather")

    def run(
        name: str = "all_reduce", *, mode: str = "", nodes: int = 1, selected: tuple[str, ...] = (), **options: Any
    ) -> Report:
        env = {"STANDIN_NCCL_TESTS": mode}
        site = Site(
            system="test", nodes=nodes, gpus_per_node=4, selected=selected or (name,),
            environments={"nccl_tests": Environment(root=str(root), env=env)},
        )  # fmt: skip
        fleet = ProcessFleet(site=site, hosts=("a", "b")[:nodes], folder=tmp_path / "fleet")
        told = {"backend": "nccl_tests", "max_bytes": 4 << 20, **options}
        settings = CheckSettings(options=told, references=(reference("busbw_4MiB", "40 GB/s"),))
        report = get_check(name).run(fleet, settings)
        assert {probe.hosts for probe in fleet.asked if probe.name != "machine"} == {("a",)}
        return report

    return run


@pytest.mark.parametrize("mode", ["", "no_json", "old", "old noise"])
@pytest.mark.parametrize("name", ["all_reduce", "all_gather"])
def test_nccl_tests_give_the_same_result(theirs: Theirs, name: str, mode: str) -> None:
    report = theirs(name, mode=mode)
    assert (report.findings, report.problem, report.unjudged, report.skip, report.notes) == ((), None, {}, None, ())
    assert report.evidence["transport"]["ways"][0]["transports"] == {"P2P/IPC": 4}
    measured = {reading.statistic: reading for reading in report.readings}
    for statistic, size in (("busbw_64KiB", 1 << 16), ("busbw_4MiB", 4 << 20), ("busbw_peak", 4 << 20)):
        expected = standin.busbw(name, size, 4)
        assert measured[statistic].value == pytest.approx(expected, abs=0.006)
        assert (measured[statistic].nodes, measured[statistic].gpus) == (1, 4)
    assert f"{name}_perf -g 4 -b 8 -e 4194304 -f 2 -n 20 -w 5 -c 4" in report.evidence["nccl_tests"].command


@pytest.mark.parametrize("mode", ["wrong", "wrong no_json", "wrong old"])
def test_wrong_values_by_nccl_tests(theirs: Theirs, mode: str) -> None:
    report = theirs(mode=mode)
    assert [(finding.kind, finding.host) for finding in report.findings] == [("wrong_values", "a")]
    assert "1 measurements out of bounds" in report.findings[0].message


@pytest.mark.parametrize(("mode", "why"), [
    ("truncated", "was cut off after 2MiB"),
    ("crash", "all_reduce_perf -g 4 .* printed no table; it ended with status 3: .*unhandled system error"),
])  # fmt: skip
def test_nccl_tests_that_do_not_finish(theirs: Theirs, mode: str, why: str) -> None:
    problem = theirs(mode=mode).problem
    assert problem is not None
    assert re.search(why, problem), problem


def test_a_program_that_is_missing_is_an_error_of_its_check(theirs: Theirs, tmp_path: Path) -> None:
    (tmp_path / "nccl-tests" / "all_gather_perf").unlink()
    both = ("all_reduce", "all_gather")
    assert "printed no table; it ended with status 127" in str(theirs("all_gather", selected=both).problem)
    assert theirs("all_reduce", selected=both).problem is None


def test_several_nodes_are_one_measurement(theirs: Theirs) -> None:
    """Started by MPI, a process per GPU; without it, each measures for itself, which is an error."""
    good = theirs(nodes=2, launcher=["env", "STANDIN_RANKS={ranks}"])
    assert good.problem is None
    assert {(reading.nodes, reading.gpus) for reading in good.readings} == {(2, 8)}
    lonely = theirs(nodes=2, launcher=["env"])
    assert lonely.problem == "1 ranks measured, 8 were asked for"


def test_nccl_tests_need_gpus_and_a_place(tmp_path: Path) -> None:
    """Without GPUs it has no meaning; without its folder, or in a container, it is a mistake in the system's file."""
    settings, check = CheckSettings(options={"backend": "nccl_tests"}), get_check("all_reduce")
    assert check.run(ProcessFleet(site=cpu_site(2), hosts=("a", "b"), folder=tmp_path), settings).skip is not None
    inside = Environment(root="/opt", container=Container(runtime="pyxis", image="image"))
    for environments, why in (({}, "name the folder of its programs"), ({"nccl_tests": inside}, "container")):
        site = Site(system="test", nodes=1, gpus_per_node=4, environments=environments)
        with pytest.raises(ConfigError, match=why):
            check.run(ProcessFleet(site=site, hosts=("a",), folder=tmp_path), settings)

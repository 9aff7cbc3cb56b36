"""What the shipped systems expect of the validation suite, against what is published."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_llmbench.checks.base import Site, all_checks, options_of
from pytest_llmbench.checks.collectives.check import CollectivesOptions
from pytest_llmbench.cluster.system import System, load_system
from pytest_llmbench.core.paths import shipped
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.health import Reading
from pytest_llmbench.judging.references import applies, missed
from tests.conftest import known

SYSTEMS = {system.name: system for system in (load_system(str(path), []) for path in shipped("systems").glob("*.yaml"))}

PUBLISHED = Path(__file__).parents[1] / "data" / "published"


def rows(name: str) -> list[dict[str, str]]:
    return list(csv.DictReader((PUBLISHED / f"{name}.csv").read_text().splitlines()))


# GPU, PCIe generation and NVLink links; the data sheets leave PCIe open where a node may have another.
HARDWARE = {
    "A100": (4, 12), "H100": (5, 18), "H200": (5, 18), "B200": (None, 18), "B300": (None, 18), "GB200": (None, 18),
    "GB300": (None, 18),
}  # fmt: skip


def _references() -> Iterator[tuple[System, str, Reference]]:
    for system in SYSTEMS.values():
        for check, settings in system.validation.items():
            for reference in settings.references:
                yield system, check, reference


ALL = [
    pytest.param(system, check, reference, id=f"{system.name}-{check}-{reference.name}")
    for system, check, reference in _references()
]


def _reading(system: System, reference: Reference, quantity: Quantity) -> Reading:
    """A reading on just the machine that a reference is for."""
    machine = known(reference.applies_to)
    return Reading(
        statistic=reference.statistic, value=quantity.value, unit=quantity.unit, nodes=machine.nodes or 1,
        gpus=machine.gpus or system.gpus_per_node or 0,
    )  # fmt: skip


def _device(system: System) -> str:
    assert system.gpu is not None
    return f"NVIDIA {system.gpu.model}"


def test_the_bounds_are_those_published() -> None:
    """Each number at its size and number of nodes; none is missing, and none is there besides."""
    found = []
    for system, check, reference in _references():
        machine = known(reference.applies_to)
        bound = reference.threshold.removeprefix(">= ")
        found.append((check, reference.statistic, str(machine.nodes or ""), system.name, bound))
    assert sorted(found) == sorted(tuple(row.values()) for row in rows("bounds"))


@pytest.mark.parametrize(("system", "check", "reference"), ALL)
def test_a_bound_says_where_it_is_from(system: System, check: str, reference: Reference) -> None:
    """A file of a repository at a commit, or our own measurements; and what the number means."""
    assert re.search(r"^\S+/\S+ \S+( line \d+)? @ [0-9a-f]{8}$", reference.source) or reference.source.endswith(
        "see docs/measurements"
    )
    assert reference.date.year >= 2022
    assert len(reference.why.split()) > 15


@pytest.mark.parametrize(("system", "name", "words"), [tuple(row.values()) for row in rows("disagreements")])
def test_where_sources_disagree_both_are_cited(system: str, name: str, words: str) -> None:
    """Numbers of other sources on the same machine stand next to the one that was taken."""
    whys = [reference.why for owner, _, reference in _references() if (owner.name, reference.name) == (system, name)]
    assert whys
    for why in whys:
        assert [word for word in words.split("; ") if word not in why] == []


@pytest.mark.parametrize(("system", "check", "reference"), ALL)
def test_a_bound_is_for_its_own_machine(system: System, check: str, reference: Reference) -> None:
    """A bound names its GPU and whole nodes, unless it was measured on a part of one."""
    machine, gpu = reference.applies_to, system.gpu
    assert machine is not None
    assert gpu is not None
    assert machine.gpu == gpu.model
    assert machine.system in (system.name, None)
    if machine.system is not None:
        assert (machine.gpus is None) == (machine.nodes is None)
        assert machine.gpus in (None, (machine.nodes or 0) * (system.gpus_per_node or 0))


@pytest.mark.parametrize(("system", "check", "reference"), ALL)
def test_a_bound_fails_what_is_below_it_there_alone(system: System, check: str, reference: Reference) -> None:
    """The number itself passes, a little less does not, and nothing is said of other GPUs or more nodes."""
    (_, bound), device = reference.bounds[0], _device(system)
    low = _reading(system, reference, Quantity(bound.value * 0.999, bound.unit))

    def found(reading: Reading, name: str = system.name, gpu: str = device) -> list[str | None]:
        return [finding.reference for finding in missed([reading], [reference], system=name, device=gpu)]

    assert found(_reading(system, reference, bound)) == []
    assert found(low) == [reference.name]
    assert found(low, gpu="NVIDIA L4") == []
    machine = known(reference.applies_to)
    if machine.system is not None:
        assert found(low, name="elsewhere") == []
    if machine.nodes is not None:
        assert found(low.model_copy(update={"nodes": machine.nodes + 1})) == []


@pytest.mark.parametrize(("system", "warned"), [("p4d.24xlarge", 300), ("p4de.24xlarge", 300), ("p5.48xlarge", 800)])
def test_what_no_machine_reaches_is_no_bound(system: str, warned: int) -> None:
    """AWS' health check only warns below these numbers, which are above all that is measured."""
    bounds = [
        bound
        for owner, _, reference in _references()
        if owner.name == system
        for _, bound in reference.bounds
        if bound.dimension == "bandwidth"
    ]
    assert bounds
    assert max(bounds) < Quantity(warned, "GB/s")


@pytest.mark.parametrize("name", SYSTEMS)
def test_links_are_those_of_the_data_sheet(name: str) -> None:
    system = SYSTEMS[name]
    assert system.gpu is not None
    generation, links = HARDWARE[re.split(r"[- ]", system.gpu.model)[0]]
    assert system.validation["gpu_nvlink"].options == {"links": links}
    pcie = system.validation.get("gpu_pcie")
    assert (pcie.options if pcie else None) == (generation and {"gen": generation, "width": 16})


def test_dcgm_runs_as_deep_as_the_clouds_of_a100_are_validated() -> None:
    levels = {
        name: system.validation["dcgm"].options for name, system in SYSTEMS.items() if "dcgm" in system.validation
    }
    a100 = ("ND96amsr_A100_v4", "ND96asr_v4", "p4d.24xlarge", "p4de.24xlarge", "BM.GPU4.8", "BM.GPU.A100-v2.8")
    assert levels == {name: {"level": 3} for name in a100}


@pytest.mark.parametrize(
    ("name", "check"), [(name, check) for name, system in SYSTEMS.items() for check in system.validation]
)
def test_a_check_takes_what_is_said_of_it(name: str, check: str) -> None:
    known = all_checks()[check]
    settings = SYSTEMS[name].validation[check]
    options_of(known, settings, known.options)
    for reference in settings.references:
        for _, bound in reference.bounds:
            assert bound.dimension == Quantity(0, known.statistics[reference.statistic]).dimension


def test_what_is_bounded_is_measured() -> None:
    for system, check, reference in _references():
        size = re.fullmatch(r"busbw_(\d+)GiB", reference.statistic)
        if size is not None:
            site = Site(system=system.name, nodes=2, gpus_per_node=system.gpus_per_node or 0)
            options = options_of(all_checks()[check], system.validation[check], CollectivesOptions).filled(site)
            assert int(size[1]) * 2**30 in options.sizes


def test_a_pair_is_judged_like_two_nodes() -> None:
    for system in SYSTEMS.values():
        if "pairs" not in system.validation:
            continue
        assert system.validation["pairs"].options == {"bytes": 8 * 2**30}
        nodes = system.validation["all_reduce"].references
        for reference in system.validation["pairs"].references:
            (twin,) = (each for each in nodes if each.name == reference.name)
            assert reference.model_copy(update={"statistic": twin.statistic}) == twin
            reading = _reading(system, reference, reference.bounds[0][1])
            assert applies(reference, reading, system.name, _device(system))

"""Which ranks ran, where, and on what."""

from __future__ import annotations

from collections.abc import Iterator

from pytest_llmbench.core.records import Problem
from pytest_llmbench.judging.references import same_gpu
from pytest_llmbench.judging.sanity.evidence import Evidence, listed


def ranks(e: Evidence) -> Iterator[Problem]:
    """Ask for every rank from its start to its end."""
    world = e.topology.world_size
    here = {info.rank for info in e.series.ranks}
    missing = sorted(set(range(world)) - here)
    if missing:
        yield Problem(
            kind="ranks_missing",
            message=f"{len(missing)} of {world} ranks never started: {listed(missing)}",
        )
    unended = sorted(info.rank for info in e.series.ranks if not info.ended)
    if unended:
        yield Problem(
            kind="no_evidence_of_completion",
            message=f"{len(unended)} of {world} ranks did not say that they finished: {listed(unended)}",
        )


def hosts(e: Evidence) -> Iterator[Problem]:
    """Ask for the nodes that the run was given."""
    seen = {info.host for info in e.series.ranks}
    if len(seen) != e.topology.nodes:
        yield Problem(
            kind="wrong_nodes",
            message=f"the ranks ran on {len(seen)} hosts ({listed(sorted(seen))}); asked were {e.topology.nodes} "
            f"nodes ({listed(e.hosts)})",
        )


def hardware(e: Evidence) -> Iterator[Problem]:
    """Ask for one kind of device, the one in the system file."""
    devices = {info.device for info in e.series.ranks} | ({e.device} if e.device is not None else set())
    if len(devices) > 1:
        yield Problem(
            kind="wrong_hardware", message=f"the ranks trained on different devices: {listed(sorted(devices))}"
        )
    strangers = sorted(device for device in devices if e.gpu and e.topology.gpus and not same_gpu(e.gpu, device))
    if strangers:
        yield Problem(
            kind="wrong_hardware",
            message=f"the system file promises {e.gpu}; the ranks saw {listed(strangers)}: choose the system that fits",
        )


def world_size(e: Evidence) -> Iterator[Problem]:
    """Compare the number of ranks in a log with the one that was asked for."""
    if e.series.world_size not in (None, e.topology.world_size):
        yield Problem(
            kind="wrong_ranks",
            message=f"its log speaks of {e.series.world_size} ranks; the run was to have {e.topology.world_size} "
            f"({e.topology})",
        )

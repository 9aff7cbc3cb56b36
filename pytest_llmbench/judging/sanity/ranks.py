"""Checks of the ranks, their nodes and their devices."""

from collections.abc import Iterator

from pytest_llmbench.core.gpus import same_gpu
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.records import Problem
from pytest_llmbench.judging.sanity.evidence import Evidence, of_rank, problem

# Names by which launchers refer to their own machine.
_THIS_MACHINE = frozenset({"localhost", "127.0.0.1"})


def check_ranks(e: Evidence) -> Iterator[Problem]:
    """Require the start and the end of every rank."""
    world = e.topology.world_size
    here = {info.rank for info in e.series.ranks}
    missing, more = sorted(set(range(world)) - here), sorted(here - set(range(world)))
    if missing:  #: problem ranks_missing: some ranks never started
        yield problem("ranks_missing", f"{len(missing)} of {world} ranks never started: {listed(missing)}")
    if more:  #: problem wrong_ranks: another number of ranks than the run should have
        yield problem("wrong_ranks", f"ranks {listed(more)} have logs; the run should have {world} ranks")
    for info in e.series.ranks:
        if info.world_size not in (None, world):
            words = f" reports {info.world_size} ranks; the run should have {world} ({e.topology})"
            yield of_rank("wrong_ranks", info, words)
    unended = sorted(info.rank for info in e.series.ranks if not info.ended)
    if unended:  #: problem no_evidence_of_completion: some ranks did not log their end
        message = f"ranks that did not log their end: {listed(unended)} ({len(unended)} of {world})"
        yield problem("no_evidence_of_completion", message)


def check_hosts(e: Evidence) -> Iterator[Problem]:
    """Require exactly the nodes that were allocated to the run, with all local ranks on each."""
    places = {info.rank: given_name(e, info.node or info.host, info.host) for info in e.series.ranks}
    yield from _wrong_nodes(e, set(places.values()), "the ranks ran on")
    for host in sorted(set(places.values())):
        local = sorted(info.local_rank for info in e.series.ranks if places[info.rank] == host)
        if local != list(range(e.topology.ranks_per_node)):
            asked = f"expected: one each from 0 to {e.topology.ranks_per_node - 1}"
            yield problem("wrong_ranks", f"{host} has the local ranks {listed(local)}; {asked}")


def check_nodes_in_log(e: Evidence) -> Iterator[Problem]:
    """Compare the hosts that a framework's own launcher names with those that the run was given."""
    named = {given_name(e, host) for host, _ in e.series.nodes}
    if len(named) == 1 and named <= _THIS_MACHINE:
        named = set(e.hosts[:1]) or named
    if named:
        yield from _wrong_nodes(e, named, "its log names")
    for host, ranks in e.series.nodes:
        if ranks != e.topology.ranks_per_node:
            asked = f"expected: {e.topology.ranks_per_node} on each node"
            yield problem("wrong_ranks", f"its log reports {ranks} ranks on {host}; {asked}")


def _wrong_nodes(e: Evidence, named: set[str], source: str) -> Iterator[Problem]:
    if len(named) != e.topology.nodes or (e.hosts and named != set(e.hosts)):
        given = listed(list(e.hosts)) if e.hosts else "no names are known"
        #: problem wrong_nodes: the ranks ran on other hosts than the run was given
        yield problem(
            "wrong_nodes",
            f"{source} {len(named)} hosts ({listed(sorted(named))}); the run was given {e.topology.nodes} nodes "
            f"({given})",
        )


def given_name(e: Evidence, *names: str) -> str:
    """The name that the allocation has for a node with these names, else the first of them.

    Slurm, the host and a container may have different names for one node.
    """
    return next((host for host in e.hosts if any(same_host(host, name) for name in names)), names[0])


def same_host(one: str, other: str) -> bool:
    """True if two names may mean one host: a name without a domain matches one with a domain."""
    one, other = one.lower().rstrip("."), other.lower().rstrip(".")
    if "." in one and "." in other:
        return one == other
    return one.partition(".")[0] == other.partition(".")[0]


def check_hardware(e: Evidence) -> Iterator[Problem]:
    """Require one kind of device, the one in the system file."""
    devices = {info.device for info in e.series.ranks} | ({e.device} if e.device is not None else set())
    if len(devices) > 1:
        #: problem wrong_hardware: ranks on different devices, or not on the system file's GPU
        yield problem("wrong_hardware", f"the ranks trained on different devices: {listed(sorted(devices))}")
    strangers = sorted(device for device in devices if e.gpu and e.topology.gpus and not same_gpu(e.gpu, device))
    if strangers:
        message = f"the system file has {e.gpu}; the ranks saw {listed(strangers)}: choose the system that fits"
        yield problem("wrong_hardware", message)


def check_world_size(e: Evidence) -> Iterator[Problem]:
    """Compare the number of ranks in a log with that of the run."""
    if e.series.world_size not in (None, e.topology.world_size):
        due = f"the run should have {e.topology.world_size} ({e.topology})"
        yield problem("wrong_ranks", f"its log reports {e.series.world_size} ranks; {due}")

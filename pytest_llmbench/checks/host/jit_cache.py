"""Folders of compiled kernels: one for each node, so that many jobs do not wait for each other's compiler."""

import secrets
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, Site
from pytest_llmbench.checks.host.base import FEW, HostCheck, host_probe, is_network, kind_of, variables
from pytest_llmbench.checks.host.kinds import finding
from pytest_llmbench.checks.host.nodes.caches import CacheMarks, KernelCaches
from pytest_llmbench.core.quantity import listed
from pytest_llmbench.core.record.health import Finding, Report, Severity

_VARIABLES = ("TORCH_EXTENSIONS_DIR", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "TORCHINDUCTOR_CACHE_DIR")


class JitCache(HostCheck):
    """Folders in which PyTorch, Triton and CUDA keep compiled kernels."""

    name = "jit_cache"
    summary = "folders of compiled kernels: not shared between nodes, and filled"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Look at each folder; on several nodes, leave a mark in each and see who else finds it."""
        folders = _named(fleet.site)
        several = len(fleet.hosts) > 1
        token = secrets.token_hex(8) if several else None

        def step(name: str) -> list[Answer]:
            config = {"folders": folders, "token": token}
            return fleet.run([host_probe(self, settings, f"cache-{name}", f"caches:{name}", config)])[0]

        facts, unjudged = read_per_host(step("mark"), KernelCaches)
        marks: dict[str, Mapping[str, tuple[str, ...]]] = {}
        if several:
            seen, blind = read_per_host(step("look"), CacheMarks)
            marks, unjudged = {host: told.marks for host, told in seen.items()}, {**blind, **unjudged}
            step("sweep")
        severity = Severity.CONFIGURE if fleet.site.gpus_per_node else Severity.MONITOR
        findings = [*(shared(facts, marks, severity) if several else ()), *cold(facts)]
        notes = tuple(_notes(facts)) if several else ()
        return Report(
            findings=tuple(findings), unjudged=unjudged, notes=notes, evidence={"caches": facts, "marks": marks}
        )


def shared(
    facts: Mapping[str, KernelCaches], marks: Mapping[str, Mapping[str, Sequence[str]]], severity: Severity
) -> Iterator[Finding]:
    """Findings about folders that another node marked too, or that lie on a file system of the network."""
    for host, told in facts.items():
        said = []
        for name, cache in told.folders.items():
            seen = marks.get(host, {}).get(name, ())
            others = [other for other in seen if other in facts and facts[other].boot != told.boot]
            if others or is_network(cache.mount):
                whom = listed(others, FEW) if others else "other nodes that mount it"
                said.append(f"{name} ({cache.folder}, {kind_of(cache.mount)}) with {whom}")
        if said:
            message = f"shares {'; '.join(said)}: jobs that start at once may hang in the compiler"
            action = "set these variables in `env` of the system's file to folders on the nodes' own disks"
            #: finding shared_cache: nodes share a folder of compiled kernels
            yield finding(host, "compiled kernels", "shared_cache", severity, message, action)


def cold(facts: Mapping[str, KernelCaches]) -> Iterator[Finding]:
    """Hints about folders with nothing in them."""
    for host, told in facts.items():
        empty = [name for name, cache in told.folders.items() if not cache.warm]
        if empty:
            message = f"nothing is compiled yet in {', '.join(empty)}: the first run compiles"
            action = "set llmbench_first_run_alone = yes"  #: finding cold_cache: nothing is compiled yet
            yield finding(host, "compiled kernels", "cold_cache", Severity.MONITOR, message, action)


def _notes(facts: Mapping[str, KernelCaches]) -> Iterator[str]:
    """Limits of the comparison between several nodes."""
    if len({told.boot for told in facts.values()}) < len(facts):
        yield "some nodes are one machine: what they share there is no network's"
    for host, told in facts.items():
        unmarked = [name for name, cache in told.folders.items() if not cache.marked]
        if unmarked:
            yield f"{host}: no mark could be left in {', '.join(unmarked)}: only the kind of file system tells"


def _named(site: Site) -> dict[str, str]:
    """Folders that environments without a container set for their own ranks."""
    return {
        f"{name} of {where}": env[name]
        for where, env in variables(site, bare=True).items()
        for name in _VARIABLES
        if where != "env" and name in env
    }

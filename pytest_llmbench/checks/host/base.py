"""Shared parts of the host checks: one probe for the facts of all of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from pytest_llmbench.checks.answers import one_per_host
from pytest_llmbench.checks.base import Check, CheckSettings, Fleet, NodeCheck, Probe, Site, deadline_of
from pytest_llmbench.core.record.health import Finding, Reading
from pytest_llmbench.judging.bounds import missed

# Variables whose value is a file or a folder that is read. Those that name a file to be written are not among them.
_READ = (
    "CUDA_HOME", "CUDA_PATH", "CURL_CA_BUNDLE", "LD_PRELOAD", "NCCL_CONF_FILE", "NCCL_GRAPH_FILE", "NCCL_TOPO_FILE",
    "NCCL_TUNER_CONFIG_FILE", "REQUESTS_CA_BUNDLE", "SSL_CERT_FILE", "TRITON_PTXAS_PATH",
)  # fmt: skip

# What each host said.
HostFacts = Mapping[str, Mapping[str, Any]]


class HostCheck(NodeCheck):
    """Base class of host checks."""

    family = "host"
    deadline_s = 60.0
    entry: str | None = None


def ask_hosts(check: Check, fleet: Fleet, settings: CheckSettings) -> tuple[HostFacts, dict[str, str]]:
    """Ask every node for the facts that the checks of hosts judge, once for all of them.

    Returns:
        The facts by host (see `workloads.checks.host_facts`), and why there are none by host.
    """
    site = fleet.site
    runtimes = sorted({each.container.runtime for each in site.environments.values() if each.container is not None})
    probe = Probe(
        name="host-facts",
        entry="pytest_llmbench.checks.host.nodes.facts:facts",
        config={"runtimes": runtimes, "paths": sorted(named_paths(site))},
        deadline_s=deadline_of(check, settings),
    )
    return one_per_host(fleet.once(probe))


def named_paths(site: Site) -> dict[str, str]:
    """Files and folders of the nodes that the system's file speaks of, and where it does.

    Software that only the image of a container holds is not among them.
    """
    found: dict[str, str] = {}
    for where, env in variables(site, bare=True).items():
        for name in _READ:
            for path in filter(_is_path, env.get(name, "").replace(":", " ").split()):
                found.setdefault(path, f"{name} of {where}")
    for where, environment in site.environments.items():
        container = environment.container
        if container is None:
            named = [("root", environment.root or ""), ("env_file", environment.env_file or "")]
        else:
            mounts = [("mounts", mount.partition(":")[0]) for mount in container.mounts]
            named = [("image", container.image), *mounts]
        for what, path in named:
            if _is_path(path):
                found.setdefault(path, f"{what} of environments.{where}")
    return found


def variables(site: Site, *, bare: bool = False) -> dict[str, Mapping[str, str]]:
    """Environment variables that the system's file sets, by where it does.

    Args:
        site: known facts of the system.
        bare: leave out those that are for the inside of a container.
    """
    return {"env": site.env} | {
        f"environments.{name}": each.env
        for name, each in site.environments.items()
        if each.container is None or not bare
    }


def below(readings: Sequence[Reading], site: Site, settings: CheckSettings, action: str) -> Iterator[Finding]:
    """Findings for readings that miss a reference of this system."""
    device = site.gpu_model or "cpu"
    return missed(readings, settings.references, system=site.system, device=device, action=action)


def _is_path(text: str) -> bool:
    return text.startswith("/")

"""Container runtimes: what the system's file asks for works on every node."""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping

from pytest_llmbench.checks.base import CheckSettings, Fleet, Site
from pytest_llmbench.checks.host.base import HostCheck, ask_hosts
from pytest_llmbench.checks.host.kinds import finding
from pytest_llmbench.checks.host.nodes.facts import RuntimeReply
from pytest_llmbench.core.record.health import Report, Severity


class ContainerRuntime(HostCheck):
    """The runtimes of the environments' images."""

    name = "container_runtime"
    summary = "docker, enroot or pyxis, where the system's file has images for them"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Ask every node."""
        asked = _asked(fleet.site)
        if not asked:
            return Report(skip="no environment of the system's file names a container")
        facts, unjudged = ask_hosts(self, fleet, settings)
        told = {host: each.containers for host, each in facts.items()}
        needed = {each: f"needed by environments.{', environments.'.join(names)}" for each, names in asked.items()}
        findings = [
            #: finding container_runtime: a container runtime that the system's file asks for does not work
            finding(host, runtime, "container_runtime", Severity.CONFIGURE, f"{message} ({needed[runtime]})", action)
            for host, runtimes in told.items()
            for runtime, answer in runtimes.items()
            for message, action in _WRONG[runtime](answer, bool(fleet.site.gpus_per_node))
        ]
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"containers": told})


def _asked(site: Site) -> dict[str, list[str]]:
    """Names of the environments by the runtime that they need."""
    asked: dict[str, list[str]] = defaultdict(list)
    for name, environment in site.environments.items():
        if environment.container is not None:
            asked[environment.container.runtime].append(name)
    return asked


def _docker(told: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    """The client answers without its daemon too, so the server's version has to be there."""
    runtimes = [line.partition(":")[2].split() for line in told.text.splitlines() if "Runtimes:" in line]
    if told.code != 0 or "Server Version:" not in told.text:
        yield _no_answer(told), "start dockerd, and let this user use it (group docker)"
    elif gpus and not (any("nvidia" in names for names in runtimes) or told.cdi or "nvidia.com/gpu" in told.text):
        yield (
            "docker has no nvidia runtime, and there is no CDI description of the GPUs",
            "install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart dockerd",
        )


def _enroot(told: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    if told.code != 0:
        yield _no_answer(told), "install enroot"
    elif gpus and told.nvidia_container_cli is None:
        yield (
            "enroot is there, but nvidia-container-cli is not, which its hook for GPUs calls",
            "install libnvidia-container-tools",
        )


def _pyxis(told: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    del gpus  # enroot is below it, where it runs, and not always on the PATH of a rank
    if told.code != 0:
        yield _no_answer(told), "put srun on the PATH of the nodes"
    elif "--container-image" not in told.text:
        yield "srun has no option --container-image", "name spank_pyxis.so in plugstack.conf on every node"


def _no_answer(told: RuntimeReply) -> str:
    words = " ".join(told.text.split())[-300:] or "it printed nothing"
    end = "did not end" if told.code is None else f"ended with status {told.code}"
    return f"`{told.command}` {end}: {words}"


_WRONG: Mapping[str, Callable[[RuntimeReply, bool], Iterator[tuple[str, str]]]] = {
    "docker": _docker,
    "enroot": _enroot,
    "pyxis": _pyxis,
}

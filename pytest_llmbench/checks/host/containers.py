"""Container runtimes: those that the system's file needs work on every node."""

from collections import defaultdict
from collections.abc import Iterator

from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.host.base import HostCheck, finding
from pytest_llmbench.checks.host.nodes.facts import RuntimeReply
from pytest_llmbench.core.record.health import Report, Severity


class ContainerRuntime(HostCheck):
    """The runtimes of the environments' images."""

    name = "container_runtime"
    summary = "docker, enroot, apptainer or pyxis, where the system's file has images for them"

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        needed: dict[str, list[str]] = defaultdict(list)
        for name, environment in fleet.site.environments.items():
            if environment.container is not None:
                needed[environment.container.runtime].append(f"environments.{name}")
        if not needed:
            return Report(skip="no environment of the system's file names a container")
        facts, unjudged = self.ask(fleet, settings)
        replies = {host: node.containers for host, node in facts.items()}
        findings = []
        for host, runtimes in replies.items():
            for runtime, reply in runtimes.items():
                for fault, action in _FAULTS[runtime](reply, bool(fleet.site.gpus_per_node)):
                    message = f"{fault} (needed by {', '.join(needed[runtime])})"
                    #: finding container_runtime: a required container runtime does not work
                    findings.append(finding(host, runtime, "container_runtime", Severity.CONFIGURE, message, action))
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"containers": replies})


def _check_docker(reply: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    """Require the server's version, because the client answers without its daemon, too."""
    runtimes = [line.partition(":")[2].split() for line in reply.text.splitlines() if "Runtimes:" in line]
    if reply.code != 0 or "Server Version:" not in reply.text:
        yield _describe_failure(reply), "start dockerd, and let this user use it (group docker)"
    elif gpus and not (any("nvidia" in names for names in runtimes) or reply.cdi or "nvidia.com/gpu" in reply.text):
        yield (
            "docker has no nvidia runtime, and there is no CDI description of the GPUs",
            "install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart dockerd",
        )


def _check_enroot(reply: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    if reply.code != 0:
        yield _describe_failure(reply), "install enroot"
    elif gpus and reply.nvidia_container_cli is None:
        message = "enroot is there, but nvidia-container-cli is not, which its hook for GPUs calls"
        yield message, "install libnvidia-container-tools"


def _check_apptainer(reply: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    del gpus  # its option --nv takes the driver's libraries from the node
    if reply.code != 0:
        yield _describe_failure(reply), "install apptainer"


def _check_pyxis(reply: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    del gpus  # enroot below it may be missing from the PATH of a rank
    if reply.code != 0:
        yield _describe_failure(reply), "put srun on the PATH of the nodes"
    elif "--container-image" not in reply.text:
        yield "srun has no option --container-image", "name spank_pyxis.so in plugstack.conf on every node"


def _describe_failure(reply: RuntimeReply) -> str:
    words = " ".join(reply.text.split())[-300:] or "it printed nothing"
    end = "did not end" if reply.code is None else f"ended with status {reply.code}"
    return f"`{reply.command}` {end}: {words}"


_FAULTS = {
    "docker": _check_docker, "enroot": _check_enroot, "apptainer": _check_apptainer, "pyxis": _check_pyxis,
}  # fmt: skip

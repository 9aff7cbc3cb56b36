"""Container runtimes: those that the system's file needs work on every node."""

from collections import defaultdict
from collections.abc import Iterator

from pytest_llmbench.checks.base import CheckSettings, Fleet
from pytest_llmbench.checks.host.base import HostCheck, finding
from pytest_llmbench.checks.host.nodes.facts import RuntimeReply
from pytest_llmbench.core.record.health import Report, Severity

_CURES = {
    "docker": "start dockerd, and let this user use it (group docker)", "enroot": "install enroot",
    "apptainer": "install apptainer", "pyxis": "put srun on the PATH of the nodes",
}  # fmt: skip


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
                for fault, action in _find_faults(runtime, reply, bool(fleet.site.gpus_per_node)):
                    message = f"{fault} (needed by {', '.join(needed[runtime])})"
                    #: finding container_runtime: a required container runtime does not work
                    findings.append(finding(host, runtime, "container_runtime", Severity.CONFIGURE, message, action))
        return Report(findings=tuple(findings), unjudged=unjudged, evidence={"containers": replies})


def _find_faults(runtime: str, reply: RuntimeReply, gpus: bool) -> Iterator[tuple[str, str]]:
    # docker's client answers without its daemon, too.
    if reply.code != 0 or (runtime == "docker" and "Server Version:" not in reply.text):
        yield _describe_failure(reply), _CURES[runtime]
    elif runtime == "pyxis" and "--container-image" not in reply.text:
        yield "srun has no option --container-image", "name spank_pyxis.so in plugstack.conf on every node"
    elif runtime == "enroot" and gpus and reply.nvidia_container_cli is None:
        message = "enroot is there, but nvidia-container-cli is not, which its hook for GPUs calls"
        yield message, "install libnvidia-container-tools"
    elif runtime == "docker" and gpus and not (_has_nvidia_runtime(reply) or reply.cdi):
        yield (
            "docker has no nvidia runtime, and there is no CDI description of the GPUs",
            "install nvidia-container-toolkit, `nvidia-ctk runtime configure --runtime=docker`, restart dockerd",
        )


def _has_nvidia_runtime(reply: RuntimeReply) -> bool:
    runtimes = [line.partition(":")[2].split() for line in reply.text.splitlines() if "Runtimes:" in line]
    return any("nvidia" in names for names in runtimes) or "nvidia.com/gpu" in reply.text


def _describe_failure(reply: RuntimeReply) -> str:
    words = " ".join(reply.text.split())[-300:] or "it printed nothing"
    end = "did not end" if reply.code is None else f"ended with status {reply.code}"
    return f"`{reply.command}` {end}: {words}"

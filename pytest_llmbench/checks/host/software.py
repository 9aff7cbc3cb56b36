"""Check of the nodes' software: equal on all nodes, and supported by the driver."""

from collections.abc import Iterator, Mapping

from pytest_llmbench.checks.base import CheckSettings, Fleet, options_of
from pytest_llmbench.checks.host.base import HostCheck, find_differing, finding
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict


class SoftwareOptions(Strict):
    """Software that may differ."""

    ignore: tuple[str, ...] = ()
    """Names of software, as in the record, that may differ between nodes."""


class Software(HostCheck):
    """Versions of everything that a training runs on."""

    name = "software"
    summary = "kernel, driver, CUDA, NCCL, PyTorch and the like: the same on all nodes, and PyTorch's CUDA runs here"
    options: type[Strict] = SoftwareOptions

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options = options_of(self, settings, SoftwareOptions)
        facts, unjudged = self.ask(fleet, settings)
        software = {host: node.software for host, node in facts.items()}
        findings = [*find_unlike(software, options.ignore)]
        gpus, alone = fleet.site.gpus_per_node, len(software) == 1
        if gpus:
            findings += [
                finding for host, versions in software.items() for finding in find_unfit_for_gpus(host, versions)
            ]
        notes = ("one node: nothing to compare it with",) if alone else ()
        evidence, unbounded = {"software": software}, alone and not gpus
        return Report(findings=tuple(findings), unjudged=unjudged, unbounded=unbounded, notes=notes, evidence=evidence)


def find_unlike(software: Mapping[str, Mapping[str, str]], ignore: tuple[str, ...]) -> Iterator[Finding]:
    """Findings about versions, by host and name, that differ from those of most nodes."""
    for name in sorted({name for versions in software.values() for name in versions} - {*ignore}):
        versions = {host: versions.get(name, "none") for host, versions in software.items()}
        for host, difference in find_differing(versions).items():
            action = f"install the same {name} on all nodes, or list it under `ignore`"
            yield finding(host, name, "differs", Severity.CONFIGURE, difference, action)


def find_unfit_for_gpus(host: str, versions: Mapping[str, str]) -> Iterator[Finding]:
    """Findings about the driver, and about a PyTorch that is too new for it."""
    driver, torch, cuda = (versions.get(name) for name in ("driver's cuda", "torch", "cuda"))
    severity, message, action = Severity.CONFIGURE, "", "install a PyTorch built for the driver's CUDA, or a new driver"
    if driver is None:
        message, action = "libcuda.so.1 is missing, or reports no version", "install NVIDIA's driver, or load it"
    elif torch is not None and cuda is None:
        message = f"PyTorch {torch} is not built for CUDA"
    elif cuda is not None and _number(cuda)[:1] > _number(driver)[:1]:
        message = f"PyTorch {torch} is built for CUDA {cuda}, and the driver runs {driver} at most"
    elif cuda is not None and _number(cuda) > _number(driver):
        severity = Severity.MONITOR
        message = f"PyTorch {torch} is built for CUDA {cuda}, newer than the driver's {driver}: kernels that it would "
        message += "compile at run time fail"
    if message:  #: finding cuda: the driver is missing, or too old for PyTorch's CUDA
        yield finding(host, "CUDA", "cuda", severity, message, action)


def _number(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split(".")[:2])

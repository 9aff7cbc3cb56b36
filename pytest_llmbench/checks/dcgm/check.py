"""DCGM: does every node pass NVIDIA's own diagnostic?"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, Probe, options_of
from pytest_llmbench.checks.dcgm.nodes.diagnostics import DiagnosticRun
from pytest_llmbench.checks.dcgm.verdict import DcgmVerdict, ExpectedTests, judge
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict

_DCGM = "pytest_llmbench.checks.dcgm.nodes.diagnostics:dcgm"
# By level, seconds. NVIDIA names seconds, 2 minutes, 15 minutes and hours; level 3 was seen to take 30 minutes.
_DEADLINES = {1: 120.0, 2: 600.0, 3: 3600.0, 4: 10_800.0}
# The time of a node to end a diagnostic that hangs, and to answer.
_SPARE_S = 30.0
_LONGEST = 100_000


class DcgmOptions(Strict):
    """How the diagnostic is run."""

    level: Literal[1, 2, 3, 4] | None = None
    """Level of the diagnostic, as for `dcgmi diag -r`; absent, 3, and 1 at scale `smoke`."""
    parameters: tuple[Annotated[str, Field(pattern=r"^\w+(\.\w+)+=[^;]+$")], ...] = ()
    """Parameters of the tests, as for `dcgmi diag -p`."""
    allowed_skips: tuple[str, ...] = ()
    """Tests that may be skipped, by DCGM's names, such as `eud`."""
    hostengine: Annotated[str, Field(pattern=r"^[^-\s]\S*$")] | None = None
    """Address of nv-hostengine; absent, the node itself."""

    def words(self, level: int, root: str | None) -> list[str]:
        """The command, without the form of its output."""
        parameters = ["-p", ";".join(self.parameters)] if self.parameters else []
        host = ["--host", self.hostengine] if self.hostengine else []
        return [f"{root}/bin/dcgmi" if root else "dcgmi", "diag", "-r", str(level), *parameters, *host]


class Dcgm(NodeCheck):
    """`dcgmi diag` on every node at once, whatever its version; bare, or in the container of environment `dcgm`."""

    name = "dcgm"
    family = "dcgm"
    summary = "NVIDIA's own diagnostic of every GPU (dcgmi diag)"
    options: type[Strict] = DcgmOptions
    deadline_s = _DEADLINES[3]

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Run it on every node, and judge its output."""
        options, site = options_of(self, settings, DcgmOptions), fleet.site
        if not site.gpus_per_node:
            return Report(skip="this session has no GPUs, and DCGM tests nothing else")
        level = options.level or (1 if site.scale == "smoke" else 3)
        deadline_s = settings.deadline_s or _DEADLINES[level]
        environment = site.environments.get("dcgm")
        config = {
            "words": options.words(level, environment.root if environment else None),
            "environment": environment.model_dump(mode="json") if environment else None,
            "limit_s": max(deadline_s - _SPARE_S, deadline_s / 2),
        }
        probe = Probe(name="dcgm", entry=_DCGM, config=config, gpus=True, deadline_s=deadline_s)
        runs, unjudged = read_per_host(fleet.run([probe])[0], DiagnosticRun)
        missing = {host: run.missing for host, run in runs.items() if run.missing is not None}
        if missing and len(missing) == len(fleet.hosts) and not settings.options and environment is None:
            reason = f"no node has DCGM, and system {site.system} does not ask for it: {missing.popitem()[1]}"
            return Report(skip=reason)
        expected = ExpectedTests(level=level, gpus=site.gpus_per_node, allowed_skips=options.allowed_skips)
        outputs = {host: run.output for host, run in runs.items() if run.output is not None}
        verdicts = {host: judge(host, output, expected) for host, output in outputs.items()}
        unproven = {host: "; ".join(verdict.unjudged) for host, verdict in verdicts.items() if verdict.unjudged}
        evidence: dict[str, Any] = {}
        for host, output in outputs.items():  # a longer output is cut here, and was read whole
            diagnosis = verdicts[host].diagnosis
            read = {"version": diagnosis.version, "driver": diagnosis.driver, "gpus": diagnosis.gpus}
            evidence[host] = {**output.model_dump(), "stdout": output.stdout[:_LONGEST], **read}
        return Report(
            findings=tuple(finding for verdict in verdicts.values() for finding in verdict.findings),
            unjudged={**unjudged, **missing, **unproven},
            notes=(f"level {level} (dcgmi diag -r {level})", *_describe_gaps(verdicts)),
            evidence={"level": level, "nodes": evidence},
        )


def _describe_gaps(verdicts: Mapping[str, DcgmVerdict]) -> list[str]:
    """Allowed skips, and nodes without the number of tested GPUs, as at level 1 of DCGM 2."""
    notes = []
    for name in sorted({name for verdict in verdicts.values() for name in verdict.skipped}):
        hosts = [host for host, verdict in verdicts.items() if name in verdict.skipped]
        notes.append(f"{name} was skipped, which allowed_skips allows, on {', '.join(hosts)}")
    diagnoses = {host: verdict.diagnosis for host, verdict in verdicts.items()}
    hosts = [host for host, diagnosis in diagnoses.items() if diagnosis.tests and diagnosis.gpus is None]
    return [*notes, f"DCGM does not report how many GPUs it tested on {', '.join(hosts)}"] if hosts else notes

"""DCGM: does every node pass NVIDIA's own diagnostic?"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import Field

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, NodeCheck, Probe, Site, options_of
from pytest_llmbench.checks.dcgm.nodes.diagnostics import DiagnosticOutput, DiagnosticRun
from pytest_llmbench.checks.dcgm.verdict import ExpectedTests, Judged, judge
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import Strict

_DCGM = "pytest_llmbench.checks.dcgm.nodes.diagnostics:dcgm"
_ENVIRONMENT = "dcgm"
# By level, seconds. NVIDIA speaks of seconds, 2 minutes, 15 minutes and hours; level 3 was seen to take 30 minutes.
_DEADLINES = {1: 120.0, 2: 600.0, 3: 3600.0, 4: 10_800.0}
# What is left to a node to end a diagnostic that hangs, and to answer.
_SPARE_S = 30.0
_LONGEST = 100_000


class DcgmOptions(Strict):
    """How the diagnostic is run."""

    level: Literal[1, 2, 3, 4] | None = None
    """As `dcgmi diag -r` has it; absent, 3, at scale `smoke` 1."""
    parameters: tuple[Annotated[str, Field(pattern=r"^\w+(\.\w+)+=[^;]+$")], ...] = ()
    """For `dcgmi diag -p`."""
    allowed_skips: tuple[str, ...] = ()
    """Tests that need not run, by DCGM's names, such as `eud`."""
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
        """Run it on every node, and judge what it left."""
        options, site = options_of(self, settings, DcgmOptions), fleet.site
        if not site.gpus_per_node:
            return Report(skip="this session has no GPUs, and DCGM tests nothing else")
        level = options.level or (1 if site.scale == "smoke" else 3)
        probe = _probe(site, options, level, settings.deadline_s or _DEADLINES[level])
        facts, unjudged = read_per_host(fleet.run([probe])[0], DiagnosticRun)
        missing = {host: told.missing for host, told in facts.items() if told.missing is not None}
        outputs = {host: told.output for host, told in facts.items() if told.output is not None}
        asked_for = bool(settings.options) or _ENVIRONMENT in site.environments
        if missing and len(missing) == len(fleet.hosts) and not asked_for:
            return Report(
                skip=f"no node has DCGM, and system {site.system} does not ask for it: {missing.popitem()[1]}"
            )
        expected = ExpectedTests(level=level, gpus=site.gpus_per_node, allowed_skips=options.allowed_skips)
        judged = {host: judge(host, told, expected) for host, told in outputs.items()}
        return Report(
            findings=tuple(finding for each in judged.values() for finding in each.findings),
            unjudged={
                **unjudged, **missing,
                **{host: "; ".join(each.unjudged) for host, each in judged.items() if each.unjudged},
            },
            notes=(f"level {level} (dcgmi diag -r {level})", *_skips(judged), *_uncounted(judged)),
            evidence={"level": level, "nodes": {host: _evidence(outputs[host], each) for host, each in judged.items()}},
        )  # fmt: skip


def _probe(site: Site, options: DcgmOptions, level: int, deadline_s: float) -> Probe:
    environment = site.environments.get(_ENVIRONMENT)
    config = {
        "words": options.words(level, environment.root if environment else None),
        "environment": environment.model_dump(mode="json") if environment else None,
        "limit_s": max(deadline_s - _SPARE_S, deadline_s / 2),
    }
    return Probe(name="dcgm", entry=_DCGM, config=config, gpus=True, deadline_s=deadline_s)


def _skips(judged: Mapping[str, Judged]) -> list[str]:
    """Tests that did not run anywhere and need not, with the nodes."""
    names = sorted({name for each in judged.values() for name in each.skipped})
    where = {name: [host for host, each in judged.items() if name in each.skipped] for name in names}
    return [f"{name} was skipped, which allowed_skips allows, on {', '.join(where[name])}" for name in names]


def _uncounted(judged: Mapping[str, Judged]) -> list[str]:
    """Nodes whose output does not give the number of tested GPUs: at level 1 of DCGM 2."""
    hosts = [host for host, each in judged.items() if each.diagnosis.tests and each.diagnosis.gpus is None]
    return [f"DCGM does not report how many GPUs it tested on {', '.join(hosts)}"] if hosts else []


def _evidence(told: DiagnosticOutput, judged: Judged) -> dict[str, Any]:
    """Excerpt of a node's diagnostic for the record; a longer output is cut there, and was read whole."""
    read = {"version": judged.diagnosis.version, "driver": judged.diagnosis.driver, "gpus": judged.diagnosis.gpus}
    return {**told.model_dump(), "stdout": told.stdout[:_LONGEST], **read}

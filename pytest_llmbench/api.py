"""The public names: all that a test, an engine, a check, a reader, a statistic or a report of yours imports.

    from pytest_llmbench.api import External, Run

A name that is here stays: one that has to go is first announced in the changelog, and works for at least one minor
version more. Every other name of the package may change in any version.

Each name is imported when it is first asked for, as ranks on nodes import from here too, and need no pytest for it.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_llmbench.checks.answers import one_per_host, read_per_host, silent
    from pytest_llmbench.checks.base import Answer, Check, CheckSettings, Fleet, Probe, Site, deadline_of
    from pytest_llmbench.checks.base import options_of as check_options
    from pytest_llmbench.checks.host.base import HostCheck
    from pytest_llmbench.core.errors import (
        ClusterError,
        ConfigError,
        InconclusiveError,
        LLMBenchError,
        RunError,
        UnitError,
    )
    from pytest_llmbench.core.quantity import Quantity
    from pytest_llmbench.core.recipe.environments import Environment
    from pytest_llmbench.core.recipe.recipes import Recipe
    from pytest_llmbench.core.recipe.reference import Reference
    from pytest_llmbench.core.recipe.topology import Topology
    from pytest_llmbench.core.record.claims import Asks, Expected
    from pytest_llmbench.core.record.health import Finding, HealthRecord, Reading, Report, Severity
    from pytest_llmbench.core.record.records import Judgement, Metric, Problem, RunRecord, Verdict
    from pytest_llmbench.core.record.series import Progress, Step, StepSeries
    from pytest_llmbench.core.schema import Strict
    from pytest_llmbench.core.wire.answers import ProbeAnswer
    from pytest_llmbench.engines.base import BatchLog, Command, Engine, Place, RankTask, Script
    from pytest_llmbench.engines.base import options_of as recipe_options
    from pytest_llmbench.engines.external import External, fill, flags
    from pytest_llmbench.engines.in_process import InProcess
    from pytest_llmbench.engines.overrides import batch_problem, precision_problem
    from pytest_llmbench.judging.golden import GoldenLosses
    from pytest_llmbench.judging.outliers import outliers
    from pytest_llmbench.judging.references import missed
    from pytest_llmbench.judging.statistics import Measurement, Statistic
    from pytest_llmbench.plugin.collection.checks import Health
    from pytest_llmbench.plugin.verdict.measured import Measured
    from pytest_llmbench.plugin.verdict.run import Run
    from pytest_llmbench.readers.items import (
        BadEnd,
        Begun,
        Completed,
        Count,
        Failed,
        Item,
        LogInterval,
        Needles,
        Node,
        Parse,
        Pause,
        Said,
        Skipped,
        StepLine,
        Total,
        Unreadable,
        WorldSize,
    )
    from pytest_llmbench.readers.log import LogReader
    from pytest_llmbench.reporting.base import FinishedSession, ReportWriter
    from pytest_llmbench.workloads.rank.context import RankContext
    from pytest_llmbench.workloads.rank.probe import ProbeLog
    from pytest_llmbench.workloads.rank.steplog import StepLog

# The modules that the names come from at run time, as the imports above give them to type checkers.
_HOMES = {
    "checks.answers": ("one_per_host", "read_per_host", "silent"),
    "checks.base": ("Answer", "Check", "CheckSettings", "Fleet", "Probe", "Site", "deadline_of", "check_options"),
    "checks.host.base": ("HostCheck",),
    "core.errors": ("ClusterError", "ConfigError", "InconclusiveError", "LLMBenchError", "RunError", "UnitError"),
    "core.quantity": ("Quantity",),
    "core.recipe.environments": ("Environment",),
    "core.recipe.recipes": ("Recipe",),
    "core.recipe.reference": ("Reference",),
    "core.recipe.topology": ("Topology",),
    "core.record.claims": ("Asks", "Expected"),
    "core.record.health": ("Finding", "HealthRecord", "Reading", "Report", "Severity"),
    "core.record.records": ("Judgement", "Metric", "Problem", "RunRecord", "Verdict"),
    "core.record.series": ("Progress", "Step", "StepSeries"),
    "core.schema": ("Strict",),
    "core.wire.answers": ("ProbeAnswer",),
    "engines.base": ("BatchLog", "Command", "Engine", "Place", "RankTask", "Script", "recipe_options"),
    "engines.external": ("External", "fill", "flags"),
    "engines.in_process": ("InProcess",),
    "engines.overrides": ("batch_problem", "precision_problem"),
    "judging.golden": ("GoldenLosses",),
    "judging.outliers": ("outliers",),
    "judging.references": ("missed",),
    "judging.statistics": ("Measurement", "Statistic"),
    "plugin.collection.checks": ("Health",),
    "plugin.verdict.measured": ("Measured",),
    "plugin.verdict.run": ("Run",),
    "readers.items": (
        "BadEnd", "Begun", "Completed", "Count", "Failed", "Item", "LogInterval", "Needles", "Node", "Parse", "Pause",
        "Said", "Skipped", "StepLine", "Total", "Unreadable", "WorldSize",
    ),
    "readers.log": ("LogReader",),
    "reporting.base": ("FinishedSession", "ReportWriter"),
    "workloads.rank.context": ("RankContext",),
    "workloads.rank.probe": ("ProbeLog",),
    "workloads.rank.steplog": ("StepLog",),
}  # fmt: skip
_ORIGINAL = {"check_options": "options_of", "recipe_options": "options_of"}
_FROM = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "Answer", "Asks", "BadEnd", "BatchLog", "Begun", "Check", "CheckSettings", "ClusterError", "Command",
    "Completed", "ConfigError", "Count", "Engine", "Environment", "Expected", "External", "Failed", "Finding",
    "FinishedSession", "Fleet", "GoldenLosses", "Health", "HealthRecord", "HostCheck", "InProcess",
    "InconclusiveError", "Item", "Judgement", "LLMBenchError", "LogInterval", "LogReader", "Measured",
    "Measurement", "Metric", "Needles", "Node", "Parse", "Pause", "Place", "Probe", "ProbeAnswer", "ProbeLog",
    "Problem", "Progress", "Quantity", "RankContext", "RankTask", "Reading", "Recipe", "Reference", "Report",
    "ReportWriter", "Run", "RunError", "RunRecord", "Said", "Script", "Severity", "Site", "Skipped",
    "Statistic", "Step", "StepLine", "StepLog", "StepSeries", "Strict", "Topology", "Total", "UnitError",
    "Unreadable", "Verdict", "WorldSize", "batch_problem", "check_options", "deadline_of", "fill", "flags",
    "missed", "one_per_host", "outliers", "precision_problem", "read_per_host", "recipe_options", "silent",
]  # fmt: skip


if not TYPE_CHECKING:  # which would take any name for one that is here

    def __getattr__(name: str) -> Any:
        if name not in _FROM:
            raise AttributeError(f"pytest_llmbench.api has no {name!r}")
        return getattr(import_module(f"pytest_llmbench.{_FROM[name]}"), _ORIGINAL.get(name, name))

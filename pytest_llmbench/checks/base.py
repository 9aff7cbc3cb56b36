"""The check protocol: its probes, its view of the cluster, and the look-up by name."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Literal, Protocol, TypeVar

from pydantic import PositiveFloat, field_validator

from pytest_llmbench.core.errors import ConfigError, unknown
from pytest_llmbench.core.extensions import Extensions, named
from pytest_llmbench.core.recipe.environments import Environment, Network
from pytest_llmbench.core.recipe.recipes import Scale
from pytest_llmbench.core.recipe.reference import Reference, refuse_contradictions
from pytest_llmbench.core.recipe.topology import Places, Topology
from pytest_llmbench.core.record.health import Report
from pytest_llmbench.core.schema import NoOptions, Strict, validate

# In this order: a cheap check rules a node out before GPU-hours are spent on it, and links are measured last.
FAMILIES = ("host", "gpu", "dcgm", "topology", "compute", "storage", "collectives", "network")

CheckOptions = TypeVar("CheckOptions", bound=Strict)
if TYPE_CHECKING:
    from typing_extensions import TypeVar as TypeVarWithDefault  # the standard library has it from Python 3.13 on

    AnswerData = TypeVarWithDefault("AnswerData", default=Mapping[str, Any])
else:
    AnswerData = TypeVar("AnswerData")


@dataclass(frozen=True, kw_only=True, slots=True)
class Probe:
    """One short step on some nodes: every rank runs a function and answers with plain data."""

    name: str  # within the check; the name of a folder
    # `package.module:function`, called with `(RankContext, ProbeLog)` on every rank; its result is the rank's answer.
    entry: str
    deadline_s: float  # longest duration of the whole step
    config: Mapping[str, Any] = field(default_factory=dict)  # passed to the function as `RankContext.config`
    hosts: tuple[str, ...] | None = None  # the nodes; None for all of them
    ranks_per_node: int = 1
    gpus: bool = False  # whether the ranks need the nodes' GPUs
    # Whether the ranks communicate. Ranks that work alone are asked again, node by node, if one node keeps the others
    # from answering.
    together: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Generic[AnswerData]):
    """The answer of one rank of a probe."""

    host: str
    rank: int  # its number among the ranks of the probe
    local_rank: int  # its number on its node
    data: AnswerData | None  # the result of its function, as plain data or as a model; None for a missing answer
    # The reason for a missing answer: an exception, a crash, a hang with its phase, or a damaged file.
    why: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Site(Topology):
    """The part of the system's file and the options that a check may see: first of all, the session's nodes."""

    system: str
    gpu_model: str | None = None  # as in the system's file; None where it lists none
    gpu_memory_gib: float | None = None
    peak_tflops: Mapping[str, float] = field(default_factory=dict)  # published dense peak of one GPU by precision
    env: Mapping[str, str] = field(default_factory=dict)  # environment variables of every rank
    environments: Mapping[str, Environment] = field(default_factory=dict)  # places of external programs by name
    network: Network | None = None  # as the system's file states it
    scale: Scale = "full"  # `smoke` for the same code at a tiny size
    slurm: bool = False  # whether srun is there
    selected: tuple[str, ...] = ()  # names of the checks that this session runs
    places: Places = field(default_factory=Places)  # racks and switches of the nodes, where they are known

    @property
    def is_full_gpu(self) -> bool:
        """True if GPUs are measured at full size; usual sizes, counts and tolerances depend on it."""
        return self.device == "cuda" and self.scale == "full"


class Fleet(Protocol):
    """The nodes of a session, as a check sees them."""

    site: Site
    hosts: tuple[str, ...]  # the nodes to check, in the order of their slots
    folder: Path  # the check's own, on a file system that all nodes share

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Run all probes at once and wait: one answer per rank of each, in the order of the ranks.

        A rank that raises, dies, or is silent at the deadline has an answer with the reason. Raises ClusterError if the
        nodes are gone, or the session ended.
        """

    def once(self, probe: Probe) -> list[Answer]:
        """Run a probe that several checks share the first time, and return the same answers afterwards."""


class CheckSettings(Strict):
    """The settings of one check in a system's file."""

    skip: str | None = None
    """Reason to leave the check out on this system, as a SKIP."""
    options: Mapping[str, Any] = {}
    """Options of this check, by its own keys."""
    references: tuple[Reference, ...] = ()
    """Bounds on the check's statistics."""
    deadline_s: PositiveFloat | None = None
    """Longest duration of each step of the check, in seconds; absent, the check's own deadline."""

    @field_validator("references")
    @classmethod
    def _consistent(cls, references: tuple[Reference, ...]) -> tuple[Reference, ...]:
        refuse_contradictions(references)
        if expected := [reference.name for reference in references if reference.xfail is not None]:
            raise ValueError(f"{expected[0]}: xfail is for references of recipes: leave a check out with skip")
        return references


class Check(Protocol):
    """One validation. A package announces its checks in the entry points `pytest_llmbench.checks`.

    A check of another package may have an `entry`, its function that nodes run: a session tries at its start whether
    the nodes can import it.
    """

    name: str  # of the test case and the folder, such as `limits`; the name under which it is announced
    family: str  # one of `FAMILIES`
    scope: Literal["node", "cluster"]  # `node`, when every node has a verdict of its own
    summary: str  # its question, in a line
    options: type[Strict]  # the model of what a system's file may set
    statistics: Mapping[str, str]  # units of what it measures, by name
    deadline_s: float  # longest duration of each of its steps

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Look, measure, judge."""


class CheckDefaults(Check):
    """Base class of our checks: a verdict for each node; options and statistics are its own."""

    scope: Literal["node", "cluster"] = "node"
    options: type[Strict] = NoOptions
    statistics: Mapping[str, str] = {}
    deadline_s = 300.0

    def probe(
        self, settings: CheckSettings, function: str, config: Mapping[str, Any] | None = None, **how: Any
    ) -> Probe:
        """A step that calls a function of its family's part for nodes, such as `facts:facts`.

        By default it has the check's name and deadline. `how` are further fields of `Probe`.
        """
        entry = f"pytest_llmbench.checks.{self.family}.nodes.{function}"
        usual = {"name": self.name, "deadline_s": settings.deadline_s or self.deadline_s}
        return Probe(entry=entry, config=config or {}, **{**usual, **how})

    def probe_devices(
        self, site: Site, settings: CheckSettings, function: str, config: Mapping[str, Any], **how: Any
    ) -> Probe:
        """A step with a rank for each GPU, or for each of the ranks that a node without GPUs has."""
        gpus = site.device == "cuda"
        return self.probe(settings, function, config, **{"ranks_per_node": site.ranks_per_node, "gpus": gpus, **how})


def options_of(check: Check, settings: CheckSettings, model: type[CheckOptions]) -> CheckOptions:
    """The options of a check as its own model.

    Raises ConfigError if the system's file has a key or a value that the model does not allow.
    """
    return validate(model, settings.options, f"validation: {check.name}: options")


def deadline_of(check: Check, settings: CheckSettings) -> float:
    """The longest duration of each step of a check, seconds."""
    return settings.deadline_s or check.deadline_s


def _accept(name: str, thing: object) -> Check:
    check: Check = named(Check)(name, thing)
    if check.family not in FAMILIES:
        raise ConfigError(unknown("family", check.family, FAMILIES))
    return check


CHECKS: Extensions[Check] = Extensions("check", "checks", _accept)
get_check = CHECKS.load


def all_checks() -> dict[str, Check]:
    """Every check that can be used, by name, in the order they run: by family, then by name."""
    checks = sorted(CHECKS.usable().values(), key=lambda check: (FAMILIES.index(check.family), check.name))
    return {check.name: check for check in checks}

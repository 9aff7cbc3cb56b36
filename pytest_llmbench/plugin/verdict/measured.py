"""The objects that a test gets from its run: quantities that remember their origin, and failing comparisons told."""

from pathlib import Path

from pytest_llmbench.core.errors import InconclusiveError, RunError, unknown
from pytest_llmbench.core.quantity import USUAL_BETWEEN_RUNS, BetweenRuns, Quantity, for_people, told_apart
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import Metric, RunRecord
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.findings.gather import slowest_node
from pytest_llmbench.judging.interval.decide import Decision, Op, apart, decide
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.judging.statistics import SHARED, window
from pytest_llmbench.judging.telemetry import RULES, gaps
from pytest_llmbench.session.ending.logs import log_to_read

# What is computed from the model's FLOPs.
_OF_FLOPS = {"tflops_per_gpu", "mfu", "matmul_fraction"}


class Measured(Quantity):
    """A measured quantity. It compares like any other, and keeps what it was compared with.

    Attributes:
        statistic: the rule's name.
        metric: the number with its rule.
        record: the run it is of.
        threshold: the last comparison it was in, such as `>= 200000 words/s`; None so far.
        decision: how that ended, where the steady state of the run judged it; None where the statistic's own rule did.
    """

    __slots__ = ("decision", "metric", "record", "statistic", "threshold")

    def __init__(self, statistic: str, metric: Metric, record: RunRecord) -> None:
        super().__init__(metric.value, metric.unit)
        known = {"statistic": statistic, "metric": metric, "record": record, "threshold": None, "decision": None}
        for name, value in known.items():
            object.__setattr__(self, name, value)

    statistic: str
    metric: Metric
    record: RunRecord
    threshold: str | None
    decision: Decision | None

    # Python asks a subclass first, so `Quantity(...) <= measured` ends up here as well.
    def __ge__(self, other: object) -> bool:
        return self._compared(">=", other)

    def __gt__(self, other: object) -> bool:
        return self._compared(">", other)

    def __le__(self, other: object) -> bool:
        return self._compared("<=", other)

    def __lt__(self, other: object) -> bool:
        return self._compared("<", other)

    def _compared(self, op: Op, other: object) -> bool:
        if not isinstance(other, Quantity):
            self._check(other)  # it says why not
            return False
        return self.meets(op, other, USUAL_BETWEEN_RUNS)

    def meets(self, op: Op, bound: Quantity, between: BetweenRuns | None = None) -> bool:
        """Whether `self op bound` holds, for certain where the statistic says how well it is known.

        Raises:
            InconclusiveError: it is not known well enough.
        """
        holds = super().meets(op, bound)
        object.__setattr__(self, "threshold", f"{op} {bound.plain}")
        if self.metric.sense is None:
            object.__setattr__(self, "decision", None)
            return holds
        if isinstance(bound, Measured):
            decision = apart(self.metric, op, bound.metric)
        else:
            decision = decide(self.metric, self.record.steady, op, bound, between)
        object.__setattr__(self, "decision", decision)
        if decision.holds is None:
            raise InconclusiveError("\n".join(undecided(self, op, bound, decision)))
        return decision.holds

    __hash__ = Quantity.__hash__


class Run:
    """A run that finished, is sane and was measured.

    Every statistic is an attribute: `run.throughput`, `run.step_time`, `run.mfu`, ... (see
    `judging.statistics.STATISTICS`, and `statistics` of the engine for its own).

    Attributes:
        record: the whole evidence.
        used: the quantities the test asked for, in order.
    """

    def __init__(self, record: RunRecord) -> None:
        self.record = record
        self.used: list[Measured] = []
        self._statistics = statistics_of(get_engine(record.recipe.engine))

    def __repr__(self) -> str:
        return f"Run({self.record.key})"

    def measured(self, statistic: str) -> Measured:
        """Return one statistic of this run.

        Raises:
            RunError: there is no such statistic, or it has no meaning for this run.
        """
        if statistic not in self._statistics:  #: error unknown_statistic: there is no statistic of that name
            raise RunError("unknown_statistic", unknown("statistic", statistic, self._statistics))
        metric = self.record.metrics.get(statistic)
        if metric is None:
            rule, record = self._statistics[statistic].rule, self.record
            uncounted = get_engine(record.recipe.engine).uncounted(record.recipe)
            unknown_of_gpus = gaps(record.telemetry, record.gpus) if statistic in RULES else []
            why = f"it has {', '.join(record.metrics)}"
            if unknown_of_gpus:
                why = f"telemetry of its GPUs is incomplete: {'; '.join(unknown_of_gpus)}"
            elif uncounted is not None and statistic in _OF_FLOPS:
                why = f"{uncounted}, so the model's FLOPs are unknown; {why}"
            raise RunError(
                "no_measurement", f"{statistic} ({rule}) is not available for this run on {self.machine}: {why}"
            )  #: error no_measurement: the test asks for a statistic that has no meaning for this run
        quantity = Measured(statistic, metric, self.record)
        self.used.append(quantity)
        return quantity

    def __getattr__(self, name: str) -> Measured:
        if name.startswith("_") or name not in self._statistics:
            raise AttributeError(unknown("attribute of a run", name, ["record", "machine", *self._statistics]))
        return self.measured(name)

    @property
    def machine(self) -> Machine:
        """The machine that the run really used, as its ranks reported."""
        record = self.record
        return Machine(
            system=record.system,
            device=record.device or "unknown",
            gpus=record.gpus,
            nodes=record.nodes,
            scale=record.recipe.scale,
        )


def undecided(measured: Measured, op: Op, threshold: Quantity, decision: Decision) -> list[str]:
    """Say why a comparison is not decided, what would decide it, and where the evidence is."""
    shown, bound = told_apart(measured.to(threshold.unit), threshold)
    interval = ""
    if decision.low is not None and decision.high is not None:
        low, high = (Quantity(end, measured.unit).to(threshold.unit) for end in (decision.low, decision.high))
        about = "runs of this system are" if decision.claim == "system" else "in more steps this run would be"
        interval = f"{about} between {low} and {high} (each end is 99 % sure). "
    first = f"{measured.statistic} {shown} does not decide on the threshold {op} {bound}: {interval}{decision.why}"
    return [first, *_evidence(measured)]


def explain(measured: Measured, threshold: Quantity, side: str) -> list[str]:
    """Say what was measured, what was asked, how far apart they are, and where the evidence is.

    Args:
        measured: the number.
        threshold: the bound it missed.
        side: `below` or `above`.
    """
    judged, decision = measured.to(threshold.unit), measured.decision
    if decision is not None and decision.steady is not None and not _MISSING[side](judged, threshold):
        judged = Quantity(decision.steady, measured.unit).to(threshold.unit)
    shown, bound = told_apart(judged, threshold)
    return [
        # pytest cuts long explanations at the end, so what is needed most comes first.
        f"measured {shown} is {_distance(judged, threshold, side)} the threshold {bound}",
        *_evidence(measured),
    ]


def _evidence(measured: Measured) -> list[str]:
    """The slow node, the record, the log, the hosts, and the statistic's rule."""
    record = measured.record
    log = log_to_read(record.logs)
    where = f" on {', '.join(record.hosts)}" if record.hosts else ""
    # An engine's own rule says itself which lines it is about.
    node = slowest_node(record.rank_info, record.telemetry)
    judged = f"; {window(record.recipe)}" if measured.statistic in SHARED.names() else ""
    return [
        *([node] if node else []),
        f"run record: {_short(record.path)}",
        f"log: {_short(log)}",
        f"run: {record.key}{where}{record.job}",
        f"statistic: {measured.statistic} = {measured.metric.rule}{judged}",
    ]


def _distance(measured: Quantity, threshold: Quantity, side: str) -> str:
    """Say how far a number is from the bound it missed, as a share of it where "90 % below" would tell little."""
    percent = measured.difference_percent(threshold)
    if percent is None:
        return side
    if side == "below" and percent < -50.0 and measured.base > 0.0:
        return f"only {for_people(100.0 + percent, 2)} % of"
    if side == "above" and percent > 900.0:
        return f"{for_people(1.0 + percent / 100.0, 3)} times"
    return f"{for_people(abs(percent), 3)} % {side}"


def _short(path: Path) -> str:
    """A path relative to where the user stands, when it is below."""
    here = Path.cwd()
    return str(path.relative_to(here)) if path.is_relative_to(here) else str(path)


_MISSING = {"below": Quantity.__le__, "above": Quantity.__ge__}
_MIRRORED = {">=": "<=", ">": "<", "<=": ">=", "<": ">"}
_MISSED = {">=": "below", ">": "below", "<=": "above", "<": "above"}


def explain_comparison(op: str, left: object, right: object) -> list[str] | None:
    """Explain `measured >= quantity`, either way round, and `measured in reference`; None for anything else."""
    if isinstance(right, Measured) and not isinstance(left, Measured) and op in _MIRRORED:
        op, left, right = _MIRRORED[op], right, left
    if not isinstance(left, Measured):
        return None
    if isinstance(right, Quantity) and op in _MISSED:
        return explain(left, right, _MISSED[op])
    if isinstance(right, Reference) and op == "in":
        missed = right.missed_by(left)
        if missed is not None:
            bound_op, bound = missed
            return [*explain(left, bound, _MISSED[bound_op]), *describe(right)]
    return None


def describe(reference: Reference) -> list[str]:
    """Say what a reference is and where it comes from."""
    meant = str(reference.applies_to or "any machine")
    return [
        f"reference: {reference.name} ({reference.asked}) for {meant}",
        f"  {' '.join(reference.why.split())} [{reference.source}, {reference.date}]",
    ]

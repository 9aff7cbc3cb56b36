"""The object that a test gets from its fixture `run`: one run, or several that are judged together."""

from __future__ import annotations

from pytest_llmbench.core.errors import RunError, unknown
from pytest_llmbench.core.recipe.reference import Reference
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.engines.base import get_engine, on_machine, statistics_of
from pytest_llmbench.judging.golden import Losses
from pytest_llmbench.judging.interval.repeats import share_of_look
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.judging.statistics import OF_TELEMETRY
from pytest_llmbench.judging.telemetry import gaps
from pytest_llmbench.plugin.verdict.compare import Number, alpha_of, mean_of
from pytest_llmbench.plugin.verdict.measured import Comparisons, Measured

# What is computed from the model's FLOPs.
_OF_FLOPS = {"tflops_per_gpu", "mfu", "matmul_fraction"}


class Run:
    """A run that finished, is sane and was measured, or several that are judged together.

    Every statistic is an attribute: `run.throughput`, `run.step_time`, `run.mfu`, ... (see
    `judging.statistics.STATISTICS`, and `statistics` of the engine for its own).

    Attributes:
        records: the whole evidence, of each run.
        record: that of the first.
        used: the quantities that the test asked for, in order.
        comparisons: those of its quantities, in order.
        look: number of times that runs of this series were judged before, without a decision.
        losses: the losses of all its steps, to be compared with golden ones.
        applied: the reference that the test asked for, as it counts on the machine of the run.
    """

    def __init__(self, record: RunRecord, *repeats: RunRecord, may_repeat: bool = False) -> None:
        """Take the records of the runs; `may_repeat` if more follow where these leave the verdict open."""
        self.record = record
        self.records = (record, *repeats)
        self.look = max(made.look for made in self.records)
        self.used: list[Measured] = []
        self.comparisons = Comparisons()
        self.losses = Losses(self.records)
        self.applied: Reference | None = None
        self._statistics = statistics_of(get_engine(record.recipe.engine))
        # The part of alpha that this look may spend; None where runs are looked at only once.
        self._share = share_of_look(self.look) if may_repeat or self.look else None

    def __repr__(self) -> str:
        return f"Run({self.record.key})"

    def measured(self, statistic: str) -> Measured:
        """Return one statistic of this run, or of all runs that are judged together.

        Raises RunError if the statistic is unknown, or has no meaning for one of the runs.
        """
        if statistic not in self._statistics:  #: error unknown_statistic: there is no statistic of that name
            raise RunError("unknown_statistic", unknown("statistic", statistic, self._statistics))
        parts = tuple(self._number_of(record, statistic) for record in self.records)
        number = parts[0]
        if len(parts) > 1:
            metric = mean_of(statistic, self.records)
            alpha = self._share or ALPHA
            number = Number(statistic=statistic, metric=metric, record=self.record, alpha=alpha, parts=parts)
        quantity = Measured(number, self.comparisons)
        self.used.append(quantity)
        return quantity

    def _number_of(self, record: RunRecord, statistic: str) -> Number:
        metric = record.metrics.get(statistic)
        if metric is None:
            rule = self._statistics[statistic].rule
            uncounted = get_engine(record.recipe.engine).uncounted(record.recipe)
            unknown_of_gpus = gaps(record.telemetry, record.gpus) if statistic in OF_TELEMETRY else []
            reason = f"it has {', '.join(record.metrics)}"
            if record.early is not None and record.early.ended_early and self._statistics[statistic].steady is None:
                reason = "the run was ended early, and that needs all of its steps: leave out --llmbench-early-verdict"
            elif unknown_of_gpus:
                reason = f"telemetry of its GPUs is incomplete: {'; '.join(unknown_of_gpus)}"
            elif uncounted is not None and statistic in _OF_FLOPS:
                reason = f"{uncounted}, so the model's FLOPs are unknown; {reason}"
            which = "this run" if len(self.records) == 1 else f"run {record.key}"
            raise RunError(
                "no_measurement", f"{statistic} ({rule}) is not available for {which} on {self.machine}: {reason}"
            )  #: error no_measurement: the test asks for a statistic that has no meaning for this run
        count = len(self.records)
        alpha = alpha_of(record, count) if self._share is None else self._share / count
        return Number(statistic=statistic, metric=metric, record=record, alpha=alpha)

    def __getattr__(self, name: str) -> Measured:
        if name.startswith("_") or name not in self._statistics:
            raise AttributeError(unknown("attribute of a run", name, ["record", "machine", *self._statistics]))
        return self.measured(name)

    def reference(self, reference: Reference) -> Reference | str:
        """A reference of the recipe as it counts on the machine of the run, or the reason why it is left out."""
        return on_machine(reference, self.record.recipe, self.machine)

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

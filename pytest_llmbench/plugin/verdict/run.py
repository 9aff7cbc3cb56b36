"""The object that a test gets from its fixture `run`: one run, or several that are judged together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pytest_llmbench.core.errors import RunError, unknown
from pytest_llmbench.core.record.records import RunRecord
from pytest_llmbench.engines.base import get_engine, statistics_of
from pytest_llmbench.judging.golden import Losses
from pytest_llmbench.judging.interval.repeats import share_of_look
from pytest_llmbench.judging.interval.steady import ALPHA
from pytest_llmbench.judging.references import Machine
from pytest_llmbench.judging.telemetry import RULES, gaps
from pytest_llmbench.plugin.verdict.measured import Measured
from pytest_llmbench.plugin.verdict.several import alpha_of, mean_of

if TYPE_CHECKING:
    from pytest_llmbench.plugin.verdict.rerun import Rerun

# What is computed from the model's FLOPs.
_OF_FLOPS = {"tflops_per_gpu", "mfu", "matmul_fraction"}


class Run:
    """A run that finished, is sane and was measured, or several that are judged together.

    Every statistic is an attribute: `run.throughput`, `run.step_time`, `run.mfu`, ... (see
    `judging.statistics.STATISTICS`, and `statistics` of the engine for its own).

    Attributes:
        records: the whole evidence, of each run.
        record: that of the first.
        used: the quantities the test asked for, in order.
        losses: the losses of all its steps, to be compared with golden ones.
    """

    def __init__(self, record: RunRecord, *repeats: RunRecord, rerun: Rerun | None = None) -> None:
        self.record = record
        self.records = (record, *repeats)
        self._rerun, self._look = rerun, max(each.look for each in self.records)
        self.used: list[Measured] = []
        self.losses = Losses(self.records)
        self._statistics = statistics_of(get_engine(record.recipe.engine))

    def __repr__(self) -> str:
        return f"Run({self.record.key})"

    def measured(self, statistic: str) -> Measured:
        """Return one statistic of this run, or of all runs that are judged together.

        Raises:
            RunError: there is no such statistic, or it has no meaning for this run, or for one of them.
        """
        if statistic not in self._statistics:  #: error unknown_statistic: there is no statistic of that name
            raise RunError("unknown_statistic", unknown("statistic", statistic, self._statistics))
        quantity = self.of_all(statistic)
        self.used.append(quantity)
        return quantity

    def of_all(self, statistic: str) -> Measured:
        """One statistic of all runs there are so far.

        Raises:
            RunError: it has no meaning for one of them.
        """
        each, own = [self._of(record, statistic) for record in self.records], self if self._rerun else None
        if len(each) == 1:
            return Measured(statistic, each[0].metric, self.record, alpha=each[0].alpha, run=own)
        metric = mean_of(statistic, self.records)
        return Measured(statistic, metric, self.record, each=each, alpha=self._share or ALPHA, run=own)

    def repeat(self, needed: int | None) -> str:
        """Make as many runs again as there are; else say why not.

        Args:
            needed: number of runs that would decide; None where no number does.

        Raises:
            RunError: one of them cannot be judged.
        """
        if self._rerun is None:
            return ""
        made = self._rerun.more(self.records, needed, self._look + 1)
        if isinstance(made, str):
            return made
        self.records, self._look = (*self.records, *made), self._look + 1
        if self.losses.worst is None:
            self.losses = Losses(self.records)
        return ""

    @property
    def _share(self) -> float | None:
        """The part of alpha that this look may spend; None where runs are looked at only once."""
        return share_of_look(self._look) if self._rerun or self._look else None

    def _of(self, record: RunRecord, statistic: str) -> Measured:
        metric = record.metrics.get(statistic)
        if metric is None:
            rule = self._statistics[statistic].rule
            uncounted = get_engine(record.recipe.engine).uncounted(record.recipe)
            unknown_of_gpus = gaps(record.telemetry, record.gpus) if statistic in RULES else []
            why = f"it has {', '.join(record.metrics)}"
            if record.early is not None and record.early.ended_early and self._statistics[statistic].needs_all_steps:
                why = "the run was ended early, and that needs all of its steps: leave out --llmbench-early-verdict"
            elif unknown_of_gpus:
                why = f"telemetry of its GPUs is incomplete: {'; '.join(unknown_of_gpus)}"
            elif uncounted is not None and statistic in _OF_FLOPS:
                why = f"{uncounted}, so the model's FLOPs are unknown; {why}"
            which = "this run" if len(self.records) == 1 else f"run {record.key}"
            raise RunError(
                "no_measurement", f"{statistic} ({rule}) is not available for {which} on {self.machine}: {why}"
            )  #: error no_measurement: the test asks for a statistic that has no meaning for this run
        count = len(self.records)
        alpha = alpha_of(record, count) if self._share is None else self._share / count
        return Measured(statistic, metric, record, alpha=alpha)

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

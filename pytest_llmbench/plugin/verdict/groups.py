"""Groups of nodes that ran the same recipe: each gets a verdict on whether it is as fast as the others."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from pytest_llmbench.cluster.runs import RunSpec
from pytest_llmbench.core.quantity import Quantity, counted, for_people, listed
from pytest_llmbench.core.record.records import RunRecord, Verdict
from pytest_llmbench.core.record.steady import Steady
from pytest_llmbench.judging.groups import Lag, lags, share_of_alpha
from pytest_llmbench.judging.interval.decide import RULE
from pytest_llmbench.judging.statistics import judged_steps, steady_of
from pytest_llmbench.plugin.verdict.facts import facts_of_run

# Healthy nodes of one model are within 0.4 %, and with one run of each of a few groups, 1.2 to 1.9 % can be resolved.
USUAL_TOLERANCE = Quantity(3.0, "%")
_ON_CPUS = "rates on CPUs and at scale smoke scatter too much to be compared, unless you set llmbench_group_tolerance"
_SHAPE = attrgetter("nodes", "gpus", "ranks", "device", "recipe.global_batch_size")
_VERDICTS = {True: Verdict.PASS, False: Verdict.FAIL, None: Verdict.INCONCLUSIVE}


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparedGroups:
    """The properties of the verdict on each group of nodes, and the groups without one by the reason."""

    rows: Sequence[Mapping[str, Any]]
    not_compared: Mapping[str, Sequence[str]]

    @property
    def lines(self) -> Iterator[str]:
        """Lines for the terminal."""
        for reason, groups in self.not_compared.items():
            yield f"GROUPS NOT COMPARED: {listed(groups)}: {reason}"


def compare_groups(
    runs: Iterable[RunSpec], records: Mapping[str, RunRecord], tolerance: Quantity | None
) -> ComparedGroups:
    """Compare the groups of nodes of every recipe that ran on several; None is the usual tolerance."""
    recipes: dict[str, dict[int, list[RunSpec]]] = {}
    for run in runs:
        if run.group is not None:
            recipes.setdefault(run.recipe.name, {}).setdefault(run.group, []).append(run)
    rows: list[Mapping[str, Any]] = []
    reasons: dict[str, list[str]] = {}
    for groups in recipes.values():
        compared_rows, left_out = _compare_recipe([*groups.values()], records, tolerance)
        rows += compared_rows
        for name, reason in left_out.items():
            reasons.setdefault(reason, []).append(name)
    return ComparedGroups(rows=rows, not_compared=reasons)


def _compare_recipe(
    groups: Sequence[Sequence[RunSpec]], records: Mapping[str, RunRecord], tolerance: Quantity | None
) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The verdicts on the groups of a recipe, and the reasons why others are left out."""
    ran = {group[0].key: [records[run.key] for run in group if run.key in records] for group in groups}
    judged = {key: [record for record in of_one if record.problem is None] for key, of_one in ran.items()}
    usable = {key: of_one for key, of_one in judged.items() if of_one}
    left_out = {_name_group(key, ran[key]): "its run cannot be judged" for key in judged if key not in usable}
    steady = {key: _steady_parts(of_one, share_of_alpha(len(usable))) for key, of_one in usable.items()}
    known = {key: states for key, states in steady.items() if states}
    reason = ""
    if tolerance is None and not all(
        record.gpus and record.recipe.scale == "full" for of_one in usable.values() for record in of_one
    ):
        reason = _ON_CPUS
    elif len({_SHAPE(record) for of_one in usable.values() for record in of_one}) > 1:
        reason = "they differ in nodes, GPUs or batch"
    elif len(known) < 2:
        few = "only one of them has" if known else "none of them has"
        reason = f"it takes two groups with enough steady steps, and {few}: train longer"
    if reason:
        return [], left_out | {_name_group(key, usable[key]): reason for key in usable}
    compared = lags(known)
    bound = tolerance or USUAL_TOLERANCE
    return [_make_row(key, usable[key], compared.get(key), usable, bound) for key in usable], left_out


def _steady_parts(records: Iterable[RunRecord], alpha: float) -> list[Steady]:
    states = [steady_of(judged_steps(record.recipe, record.steps), alpha) for record in records]
    return [state for state in states if state is not None and state.enough and state.settled]


def _make_row(
    key: str, records: Sequence[RunRecord], lag: Lag | None, groups: Mapping[str, Sequence[RunRecord]], bound: Quantity
) -> dict[str, Any]:
    verdict = Verdict.INCONCLUSIVE if lag is None else _VERDICTS[lag.within(bound.to("1").value)]
    row: dict[str, Any] = {
        "test": f"groups::{key}", **facts_of_run(records[0]), "findings": "", "statistic": "slower_than_others",
        "threshold": f"<= {bound.plain}", "verdict": str(verdict),
    }  # fmt: skip
    if lag is None:
        return row | {"reason": f"{_name_group(key, records)}: too few of its steps are steady: train longer"}
    row |= {
        "value": 100 * lag.share, "low": 100 * lag.low, "high": 100 * lag.high, "unit": "%", "judged_by": "interval",
        "claim": "system", "alpha": share_of_alpha(lag.others + 1), "interval_rule": RULE,
    }  # fmt: skip
    return row if verdict is Verdict.PASS else row | {"reason": " ".join(_reasons_of(key, lag, verdict, groups, bound))}


def _reasons_of(
    key: str, lag: Lag, verdict: Verdict, groups: Mapping[str, Sequence[RunRecord]], bound: Quantity
) -> Iterator[str]:
    if lag.others == 1:
        other = next(name for name in groups if name != key)
        than = f"those on {_name_group(other, groups[other])}"
    else:
        than = f"the median of the {counted(lag.others, 'other group')}"
    word = "slower" if lag.share > 0.0 else "faster"
    low, high = (for_people(100 * end, 2) for end in (lag.low, lag.high))
    yield (
        f"the steps on {_name_group(key, groups[key])} are {for_people(100 * abs(lag.share), 2)} % {word} than {than} "
        f"({for_people(lag.seconds)} s, and {for_people(lag.usual)} s): between {low} and {high} %."
    )
    if verdict is Verdict.INCONCLUSIVE:
        yield f"That does not decide on the {bound} allowed: train longer, or allow more by llmbench_group_tolerance"
        return
    if lag.others == 1:
        yield "One of the two groups is slower, and two cannot show which is at fault: compare them with a third."
    hosts = ",".join(groups[key][0].hosts)
    again = f" (--slurm nodelist={hosts})" if hosts else ""
    yield f"Validate these nodes{again}, or test each by itself (--nodes-per-run 1)"


def _name_group(key: str, records: Sequence[RunRecord]) -> str:
    hosts = listed(dict.fromkeys(host for record in records for host in record.hosts))
    return f"{hosts} ({key})" if hosts else key

"""Check of dense matrix products: the rate of every GPU, and equal results on all of them."""

import json
from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Annotated, Any, get_args

from pydantic import Field

from pytest_llmbench.checks.answers import dissenters, read_answers, silent
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, Site, deadline_of, options_of
from pytest_llmbench.checks.compute.nodes.answer import (
    DeviceRates,
    GemmPrecision,
    GemmRates,
    ShapeSweep,
    ShapeSweeps,
    SweptProduct,
)
from pytest_llmbench.checks.compute.rates import (
    ComputeKind,
    DeviceCheck,
    Fraction,
    RateOptions,
    Rates,
    finding,
    list_answered,
    side_of,
    subject,
)
from pytest_llmbench.checks.findings import finding_of_reading
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict
from pytest_llmbench.judging.physics import PhysicsResult

_UNIT = "TFLOP/s/gpu"
# Largest right difference to an fp64 product, in standard deviations of an entry: several times the rounding error of
# an H200 with matrices of 8192.
_LARGEST_ERROR = {"bf16": 0.05, "fp16": 0.01, "fp32": 2e-4, "tf32": 0.01, "fp8": 0.2}
# A published peak is for the boost clock; measuring adds noise. More than this is a wrong clock or a wrong peak.
_PLAUSIBLE = 1.05
# A shape with less of its neighbours' rate is named: kernels of a library fit some shapes badly.
_DIP = 0.8
_REPLACE = "run the vendor's diagnostics and replace the GPU: it computes wrong numbers in silence"
_SLOW = "check clocks, power limit and cooling"


class GemmOptions(RateOptions):
    """Options of the check."""

    min_fraction: Fraction = 0.5
    """Smallest share of the published dense peak, at scale `full` and if the system file has a peak."""
    sweep_s: Annotated[float, Field(gt=0, le=60)] | None = None
    """Seconds for the search of the fastest shape, in bf16 and, with one scale and with a scale for each row, in fp8;
    by default no search runs."""


RankProducts = tuple[Answer[DeviceRates], DeviceRates, GemmRates]
SweptRank = tuple[Answer[ShapeSweeps], ShapeSweeps]


class Gemm(DeviceCheck):
    """Multiplies the same matrices on all GPUs at once, in each precision."""

    name = part = "gemm"
    summary = "rate and correctness of dense matrix products on every GPU (or CPU), by precision"
    options: type[Strict] = GemmOptions
    #: statistic gemm.gemm_<precision>: dense matrix product in this precision, of each GPU, all GPUs of a node at once
    #: statistic gemm.best_<precision>: the shape of `sweep_s` with the fastest product, its median repetition
    #: statistic gemm.best_fp8_rowwise: the same in fp8 with a scale for each row
    statistics: Mapping[str, str] = {
        **{f"gemm_{precision}": _UNIT for precision in _LARGEST_ERROR},
        **{f"best_{name}": _UNIT for name in get_args(SweptProduct)},
    }

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options, site = options_of(self, settings, GemmOptions), fleet.site
        answers = self.ask(fleet, settings)
        measured = [(answer, data, data.gemm) for answer, data in list_answered(answers) if data.gemm is not None]
        sweeps = self._ask_sweeps(site, settings, fleet, options.sweep_s) if options.sweep_s else []
        swept = [*list_answered(sweeps)]
        machines = Machines.ask(fleet)

        def expect(reading: Reading) -> PhysicsResult | None:
            program, _, dtype = reading.statistic.partition("_")
            return machines.products(reading, dtype, program) if machines else None

        rates = Rates(site, settings, options.tolerance, expect, machines.lowered_power if machines else None)
        for answer, _, products in measured:
            for precision, product in products.precisions.items():
                rates.add(answer, f"gemm_{precision}", product.rate / 1e12, _UNIT)
        for search, found in swept:
            for name, shapes in found.products.items():
                rates.add(search, f"best_{name}", shapes.best.rate / 1e12, _UNIT)
        wrong = [finding for answer, _, products in measured for finding in _find_wrong(site, answer, products)]
        wrong += (finding for search, found in swept for finding in _find_wrong_shapes(site, search, found))
        # A wrong device is left out of the vote.
        faulty = {(finding.host, finding.subject) for finding in wrong}
        voters = [rank for rank in measured if (rank[0].host, subject(site, rank[0])) not in faulty]
        others, undecided, notes = _compare_products(site, voters)
        shares = {}
        for reading in rates.readings:
            peak = site.peak_tflops.get(reading.statistic.split("_")[1])
            if peak is not None and site.device == "cuda":
                shares[reading] = reading.value / peak
        lacks: list[tuple[str, Mapping[Any, str]]] = [(found.device, found.lacking) for _, found in swept]
        lacks += ((data.device, products.lacking) for _, data, products in measured)
        lacking = {
            f"{precision} not measured on {device}: {reason}"
            for device, reasons in lacks
            for precision, reason in reasons.items()
        }
        # A device reaches its peak at full size only, and with scales for rows on some devices less than half of it.
        judged = site.scale == "full"
        judged_shares = {
            reading: share for reading, share in shares.items() if judged and not reading.statistic.endswith("_rowwise")
        }
        return Report(
            findings=(
                *wrong, *others, *rates.judge(_SLOW), *rates.compare(_SLOW),
                *_find_below_peak(judged_shares, options.min_fraction),
            ),
            readings=tuple(rates.readings),
            unjudged={
                **rates.unmeasured(), **undecided, **_find_implausible(shares), **_find_unswept(swept),
                **silent(sweeps), **silent(answers),
            },
            unbounded=rates.unbounded and not any(judged_shares.values()),
            bounds=rates.lines(),
            notes=(*notes, *sorted(lacking), *_describe_shapes(site, swept), *rates.notes()),
            evidence={
                **{f"{answer.host} {subject(site, answer)}": products for answer, _, products in measured},
                **{f"shapes of {search.host} {subject(site, search)}": found.products for search, found in swept},
                **(machines.evidence if machines else {}),
            },
        )  # fmt: skip

    def _ask_sweeps(
        self, site: Site, settings: CheckSettings, fleet: Fleet, seconds: float
    ) -> list[Answer[ShapeSweeps]]:
        config = {"seconds": seconds, "timeout_s": deadline_of(self, settings) / 2}
        how = {"name": "sweep", "ranks_per_node": site.gpus_per_node or 1}
        probe = self.probe_devices(site, settings, "compute:sweep_shapes", config, **how)
        return read_answers(fleet.run([probe])[0], ShapeSweeps)


def _find_wrong(site: Site, answer: Answer[DeviceRates], products: GemmRates) -> Iterator[Finding]:
    """Findings on products of one device that differ from each other or from fp64."""
    for precision, product in products.precisions.items():
        if product.changed:  #: finding not_repeatable: a repeated matrix product differs
            message = f"{product.changed} of {product.repeated} repeated {precision} products differ from the first"
            yield _make_finding(site, answer, "not_repeatable", message)
        limit, error = _LARGEST_ERROR[precision], product.error
        if error is None:  #: finding wrong_product: a matrix product is wrong
            yield _make_finding(site, answer, "wrong_product", f"the {precision} product is not finite")
        elif error > limit:
            message = f"the {precision} product is off by {error:.3g} standard deviations, {limit:g} allowed"
            yield _make_finding(site, answer, "wrong_product", message)


def _find_wrong_shapes(site: Site, answer: Answer[ShapeSweeps], found: ShapeSweeps) -> Iterator[Finding]:
    for name, shapes in found.products.items():
        for m, n, k, _, _, error in (*shapes.curve, shapes.best):
            # Sums of longer rows are rounded more often in fp8.
            limit = _LARGEST_ERROR[name.partition("_")[0]] * max(1.0, k / side_of(site))
            if error is None or error > limit:
                off = "not finite" if error is None else f"off by {error:.3g} standard deviations, {limit:g} allowed"
                message = f"the {name} product of {m} × {k} and {k} × {n} is {off}"
                yield _make_finding(site, answer, "wrong_product", message)
                break


def _find_unswept(swept: Sequence[SweptRank]) -> dict[str, str]:
    """Nodes that lack a product which others with the same device measured, with their reason."""
    has = {(found.device, name) for _, found in swept for name in found.products}
    return {
        answer.host: f"{name} not measured, and other {found.device} have it: {reason}"
        for answer, found in swept
        for name, reason in found.lacking.items()
        if (found.device, name) in has
    }


def _describe_shapes(site: Site, swept: Sequence[SweptRank]) -> Iterator[str]:
    """Yield the best shape of each kind of product and device, and shapes that are far slower than their neighbours."""
    alike: dict[tuple[SweptProduct, str], list[ShapeSweep]] = {}
    for _, found in swept:
        for name, shapes in found.products.items():
            alike.setdefault((name, found.device), []).append(shapes)
    for (name, device), sweeps in alike.items():
        best, few = max((shapes.best for shapes in sweeps), key=lambda shape: shape.rate), len(sweeps[0].curve)
        yield (
            f"{name} on {device}: best of {few} shapes {best.m} × {best.n} × {best.k} (m, n, k): "
            f"{best.rate / 1e12:.4g} TFLOP/s, its fastest repetition {best.fastest / 1e12:.4g}"
        )
        if left := max(shapes.left_out for shapes in sweeps):
            yield f"{name} on {device}: `sweep_s` left no time for {left} shapes"
        rates: dict[tuple[int, int, int], list[float]] = {}
        for shapes in sweeps:
            for shape in shapes.curve:
                rates.setdefault(shape[:3], []).append(shape.rate)
        slow = find_slow_shapes({shape: median(of_shape) for shape, of_shape in rates.items()})
        for (m, n, k), share in slow.items() if site.is_full_gpu else ():
            yield f"{name} on {device}: {m} × {n} × {k} has {share:.0%} of the rate of both shapes next to it"


def find_slow_shapes(rates: Mapping[tuple[int, int, int], float]) -> dict[tuple[int, int, int], float]:
    """Shapes that are far below both neighbours along m, n or k, as a share of the slower one: a dip of the curve."""
    slow: dict[tuple[int, int, int], float] = {}
    for axis in range(3):
        lines: dict[tuple[int, ...], list[tuple[int, int, int]]] = {}
        for shape in sorted(rates):
            lines.setdefault(shape[:axis] + shape[axis + 1 :], []).append(shape)
        for line in lines.values():
            for before, shape, after in zip(line, line[1:], line[2:], strict=False):
                share = rates[shape] / min(rates[before], rates[after])
                if share < _DIP:
                    slow[shape] = min(share, slow.get(shape, share))
    return slow


def _compare_products(site: Site, measured: Sequence[RankProducts]) -> tuple[list[Finding], dict[str, str], list[str]]:
    """Findings on devices with another product than their like, undecided hosts with the reason, and notes."""
    by_rank = {answer.rank: answer for answer, _, _ in measured}
    groups: dict[tuple[GemmPrecision, str], dict[int, str]] = {}
    settings = set()
    for answer, data, products in measured:
        setting = json.dumps([dict(data.setting), products.factors, products.side], sort_keys=True)
        settings.add(setting)
        for precision, product in products.precisions.items():
            groups.setdefault((precision, setting), {})[answer.rank] = product.digest
    findings: list[Finding] = []
    undecided: dict[str, str] = {}
    for (precision, _), digests in groups.items():
        odd = dissenters(digests)
        if odd is None:
            reason = f"{len(digests)} devices compute {len(set(digests.values()))} different {precision} products of "
            reason += "the same factors, and no majority shows which is right"
            undecided |= {by_rank[rank].host: reason for rank in digests}
        for rank in odd or ():  #: finding other_product: a product differs from that of most such devices
            message = f"computes another {precision} product than most of the {len(digests)} devices like it"
            findings.append(_make_finding(site, by_rank[rank], "other_product", message))
    notes = [f"devices differ in {len(settings)} ways (model, PyTorch, threads): compared among alike only"]
    return findings, undecided, notes if len(settings) > 1 else []


def _make_finding(site: Site, answer: Answer[Any], kind: ComputeKind, message: str) -> Finding:
    return finding(answer.host, subject(site, answer), kind, Severity.ISOLATE, message, _REPLACE)


def _find_below_peak(shares: Mapping[Reading, float], least: float) -> Iterator[Finding]:
    for reading, share in shares.items():
        if share < least:
            what = f"{share:.0%} of the published peak, at least {least:.0%} expected"
            #: finding below_peak: a rate is a small share of the published peak
            yield finding_of_reading(reading, kind="below_peak", what=what, action=_SLOW)


def _find_implausible(shares: Mapping[Reading, float]) -> dict[str, str]:
    return {
        str(reading.host): f"{reading.subject}: {reading.statistic} {reading.quantity} is {share:.0%} of the published "
        "peak: implausible; a clock or the peak in the system's file is wrong"
        for reading, share in shares.items()
        if share > _PLAUSIBLE
    }

"""Check of dense matrix products: the rate of every GPU, and equal results on all of them."""

import json
from collections.abc import Iterator, Mapping, Sequence

from pytest_llmbench.checks.answers import dissenters, silent
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, Site, options_of
from pytest_llmbench.checks.compute.nodes.answer import DeviceRates, GemmPrecision, GemmRates
from pytest_llmbench.checks.compute.rates import (
    ComputeKind,
    DeviceCheck,
    Fraction,
    RateOptions,
    Rates,
    finding,
    list_answered,
    subject,
)
from pytest_llmbench.checks.findings import finding_of_reading
from pytest_llmbench.checks.machine import Machines
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict

_UNIT = "TFLOP/s/gpu"
# Largest right difference to an fp64 product, in standard deviations of an entry: several times the rounding error of
# an H200 with matrices of 8192.
_LARGEST_ERROR = {"bf16": 0.05, "fp16": 0.01, "fp32": 2e-4, "tf32": 0.01, "fp8": 0.2}
# A published peak is for the boost clock; measuring adds noise. More than this is a wrong clock or a wrong peak.
_PLAUSIBLE = 1.05
_REPLACE = "run the vendor's diagnostics and replace the GPU: it computes wrong numbers in silence"
_SLOW = "check clocks, power limit and cooling"


class GemmOptions(RateOptions):
    """Options of the check."""

    min_fraction: Fraction = 0.5
    """Smallest share of the published dense peak, at scale `full` and if the system file has a peak."""


RankProducts = tuple[Answer[DeviceRates], DeviceRates, GemmRates]


class Gemm(DeviceCheck):
    """Multiplies the same matrices on all GPUs at once, in each precision."""

    name = part = "gemm"
    summary = "rate and correctness of dense matrix products on every GPU (or CPU), by precision"
    options: type[Strict] = GemmOptions
    #: statistic gemm.gemm_<precision>: dense matrix product in this precision, of each GPU, all GPUs of a node at once
    statistics: Mapping[str, str] = {f"gemm_{precision}": _UNIT for precision in _LARGEST_ERROR}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        options, site = options_of(self, settings, GemmOptions), fleet.site
        answers = self.ask(fleet, settings)
        measured = [(answer, data, data.gemm) for answer, data in list_answered(answers) if data.gemm is not None]
        machines = Machines.ask(fleet)
        rates = Rates(
            site, settings, options.tolerance,
            (lambda reading: machines.products(reading, reading.statistic.removeprefix("gemm_"))) if machines else None,
            machines.lowered_power if machines else None,
        )  # fmt: skip
        for answer, _, products in measured:
            for precision, product in products.precisions.items():
                rates.add(answer, f"gemm_{precision}", product.rate / 1e12, _UNIT)
        wrong = [finding for answer, _, products in measured for finding in _find_wrong(site, answer, products)]
        # A wrong device is left out of the vote.
        faulty = {(finding.host, finding.subject) for finding in wrong}
        voters = [rank for rank in measured if (rank[0].host, subject(site, rank[0])) not in faulty]
        others, undecided, notes = _compare_products(site, voters)
        shares = {}
        for reading in rates.readings:
            peak = site.peak_tflops.get(reading.statistic.removeprefix("gemm_"))
            if peak is not None and site.device == "cuda":
                shares[reading] = reading.value / peak
        lacking = {
            f"{precision} not measured on {data.device}: {reason}"
            for _, data, products in measured
            for precision, reason in products.lacking.items()
        }
        # A device reaches its peak at full size only.
        judged_shares = shares if site.scale == "full" else {}
        return Report(
            findings=(
                *wrong, *others, *rates.judge(_SLOW), *rates.compare(_SLOW),
                *_find_below_peak(judged_shares, options.min_fraction),
            ),
            readings=tuple(rates.readings),
            unjudged={**undecided, **_find_implausible(shares), **silent(answers)},
            unbounded=rates.unbounded and not any(judged_shares.values()),
            bounds=rates.lines(),
            notes=(*notes, *sorted(lacking), *rates.notes()),
            evidence={
                **{f"{answer.host} {subject(site, answer)}": products for answer, _, products in measured},
                **(machines.evidence if machines else {}),
            },
        )  # fmt: skip


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


def _make_finding(site: Site, answer: Answer[DeviceRates], kind: ComputeKind, message: str) -> Finding:
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

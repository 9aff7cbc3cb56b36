"""Dense matrix products: does every GPU reach its rate, and do all of them compute the same?"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence

from pytest_llmbench.checks.answers import dissenters, silent
from pytest_llmbench.checks.base import Answer, CheckSettings, Fleet, NodeCheck, Site, options_of
from pytest_llmbench.checks.compute import rates
from pytest_llmbench.checks.compute.kinds import ComputeKind, finding
from pytest_llmbench.checks.compute.nodes.answer import DeviceRates, GemmPrecision, GemmRates
from pytest_llmbench.checks.kinds import finding_of_reading
from pytest_llmbench.core.record.health import Finding, Report, Severity
from pytest_llmbench.core.schema import Strict

_UNIT = "TFLOP/s/gpu"
# Largest right difference to an fp64 product, in standard deviations of an entry: several times what rounding of the
# factors' products and of the result gave on an H200 with matrices of 8192.
_LARGEST_ERROR = {"bf16": 0.05, "fp16": 0.01, "fp32": 2e-4, "tf32": 0.01, "fp8": 0.2}
# A published peak is for the boost clock; measuring adds noise. More than this is a wrong clock or a wrong peak.
_PLAUSIBLE = 1.05
_REPLACE = "run the vendor's diagnostics and replace the GPU: it computes wrong numbers in silence"
_SLOW = "check clocks, power limit and cooling"


class GemmOptions(rates.RateOptions):
    """Options of the check."""

    min_fraction: rates.Fraction = 0.5
    """Smallest share of the published dense peak, at scale `full` and if the system's file has a peak."""


class Gemm(NodeCheck):
    """The same product on all GPUs, in each precision, all GPUs of a node at once."""

    name = "gemm"
    family = "compute"
    summary = "rate and correctness of dense matrix products on every GPU (or CPU), by precision"
    options: type[Strict] = GemmOptions
    #: statistic gemm.gemm_<precision>: dense matrix product in this precision, of each GPU, all GPUs of a node at once
    statistics: Mapping[str, str] = {f"gemm_{precision}": _UNIT for precision in _LARGEST_ERROR}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        """Multiply, and judge."""
        options, site = options_of(self, settings, GemmOptions), fleet.site
        answers = rates.ask(fleet, self, settings)
        measured = list(_measured(answers))
        found = [each for answer, _, products in measured for each in _rates(site, answer, products)]
        wrong = [finding for answer, _, products in measured for finding in _wrong(site, answer, products)]
        # A device that is known to be wrong has no vote on what is right.
        faulty = {(finding.host, finding.subject) for finding in wrong}
        voters = [each for each in measured if (each[0].host, rates.subject(site, each[0])) not in faulty]
        others, undecided, notes = _compared(site, voters)
        return Report(
            findings=(
                *wrong,
                *others,
                *rates.judge(found, site, settings, tolerance=options.tolerance, action=_SLOW),
                *_below_peak(found, site, options.min_fraction),
            ),
            readings=tuple(each.reading for each in found),
            unjudged={**undecided, **_implausible(found, site), **silent(answers)},
            unbounded=rates.no_bound(found, site, settings) and not any(_against_peak(each, site) for each in found),
            notes=(*notes, *_lacking(measured), *rates.unjudged_rates(found, site, settings, options.tolerance)),
            evidence={f"{answer.host} {rates.subject(site, answer)}": products for answer, _, products in measured},
        )


RankProducts = tuple[Answer[DeviceRates], DeviceRates, GemmRates]


def _measured(answers: Iterable[Answer[DeviceRates]]) -> Iterator[RankProducts]:
    """Ranks that measured products, with them."""
    return ((answer, data, data.gemm) for answer, data in rates.answered(answers) if data.gemm is not None)


def _rates(site: Site, answer: Answer[DeviceRates], products: GemmRates) -> Iterator[rates.Rated]:
    for precision, told in products.precisions.items():
        yield rates.rated(site, answer, f"gemm_{precision}", told.rate / 1e12, _UNIT)


def _wrong(site: Site, answer: Answer[DeviceRates], products: GemmRates) -> Iterator[Finding]:
    """Findings from a device's own products: they differ from each other, or from fp64."""
    for precision, told in products.precisions.items():
        if told.changed:  #: finding not_repeatable: the same matrix product gives another result
            message = f"{told.changed} of {told.repeated} repeated {precision} products differ from the first"
            yield _finding(site, answer, "not_repeatable", message)
        limit, error = _LARGEST_ERROR[precision], told.error
        if error is None:  #: finding wrong_product: a matrix product is not finite, or too far from the right one
            yield _finding(site, answer, "wrong_product", f"the {precision} product is not finite")
        elif error > limit:
            message = f"the {precision} product is off by {error:.3g} standard deviations, {limit:g} allowed"
            yield _finding(site, answer, "wrong_product", message)


def _compared(site: Site, measured: Sequence[RankProducts]) -> tuple[list[Finding], dict[str, str], list[str]]:
    """Findings on devices whose product is not that of their like, hosts that no majority clears, and notes."""
    by_rank = {answer.rank: answer for answer, _, _ in measured}
    groups: dict[tuple[GemmPrecision, str], dict[int, str]] = {}
    settings = set()
    for answer, data, products in measured:
        alike = json.dumps([dict(data.setting), products.factors, products.side], sort_keys=True)
        settings.add(alike)
        for precision, told in products.precisions.items():
            groups.setdefault((precision, alike), {})[answer.rank] = told.digest
    findings: list[Finding] = []
    undecided: dict[str, str] = {}
    for (precision, _), digests in groups.items():
        odd = dissenters(digests)
        if odd is None:
            why = f"{len(digests)} devices compute {len(set(digests.values()))} different {precision} products of the "
            undecided |= {
                by_rank[rank].host: f"{why}same factors, and no majority shows which is right" for rank in digests
            }
            continue
        for rank in odd:  #: finding other_product: a device computes another product than most devices like it
            message = f"computes another {precision} product than most of the {len(digests)} devices like it"
            findings.append(_finding(site, by_rank[rank], "other_product", message))
    notes = [f"devices differ in {len(settings)} ways (model, PyTorch, threads): compared among alike only"]
    return findings, undecided, notes if len(settings) > 1 else []


def _finding(site: Site, answer: Answer[DeviceRates], kind: ComputeKind, message: str) -> Finding:
    return finding(answer.host, rates.subject(site, answer), kind, Severity.ISOLATE, message, _REPLACE)


def _share(each: rates.Rated, site: Site) -> float | None:
    """A rate as a share of the published peak of its precision; None where there is none."""
    peak = site.peak_tflops.get(each.reading.statistic.removeprefix("gemm_"))
    return None if peak is None or site.device == "cpu" else each.reading.value / peak


def _against_peak(each: rates.Rated, site: Site) -> float | None:
    """The share of the published peak where it counts: at a tiny size nothing reaches it."""
    return _share(each, site) if site.scale == "full" else None


def _below_peak(found: Sequence[rates.Rated], site: Site, least: float) -> Iterator[Finding]:
    for each in found:
        share = _against_peak(each, site)
        if share is not None and share < least:
            what = f"{share:.0%} of the published peak, at least {least:.0%} expected"
            #: finding below_peak: a rate is a small share of the published peak
            yield finding_of_reading(each.reading, kind="below_peak", what=what, action=_SLOW)


def _implausible(found: Sequence[rates.Rated], site: Site) -> dict[str, str]:
    """Hosts whose numbers cannot be true, and why."""
    return {
        str(each.reading.host): f"{each.reading.subject}: {each.reading.statistic} {each.reading.quantity} is "
        f"{share:.0%} of the published peak: implausible; a clock or the peak in the system's file is wrong"
        for each in found
        if (share := _share(each, site)) is not None and share > _PLAUSIBLE
    }


def _lacking(measured: Sequence[RankProducts]) -> list[str]:
    """Precisions in which devices do not multiply, with the reasons."""
    told = {
        (precision, data.device, why) for _, data, products in measured for precision, why in products.lacking.items()
    }
    return [f"{precision} not measured on {device}: {why}" for precision, device, why in sorted(told)]

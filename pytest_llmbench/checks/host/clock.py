"""Check of the nodes' clocks, by which logs are ordered and Slurm's keys expire."""

import time
from collections.abc import Iterator, Mapping
from statistics import median_high, median_low

from pydantic import PositiveFloat

from pytest_llmbench.checks.answers import read_per_host
from pytest_llmbench.checks.base import CheckSettings, Fleet, options_of
from pytest_llmbench.checks.findings import Bounds
from pytest_llmbench.checks.host.base import HostCheck, find_below, finding, has_one_clock, kind_of
from pytest_llmbench.checks.host.nodes.clock import NodeClock
from pytest_llmbench.core.record.health import Finding, Reading, Report, Severity
from pytest_llmbench.core.schema import Strict

_ACTION = "start chronyd, with the same servers on all nodes, and see `chronyc tracking`"
_RESOLUTION = (
    "clocks are compared with the stamps of files in the shared folder, which the file server's kernel rounds down to "
    "its tick: differences below some 10 ms mean nothing"
)


class ClockOptions(Strict):
    """Allowed distance between clocks."""

    skew_s: PositiveFloat = 1.0
    """Seconds by which a node's clock may differ from that of most nodes."""


class Clock(HostCheck):
    """Compares each node's clock with the clock that stamps files in the shared folder."""

    name = "clock"
    summary = "clocks of the nodes: together, and kept by NTP"
    options: type[Strict] = ClockOptions
    #: statistic clock.clock_skew: lead of a clock over the time stamps of the shared file system
    statistics: Mapping[str, str] = {"clock_skew": "s"}

    def run(self, fleet: Fleet, settings: CheckSettings) -> Report:
        limit_s = options_of(self, settings, ClockOptions).skew_s
        probe = self.probe(settings, "clock:clock", {"folder": str(fleet.folder)})
        began = time.time()
        (answers,) = fleet.run([probe])
        ended = time.time()
        clocks, unjudged = read_per_host(answers, NodeClock)
        skews = {host: clock.ahead_s for host, clock in clocks.items() if not why_unmeasured(clock, limit_s)}
        others = {host: clock for host, clock in clocks.items() if host not in skews or len(skews) < 2}
        readings = [Reading(host=host, statistic="clock_skew", value=skew, unit="s") for host, skew in skews.items()]
        findings = [
            *find_apart(skews, limit_s),
            *find_outside(others, began, ended, limit_s),
            *find_unkept(clocks),
            *find_below(readings, fleet.site, settings, _ACTION),
        ]
        bounds = Bounds(fleet.site, settings, any_scale=True)
        asked = next(bounds.unmeasured((), None, 1, 0), None)
        lacking = dict.fromkeys(clocks.keys() - skews.keys(), asked) if asked else {}
        blind = [host for host, clock in clocks.items() if clock.kernel is None]
        return Report(
            findings=tuple(findings),
            readings=tuple(readings),
            unjudged={**lacking, **unjudged},
            skipped={host: reason for host, clock in others.items() if (reason := why_unknown(clock, limit_s))},
            notes=(_RESOLUTION, *(f"{host}: the kernel does not report whether its clock is kept" for host in blind)),
            evidence={"clocks": clocks},
        )


def find_apart(skews: Mapping[str, float], limit_s: float) -> Iterator[Finding]:
    """Findings about clocks that differ from those of most nodes; about all of them without a majority."""
    if not skews:
        return
    low, high = median_low(skews.values()), median_high(skews.values())
    for host, skew in skews.items():
        off = max(skew - low, skew - high, key=abs)
        if abs(off) > limit_s:
            side = "ahead of" if off > 0 else "behind"
            yield _make_skew_finding(host, f"{abs(off):.3f} s {side} the other nodes", limit_s)


def find_outside(clocks: Mapping[str, NodeClock], began: float, ended: float, limit_s: float) -> Iterator[Finding]:
    """Findings about clocks whose time is before the start of the step or after its end, by this machine's clock."""
    for host, clock in clocks.items():
        off = max(began - clock.time, clock.time - ended)
        if off > limit_s:
            message = f"at least {off:.3f} s off the clock of the machine that runs pytest"
            yield _make_skew_finding(host, message, limit_s)


def find_unkept(clocks: Mapping[str, NodeClock]) -> Iterator[Finding]:
    """Findings about clocks without time synchronisation, according to their kernel."""
    for host, clock in clocks.items():
        if clock.kernel is not None and not clock.kernel.synchronised:
            message = "the kernel reports that no program keeps its clock (NTP, chrony, timesyncd or PTP)"
            #: finding clock_not_kept: no program synchronises the clock
            yield finding(host, "clock", "clock_not_kept", Severity.MONITOR, message, _ACTION)


def why_unknown(clock: NodeClock, limit_s: float) -> str | None:
    """The reason to leave an incomparable clock unjudged; None if the kernel reports it as synchronised."""
    kernel = clock.kernel
    if kernel is not None and kernel.synchronised and kernel.max_error_s < limit_s:
        return None
    reason = why_unmeasured(clock, limit_s) or "there is no other node's to compare it with"
    kept = f"the kernel does not report it as synchronised to within {limit_s:g} s"
    return f"its clock cannot be judged: {reason}; and {kept}"


def why_unmeasured(clock: NodeClock, limit_s: float) -> str | None:
    """The reason to leave a node's clock unmeasured by the stamp of a file; None to measure it."""
    if not has_one_clock(clock.mount):
        return f"the shared folder is {kind_of(clock.mount)}, where files may have the node's own time"
    if clock.uncertainty_s >= limit_s:
        return f"to touch a file in the shared folder took {2 * clock.uncertainty_s:.3f} s"
    return None


def _make_skew_finding(host: str, message: str, limit_s: float) -> Finding:
    #: finding clock_skew: a clock differs from those of most nodes
    return finding(host, "clock", "clock_skew", Severity.CONFIGURE, f"{message}; {limit_s:g} s are allowed", _ACTION)

"""Runs perftest's `ib_write_bw` between pairs of nodes, one NIC after the other: one node serves, one measures."""

import os
import re
import time

from pydantic import PositiveFloat

from pytest_llmbench.core.wire.answers import ProbeAnswer
from pytest_llmbench.workloads.node.processes import ask
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.probe import ProbeLog

_PROGRAM = "ib_write_bw"
_SECONDS = 3
# Bytes, iterations, and the peak, which a run by duration leaves at 0; then the average. Further columns may follow.
_ROW = re.compile(r"^ *\d+ +\d+ +[\d.]+ +(\d{1,6}\.\d+)\s", re.ASCII | re.MULTILINE)
_NO_SERVER = "Couldn't connect to "
_PORTS, _FIRST_PORT = 1000, 18515
_AGAIN_S = 0.2


class PortRate(ProbeAnswer):
    """The rate of a pair of ports, Gb/s, as the measuring node has it; else the reason for a missing one."""

    device: str
    partner: str
    partner_device: str
    gbit_s: PositiveFloat | None
    error: str = ""


class PortRates(ProbeAnswer):
    """The pairs that a node measured, without those in which it served."""

    rates: tuple[PortRate, ...]


def measure(context: RankContext, log: ProbeLog) -> PortRates:
    """Measure the pairs of this rank.

    `config`: `hosts` by rank; `rounds` of pairs of ranks, server and client; `devices` by host, each with its port
    number; `timeout_s` for each pair of ports.
    """
    config, rates = context.config, []
    hosts = config["hosts"]
    for number, pairs in enumerate(config["rounds"]):
        for pair in pairs:
            server, client = (hosts[rank] for rank in pair)
            for index, devices in enumerate(zip(config["devices"][server], config["devices"][client], strict=False)):
                port = str(_FIRST_PORT + (number * len(config["devices"][server]) + index) % _PORTS)
                if context.rank == pair[0]:
                    log.phase(f"serve {client}, {devices[0][0]}")
                    ask(_command(devices[0], port), os.environ, config["timeout_s"])
                elif context.rank == pair[1]:
                    log.phase(f"measure {server}, {devices[1][0]}")
                    rate, error = _measure(server, devices[1], port, config["timeout_s"])
                    own, other = devices[1][0], devices[0][0]
                    rates.append(
                        PortRate(device=own, partner=server, partner_device=other, gbit_s=rate, error=error)
                    )  # fmt: skip
    return PortRates(rates=tuple(rates))


def _command(device: tuple[str, int], port: str) -> list[str]:
    options = {"-d": device[0], "-i": device[1], "-p": port, "-q": 4, "-s": 1 << 20, "-D": _SECONDS}
    return [_PROGRAM, *(str(word) for option in options.items() for word in option), "-F", "--report_gbits"]


def _measure(server: str, device: tuple[str, int], port: str, timeout_s: float) -> tuple[float | None, str]:
    """The average rate, Gb/s, or the reason why it is missing."""
    deadline = time.monotonic() + timeout_s
    while True:
        result = ask([*_command(device, port), server], os.environ, max(1.0, deadline - time.monotonic()))
        if result.code == 0 or _NO_SERVER not in result.text or time.monotonic() > deadline:
            break
        time.sleep(_AGAIN_S)  # the server is on its way
    rows = _ROW.findall(result.text) if result.code == 0 else []
    rate = float(rows[-1]) if rows else 0.0
    return (rate, "") if rate else (None, f"it ended with status {result.code}: {result.last_line}")

"""A stand-in for perftest's `ib_write_bw`, of a made-up fabric: it takes its options, prints and refuses as it.

Its server and client meet in the folder STANDIN_PERFTEST. STANDIN_RATES are rates in Gb/s, as JSON by host and device;
the slower port of two decides. A device without a rate is missing. STANDIN_REFUSES is an error of every client.
"""

import getopt
import json
import os
import sys
import time
from pathlib import Path

_LINE = "-" * 87
_LONG = ["report_gbits"]


def install(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    program = folder / "ib_write_bw"
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" -IS "{__file__}" "$@"\n')
    program.chmod(0o755)
    return folder


def main(argv: list[str]) -> int:
    try:
        given, hosts = getopt.gnu_getopt(argv, "d:i:p:q:s:D:F", _LONG)
    except getopt.GetoptError as error:
        print(f"ib_write_bw: {error}", file=sys.stderr)
        return 1
    options = dict(given)
    device, port = options["-d"], options.get("-p", "18515")
    rate = json.loads(os.environ["STANDIN_RATES"]).get(f"{os.environ['SLURMD_NODENAME']} {device}")
    if rate is None:
        print(f"IB device {device} not found\n Unable to find the Infiniband/RoCE device", file=sys.stderr)
        return 1
    folder = Path(os.environ["STANDIN_PERFTEST"])
    place = folder / f"{hosts[0] if hosts else os.environ['SLURMD_NODENAME']}-{port}"
    if not hosts:
        print(f"\n{'*' * 36}\n* Waiting for client to connect... *\n{'*' * 36}", flush=True)
        place.write_text(str(rate))
        while place.exists():
            time.sleep(0.005)
        return 0
    if not place.exists() or not place.read_text():
        print(f"Couldn't connect to {hosts[0]}:{port}", file=sys.stderr)
        print(
            " Unable to open file descriptor for socket connection Unable to init the socket connection",
            file=sys.stderr,
        )
        return 1
    rate = min(float(rate), float(place.read_text()))
    place.unlink()
    if refuses := os.environ.get("STANDIN_REFUSES"):
        print(refuses, file=sys.stderr)
        return 1
    unit = "Gb/sec" if ("--report_gbits", "") in given else "MB/sec"
    shown = rate if unit == "Gb/sec" else rate * 1e9 / 8 / 2**20
    print(f"{_LINE}\n{'RDMA_Write BW Test':>38}\n Dual-port       : OFF\t\tDevice         : {device}")
    print(f" Number of qps   : {options['-q']}\t\tTransport type : IB\n Link type       : IB\n{_LINE}")
    print(" local address: LID 0x01 QPN 0x0049 PSN 0x8b53ba RKey 0x1fffbf VAddr 0x00799b96ceb000")
    print(f"{_LINE}\n #bytes     #iterations    BW peak[{unit}]    BW average[{unit}]   MsgRate[Mpps]")
    print("Conflicting CPU frequency values detected: 3295.212000 != 5003.410000. CPU Frequency is not max.")
    row = f" {options['-s']:<7}    {139_872:<10}       {0:<7.2f}            {shown:<7.2f}"
    print(f"{row}\t\t     {0.046624:<7.6f}\n{_LINE}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

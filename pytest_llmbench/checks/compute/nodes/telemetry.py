"""Clocks, temperature and power of a rank's device while it works, about once a second, as raw lines."""

import subprocess
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import IO, Self

# The columns of a line. The last is a bit mask; its old name is known to old and new drivers.
COLUMNS = "clocks.sm,temperature.gpu,power.draw,clocks_throttle_reasons.active"
_PERIOD_S = 1.0
_ABSENT = "[N/A]"
_ZONES = Path("/sys/class/thermal")
_CLOCK = Path("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq")
_END_S = 5.0


class Telemetry:
    """Watches a device for the time of a `with` block.

    Attributes:
        samples: seconds since the start, and a line of `COLUMNS` as nvidia-smi writes them.
        trouble: the reason for a lack of samples; None if none is lacking.
    """

    def __init__(self, uuid: str | None) -> None:
        """Prepare to watch a GPU, by its UUID as nvidia-smi knows it, or the CPU, which has none."""
        self.samples: list[tuple[float, str]] = []
        self.trouble: str | None = None
        self._uuid = uuid
        self._began = time.monotonic()
        self._over = threading.Event()
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._watch_cpu, daemon=True)

    def __enter__(self) -> Self:
        self._began = time.monotonic()
        if self._uuid is not None:
            try:
                self._process = _nvidia_smi(self._uuid)
            except OSError as error:
                self.trouble = f"nvidia-smi: {error}"
                return self
            self._thread = threading.Thread(target=self._watch_gpu, args=(self._process.stdout,), daemon=True)
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, _: BaseException | None, __: TracebackType | None) -> None:
        self._over.set()
        if self._process is not None:
            if self._process.poll() is not None:
                self.trouble = f"nvidia-smi ended early with exit code {self._process.returncode}"
            self._process.terminate()
            self._process.wait()
        if self._thread.is_alive():
            self._thread.join(_END_S)

    def elapsed(self) -> float:
        """Seconds since the start."""
        return round(time.monotonic() - self._began, 3)

    def _watch_gpu(self, lines: IO[str]) -> None:
        with lines:
            for line in lines:
                self._keep(line.strip())

    def _watch_cpu(self) -> None:
        while not self._over.is_set():
            self._keep(cpu_line())
            self._over.wait(_PERIOD_S)

    def _keep(self, line: str) -> None:
        self.samples.append((self.elapsed(), line))


def _nvidia_smi(uuid: str) -> subprocess.Popen[str]:
    command = ["nvidia-smi", f"--query-gpu={COLUMNS}", "--format=csv,noheader,nounits", "-i", uuid]
    command += ["-lms", str(round(1000 * _PERIOD_S))]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def cpu_line() -> str:
    """The CPU's clock and its hottest zone, in the columns of a GPU; `[N/A]` for what this machine does not tell."""
    zones = [number for path in _ZONES.glob("thermal_zone*/temp") if (number := _number(path)) is not None]
    clock = _number(_CLOCK)
    told = [None if clock is None else clock // 1000, max(zones, default=0) // 1000 or None, None, None]
    return ", ".join(_ABSENT if each is None else str(each) for each in told)


def _number(path: Path) -> int | None:
    try:
        return int(path.read_text(encoding="ascii"))
    except (OSError, ValueError):
        return None

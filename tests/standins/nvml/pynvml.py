"""A stand-in for nvidia-ml-py and the driver below it: GPUs that live through a recorded series, over and over.

`NVML_SERIES` names a JSON file: `gpus`, their UUIDs; `row_s`, how long a row lasts; `rows`, each with the numbers of
NVML by name. A number may be the name of an error, such as `NotSupported`, and so may a whole row. Energy is what the
rows' power adds up to. Without the variable there is no driver. Names and signatures are those of nvidia-ml-py.
"""

# ruff: noqa: N802 - its names

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

NVML_CLOCK_SM = 1
NVML_CLOCK_MEM = 2
NVML_TEMPERATURE_GPU = 0
NVML_ERROR_UNINITIALIZED = 1
NVML_ERROR_NOT_SUPPORTED = 3
NVML_ERROR_NO_PERMISSION = 4
NVML_ERROR_NOT_FOUND = 6
NVML_ERROR_LIBRARY_NOT_FOUND = 12
NVML_ERROR_FUNCTION_NOT_FOUND = 13
NVML_ERROR_GPU_IS_LOST = 15
NVML_ERROR_UNKNOWN = 999


class NVMLError(Exception):
    """An error of NVML; made from its number, it is of the class for that number."""

    _classes: ClassVar[dict[int, type[NVMLError]]] = {}
    _words: ClassVar[dict[int, str]] = {
        1: "Uninitialized", 3: "Not Supported", 4: "Insufficient Permissions", 6: "Not Found",
        12: "NVML Shared Library Not Found", 13: "Function Not Found", 15: "GPU is lost", 999: "Unknown Error",
    }  # fmt: skip
    value: int

    def __new__(cls, value: int) -> NVMLError:  # noqa: PYI034 - the class is that of the number
        error = Exception.__new__(cls._classes.get(value, cls) if cls is NVMLError else cls)
        error.value = value
        return error

    def __str__(self) -> str:
        return self._words[self.value]


def _class(name: str, value: int) -> type[NVMLError]:
    made = type(f"NVMLError_{name}", (NVMLError,), {"__new__": lambda cls: NVMLError.__new__(cls, value)})
    NVMLError._classes[value] = made
    return made


NVMLError_Uninitialized = _class("Uninitialized", NVML_ERROR_UNINITIALIZED)
NVMLError_NotSupported = _class("NotSupported", NVML_ERROR_NOT_SUPPORTED)
NVMLError_NoPermission = _class("NoPermission", NVML_ERROR_NO_PERMISSION)
NVMLError_NotFound = _class("NotFound", NVML_ERROR_NOT_FOUND)
NVMLError_LibraryNotFound = _class("LibraryNotFound", NVML_ERROR_LIBRARY_NOT_FOUND)
NVMLError_FunctionNotFound = _class("FunctionNotFound", NVML_ERROR_FUNCTION_NOT_FOUND)
NVMLError_GpuIsLost = _class("GpuIsLost", NVML_ERROR_GPU_IS_LOST)
NVMLError_Unknown = _class("Unknown", NVML_ERROR_UNKNOWN)

_series: Any = None
_began = 0.0


def nvmlInit() -> None:
    global _series, _began
    if "NVML_SERIES" not in os.environ:
        raise NVMLError(NVML_ERROR_LIBRARY_NOT_FOUND)
    _series, _began = json.loads(Path(os.environ["NVML_SERIES"]).read_text()), time.monotonic()


def nvmlShutdown() -> None:
    global _series  # noqa: PLW0603 - as the library, which is one for the process
    _check_loaded()
    _series = None


def nvmlDeviceGetHandleByUUID(uuid: str) -> str:
    _check_loaded()
    if uuid not in _series["gpus"]:
        raise NVMLError(NVML_ERROR_NOT_FOUND)
    return uuid


def nvmlDeviceGetTotalEnergyConsumption(handle: str) -> int:
    """All energy since the driver was loaded, mJ."""
    _value(handle, "energy", 0)
    lived, joules = time.monotonic() - _began, 1e6
    whole, rest = divmod(lived / _series["row_s"], len(_series["rows"]))
    powers = [_milliwatts(row) for row in _series["rows"]]
    joules += whole * sum(powers) * _series["row_s"]
    joules += sum(powers[: int(rest)]) * _series["row_s"]
    return int(joules + powers[int(rest)] * (rest % 1.0) * _series["row_s"])


def nvmlDeviceGetPowerUsage(handle: str) -> int:
    """Power, mW."""
    return int(_value(handle, "power"))


def nvmlDeviceGetClockInfo(handle: str, type: int) -> int:  # noqa: A002 - the name there
    """A clock, MHz."""
    return int(_value(handle, {NVML_CLOCK_SM: "sm", NVML_CLOCK_MEM: "memory_clock"}[type]))


def nvmlDeviceGetTemperature(handle: str, sensor: int) -> int:
    """Temperature, °C."""
    assert sensor == NVML_TEMPERATURE_GPU
    return int(_value(handle, "temperature"))


def nvmlDeviceGetMemoryInfo(handle: str, version: int | None = None) -> SimpleNamespace:
    """Memory, bytes."""
    assert version is None
    return SimpleNamespace(total=150_754_820_096, used=_value(handle, "used"))


def nvmlDeviceGetCurrentClocksEventReasons(handle: str) -> int:
    """Why clocks are not higher, as bits; unknown to old drivers."""
    return int(_value(handle, "event_reasons"))


def nvmlDeviceGetCurrentClocksThrottleReasons(handle: str) -> int:
    """The same under its old name, which newer drivers know as well."""
    return int(_value(handle, "throttle_reasons"))


def _check_loaded() -> None:
    if _series is None:
        raise NVMLError(NVML_ERROR_UNINITIALIZED)


def _milliwatts(row: Any) -> float:
    power = 0 if isinstance(row, str) else row["power"]
    return 0.0 if isinstance(power, str) else float(power)


def _value(handle: str, name: str, default: object = "NotSupported") -> Any:
    _check_loaded()
    assert handle in _series["gpus"]
    rows = _series["rows"]
    row = rows[int((time.monotonic() - _began) / _series["row_s"]) % len(rows)]
    value = row if isinstance(row, str) else row.get(name, default)
    if isinstance(value, str):
        raise globals()[f"NVMLError_{value}"]
    return value

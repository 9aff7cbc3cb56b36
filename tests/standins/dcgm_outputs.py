"""What dcgmi prints, built by the documented format of each version: the same results, told in its way."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

VERSIONS = ("2.3.5", "3.3.9", "4.4.2")

# By the name that version 4 has: category, name up to version 3, and the first level that runs it.
_TESTS = {
    "software": ("Deployment", "Persistence Mode", 1), "memory": ("Hardware", "GPU Memory", 2),
    "diagnostic": ("Hardware", "Diagnostic", 3), "pcie": ("Integration", "PCIe", 2),
    "targeted_stress": ("Stress", "Targeted Stress", 3), "eud": ("Stress", "EUD Test", 3),
}  # fmt: skip


@dataclass(frozen=True)
class Error:
    """An error as DCGM records it."""

    text: str
    error_id: int
    category: int
    severity: int


@dataclass(frozen=True)
class Said:
    """What a test says of one GPU."""

    status: str
    error: Error | None = None


PERSISTENCE = Error("Persistence mode for GPU 1 is disabled. Enable it as root.", 29, 8, 5)
FAULTY = Error("GPU 1 has 3 faulty memory elements.", 52, 10, 2)
REMAP = Error("A row remap of GPU 1 is pending.", 85, 10, 6)
BANDWIDTH = Error("GPU 1 to host bandwidth is 4 GB/s, unacceptably low.", 30, 13, 4)
THERMAL = Error("GPU 1 had 7 seconds of thermal violations.", 40, 9, 1)
NOT_ALLOCATED = Error("Couldn't allocate at least 75.0% of GPU memory on GPU 1", 56, 8, 4)

Changes = Mapping[str, Mapping[int, Said]]
NONE: Changes = {}


def printed(version: str, changes: Changes = NONE, *, level: int = 3, gpus: int = 2) -> str:
    """What dcgmi of a version prints when every test passes but for some changes, by test and GPU."""
    results = {
        name: [changes.get(name, {}).get(gpu, Said("Pass")) for gpu in range(gpus)]
        for name, (_, _, first) in _TESTS.items()
        if first <= level and (name != "eud" or name in changes)
    }
    build = {"2": _version_2, "3": _version_3, "4": _version_4}[version[0]]
    return json.dumps(build(version, results, gpus), indent=4) + "\n"


def _version_2(_version: str, results: Mapping[str, list[Said]], _gpus: int) -> dict[str, Any]:
    def result(gpu: int, said: Said) -> dict[str, Any]:
        return {"gpu_ids": str(gpu), "status": said.status, **({"warnings": said.error.text} if said.error else {})}

    return {"DCGM GPU Diagnostic": {"test_categories": _old_categories(results, result)}}


def _version_3(version: str, results: Mapping[str, list[Said]], gpus: int) -> dict[str, Any]:
    def result(gpu: int, said: Said) -> dict[str, Any]:
        return {"gpu_id": str(gpu), "status": said.status, **_warnings(said, "warning")}

    return {
        "DCGM GPU Diagnostic": {"test_categories": _old_categories(results, result)},
        "Driver Version Detected": "535.54.03", "GPU Device IDs": ["2330"] * gpus,
        "GPU Device Serials": {str(gpu): f"165{gpu}" for gpu in range(gpus)}, "version": version,
    }  # fmt: skip


def _old_categories(results: Mapping[str, list[Said]], result: Any) -> list[dict[str, Any]]:
    """Deployment tests have one result of all GPUs, and a hole where one did not run."""
    worst = _worst(results["software"])
    names = result(1, worst)
    whole = {"status": worst.status} | ({"warnings": names["warnings"]} if worst.error else {})
    if isinstance(names.get("warnings"), list):  # version 3 has another key there, and a number for the GPU
        whole = {"gpu_id": 1, "status": worst.status, **_warnings(worst, "warnings")}
    deployment: list[Any] = [{"name": "Denylist", "results": [{"status": "Pass"}]}, None]
    categories = {"Deployment": [*deployment, {"name": "Persistence Mode", "results": [whole]}]}
    for name, told in results.items():
        if name != "software":
            category, old, _ = _TESTS[name]
            test = {"name": old, "results": [result(gpu, said) for gpu, said in enumerate(told)]}
            categories.setdefault(category, []).append(test)
    return [{"category": category, "tests": tests} for category, tests in categories.items()]


def _version_4(version: str, results: Mapping[str, list[Said]], gpus: int) -> dict[str, Any]:
    categories: dict[str, list[Any]] = {}
    for name, told in results.items():
        entries = [
            {"entity_group": "GPU", "entity_group_id": 1, "entity_id": gpu, "status": said.status}
            | _warnings(said, "warning")
            for gpu, said in enumerate(told)
        ]
        summary = {"status": _worst(told).status, **_warnings(_worst(told), "warning")}
        categories.setdefault(_TESTS[name][0], []).append({"name": name, "results": entries, "test_summary": summary})
    entities = [{"device_id": "2330", "entity_id": gpu, "serial_num": f"165{gpu}"} for gpu in range(gpus)]
    return {
        "DCGM Diagnostic": {
            "test_categories": [{"category": name, "tests": each} for name, each in categories.items()]
        },
        "entity_groups": [{"entities": entities, "entity_group": "GPU", "entity_group_id": 1}],
        "metadata": {"Driver Version Detected": "580.82.09", "version": version},
    }


def _warnings(said: Said, key: str) -> dict[str, Any]:
    if said.error is None:
        return {}
    error = said.error
    numbers = {"error_category": error.category, "error_id": error.error_id, "error_severity": error.severity}
    return {"warnings": [{key: error.text, **numbers}]}


def _worst(told: list[Said]) -> Said:
    return max(told, key=lambda said: (["Pass", "Skip", "Warn", "Fail"].index(said.status), said.error is not None))

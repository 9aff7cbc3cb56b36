"""Kinds of findings of GPU checks."""

from typing import Literal

from pytest_llmbench.checks.kinds import FindingMaker, SharedKind, make_finding

GpuKind = Literal[
    "application_clock", "applications_clocks_setting", "driver_not_loaded", "ecc_correctable", "ecc_history",
    "ecc_off", "ecc_uncorrectable", "fabric", "fallen_off_the_bus", "gpu_lost", "gpu_memory", "gpu_model",
    "gpus_missing", "hw_power_brake_slowdown", "hw_slowdown", "hw_thermal_slowdown", "inforom_corrupted", "mig",
    "nvidia_smi_missing", "nvidia_smi_warns", "nvlink_inactive", "nvlink_slow", "pcie_gen", "pcie_replays",
    "pcie_width", "persistence", "power_limit", "recovery_action", "remap_failed", "remap_pending",
    "retirement_pending", "sram_threshold", "stray_process", "sw_power_cap", "sw_thermal_slowdown", "sxid", "xid",
]  # fmt: skip

finding: FindingMaker[GpuKind | SharedKind] = make_finding

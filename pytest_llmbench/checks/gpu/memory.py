"""Memory errors of GPUs: what ECC corrected, what it could not, and what waits to be repaired."""

from collections.abc import Iterator

from pydantic import NonNegativeInt

from pytest_llmbench.checks.gpu.base import PerGpu, fault
from pytest_llmbench.checks.gpu.nvidia_smi import SmiGpu
from pytest_llmbench.core.record.health import Finding, Severity
from pytest_llmbench.core.schema import Strict


class EccOptions(Strict):
    """Error counts that a GPU may have."""

    correctable: NonNegativeInt = 1000
    """Corrected errors since the driver was loaded, above which there is a hint."""
    total_uncorrectable: NonNegativeInt = 0
    """Uncorrected ones in the GPU's life, above which there is a hint."""


class Ecc(PerGpu):
    """ECC counters, retired pages and remapped rows."""

    name = "gpu_ecc"
    summary = "uncorrected memory errors, repairs that wait for a reset, spares that ran out"
    options: type[Strict] = EccOptions
    needs = ("ecc", "uncorrectable", "total_uncorrectable")
    shows = (
        "correctable", "total_correctable", "sram_threshold_exceeded", "retirement_pending", "remap_pending",
        "remap_failed",
    )  # fmt: skip

    def missing(self, gpu: SmiGpu) -> list[str]:
        """A GPU with ECC off counts nothing, which is a finding already."""
        if gpu.ecc is False:
            return []
        repairs = (gpu.remap_pending, gpu.remap_failed) if gpu.retirement_pending is None else ()
        return [*super().missing(gpu), *(["remapped rows or retired pages"] if None in repairs else [])]

    def judge(self, gpu: SmiGpu, options: EccOptions) -> Iterator[Finding]:
        """The worst first."""
        reset = f"drain the node and reset the GPU: nvidia-smi -r -i {gpu.index}"
        replace = "take the node out; run dcgmi diag -r 3 and replace the GPU"
        if gpu.remap_failed:  #: finding remap_failed: a bad row of GPU memory could not be replaced
            yield fault(gpu, "remap_failed", Severity.ISOLATE, "a memory row could not be replaced", replace)
        if gpu.sram_threshold_exceeded:  #: finding sram_threshold: more uncorrected errors in SRAM than NVIDIA allows
            message = "its SRAM had more uncorrected errors than NVIDIA allows"
            yield fault(gpu, "sram_threshold", Severity.ISOLATE, message, replace)
        if gpu.uncorrectable:  #: finding ecc_uncorrectable: uncorrected memory errors since the driver was loaded
            message = f"{gpu.uncorrectable:g} uncorrected ECC errors since the driver was loaded"
            yield fault(gpu, "ecc_uncorrectable", Severity.RESET, message, reset)
        if gpu.remap_pending:  #: finding remap_pending: a bad row of memory waits for a reset to be replaced
            yield fault(gpu, "remap_pending", Severity.RESET, "a memory row waits to be replaced", reset)
        if gpu.retirement_pending:  #: finding retirement_pending: a bad page of memory waits for a reset to be retired
            yield fault(gpu, "retirement_pending", Severity.RESET, "a memory page waits to be retired", reset)
        if gpu.ecc is False:  #: finding ecc_off: memory errors are not noticed
            action = f"nvidia-smi -i {gpu.index} -e 1, then reset the GPU"
            yield fault(gpu, "ecc_off", Severity.CONFIGURE, "ECC is off: memory errors are not noticed", action)
        if gpu.total_uncorrectable is not None and gpu.total_uncorrectable > options.total_uncorrectable:
            message = f"{gpu.total_uncorrectable:g} uncorrected ECC errors in its life"
            #: finding ecc_history: uncorrected memory errors in the GPU's life
            yield fault(gpu, "ecc_history", Severity.MONITOR, message, "replace the GPU if more come soon")
        if gpu.correctable is not None and gpu.correctable > options.correctable:
            message = f"{gpu.correctable:g} corrected ECC errors since the driver was loaded"
            #: finding ecc_correctable: many corrected memory errors
            yield fault(gpu, "ecc_correctable", Severity.MONITOR, message, "watch whether they become more")

"""GPU models: the published numbers of each, and the names of one model."""

import re
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PublishedGpu:
    """Numbers of a GPU in NVIDIA's data sheet."""

    model: str  # as the driver names it, without the vendor
    memory_gib: float  # its memory
    memory_gb_s: float  # peak rate of the memory
    nvlink_gb_s: float  # NVLink to all GPUs of its node or rack, both directions; 0 for cards that have bridges or none
    peak_tflops: Mapping[str, float]  # dense peaks by precision

    def weaker_in(self, other: "PublishedGpu", precision: str) -> list[str]:
        """Each number that is lower than that of the other GPU, or missing in one of the two data sheets."""
        numbers = {
            "GiB of memory": (self.memory_gib, other.memory_gib),
            "GB/s of memory": (self.memory_gb_s, other.memory_gb_s),
            "GB/s of NVLink": (self.nvlink_gb_s, other.nvlink_gb_s),
        }
        less = [f"{own:g} {what}, {its:g} on {other.model}" for what, (own, its) in numbers.items() if own < its]
        for name in ("fp32", "tf32") if precision == "fp32" else (precision,):
            own, its = self.peak_tflops.get(name), other.peak_tflops.get(name)
            if own is None or its is None:
                less.append(f"no peak for {name} is published of {self.model if own is None else other.model}")
            elif own < its:
                less.append(f"{own:g} TFLOP/s in {name}, {its:g} on {other.model}")
        return less


def _peaks(bf16: float, tf32: float, fp32: float, fp8: float | None = None) -> dict[str, float]:
    return {"bf16": bf16, "fp16": bf16, "tf32": tf32, "fp32": fp32, **({"fp8": fp8} if fp8 is not None else {})}


_A100, _HOPPER = _peaks(312, 156, 19.5), _peaks(989.4, 494.7, 66.9, 1978.9)
GPUS = (
    PublishedGpu("V100-SXM2-32GB", 32, 900, 300, {"fp16": 125, "fp32": 15.7}),
    PublishedGpu("A30", 24, 933, 0, _peaks(165, 82, 10.3)),
    PublishedGpu("A40", 48, 696, 0, _peaks(149.7, 74.8, 37.4)),
    PublishedGpu("A100-SXM4-40GB", 40, 1555, 600, _A100),
    PublishedGpu("A100-SXM4-80GB", 80, 2039, 600, _A100),
    PublishedGpu("A100-PCIE-40GB", 40, 1555, 0, _A100),
    PublishedGpu("A100 80GB PCIe", 80, 1935, 0, _A100),
    PublishedGpu("A800-SXM4-80GB", 80, 2039, 400, _A100),
    PublishedGpu("L4", 24, 300, 0, _peaks(121, 60, 30.3, 242)),
    PublishedGpu("L40S", 48, 864, 0, _peaks(362, 183, 91.6, 733)),
    PublishedGpu("H100 80GB HBM3", 80, 3350, 900, _HOPPER),
    PublishedGpu("H100 PCIe", 80, 2000, 0, _peaks(756, 378, 51, 1513)),
    PublishedGpu("H100 NVL", 94, 3900, 0, _peaks(835, 417.5, 60, 1671)),
    PublishedGpu("H800", 80, 3350, 400, _HOPPER),
    PublishedGpu("H20", 96, 4000, 900, _peaks(148, 74, 44, 296)),
    PublishedGpu("H200", 141, 4800, 900, _HOPPER),
    PublishedGpu("H200 NVL", 141, 4800, 0, _peaks(835, 417.5, 60, 1671)),
    PublishedGpu("B200", 180, 7700, 1800, _peaks(2250, 1100, 75, 4500)),
    PublishedGpu("B300", 270, 7700, 1800, _peaks(2250, 1125, 75, 4500)),
    PublishedGpu("GB200", 186, 8000, 1800, _peaks(2500, 1250, 80, 5000)),
    PublishedGpu("GB300", 279, 8000, 1800, _peaks(2500, 1250, 80, 5000)),
)


def published(device: str) -> PublishedGpu | None:
    """The published numbers of the GPU that a driver names so; None if the table lacks it."""
    return next((gpu for gpu in GPUS if same_gpu(gpu.model, device)), None)


# Words behind a model's name that leave it the same GPU: its memory, and the form in which it is built.
_SAME = re.compile(r"\d+gb?|hbm\d\w*|sxm\d*|pcie|nvl|ac")
# The whole name that drivers give the SXM card, so that a further word names another one: H200 NVL is slower.
_WHOLE_NAMES = {"h200", "h800", "h20"}


def same_gpu(model: str, device: str) -> bool:
    """True if a device is that GPU model: of a model's name, what is written counts.

    `H100` is every H100, `H100 80GB HBM3` the one that the driver calls so, with or without its vendor in front. `H100`
    differs from `GH200`, `A10` from `A100`, and a MIG slice from its GPU.
    """
    (name, *wanted), (other, *have) = _words_of_gpu(model), _words_of_gpu(device)
    if not {"pcie", "nvl"} & {*have}:  # drivers leave the form out of H100 80GB HBM3
        wanted = [word for word in wanted if not word.startswith("sxm")]
    further = {*have} - {*wanted}
    return (
        name == other
        and {*wanted} <= {*have}
        and all(_SAME.fullmatch(word) for word in further)
        and not (further and not wanted and name in _WHOLE_NAMES)
    )


def may_be_gpu(model: str, declared: str) -> bool:
    """True if the GPU that a system's file declares may turn out to be that model: either name may say more."""
    return same_gpu(model, declared) or same_gpu(declared, model)


def _words_of_gpu(name: str) -> list[str]:
    """The words of a GPU's name from its model on, the first with a digit. `NVL72` is how many GPUs NVLink joins."""
    words = [word for word in re.findall(r"[a-z0-9.+]+", name.lower()) if not re.fullmatch(r"nvl\d+", word)]
    first = next((number for number, word in enumerate(words) if re.search(r"\d", word)), 0)
    return words[first:] or [name]

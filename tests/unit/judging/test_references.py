"""Which machine a reference is for."""

import dataclasses
import datetime as dt
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.gpus import GPUS as KNOWN
from pytest_llmbench.core.gpus import PublishedGpu, published, same_gpu
from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.reference import AppliesTo, Reference
from pytest_llmbench.judging.references import Machine, applied
from pytest_llmbench.judging.statistics import STATISTICS
from tests.support.references import reference
from tests.support.shipped import SCALES

GPUS = st.sampled_from(["A100-SXM4-80GB", "A100-SXM4-40GB", "H200", "A10"])
NODES = st.integers(1, 3)
SYSTEMS = st.sampled_from(["here", "there"])
MACHINES = st.builds(
    lambda gpu, gpus, **rest: Machine(device=f"NVIDIA {gpu}" if gpus else "cpu", gpus=gpus, **rest),
    gpu=GPUS, gpus=st.integers(0, 3), nodes=NODES, system=SYSTEMS, scale=st.sampled_from(SCALES),
)  # fmt: skip
TARGETS = st.builds(
    AppliesTo, gpu=GPUS, gpus=st.none() | st.integers(1, 3), nodes=st.none() | NODES, system=st.none() | SYSTEMS
) | st.builds(AppliesTo, system=SYSTEMS, nodes=st.none() | NODES)


def of_target(target: AppliesTo | None) -> Reference:
    """Build a reference for a machine, or a portable one."""
    return Reference(
        name="r", statistic="throughput" if target else "mfu", at_least=Quantity("200K words/s" if target else "5 %"),
        why="because", source="a document", date=dt.date(2023, 3, 20), applies_to=target,
    )  # fmt: skip


@given(MACHINES)
def test_a_portable_reference_is_for_every_machine(machine: Machine) -> None:
    assert applied(of_target(None), machine) == of_target(None)


@given(MACHINES, TARGETS)
def test_every_key_given_must_match(machine: Machine, target: AppliesTo) -> None:
    fits = (
        machine.scale == "full"
        and (target.gpu is None or machine.device == f"NVIDIA {target.gpu}")
        and (target.gpus is None or machine.gpus == target.gpus)
        and (target.nodes is None or machine.nodes == target.nodes)
        and (target.system is None or machine.system == target.system)
    )
    assert (applied(of_target(target), machine) == of_target(target)) == fits


@given(MACHINES, GPUS)
def test_a_run_without_gpus_never_meets_a_reference_for_one(machine: Machine, gpu: str) -> None:
    if machine.gpus == 0:
        assert isinstance(applied(of_target(AppliesTo(gpu=gpu)), machine, STATISTICS["throughput"], "bf16"), str)


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(("model", "device", "same"), [
    ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
    ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
    ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
    ("MI300X", "AMD Instinct MI300X", True),
    *((model, "NVIDIA H100 80GB HBM3", True) for model in ("H100", "h100", "NVIDIA H100", "H100 SXM",
                                                           "H100-SXM5-80GB")),
    *((model, "NVIDIA H100 80GB HBM3", False) for model in ("H100 PCIe", "H100 94GB", "GH100", "H100 NVL", "H10")),
    *(("H100", f"NVIDIA {device}", True) for device in ("H100 PCIe", "H100 NVL", "H100")),
    ("A100", "NVIDIA A100-SXM4-80GB", True),
    ("A100 80GB", "NVIDIA A100 80GB PCIe", True),
    ("A100 SXM", "NVIDIA A100 80GB PCIe", False),
    ("GH200", "NVIDIA GH200 144G HBM3e", True),
    ("GB200 NVL72", "NVIDIA GB200", True),
    ("A10", "NVIDIA A100-SXM4-80GB", False),
    ("A100", "GRID A100-40C", False),
    ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
    ("RTX 4090", "NVIDIA GeForce RTX 4090 Laptop GPU", False),
    ("H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
    ("H200", "NVIDIA H200 NVL", False),
    ("H200", "NVIDIA GH200 480GB", False),
    ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
    ("H200", "cpu", False),
])  # fmt: skip
def test_a_gpu_is_what_is_written_of_its_name(model: str, device: str, *, same: bool) -> None:
    """With or without its vendor: the driver's further words may be of memory and form."""
    assert same_gpu(model, device) is same


def test_the_reason_names_both_machines() -> None:
    machine = Machine(system="local", device="cpu", gpus=0, nodes=1, scale="smoke")
    assert applied(of_target(AppliesTo(gpu="A100-SXM4-80GB", gpus=8)), machine) == (
        "reference r (>= 200,000 words/s) is for 8 × A100-SXM4-80GB at scale full; "
        "this run: cpu, 1 node, system local, scale smoke"
    )


A100, EIGHT = "A100-SXM4-80GB", Machine(system="x", device="NVIDIA H200", gpus=8, nodes=1, scale="full")
ON_A100: dict[str, Any] = {"gpu": A100, "gpus": 8, "nodes": 1}


@pytest.mark.parametrize(("statistic", "bounds", "kept"), [
    ("throughput", {"at_least": "200K words/s"}, ">= 200000 words/s"),
    ("throughput", {"at_least": "200K words/s", "at_most": "2M words/s"}, ">= 200000 words/s"),
    ("tflops_per_gpu", {"at_least": "100 TFLOP/s/gpu"}, ">= 100 TFLOP/s/gpu"),
    ("step_time", {"at_most": "2 s"}, "<= 2 s"),
    ("step_time", {"at_least": "1 s", "at_most": "2 s"}, "<= 2 s"),
    ("time_for_20m_tokens", {"at_most": "560 s"}, "<= 560 s"),
    ("throughput", {"at_most": "2M words/s"}, "a bound that slow runs meet"),
    ("step_time", {"at_least": "1 s"}, "a bound that slow runs meet"),
    *(
        (statistic, bounds, "need not be better on a faster GPU")
        for statistic, bounds in (
            ("mfu", {"at_least": "40 %"}), ("matmul_fraction", {"at_least": "40 %"}),
            ("loss_drop", {"at_least": "1 nat"}), ("peak_memory", {"at_most": "70 GiB"}),
            ("energy", {"at_most": "1 J"}), ("warm_up_time", {"at_most": "60 s"}),
        )
        if statistic in STATISTICS
    ),
])  # fmt: skip
def test_the_number_of_a_weaker_gpu_is_a_floor(statistic: str, bounds: dict[str, str], kept: str) -> None:
    """The side that a slow run misses stays; the other, or a number that speed does not improve, says nothing."""
    here = applied(reference(statistic, **ON_A100, **bounds), EIGHT, STATISTICS[statistic], "bf16")
    if isinstance(here, str):
        assert kept in here
    else:
        assert (here.threshold, here.floor, here.floor_for) == (kept, True, f"8 × {A100}, 1 node")


@pytest.mark.parametrize(("device", "target", "precision", "reason"), [
    ("NVIDIA H100 80GB HBM3", {}, "bf16", None),
    ("NVIDIA B300 SXM6 AC", {}, "fp16", None),
    ("NVIDIA GB200", {"nodes": None}, "fp32", None),
    ("NVIDIA A100-SXM4-80GB", {"gpu": "A100-SXM4-40GB"}, "bf16", None),
    ("NVIDIA H200", {"gpus": 4}, "bf16", "is for 4 ×"),
    ("NVIDIA H200", {"nodes": 2}, "bf16", "2 nodes"),
    ("NVIDIA H200", {"system": "there"}, "bf16", "system there"),
    ("NVIDIA H200", {"gpus": None}, "bf16", "it names no number of GPUs"),
    ("NVIDIA H200", {"gpu": "MI300X"}, "bf16", "no data sheet of MI300X is in llmbench"),
    ("NVIDIA H300", {}, "bf16", "no data sheet of NVIDIA H300 is in llmbench"),
    ("NVIDIA H100 80GB HBM3 MIG 1g.10gb", {}, "bf16", "no data sheet of"),
    ("NVIDIA A100-SXM4-40GB", {}, "bf16", f"40 GiB of memory, 80 on {A100}"),
    ("NVIDIA L40S", {"gpu": "A100-SXM4-40GB"}, "bf16", "864 GB/s of memory, 1555 on A100-SXM4-40GB"),
    ("NVIDIA H100 PCIe", {}, "bf16", f"0 GB/s of NVLink, 600 on {A100}"),
    ("NVIDIA H800", {}, "bf16", "400 GB/s of NVLink"),
    ("NVIDIA H20", {}, "bf16", "148 TFLOP/s in bf16, 312 on"),
    ("NVIDIA H200", {}, "fp8", f"no peak for fp8 is published of {A100}"),
])  # fmt: skip
def test_only_a_gpu_that_lacks_nothing_is_better(device: str, target: Any, precision: str, reason: str | None) -> None:
    """A card without NVLink, or one made slower for export, may be healthy and slower."""
    machine = dataclasses.replace(EIGHT, device=device)
    here = applied(
        reference("throughput", "1 words/s", **(ON_A100 | target)), machine, STATISTICS["throughput"], precision
    )
    assert ((reason or "PASS") in here and "is for" in here) if isinstance(here, str) else reason is None


@given(st.sampled_from(KNOWN), st.sampled_from(KNOWN), st.sampled_from(KNOWN))
def test_better_is_an_order(one: PublishedGpu, two: PublishedGpu, three: PublishedGpu) -> None:
    assert published(f"NVIDIA {one.model}") is one
    assert not one.weaker_in(one, "fp16")
    if not one.weaker_in(two, "fp16") and not two.weaker_in(three, "fp16"):
        assert not one.weaker_in(three, "fp16")


@pytest.mark.parametrize(("one", "other", "both"), [("H100", "NVIDIA H100 80GB HBM3", True), ("H100", "H200", False)])
def test_bounds_of_one_gpu_by_two_names_are_compared(one: str, other: str, *, both: bool) -> None:
    assert AppliesTo(gpu=one, gpus=8).overlaps(AppliesTo(gpu=other, nodes=1)) is both

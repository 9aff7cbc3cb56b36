"""Which machine a reference is for."""

import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.core.quantity import Quantity
from pytest_llmbench.core.recipe.recipes import SCALES
from pytest_llmbench.core.recipe.reference import AppliesTo, Reference
from pytest_llmbench.judging.references import Machine, same_gpu, why_not_applicable

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


def reference(target: AppliesTo | None) -> Reference:
    """Build a reference for a machine, or a portable one."""
    return Reference(
        name="r", statistic="throughput" if target else "mfu", at_least=Quantity("200K words/s" if target else "5 %"),
        why="because", source="a document", date=dt.date(2023, 3, 20), applies_to=target,
    )  # fmt: skip


@given(MACHINES)
def test_a_portable_reference_is_for_every_machine(machine: Machine) -> None:
    assert why_not_applicable(reference(None), machine) is None


@given(MACHINES, TARGETS)
def test_the_smoke_variant_never_meets_an_absolute_reference(machine: Machine, target: AppliesTo) -> None:
    """However well the machine fits, a tiny model's speed says nothing about the full one."""
    if machine.scale == "smoke":
        assert why_not_applicable(reference(target), machine) is not None


@given(MACHINES, TARGETS)
def test_every_key_given_must_match(machine: Machine, target: AppliesTo) -> None:
    fits = (
        machine.scale == "full"
        and (target.gpu is None or machine.device == f"NVIDIA {target.gpu}")
        and (target.gpus is None or machine.gpus == target.gpus)
        and (target.nodes is None or machine.nodes == target.nodes)
        and (target.system is None or machine.system == target.system)
    )
    assert (why_not_applicable(reference(target), machine) is None) == fits


@given(MACHINES, GPUS)
def test_a_run_without_gpus_never_meets_a_reference_for_one(machine: Machine, gpu: str) -> None:
    if machine.gpus == 0:
        assert why_not_applicable(reference(AppliesTo(gpu=gpu)), machine) is not None


H100 = "NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("model", "device", "same"),
    [
        ("A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-80GB", True),
        ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3", True),
        ("MI300X", "AMD Instinct MI300X", True),
        *(
            (model, "NVIDIA H100 80GB HBM3", True)
            for model in ("H100", "h100", "NVIDIA H100", "H100 SXM", "H100-SXM5-80GB")
        ),
        *((model, "NVIDIA H100 80GB HBM3", False) for model in ("H100 PCIe", "H100 94GB", "GH100", "H100 NVL", "H10")),
        *(("H100", f"NVIDIA {device}", True) for device in ("H100 PCIe", "H100 NVL", "H100")),
        ("A100", "NVIDIA A100-SXM4-80GB", True),
        ("A100 80GB", "NVIDIA A100 80GB PCIe", True),
        ("A100 SXM", "NVIDIA A100 80GB PCIe", False),
        ("GH200", "NVIDIA GH200 144G HBM3e", True),
        ("A10", "NVIDIA A100-SXM4-80GB", False),
        ("A100", "GRID A100-40C", False),
        ("RTX 4090", "NVIDIA GeForce RTX 4090", True),
        ("RTX 4090", "NVIDIA GeForce RTX 4090 Laptop GPU", False),
        ("H100", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
        ("H200", "NVIDIA H200 NVL", False),
        ("H200", "NVIDIA GH200 480GB", False),
        ("H100 80GB HBM3", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", False),
        ("H200", "cpu", False),
    ],
)
def test_a_gpu_is_what_is_written_of_its_name(model: str, device: str, *, same: bool) -> None:
    """With or without its vendor: the driver's further words may be of memory and form."""
    assert same_gpu(model, device) is same


def test_the_reason_names_both_machines() -> None:
    machine = Machine(system="local", device="cpu", gpus=0, nodes=1, scale="smoke")
    assert why_not_applicable(reference(AppliesTo(gpu="A100-SXM4-80GB", gpus=8)), machine) == (
        "reference r (>= 200,000 words/s) is for 8 × A100-SXM4-80GB at scale full; "
        "this run: cpu, 1 node, system local, scale smoke"
    )

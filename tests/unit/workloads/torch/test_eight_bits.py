"""Products in 8 bits: the losses are those of bf16 within a percent, and what was converted is counted."""

import sys
from collections.abc import Mapping
from importlib.util import find_spec
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.record.series import StepSeries
from pytest_llmbench.engines.torch.ranks import eight_bits
from pytest_llmbench.engines.torch.ranks.decoder import Decoder
from pytest_llmbench.readers.steps.step_log import read_steps
from pytest_llmbench.workloads.training import attention, matmul
from tests.support.training.same_loss import several
from tests.unit.workloads.conftest import Fork, MakeRecipe

pytestmark = pytest.mark.skipif(
    find_spec("torchao") is None, reason="needs torchao: pip install 'pytest-llmbench[fp8]'"
)
GPU = torch.device("cuda")
FEW: Mapping[str, Any] = {"steps": 4, "warm_up": {"rule": "skip_first", "steps": 1}}
TRAININGS: Mapping[str, Mapping[str, Any]] = {
    "bf16": {"precision": "bf16", "parallelism": {"sharding": "full"}},
    "gathered in 8 bits": {"precision": "fp8", "parallelism": {"sharding": "full", "activation_checkpointing": "full"}},
    "rowwise": {
        "precision": "fp8", "parallelism": {"sharding": "gradients"}, "options": {"scaling": "rowwise"},
        "micro_batch_size": 1, "model": {"activation": "swiglu", "norm": "rms_norm", "biases": "none"},
    },
    "split": {"precision": "fp8", "parallelism": {"tensor": 2, "sequence": True}},
    "rowwise, bf16": {
        "precision": "bf16", "model": {"activation": "swiglu", "norm": "rms_norm", "biases": "none"},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def trained(make_recipe: MakeRecipe, fork: Fork, tmp_path_factory: pytest.TempPathFactory) -> dict[str, StepSeries]:
    folder = tmp_path_factory.mktemp("eight_bits")
    recipes = {name: (2, make_recipe(**FEW, **changes)) for name, changes in TRAININGS.items()}
    for process in fork(folder, ranks=2, **several(folder, "torch", recipes, "cpu")):
        assert process.wait(300) == 0, (folder / "output-0").read_text()
    return {name: read_steps(folder / name) for name in TRAININGS}


@pytest.mark.parametrize(
    ("name", "plain"), [("gathered in 8 bits", "bf16"), ("rowwise", "rowwise, bf16"), ("split", "bf16")]
)
def test_losses_are_those_of_bf16(trained: dict[str, StepSeries], name: str, plain: str) -> None:
    ours, theirs = ([step.loss for step in trained[which].steps] for which in (name, plain))
    assert len(ours) == FEW["steps"]
    assert ours == pytest.approx(theirs, rel=0.01)
    assert ours != pytest.approx(theirs, rel=1e-6)
    events = [info.training for info in trained[name].ranks]
    assert [(event.products, event.precision) for event in events if event] == [
        ({"fp8 emulated": 8}, "fp8 emulated")
    ] * 2


@pytest.fixture
def model(make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch) -> Decoder:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (9, 0))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA X")
    with torch.device("meta"):
        return Decoder(make_recipe().model, 32, activation_checkpointing=False)


@pytest.mark.parametrize("scaling", ["tensorwise", "rowwise"])
def test_all_layers_of_all_blocks_are_converted_and_no_other(model: Decoder, scaling: str) -> None:
    names = list(dict(model.named_parameters()))
    assert eight_bits.count(model) == {"bf16": 8}
    eight_bits.convert(model.blocks, scaling, GPU, gathered=False)
    assert eight_bits.count(model) == {"fp8": 8}
    assert list(dict(model.named_parameters())) == names  # initial values depend on their order
    assert isinstance(model.tokens, nn.Embedding)
    model.blocks[0].mlp_in = nn.Linear(32, 128, device="meta")
    assert eight_bits.count(model) == {"fp8": 7, "bf16": 1}


def test_a_product_of_three_that_stays_in_16_bits_is_none_in_8(model: Decoder) -> None:
    eight_bits.convert(model.blocks, "rowwise_with_gw_hp", GPU, gathered=False)
    assert eight_bits.count(model) == {"bf16": 8}


@pytest.mark.parametrize(
    ("precision", "tried"), [("fp8", torch.bfloat16), ("bf16", torch.bfloat16), ("fp32", torch.float32)]
)
def test_attention_kernels_are_tried_in_the_type_of_the_training(
    precision: str, tried: torch.dtype, make_recipe: MakeRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In fp32 the fastest kernels of a GPU fail, and none is left for fewer keys than queries."""
    seen: set[torch.dtype] = set()

    def attend(query: torch.Tensor, *_: object, **__: object) -> torch.Tensor:
        seen.add(query.dtype)
        return query

    monkeypatch.setattr(functional, "scaled_dot_product_attention", attend)
    monkeypatch.setattr(matmul, "rates", lambda work, *_, **__: [work() is None])
    assert attention._rate(make_recipe(precision=precision), SDPBackend.MATH, torch.device("cpu"))
    assert seen == {tried}


def test_an_old_gpu_and_a_rank_without_torchao_are_refused(model: Decoder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda _: (8, 0))
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.9, and NVIDIA X has less: set precision: bf16"):
        eight_bits.convert(model.blocks, "tensorwise", GPU, gathered=False)
    monkeypatch.setitem(sys.modules, "torchao.float8", None)
    with pytest.raises(ConfigError, match=r"not_measured: torchao is not installed for .*'pytest-llmbench\[fp8\]'"):
        eight_bits.convert(model.blocks, "tensorwise", GPU, gathered=False)

"""Spreads the model over the ranks: replicated (DDP), sharded (FSDP), and with matrices split by DTensor."""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.engines.torch.ranks import eight_bits
from pytest_llmbench.engines.torch.ranks.decoder import Block, Decoder, initialise
from pytest_llmbench.engines.torch.ranks.linear_cross_entropy import losses_and_gradient

# Blocks share a unit until it has so many parameters; the last one may have fewer.
_UNIT = 12_000_000


def build_model(recipe: Recipe, options: TorchOptions, device: torch.device, world_size: int, seed: int) -> nn.Module:
    """Build the model of a recipe on its ranks, with equal values however it is spread; it maps as `Decoder` does.

    It is built on the meta device, so that each rank allocates its shard alone. A single rank gets the bare model.
    """
    with torch.device("meta"):
        model = Decoder(
            recipe.model,
            recipe.sequence_length,
            activation_checkpointing=recipe.parallelism.activation_checkpointing == "full",
        )
    tensor = recipe.parallelism.tensor
    copies, sharded = world_size // tensor, recipe.parallelism.sharding != "none"
    if recipe.precision == "fp8":
        eight_bits.convert(model.blocks, options.scaling, device, gathered=sharded and copies > 1)
    mesh = None
    if tensor > 1:
        mesh = init_device_mesh(device.type, (copies, tensor), mesh_dim_names=("copies", "tensor"))
        _split(model, mesh["tensor"])
    if recipe.compile and device.type == "cuda":
        _compile(model)
    if sharded and copies > 1:
        _shard(model, recipe, mesh["copies"] if mesh else init_device_mesh(device.type, (copies,)))
    model.to_empty(device=device)
    initialise(model, seed)
    return model if sharded or copies == 1 else DistributedDataParallel(model, gradient_as_bucket_view=True)


@contextmanager
def gradient_sync(model: nn.Module, *, enabled: bool, keep: bool) -> Iterator[None]:
    """Let ranks average gradients in the backward pass of a `with` block, or keep them for a later one.

    With `keep`, sharded parameters, once whole, stay so until ranks average.
    """
    if isinstance(model, FSDPModule):
        model.set_requires_gradient_sync(enabled)
        model.set_reshard_after_backward(enabled or not keep)
        yield
    elif isinstance(model, DistributedDataParallel) and not enabled:
        with model.no_sync():
            yield
    else:
        yield


def clip_gradients(model: nn.Module, longest: float) -> torch.Tensor:
    """Scale the gradients of all ranks to an L2 norm of at most `longest`; returns the norm before."""
    norm = nn.utils.clip_grad_norm_(model.parameters(), longest)
    return norm.full_tensor() if isinstance(norm, DTensor) else norm


def count_parameters(parameters: Iterable[torch.Tensor], tensor: tuple[int, int]) -> int:
    """Count a rank's parameters by the rule of `TrainingEvent`; `tensor` is its place and their number."""
    place, number = tensor
    return sum(
        weight.numel() // number
        if isinstance(weight, DTensor) and isinstance(weight.placements[-1], Shard)
        else weight.numel() * (place == 0)
        for weight in parameters
    )


def _split(model: Decoder, mesh: DeviceMesh) -> None:
    """Split matrices over the ranks of a mesh, and the sequence where a layer has none (Korthikanti et al. 2022).

    Attention is split by heads, the feed-forward by its inner units, the embedding and the output layer by tokens.
    """
    sequence, whole = Shard(1), Replicate()
    of_block = {
        "attention_norm": SequenceParallel(), "mlp_norm": SequenceParallel(),
        "query_norm": SequenceParallel(sequence_dim=1, use_local_output=True),  # [batch, heads, sequence, width]
        "key_norm": SequenceParallel(sequence_dim=1, use_local_output=True),
        "qkv": ColwiseParallel(input_layouts=sequence), "attention_out": RowwiseParallel(output_layouts=sequence),
        "mlp_in": ColwiseParallel(input_layouts=sequence), "mlp_out": RowwiseParallel(output_layouts=sequence),
    }  # fmt: skip
    of_model = {
        "tokens": RowwiseParallel(input_layouts=whole, output_layouts=sequence),
        "positions": RowwiseParallel(input_layouts=whole, output_layouts=Shard(0)),
        "head.norm": SequenceParallel(use_local_output=True), "output": ColwiseParallel(),
    }  # fmt: skip
    for module, plan in ((model, of_model), *((block, of_block) for block in model.blocks)):
        names = dict(module.named_modules())
        parallelize_module(module, mesh, {name: style for name, style in plan.items() if name in names})
    model.head.mesh = mesh
    for block in model.modules():
        if isinstance(block, Block):
            block.heads //= mesh.size()
            block.key_value_heads //= mesh.size()
            block.fuses = False


def _compile(model: Decoder) -> None:
    # Block by block: one compilation serves all of them, as they are alike, and the gradients of a unit are ready for
    # their reduction as soon as its backward pass is done. Embeddings stay uncompiled: compiled code adds the gradients
    # of a frequent token one after the other, while PyTorch's own kernel sorts the tokens first.
    for block in model.blocks:
        block.compile(dynamic=False)
    model.head.norm.compile(dynamic=False)
    model.head.step = torch.compile(losses_and_gradient, dynamic=False)


def _shard(model: Decoder, recipe: Recipe, mesh: DeviceMesh) -> None:
    # Parameters are gathered in the type of the products; gradients are summed in fp32, as under DDP.
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if recipe.precision != "fp32"
        else MixedPrecisionPolicy()
    )
    # Without resharding, parameters are whole from their first use in a step to its end, and so are gradients while
    # micro batches add up. Between steps both are sharded, and each rank updates its shard.
    again = recipe.parallelism.sharding == "full"
    for unit in _units(model):
        fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=again)


def _units(model: Decoder) -> list[list[nn.Module]]:
    """Group the modules that are gathered and reduced together: consecutive blocks, and the rest of the model.

    For each unit, FSDP's hooks take the host as long as the GPU takes for the pass of a small block.
    """
    units: list[list[nn.Module]] = [[]]
    for block in model.blocks:
        if sum(weight.numel() for member in units[-1] for weight in member.parameters()) >= _UNIT:
            units.append([])
        units[-1].append(block)
    return [*units, [model]]

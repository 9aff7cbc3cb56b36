"""How the model is spread over the ranks: whole on each (DDP), or sharded (FSDP).

FSDP's collectives between the GPUs of one host may go by their copy engines: see `peer_memory`.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

from pytest_llmbench.core.errors import ConfigError
from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.engines.torch.options import TorchOptions
from pytest_llmbench.engines.torch.ranks.decoder import Decoder, initialise
from pytest_llmbench.workloads.training.peer_memory import InTurns, Places, ShareMemory, Symmetric, peers, put


def use_copies(modules: Iterable[FSDPModule], group: dist.ProcessGroup, share: ShareMemory = Symmetric) -> None:
    """Let modules of `fully_shard` copy what they gather and reduce, through the memory that `share` makes.

    Their parameters are gathered once a step and stay whole until its gradients are reduced: with
    `reshard_after_forward=False`.

    Raises:
        ConfigError: FSDP of this PyTorch, older than 2.9, takes no collectives of others.
    """
    if not hasattr(FSDPModule, "set_custom_all_gather"):
        raise ConfigError(f"options.collectives: copies takes PyTorch 2.9 or newer, and this is {torch.__version__}")
    reduce_scatter = _ReduceScatter(group, share)
    for module in modules:
        # What is gathered stays where peers read it until the next step, so that each module has memory of its own.
        module.set_custom_all_gather(_AllGather(group, share))  # type: ignore[arg-type] # no base class before 2.9
        module.set_custom_reduce_scatter(reduce_scatter)  # type: ignore[arg-type]


class _AllGather:
    """Each rank copies the others' parts of a module's parameters."""

    def __init__(self, group: dist.ProcessGroup, share: ShareMemory) -> None:
        self._group, self._share = group, share
        self._places: Places | None = None

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, **_: object) -> torch.Tensor:
        """The memory of the whole, to whose part of this rank FSDP writes; the same in each step."""
        if self._places is None:
            self._places = self._share(math.prod(map(int, size)), dtype, self._group)
        # A peer may still read this part only if no optimizer step has been since, and then the same values are
        # written: an optimizer step comes after gradients are reduced, for which the peer met this rank when it had
        # read.
        return self._places.whole()

    def __call__(self, output_tensor: torch.Tensor, **_: object) -> None:
        """Fill `output_tensor`, which is from `allocate`, and whose part of this rank is written."""
        places = self._places
        assert places is not None
        assert output_tensor.data_ptr() == places.whole().data_ptr()
        places.meet()
        for peer in peers(places):
            places.part(places.rank, peer).copy_(places.part(peer, peer))


class _ReduceScatter:
    """Each rank copies its summands to the ranks that add them up, all of one sum in the order of ranks."""

    def __init__(self, group: dist.ProcessGroup, share: ShareMemory) -> None:
        self._places = InTurns(group, share)

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Memory of this rank alone."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, op: Any, **_: object) -> None:
        """Write the mean over all ranks of this rank's part of their `input_tensor`."""
        assert op == dist.ReduceOp.AVG  # what FSDP asks for with fp32 and bf16
        places = self._places.next(input_tensor.numel(), input_tensor.dtype)
        parts = input_tensor.chunk(places.ranks)
        for peer in peers(places):
            places.part(peer, places.rank).copy_(parts[peer])
        put(parts[places.rank], places.part(places.rank, places.rank))
        places.meet()
        torch.mean(places.whole().view(places.ranks, -1), dim=0, out=output_tensor)


# Blocks share a unit until it has so many parameters; the last one may have fewer.
_UNIT = 12_000_000


def build_model(recipe: Recipe, options: TorchOptions, device: torch.device, world_size: int, seed: int) -> nn.Module:
    """Build the model of a recipe on its ranks, with equal values however it is spread; it maps as `Decoder` does.

    It comes to life on the meta device, so that a sharded one is never whole in any memory. A rank alone has it bare.
    """
    with torch.device("meta"):
        model = Decoder(
            recipe.model,
            recipe.sequence_length,
            activation_checkpointing=recipe.parallelism.activation_checkpointing == "full",
            fp32_residual=options.residual == "fp32",
        )
    if recipe.compile and device.type == "cuda":
        _compile(model)
    sharded = recipe.parallelism.sharding != "none"
    if sharded and world_size > 1:
        _shard(model, recipe, options, device, world_size)
    model.to_empty(device=device)
    initialise(model, seed)
    return model if sharded or world_size == 1 else DistributedDataParallel(model, gradient_as_bucket_view=True)


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


def _compile(model: Decoder) -> None:
    # Block by block: they are all alike, so one compilation serves them all, and gradients of a unit are there for
    # their reduction as soon as its backward pass is done. Not the embeddings: compiled, the gradients of a frequent
    # token are added one after the other, where PyTorch's own kernel sorts tokens first.
    for block in model.blocks:
        block.compile(dynamic=False)
    model.head.norm.compile(dynamic=False)
    from pytest_llmbench.engines.torch.ranks.cross_entropy_kernel import losses_and_gradient  # noqa: PLC0415 - no GPU, no Triton

    model.head.step = losses_and_gradient


def _shard(model: Decoder, recipe: Recipe, options: TorchOptions, device: torch.device, world_size: int) -> None:
    mesh = init_device_mesh(device.type, (world_size,))
    # Parameters travel in the type they are multiplied in; gradients are summed in fp32, as under DDP.
    policy = (
        MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
        if recipe.precision == "bf16"
        else MixedPrecisionPolicy()
    )
    # Kept, they are whole from their first use in a step to its end, as are gradients while micro batches add up; what
    # lasts is split, and each rank updates its part.
    again = recipe.parallelism.sharding == "full"
    modules = [fully_shard(unit, mesh=mesh, mp_policy=policy, reshard_after_forward=again) for unit in _units(model)]
    if options.collectives == "copies" and device.type == "cuda":
        use_copies([unit[0] for unit in modules], mesh.get_group())


def _units(model: Decoder) -> list[list[nn.Module]]:
    """Parts that are gathered and reduced together: blocks in a row, and the parameters outside of them.

    FSDP's hooks take the host as long, for each unit, as a GPU takes for a small block's pass.
    """
    found: list[list[nn.Module]] = [[]]
    for block in model.blocks:
        if sum(weight.numel() for each in found[-1] for weight in each.parameters()) >= _UNIT:
            found.append([])
        found[-1].append(block)
    return [*found, [model]]

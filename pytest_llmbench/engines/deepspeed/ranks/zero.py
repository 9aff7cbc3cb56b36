"""The training of engine deepspeed: OPT of transformers in the shape of a recipe, its optimizer, and its steps."""

import zlib
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import deepspeed
import torch
from torch import nn
from torch.nn import functional
from transformers import OPTConfig, OPTForCausalLM
from transformers.models.opt.modeling_opt import OPTDecoderLayer

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.core.schema import validate
from pytest_llmbench.engines.deepspeed.options import DeepSpeedOptions
from pytest_llmbench.workloads.rank.context import RankContext
from pytest_llmbench.workloads.rank.fed import Fed
from pytest_llmbench.workloads.rank.step_clock import StepClock, on_arrival
from pytest_llmbench.workloads.rank.steplog import StepLog
from pytest_llmbench.workloads.training import matmul
from pytest_llmbench.workloads.training.learning_rate import learning_rate
from pytest_llmbench.workloads.training.tokens import Tokens, batch, open_tokens, stable_seed

_SEED = 1  # of initial values and dropout
_INIT_STD = 0.02  # OPTConfig's own
# As in engine torch: freed before the process ends, a model may hang it.
_kept: list[object] = []
_STAGE = {"none": 0, "optimizer": 1, "gradients": 2, "full": 3}
_DTYPE = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}


@dataclass(frozen=True, kw_only=True, slots=True)
class Setup:
    """Inputs of a run on this rank."""

    recipe: Recipe
    options: DeepSpeedOptions
    device: torch.device
    rank: int
    rank_batch: int  # sequences per step of this rank
    fed: Fed = field(default_factory=Fed)

    @property
    def stage(self) -> int:
        return _STAGE[self.recipe.parallelism.sharding]

    def deepspeed(self) -> dict[str, Any]:
        recipe = self.recipe
        config: dict[str, Any] = {
            "train_micro_batch_size_per_gpu": recipe.micro_batch_size,
            "gradient_accumulation_steps": self.rank_batch // recipe.micro_batch_size,
            "gradient_clipping": recipe.optimizer.clip_grad_norm,
            "zero_optimization": {"stage": self.stage},
            "steps_per_print": None,
        }
        if recipe.precision == "bf16":
            config["bf16"] = {"enabled": True}
        if recipe.precision == "fp16":
            config["fp16"] = {"enabled": True, "loss_scale": self.options.loss_scale}
        return config


class ZeroModel:
    """The model that is trained; `build` made it."""

    def __init__(self, setup: Setup, model: nn.Module) -> None:
        self._setup = setup
        settings = setup.recipe.optimizer
        self._optimizer = torch.optim.AdamW(
            model.parameters(),
            # DeepSpeed takes a step without a gradient to create the optimizer's state; rate 0 keeps the weights.
            lr=0.0,
            betas=settings.betas,
            eps=settings.eps,
            weight_decay=settings.weight_decay,
            fused=True,
        )
        self.engine: Any
        self.engine, *_ = deepspeed.initialize(
            model=model, optimizer=self._optimizer, config=setup.deepspeed(), dist_init_required=False
        )
        for state in self._optimizer.state.values():  # forgets that step in the count of steps
            state["step"].zero_()
        self.grad_norm: torch.Tensor | float = 0.0

    def step(self, number: int) -> None:
        """Count a micro batch; after the last one of 1-based step `number` change the weights and set `grad_norm`.

        `grad_norm` is the L2 norm of the whole gradient of all ranks before clipping.
        """
        last = self.engine.is_gradient_accumulation_boundary()
        plain = self._setup.stage == 0 and self._setup.recipe.precision == "fp32"
        if last and plain:  # DeepSpeed then clips with a function of PyTorch and drops the norm
            gradients = [parameter.grad for parameter in self.engine.module.parameters() if parameter.grad is not None]
            self.grad_norm = nn.utils.get_total_norm(gradients)
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate(self._setup.recipe.optimizer, number, self._setup.recipe.steps)
        self.engine.step()
        if last and not plain:
            self.grad_norm = self.engine.get_global_grad_norm()


def build(setup: Setup) -> nn.Module:
    """Build an initialised `OPTForCausalLM`, in the recipe's precision, sharded or whole."""
    recipe = setup.recipe
    shape = recipe.model
    config = OPTConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        ffn_dim=4 * shape.hidden_size,
        max_position_embeddings=recipe.sequence_length,
        dropout=shape.dropout,
        attention_dropout=shape.dropout,
        use_cache=False,
        # Sequences are full, so special tokens are unused.
        pad_token_id=None,
        bos_token_id=None,
        eos_token_id=None,
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(_DTYPE[recipe.precision])
    try:
        with deepspeed.zero.Init(config_dict_or_path=setup.deepspeed()) if setup.stage == 3 else setup.device:
            model: Any = OPTForCausalLM(config)
    finally:
        torch.set_default_dtype(default)
    if recipe.parallelism.activation_checkpointing == "full":
        # Without reentry is transformers' default from 5 on, where this has a new name; before, it has to be given.
        if hasattr(model, "activation_checkpointing_enable"):
            model.activation_checkpointing_enable()
        else:
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    if recipe.compile and setup.device.type == "cuda":
        for layer in model.get_submodule("model.decoder.layers").children():
            layer.compile(dynamic=False)
    initialise(model)
    return model  # type: ignore[no-any-return]


@torch.no_grad()
def initialise(model: nn.Module) -> None:
    """Fill all parameters in place, whole or sharded, with values that depend on their name alone.

    Matrices get N(0, 0.02²), as transformers gives them, biases 0 and norms 1. Each rank draws every matrix whole, one
    at a time.
    """
    for name, parameter in model.named_parameters():
        with deepspeed.zero.GatheredParameters([parameter], modifier_rank=0):  # all ranks get what rank 0 writes
            if parameter.dim() == 1:
                parameter.fill_(0.0 if name.endswith("bias") else 1.0)
                continue
            generator = torch.Generator(parameter.device).manual_seed(stable_seed(_SEED, zlib.crc32(name.encode())))
            drawn = torch.empty(parameter.shape, dtype=torch.float32, device=parameter.device)
            parameter.copy_(drawn.normal_(0.0, _INIT_STD, generator=generator))


def run(recipe: Recipe, context: RankContext, device: torch.device, log: StepLog) -> None:
    """Train a recipe within a process group that DeepSpeed has joined.

    Raises ConfigError if options or data are invalid.
    """
    setup = Setup(
        recipe=recipe, options=validate(DeepSpeedOptions, recipe.options, "options"), device=device, rank=context.rank,
        rank_batch=recipe.samples_per_step // context.world_size,
    )  # fmt: skip
    tokens = open_tokens(recipe)  # first, so that an error in the data shows at once
    model = ZeroModel(setup, build(setup))
    _kept.append(model)
    torch.manual_seed(stable_seed(_SEED, context.rank))  # dropout differs between ranks
    with matmul.ceiling(log, device, _DTYPE[recipe.precision]):
        clock = StepClock(log, device, setup.fed)
        setup.fed.watch([model.engine.module], OPTDecoderLayer)
        clock.start()
        for step in clock.steps(recipe.steps):
            loss = _step(setup, model, tokens, log, step)
            clock.step(loss, model.grad_norm)
        clock.finish()
        weights = list(model.engine.module.parameters())  # sharded ones may be empty here
        event = setup.fed.trained(
            parameters=sum(getattr(weight, "ds_numel", weight.numel()) for weight in weights),
            dtypes={weight.dtype for weight in weights},
            copy=setup.rank,
        )
        log.training(event)


def _step(setup: Setup, model: ZeroModel, tokens: Tokens, log: StepLog, step: int) -> torch.Tensor:
    """Take one optimizer step; returns this rank's mean loss, nat per token."""
    size = setup.recipe.micro_batch_size
    start = (step - 1) * setup.recipe.samples_per_step + setup.rank * setup.rank_batch
    firsts = range(start, start + setup.rank_batch, size)
    total = torch.zeros((), device=setup.device)
    for micro_batch, first in enumerate(firsts, start=1):
        log.phase(step, "data", micro_batch)
        inputs, targets = batch(tokens, first, size, setup.device)
        log.phase(step, "forward", micro_batch)
        logits = model.engine(setup.fed.take(inputs)).logits
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        on_arrival(loss, partial(log.phase, step, "sync", micro_batch))
        log.phase(step, "backward", micro_batch)
        model.engine.backward(loss)
        total += loss.detach() / len(firsts)
        if first == firsts[-1]:
            log.phase(step, "optimizer")
        model.step(step)
    return total

"""A GPT trained by NeMo 2 through its public API, in the shape of a recipe: a program for torchrun.

    torchrun --nproc-per-node 8 -m pytest_llmbench.engines.nemo.ranks.gpt --folder results --recipe '{"name": ...}'

It runs in NeMo's own environment (NeMo 2.0 to 2.7). Steps are logged one by one, as lines and into a TensorBoard event
file; `train_step_timing` is the mean of the last 5 steps, as NeMo Megatron's launcher has it.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers import TensorBoardLogger  # type: ignore[import-not-found]
from megatron.core.optimizer import OptimizerConfig
from nemo import lightning as nl  # type: ignore[import-not-found]
from nemo.collections import llm  # type: ignore[import-not-found]
from nemo.lightning.pytorch.optim import CosineAnnealingScheduler  # type: ignore[import-not-found]
from nemo.utils.exp_manager import TimingCallback  # type: ignore[import-not-found]

from pytest_llmbench.core.recipe.recipes import Recipe
from pytest_llmbench.workloads.training.megatron_shape import layer_settings, local_layer, model_settings
from pytest_llmbench.workloads.training.tokens import Tokens, open_tokens

_AVERAGED_STEPS = 5
_LIGHTNING_PRECISION = {"bf16": "bf16-mixed", "fp16": "16-mixed"}


def main(argv: Sequence[str] | None = None) -> None:
    """Train from the command line."""
    parser = argparse.ArgumentParser(prog="python -m pytest_llmbench.engines.nemo.ranks.gpt", description=__doc__)
    parser.add_argument("--folder", type=Path, required=True, help="for logs and the event file")
    parser.add_argument("--recipe", required=True, help="the recipe, in JSON")
    given = parser.parse_args(argv)
    train(Recipe.model_validate_json(given.recipe), given.folder)


def train(recipe: Recipe, folder: Path) -> None:
    """Train a recipe on all ranks that torchrun started."""
    tokenizer = _NoTokenizer(recipe.model.vocab_size)
    layout, optimizer = recipe.parallelism, recipe.optimizer
    gpus = torch.cuda.is_available()
    ranks_per_node = int(os.environ["LOCAL_WORLD_SIZE"])
    trainer = nl.Trainer(
        accelerator="gpu" if gpus else "cpu",
        devices=ranks_per_node,
        num_nodes=int(os.environ["WORLD_SIZE"]) // ranks_per_node,
        max_steps=recipe.steps,
        log_every_n_steps=1,
        limit_val_batches=0,
        enable_checkpointing=False,
        use_distributed_sampler=False,
        callbacks=[TimingCallback(timer_kwargs={"buffer_size": _AVERAGED_STEPS})],
        plugins=None
        if recipe.precision == "fp32"
        else nl.MegatronMixedPrecision(_LIGHTNING_PRECISION[recipe.precision]),
        strategy=nl.MegatronStrategy(
            tensor_model_parallel_size=layout.tensor,
            pipeline_model_parallel_size=layout.pipeline,
            sequence_parallel=layout.sequence,
            ddp="megatron",
            process_group_backend="nccl" if gpus else "gloo",
            ckpt_load_optimizer=False,
            ckpt_save_optimizer=False,
        ),
    )
    llm.train(
        model=llm.GPTModel(_config(recipe), tokenizer=tokenizer),
        data=_Data(recipe, tokenizer),
        trainer=trainer,
        tokenizer="data",
        log=nl.NeMoLogger(
            name=recipe.name,
            log_dir=str(folder),
            use_datetime_version=False,
            # Or it puts the event file below the path from where it was started to the folder.
            update_logger_directory=False,
            ckpt=None,
            tensorboard=TensorBoardLogger(save_dir=str(folder), name="tensorboard"),
        ),
        optim=nl.MegatronOptimizerModule(
            config=OptimizerConfig(
                optimizer="adam",
                lr=optimizer.learning_rate,
                adam_beta1=optimizer.betas[0],
                adam_beta2=optimizer.betas[1],
                adam_eps=optimizer.eps,
                weight_decay=optimizer.weight_decay,
                clip_grad=optimizer.clip_grad_norm,
                bf16=recipe.precision == "bf16",
                fp16=recipe.precision == "fp16",
                use_distributed_optimizer=layout.sharding == "optimizer",
            ),
            lr_scheduler=CosineAnnealingScheduler(
                max_steps=recipe.steps,
                warmup_steps=optimizer.warmup_steps,
                constant_steps=0,
                min_lr=optimizer.learning_rate / 10,
            ),
        ),
    )


def _config(recipe: Recipe) -> Any:
    return llm.GPTConfig(
        **layer_settings(recipe, "gelu"),
        **model_settings(recipe.model),
        seq_length=recipe.sequence_length,
        transformer_layer_spec=lambda _: local_layer(recipe.model),
        bias_dropout_fusion=False,
        masked_softmax_fusion=False,
        gradient_accumulation_fusion=False,
        forward_step_fn=_forward,
    )


def _forward(model: Any, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    length = batch["tokens"].size(1)
    mask = torch.ones(1, 1, length, length, dtype=torch.bool, device=batch["tokens"].device).triu(1)
    logits_or_loss: torch.Tensor = model(
        input_ids=batch["tokens"], position_ids=batch["position_ids"], labels=batch["labels"], attention_mask=mask
    )
    return logits_or_loss


class _NoTokenizer:
    """Replaces a tokenizer, because the data are token ids already."""

    eos_id, eod, bos_id, pad_id = 0, 0, 1, 2

    def __init__(self, vocab_size: int) -> None:
        self.vocab_size = vocab_size
        self.unique_identifiers = {"vocab_size": vocab_size}


class _Data(llm.MockDataModule):  # type: ignore[misc]  # NeMo has no types
    """NeMo's module for mock data, with the recipe's sequences: with random ones the loss would not fall."""

    def __init__(self, recipe: Recipe, tokenizer: _NoTokenizer) -> None:
        super().__init__(
            seq_length=recipe.sequence_length,
            micro_batch_size=recipe.micro_batch_size,
            global_batch_size=recipe.samples_per_step,
            num_train_samples=recipe.steps * recipe.samples_per_step,
            num_workers=0,
            pin_memory=False,
            tokenizer=tokenizer,
        )
        self._tokens = open_tokens(recipe)

    def setup(self, stage: str = "") -> None:
        super().setup(stage)
        self._train_ds = _Sequences(self._tokens, self.num_train_samples, self.seq_length)


class _Sequences(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    def __init__(self, tokens: Tokens, count: int, length: int) -> None:
        self._tokens = tokens
        self._count = count
        self._always = {"loss_mask": torch.ones(length), "position_ids": torch.arange(length)}

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, number: int) -> dict[str, torch.Tensor]:
        sequence = self._tokens.sequence(number)
        return {"tokens": sequence[:-1], "labels": sequence[1:], **self._always}

    def collate_fn(self, samples: list[dict[str, torch.Tensor]]) -> Any:
        return torch.utils.data.default_collate(samples)


if __name__ == "__main__":
    main()

"""Claims of metaseq about the training that it starts: its configuration, one line with most of it several times."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_llmbench.core.record.claims import ClaimName
from pytest_llmbench.readers.items import Said

_PARAMETERS = re.compile(
    r"\| num\. (?:shared )?model params: (\d[\d,]{0,20}) \(num\. trained: (\d[\d,]{0,20})\)", re.ASCII
)
_MICRO_BATCH = re.compile(r"\| max tokens per GPU = \w+ and batch size per GPU = (\d{1,9})\s*$", re.ASCII)
# `'decoder_layers': 2` or `decoder_layers=2`, of a printed dictionary or name space.
_SETTING = re.compile(r"\b([a-z_\d]{4,30})'?(?:=|: )'?(\d{1,12}|True|False|[a-z_]{4,20})\b", re.ASCII)
_SETTINGS: Mapping[str, ClaimName] = {
    "decoder_layers": "layers",
    "decoder_embed_dim": "hidden_size",
    "decoder_ffn_embed_dim": "feed_forward_size",
    "decoder_attention_heads": "attention_heads",
    "tokens_per_sample": "sequence_length",
    "dict_size": "vocab_size",
    "model_parallel_size": "tensor",
    "batch_size": "micro_batch_size",
    "max_update": "steps",
    "distributed_world_size": "world_size",
}


# A line that holds none of these says nothing.
NEEDLES = (b"model params: ", b"batch size per GPU = ", b"decoder_layers")


def said(text: str) -> Iterator[Said]:
    """Yield the settings that a line prints."""
    if match := _PARAMETERS.search(text):
        whole, trained = (int(count.replace(",", "")) for count in match.groups())
        yield from (Said("parameters_of_rank", whole), Said("frozen_parameters", whole - trained))
    elif match := _MICRO_BATCH.search(text):
        yield Said("micro_batch_size", int(match[1]))
    elif "decoder_layers" in text:
        yield from _configured(text)


def _configured(text: str) -> Iterator[Said]:
    """Read the configuration, one line in which most settings stand several times."""
    for match in _SETTING.finditer(text):
        name = _SETTINGS.get(match[1])
        if name is not None and match[2].isdigit():
            yield Said(name, int(match[2]))
    switches = {(match[1], match[2]) for match in _SETTING.finditer(text)}
    on, printed = {name for name, value in switches if value == "True"}, {name for name, _ in switches}
    if "fp16" in printed:
        half = "fp16" if on & {"fp16", "memory_efficient_fp16"} else "fp32"
        yield Said("precision", "bf16" if "bf16" in on else half)
    if "checkpoint_activations" in printed:
        yield Said("activation_checkpointing", "full" if "checkpoint_activations" in on else "none")
    for _, backend in sorted(each for each in switches if each[0] == "ddp_backend"):
        whole = "gradients" if "no_reshard_after_forward" in on else "full"
        yield Said("sharding", whole if backend == "fully_sharded" else "none")

"""Claims of NeMo about the training that it starts: NeMo 1 its configuration, NeMo 2 what Megatron-Core does."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from pytest_llmbench.core.record.claims import ClaimName, on_off
from pytest_llmbench.readers import megatron_claims
from pytest_llmbench.readers.items import Said

# `    num_layers: 12`, of the configuration that NeMo 1 prints as YAML.
_SETTING = re.compile(r"\s{2,}(\w{1,60}): (\w{1,20})\s*", re.ASCII)
_WHOLE = re.compile(r"\d{1,12}", re.ASCII)
_ON_DEVICE = re.compile(
    r"Pipeline model parallel rank: (\d{1,6}), .{0,80}Number of model parameters on device: (\d\.\d{1,9}e\+\d\d)",
    re.ASCII,
)
# `1.2 M     Non-trainable params`, of Lightning's summary of the model.
_FROZEN = re.compile(r"\s*(\d{1,9}(?:\.\d{1,3})?)(?: ([KMBT]))?\s+Non-trainable params\s*", re.ASCII)
_THOUSANDS = {None: 1.0, "K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SWITCH = {"true": on_off(True), "True": on_off(True), "false": on_off(False), "False": on_off(False)}
_SETTINGS: Mapping[str, tuple[ClaimName, Mapping[str, str] | None]] = {
    "num_layers": ("layers", None),
    "hidden_size": ("hidden_size", None),
    "ffn_hidden_size": ("feed_forward_size", None),
    "num_attention_heads": ("attention_heads", None),
    "encoder_seq_length": ("sequence_length", None),
    "micro_batch_size": ("micro_batch_size", None),
    "global_batch_size": ("global_batch_size", None),
    "tensor_model_parallel_size": ("tensor", None),
    "pipeline_model_parallel_size": ("pipeline", None),
    "max_steps": ("steps", None),
    "sequence_parallel": ("sequence_parallel", _SWITCH),
    "activations_checkpoint_granularity": (
        "activation_checkpointing",
        {"null": "none", "None": "none", "selective": "selective"},
    ),
    "precision": ("precision", {"32": "fp32", "16": "fp16", "bf16": "bf16"}),
}


# A line that holds none of these says nothing.
NEEDLES = (
    *(b"%s: " % name.encode() for name in _SETTINGS),
    b"Number of model parameters on device",
    b"Non-trainable params",
    *megatron_claims.NEEDLES,
)


def said(text: str) -> Iterator[Said]:
    """Yield what NeMo 1 prints of its configuration and the model's size, and NeMo 2 as Megatron-Core does."""
    if (match := _SETTING.fullmatch(text)) and match[1] in _SETTINGS:
        name, values = _SETTINGS[match[1]]
        value = values.get(match[2]) if values else int(match[2]) if _WHOLE.fullmatch(match[2]) else None
        if value is not None:
            yield Said(name, value)
    elif match := _ON_DEVICE.search(text):
        yield Said("parameters_of_rank", float(match[2]), stage=int(match[1]))
    elif match := _FROZEN.fullmatch(text):
        yield Said("frozen_parameters", float(match[1]) * _THOUSANDS[match[2]])
    else:
        yield from megatron_claims.said(text)

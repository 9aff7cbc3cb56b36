"""Reads the claims of Megatron-LM, and of NeMo on Megatron-Core, about the training that they start.

Rank 0 prints all arguments, `  num_layers ...................................... 12`, and one rank of each part of the
model prints how many parameters it holds.
"""

import re
from collections.abc import Iterator, Mapping

from pytest_llmbench.core.record.claims import ClaimName, on_off
from pytest_llmbench.readers.items import Printed, Said
from pytest_llmbench.readers.printed import Table, in_dots, in_object, in_short, whole_number, with_claims

_PARAMETERS = re.compile(
    r"> number of parameters on (?:\(([a-z_, ]+)\) )?model parallel rank "
    r"\(?(\d{1,9}(?:, *\d{1,9}){0,4})\)?: +(\d{1,15})\s*$",
    re.ASCII,
)
# With two decimals; without the parameters of learned positions.
_BILLIONS = re.compile(r"\bTotal number of parameters in billions: +(\d{1,6}\.\d{1,9})\s*$", re.ASCII)
_LOADED = re.compile(
    r"\bsuccessfully loaded checkpoint from |\bloading (?:\w+ )?checkpoint from .{1,300} at iteration \d", re.ASCII
)
_RANDOM = "will start from random"
_VOCABULARY = re.compile(
    r"> padded vocab \(size: (\d{1,9})\) with |\bPadded vocab_size: \d{1,9}, original vocab_size: (\d{1,9}),"
)
_MICRO_BATCHES = re.compile(r"setting number of micro-?batches to constant (\d{1,9})\s*$", re.ASCII)
_LAYOUT = re.compile(r"\b(tensor|pipeline|context)(?:-model)?-parallel size: (\d{1,9})", re.ASCII)
_WEIGHTS = re.compile(r"^ *using (torch\.\w+) for parameters", re.ASCII)

_PRECISIONS = {
    "torch.float32": "fp32", "torch.float": "fp32", "torch.float16": "fp16", "torch.half": "fp16",
    "torch.bfloat16": "bf16",
}  # fmt: skip
_SWITCH = {"True": on_off(True), "False": on_off(False)}
_CONTEXT: Mapping[str, ClaimName] = {"tensor": "tensor", "pipeline": "pipeline", "context": "context_parallel"}


# Every line with claims contains one of these.
NEEDLES = (
    b" ...", b"parameters", b"dded vocab", b"setting number of micro", b"parallel size: ", b"Config(",
    b"checkpoint from ", b"start from random",
)  # fmt: skip


def parse_claims(text: str) -> Iterator[Said | Printed]:
    """Yield the settings that a line prints."""
    if " ..." in text and (arguments := [*in_dots(text)]):
        yield from with_claims(arguments, _ARGUMENTS)
    elif "Config(" in text:
        yield from with_claims(in_object(text), _OBJECTS)
    elif "checkpoint from " in text and _LOADED.search(text):
        yield Said("initial_weights", "loaded")
    elif _RANDOM in text:
        yield Said("initial_weights", "random")
    elif "param" in text:
        yield from _parameters(text)
    elif "vocab" in text and (match := _VOCABULARY.search(text)):
        yield Said("vocab_size", int(match[1] or match[2]))
    elif "batches" in text and (match := _MICRO_BATCHES.search(text)):
        yield Said("micro_batches", int(match[1]))
    elif "parallel size" in text:
        yield from (Said(_CONTEXT[match[1]], int(match[2])) for match in _LAYOUT.finditer(text))


def _parameters(text: str) -> Iterator[Said]:
    """Read the parameters of a part of the model; the oldest logs name tensor ranks alone."""
    if match := _WEIGHTS.match(text):
        yield Said("precision", _PRECISIONS.get(match[1], match[1]))
    if match := _PARAMETERS.search(text):
        names, ranks = (match[1] or "tensor").split(", "), match[2].split(",")
        stages = [int(rank) for name, rank in zip(names, ranks, strict=False) if name == "pipeline"]
        yield Said("parameters_of_rank", int(match[3]), stage=stages[0] if stages else 0)
    if match := _BILLIONS.search(text):
        yield Said("parameters", 1e9 * float(match[1]))


def _checkpointing(text: str) -> str | None:
    """Translate older arguments, a switch and later one of two methods, which checkpointed whole layers."""
    return {"None": "none", "False": "none", "True": "full", "uniform": "full", "block": "full"}.get(text, text)


_ARGUMENTS: Table = {
    "num_layers": ("layers", whole_number),
    "vocab_size": ("vocab_size", whole_number),
    "hidden_size": ("hidden_size", whole_number),
    "ffn_hidden_size": ("feed_forward_size", whole_number),
    "num_attention_heads": ("attention_heads", whole_number),
    "group_query_attention": ("grouped_queries", _SWITCH.get),
    "num_query_groups": ("kv_groups", whole_number),
    "swiglu": ("gated_feed_forward", _SWITCH.get),
    "num_experts": ("experts", lambda text: 0 if text == "None" else whole_number(text)),
    "seq_length": ("sequence_length", whole_number),
    "global_batch_size": ("global_batch_size", whole_number),
    "micro_batch_size": ("micro_batch_size", whole_number),
    "tensor_model_parallel_size": ("tensor", whole_number),
    "pipeline_model_parallel_size": ("pipeline", whole_number),
    "context_parallel_size": ("context_parallel", whole_number),
    "world_size": ("world_size", whole_number),
    "train_iters": ("steps", whole_number),
    "params_dtype": ("precision", _PRECISIONS.get),
    "sequence_parallel": ("sequence_parallel", _SWITCH.get),
    "use_distributed_optimizer": ("sharding", {"True": "optimizer", "False": "none"}.get),
    "recompute_granularity": ("activation_checkpointing", _checkpointing),
    "checkpoint_activations": ("activation_checkpointing", _checkpointing),
    "activations_checkpoint_method": ("activation_checkpointing", _checkpointing),
    "optimizer": ("optimizer", str),
    "hidden_dropout": ("dropout", in_short),
    "attention_dropout": ("dropout", in_short),
    "accumulate_allreduce_grads_in_fp32": ("gradient_precision", {"True": "fp32", "False": "of the model"}.get),
    "grad_reduce_in_bf16": ("gradient_precision", {"True": "bf16"}.get),
    "position_embedding_type": ("positions", lambda text: "learned" if text == "learned_absolute" else text),
}
# Settings of the objects that Megatron-Core prints, for NeMo too; `params_dtype` there is that of the copies of the
# weights.
_OBJECTS: Table = {
    "sequence_length": ("sequence_length", whole_number),
    "bf16": ("bf16", _SWITCH.get),
    "fp16": ("fp16", _SWITCH.get),
    **{name: _ARGUMENTS[name] for name in ("optimizer", "use_distributed_optimizer")},
}

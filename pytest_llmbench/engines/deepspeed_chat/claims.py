"""Claims of DeepSpeed and DeepSpeed-Chat about the training: command, DeepSpeed's configuration, size of the model."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Literal

from pytest_llmbench.core.record.claims import ClaimName
from pytest_llmbench.readers.items import Said, Skipped

_PRINTED = re.compile(r":print\]\s+(\w+) \.* *(\w+)\s*$", re.ASCII)
_SKIPPED = re.compile(r"\[Rank 0\] step=(\d{1,12}), skipped=(\d{1,12}),", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_COMMAND = re.compile(r"\[runner\.py:\d+:main\] cmd = (.*)", re.ASCII)
_SIZE = re.compile(
    r"Model Parameters: (\d{1,6}\.\d+) B, Latency: .{0,200}, Batch Size: (\d{1,9}), Sequence Length: (\d{1,9})\s*$",
    re.ASCII,
)
# A published model, by its own name or by that of its folder in a cache: nothing else says its size.
_OPT = re.compile(r"\bfacebook(?:/|--)opt-([\d.]+[mb])(?:/|$)", re.ASCII)
_OPT_SIZES = {
    "125m": (12, 768), "350m": (24, 1024), "1.3b": (24, 2048), "2.7b": (32, 2560), "6.7b": (32, 4096),
    "13b": (40, 5120), "30b": (48, 7168), "66b": (64, 9216),
}  # fmt: skip
# It prints three decimals.
_READABLE_BILLIONS = 0.1


# A line that holds none of these says nothing.
NEEDLES = (b":print]", b":main] cmd = ", b"Model Parameters: ")
# As long as the log goes on.
SKIPPED = (b", skipped=",)


def said(text: str) -> Iterator[Said | Skipped]:
    """Yield the settings that a line prints."""
    if (match := _PRINTED.search(text)) and match[1] in _SETTINGS:
        yield from _SETTINGS[match[1]](match[2])
    elif match := _SKIPPED.search(text):
        yield Skipped(int(match[1]), int(match[2]))
    elif match := _COMMAND.search(text):
        yield from _of_the_command(match[1].split())
    elif match := _SIZE.match(text):
        if float(match[1]) >= _READABLE_BILLIONS:
            yield Said("parameters_of_rank", 1e9 * float(match[1]))
        yield from (Said("micro_batch_size", int(match[2])), Said("sequence_length", int(match[3])))


def _of_the_command(words: Sequence[str]) -> Iterator[Said]:
    """Read the arguments that DeepSpeed's launcher prints; of step 3 only those that all models share."""
    for word, value in pairwise((*words, "")):
        if word == "--max_seq_len" and _NUMBER.fullmatch(value):
            yield Said("sequence_length", int(value))
        size = _OPT.search(value.lower()) if word in {"--model_name_or_path", "--actor_model_name_or_path"} else None
        if size is not None and size[1] in _OPT_SIZES:
            layers, hidden = _OPT_SIZES[size[1]]
            yield from (Said("layers", layers), Said("hidden_size", hidden))
    if "--zero_stage" in words:  # steps 1 and 2 have it, and one model
        rank = next((value for word, value in pairwise((*words, "")) if word == "--lora_dim"), "0")
        yield Said("lora", lora(rank, alone="--only_optimize_lora" in words))
        yield Said("activation_checkpointing", "full" if "--gradient_checkpointing" in words else "none")


def lora(rank: object, *, alone: bool) -> str:
    """Describe in a claim whether matrices of low rank are trained, and whether alone."""
    if str(rank) == "0":
        return "none"
    return f"of rank {rank}, which alone is trained" if alone else f"of rank {rank}"


def _count(name: ClaimName) -> Callable[[str], Iterator[Said]]:
    return lambda text: (Said(name, int(text)) for _ in range(bool(_NUMBER.fullmatch(text))))


def _word(name: ClaimName, words: Mapping[str, str]) -> Callable[[str], Iterator[Said]]:
    return lambda text: (Said(name, words[text]) for _ in range(text in words))


def _precision(name: Literal["fp16", "bf16"]) -> Callable[[str], Iterator[Said]]:
    return lambda text: iter([Said("precision", name) if text == "True" else Said(name, "off")])


_SETTINGS: Mapping[str, Callable[[str], Iterator[Said]]] = {
    "train_batch_size": _count("global_batch_size"),
    "train_micro_batch_size_per_gpu": _count("micro_batch_size"),
    "zero_optimization_stage": _word("sharding", {"0": "none", "1": "optimizer", "2": "gradients", "3": "full"}),
    "fp16_enabled": _precision("fp16"),
    "bfloat16_enabled": _precision("bf16"),
}

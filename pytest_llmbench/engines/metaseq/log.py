"""The log of metaseq and fairseq with `--log-format json`, and what it claims of the training that it starts.

A step is a line `... | INFO | train_inner | {json}`, whose numbers are mostly texts; the lines `train` and `valid`
are summaries. The loss is in bits and becomes nat. `wpb` and `bsz` are tokens and sequences of one update over all
ranks. `wps` covers the updates since the line before, overflows included, and is 0 in the first line. Numbers from a
million on have six digits. Everything else is reported by its own name.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.record.claims import ClaimName
from pytest_llmbench.readers import items, patterns
from pytest_llmbench.readers.log import LogReader
from pytest_llmbench.readers.numbers import as_number, count, duration, number, unix_time
from pytest_llmbench.readers.printed import Table, in_short, whole_number, with_claims

_STEP = "| train_inner |"
_GIB = 2**30
_TIME = re.compile(r"(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d) \| \w{1,20} \| train_inner \|", re.ASCII)
# Part of the messages of fairseq and of metaseq, which repeat it once for each skipped step.
_OVERFLOW = "gradient overflow detected"
_WORLD_SIZE = re.compile(r"\| training on (\d{1,9}) devices", re.ASCII)
# In the configuration that it prints, as a dictionary or a namespace.
_LOG_INTERVAL = re.compile(r"\blog_interval(?:'?: |=)(\d{1,9})[,)}]", re.ASCII)
_STOP = re.compile(r"\| Stopping training due to num_updates: \d+ >= max_update: (\d{1,15})\b", re.ASCII)
_DONE = re.compile(r"\| done training in (\d+(?:\.\d+)?) seconds", re.ASCII)


# Every line with items contains one of these, apart from the words of failures.
NEEDLES = (
    b"train_inner", b"training on ", b"log_interval", b"gradient overflow", b"Stopping training", b"done training",
)  # fmt: skip


def parse(text: str) -> Iterable[items.Item]:
    """Read one line; see `items.Parse`.

    The totals are `done_training_s`, `max_update` (how many updates the run was to make) and
    `gradient_overflows` (how many passes were discarded for one).
    """
    return [_step(text)] if _STEP in text else _other(text)


def _other(text: str) -> Iterator[items.Item]:
    if match := _WORLD_SIZE.search(text):
        yield items.WorldSize(int(match[1]))
    if "log_interval" in text and (match := _LOG_INTERVAL.search(text)):
        yield items.LogInterval(int(match[1]))
    if _OVERFLOW in text:
        yield items.Count("gradient_overflows")
    if match := _STOP.search(text):
        yield items.Total("max_update", float(match[1]))
    if (match := _DONE.search(text)) and (seconds := as_number(match[1])) is not None:
        yield items.Completed(text)
        yield items.Total("done_training_s", seconds)
    if patterns.failure(text) and "printing GPU stats" not in text:  # of runs on CPUs
        yield items.Failed(text)


def _step(text: str) -> items.StepLine:
    try:
        fields = read_json(text.partition(_STEP)[2], once=True)
    except ValueError as error:
        raise items.Unreadable(f"no JSON, or cut off: {str(error)[:80]}") from None
    if not isinstance(fields, dict):
        raise items.Unreadable("no JSON object")
    numbers = {key: value for key, figure in fields.items() if (value := as_number(figure)) is not None}
    samples = _finite("bsz", fields)
    tokens = _finite("wpb", fields)
    memory = _finite("cuda_gb_allocated", fields)
    loss = number("loss", fields["loss"]) if "loss" in fields else None
    return items.StepLine(
        step=count("num_updates", fields.get("num_updates", "missing")),
        at=unix_time(match[1]) if (match := _TIME.search(text)) else None,
        seconds=_seconds(fields),
        tokens=None if tokens is None else round(tokens),
        samples=round(samples) if samples is not None and samples.is_integer() else None,
        loss=None if loss is None else loss * math.log(2),
        grad_norm=number("gnorm", fields["gnorm"]) if "gnorm" in fields else None,
        peak_memory_bytes=None if memory is None else round(memory * _GIB),
        reported={key: value for key, value in numbers.items() if key not in {"num_updates", "loss", "gnorm"}},
    )


def _finite(name: str, fields: Mapping[str, Any]) -> float | None:
    """Read a number from 0 up to 1e15, which can be rounded."""
    if name not in fields:
        return None
    value = number(name, fields[name])
    if not 0.0 <= value < 1e15:
        raise items.Unreadable(f"{name} is {value}")
    return value


def _seconds(fields: Mapping[str, Any]) -> float | None:
    rate = _finite("wps", fields)
    if not rate or "wpb" not in fields:
        return None
    return duration("wpb", fields["wpb"]) / rate


_PARAMETERS = re.compile(
    r"\| num\. (?:shared )?model params: (\d[\d,]{0,20}) \(num\. trained: (\d[\d,]{0,20})\)", re.ASCII
)
# `| INFO | fairseq.trainer | Loaded checkpoint PATH (epoch 3 @ 1000 updates)`
_LOADED = re.compile(r"\| [Ll]oaded checkpoint \S", re.ASCII)
_MICRO_BATCH = re.compile(r"\| max tokens per GPU = \w+ and batch size per GPU = (\d{1,9})\s*$", re.ASCII)
# `'decoder_layers': 2` or `decoder_layers=2`, of a printed dictionary or name space.
_SETTING = re.compile(
    r"\b([a-z]\w{1,40})'?(?:=|: )(?:'([^']{1,100})'|\[([^\[\],]{1,100})\]|(\([^()]{1,100}\)|[\w.+-]{1,100}))", re.ASCII
)
_COUNTS: Mapping[str, ClaimName] = {
    "decoder_layers": "layers", "decoder_embed_dim": "hidden_size", "decoder_ffn_embed_dim": "feed_forward_size",
    "decoder_attention_heads": "attention_heads", "tokens_per_sample": "sequence_length", "dict_size": "vocab_size",
    "model_parallel_size": "tensor", "batch_size": "micro_batch_size", "max_update": "steps",
    "distributed_world_size": "world_size",
}  # fmt: skip
_SETTINGS: Table = {
    **{name: (claim, whole_number) for name, claim in _COUNTS.items()},
    **dict.fromkeys(("dropout", "attention_dropout"), ("dropout", in_short)),
    # Together they make the claims of `_configured`.
    **dict.fromkeys(("fp16", "memory_efficient_fp16", "bf16"), ("precision", lambda _: None)),
    "checkpoint_activations": ("activation_checkpointing", lambda _: None),
    **dict.fromkeys(("ddp_backend", "no_reshard_after_forward"), ("sharding", lambda _: None)),
}


# Every line with claims contains one of these.
CLAIM_NEEDLES = (b"model params: ", b"batch size per GPU = ", b"decoder_layers", b"oaded checkpoint ")


def read_claims(text: str) -> Iterator[items.Said | items.Printed]:
    """Yield the settings that a line prints."""
    if _LOADED.search(text):
        yield items.Said("initial_weights", "loaded")
    elif match := _PARAMETERS.search(text):
        whole, trained = (int(count.replace(",", "")) for count in match.groups())
        yield from (items.Said("parameters_of_rank", whole), items.Said("frozen_parameters", whole - trained))
    elif match := _MICRO_BATCH.search(text):
        yield items.Said("micro_batch_size", int(match[1]))
    elif "decoder_layers" in text:
        yield from _configured(text)


def _configured(text: str) -> Iterator[items.Said | items.Printed]:
    """Read the configuration: one line, in which most settings stand several times."""
    printed = [items.Printed(match[1], match[2] or match[3] or match[4]) for match in _SETTING.finditer(text)]
    yield from with_claims(printed, _SETTINGS)
    switches = {(setting.name, setting.value) for setting in printed}
    on, names = {name for name, value in switches if value == "True"}, {name for name, _ in switches}
    if "fp16" in names:
        half = "fp16" if on & {"fp16", "memory_efficient_fp16"} else "fp32"
        yield items.Said("precision", "bf16" if "bf16" in on else half)
    if "checkpoint_activations" in names:
        yield items.Said("activation_checkpointing", "full" if "checkpoint_activations" in on else "none")
    for _, backend in sorted(switch for switch in switches if switch[0] == "ddp_backend"):
        whole = "gradients" if "no_reshard_after_forward" in on else "full"
        yield items.Said("sharding", whole if backend == "fully_sharded" else "none")


READER = LogReader(
    name="metaseq", dialect=lambda: parse, claims=read_claims, needles=items.Needles(NEEDLES, CLAIM_NEEDLES)
)

"""The log of torchtitan from its first public version (2024) to 0.3 (2026).

A step is a line such as

    [titan] 2025-06-04 08:51:58,557 - root - INFO - step: 10  loss: 10.7069  grad_norm:  2.4236
    memory: 30.99GiB(32.62%)  tps: 7,034  tflops: 407.35  mfu: 41.19%

of fields that differ between versions: `tps` was `wps`, `tflops` and `grad_norm` came later, and `mfu` is `N/A` in 8
bits. Its numbers are means of all steps since the line before; there is a line for step 1 and for each multiple of
`metrics.log_freq`. The duration of a step is the time between two lines. `tps` are tokens per second and GPU by a clock
of its own, from which that of the first step follows; evaluations are not in it.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pytest_llmbench.core.record.claims import ClaimName
from pytest_llmbench.readers import items, patterns
from pytest_llmbench.readers.log import LogReader
from pytest_llmbench.readers.numbers import duration, number, unix_time
from pytest_llmbench.readers.printed import Table, in_json, in_object, whole_number, with_claims

_STEP = re.compile(
    r"(?:(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d),(?P<ms>\d{3}) - [\w.]{1,60} - INFO - )?(?<!validate )"
    r"\bstep: {1,9}(?P<step>\d{1,9})  (?P<fields>loss: .*)",
    re.ASCII,
)
_FIELD = re.compile(r"([a-z_]{1,20}): {0,9}(\S{1,40})(?: {2}|\s*$)", re.ASCII)
# Colours of a log that lost the escape signs before them.
_COLOURS = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m", re.ASCII)
# The rest of a step line that lost its beginning.
_FIGURES = re.compile(r"\b(?:memory|tps|wps|mfu): {1,9}\S", re.ASCII)
_MEMORY = re.compile(r"(-?\d{1,6}\.\d\d)GiB\((?:-?\d{1,4}\.\d\d|nan)%\)", re.ASCII)
_RATE = re.compile(r"\d{1,3}(?:,\d{3})*", re.ASCII)
_SHARE = re.compile(r"(\d{1,6}\.\d\d)%", re.ASCII)

_MESH = re.compile(r"\bBuilding device mesh with parallelism: ((?:[a-z_]{1,20}=\d{1,6}(?:, |\s*$))+)", re.ASCII)
_OLD_MESH = re.compile(r"\bBuilding \d-D device mesh with [\[(](.{1,99}?)[\])], \[([\d, ]{1,60})\]", re.ASCII)
_BATCH = re.compile(
    r"\blocal batch size (\d{1,9}), global batch size (\d{1,9}), (?:gradient accumulation steps \d{1,9}, )?"
    r"sequence length (\d{1,9}), total steps (\d{1,9})\b",
    re.ASCII,
)
_BEGIN = re.compile(r"\bTraining starts at step (\d{1,9})", re.ASCII)
_COMPLETED = re.compile(r"\bTraining completed\.?\s*$", re.ASCII)
_PAUSE = re.compile(r"\bvalidate step: |\bSaving (?:the|a \w{1,20}) checkpoint\b", re.ASCII)
_INTERVAL = re.compile(r"\s*\"log_freq\": (\d{1,9}),?\s*", re.ASCII)

# Every line with items contains one of these, apart from the words of failures.
NEEDLES = (
    b"loss: ", b"memory: ", b"tps: ", b"wps: ", b"mfu: ", b"device mesh with", b"local batch size", b"Training starts",
    b"Training completed", b"Saving ", b"log_freq",
)  # fmt: skip


def reader() -> items.Parse:
    """Return a dialect for one log, which remembers its batch, its number of ranks and the times of its lines."""
    facts: dict[str, int] = {}
    times: dict[int, float | None] = {}

    def read(text: str) -> Iterable[items.Item]:
        text = _COLOURS.sub("", text)
        if match := _STEP.search(text):
            return [_timed(_step(match), facts, times)]
        if _FIGURES.search(text) and not _PAUSE.search(text) and "memory usage" not in text:
            raise items.Unreadable("a line without its step")
        if match := _BATCH.search(text):
            facts["tokens"] = int(match[2]) * int(match[3])
            facts["samples"] = int(match[2])
        if degrees := _degrees(text):
            facts["ranks"] = math.prod(degrees.values())
        return _other(text, facts if degrees else {})

    return read


def _other(text: str, facts: Mapping[str, int]) -> Iterator[items.Item]:
    if "ranks" in facts:
        yield items.WorldSize(facts["ranks"])
    if match := _INTERVAL.fullmatch(text):
        yield items.LogInterval(int(match[1]))
    if _PAUSE.search(text):
        yield items.Pause()
    if _COMPLETED.search(text):
        yield items.Completed(text)
    if message := patterns.failure(text):
        yield items.Failed(message)


def _degrees(text: str) -> dict[str, int]:
    """Read how many ranks each kind of parallelism has; experts share ranks with other kinds."""
    pairs: Iterable[tuple[str, str]]
    if match := _MESH.search(text):
        pairs = re.findall(r"([a-z_]+)=(\d+)", match[1], re.ASCII)
    elif match := _OLD_MESH.search(text):
        names, sizes = (re.findall(r"\w+", words) for words in match.groups())
        pairs = zip(names, sizes, strict=True) if len(names) == len(sizes) else ()
    else:
        return {}
    return {name: int(size) for name, size in pairs if name not in {"ep", "etp"}}


def _step(match: re.Match[str]) -> items.StepLine:
    fields: dict[str, str] = {}
    end, text = 0, match["fields"]
    while field := _FIELD.match(text, end):
        if field[1] in fields:
            raise items.Unreadable(f"{field[1]} twice")
        fields[field[1]] = field[2]
        end = field.end()
    if end < len(text):
        raise items.Unreadable(f"{text[end:][:40]!r} is not a field")
    if "mfu" not in fields:  # the last field of every version
        raise items.Unreadable(f"cut off after {next(reversed(fields), 'its number')}")
    loss, norm = fields.pop("loss"), fields.pop("grad_norm", None)
    at = None if match["at"] is None else unix_time(f"{match['at']}.{match['ms']}")
    if int(match["step"]) < 1 or (at is None and match["at"] is not None):
        raise items.Unreadable(f"step {match['step']} at {match['at']}")
    return items.StepLine(
        step=int(match["step"]),
        first_apart=True,
        at=at,
        loss=number("loss", loss),
        grad_norm=None if norm is None else number("grad_norm", norm),
        reported=dict(_reported(fields)),
    )


def _reported(fields: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    for name, text in fields.items():
        if name in {"memory", "mmemory"}:
            if (match := _MEMORY.fullmatch(text)) is None:
                raise items.Unreadable(f"memory is {text!r}")
            yield "memory_gib", float(match[1])
        elif name == "mfu":
            if (share := _SHARE.fullmatch(text)) is None and text != "N/A":
                raise items.Unreadable(f"mfu is {text!r}")
            if share:
                yield "mfu", float(share[1])
        elif name in {"tps", "wps"}:
            if not _RATE.fullmatch(text):
                raise items.Unreadable(f"{name} is {text!r}")
            yield "tps", duration(name, text.replace(",", ""))
        else:
            yield name, number(name, text.replace(",", ""))


def _timed(step: items.StepLine, facts: Mapping[str, int], times: dict[int, float | None]) -> items.StepLine:
    """Add batch, number of steps and duration; ranks may each log a step, at nearly the same time."""
    last = max((number for number in times if number < step.step), default=None)
    times.setdefault(step.step, step.at)
    for old in sorted(times)[:-2]:
        del times[old]
    number = 1 if step.step == 1 else None if last is None else step.step - last
    before = None if last is None else times.get(last)
    tokens, samples, rate = facts.get("tokens"), facts.get("samples"), step.reported.get("tps")
    seconds = None
    if number and step.at is not None and before is not None and step.at > before:
        seconds = (step.at - before) / number
    elif last is None and tokens and rate and facts.get("ranks"):
        seconds = tokens / facts["ranks"] / rate
    return replace(step, interval=number, seconds=seconds, tokens=tokens, samples=samples)


_PARAMETERS = re.compile(r"size: (\d{1,3}(?:,\d{3}){1,5}) total parameters\s*$", re.ASCII)
_RECOMPUTES = re.compile(r"\bApplied (selective|full) activation checkpointing to the model", re.ASCII)
_EIGHT_BITS = re.compile(
    r"\b(Float8 (?:\w+ scaled )?training|MX training) active|\bSwapped to (Float8|MX)Linear", re.ASCII
)
_OF_MESH: Mapping[str, ClaimName] = {"tp": "tensor", "pp": "pipeline", "cp": "context_parallel"}
# Settings of the model; all others are compared by the rules of the engine.
_MODEL: Table = {
    "n_layers": ("layers", whole_number),
    "dim": ("hidden_size", whole_number),
    "n_heads": ("attention_heads", whole_number),
    "n_kv_heads": ("kv_groups", whole_number),
    "vocab_size": ("vocab_size", whole_number),
}
# Every line with claims contains one of these.
CLAIM_NEEDLES = (
    b'"', b"Args(", b"device mesh with", b"local batch size", b"Training starts", b"total parameters",
    b"activation checkpointing", b"training active", b"Swapped to", b"Loading the checkpoint",
)  # fmt: skip


def read_claims(text: str) -> Iterator[items.Said | items.Printed]:
    """Yield the settings that a line prints."""
    if settings := [*in_json(text)] or ([*in_object(text)] if "Args(" in text else []):
        # `dim` of a section in the shape of a model is another, as the one of `rope`.
        sizes = _MODEL if (settings[0].indent or 0) <= 2 else {name: _MODEL[name] for name in _MODEL if name != "dim"}
        yield from with_claims(settings, sizes)
    elif match := _BATCH.search(text):
        names: tuple[ClaimName, ...] = ("micro_batch_size", "global_batch_size", "sequence_length", "steps")
        yield from (items.Said(name, int(value)) for name, value in zip(names, match.groups(), strict=True))
    elif degrees := _degrees(text):
        yield from (items.Said(claim, degrees.get(name, 1)) for name, claim in _OF_MESH.items())
        if degrees.get("dp_shard", 1) > 1:
            yield items.Said("sharding", "full")
        elif degrees.get("dp_replicate", 1) > 1 and degrees.get("cp", 1) == 1:
            yield items.Said("sharding", "none")
    elif match := _PARAMETERS.search(text):
        yield items.Said("parameters", int(match[1].replace(",", "")))
    elif match := _RECOMPUTES.search(text):
        yield items.Said("activation_checkpointing", match[1])
    elif match := _EIGHT_BITS.search(text):
        yield items.Said("precision", "mxfp8" if "MX" in match[0] else "fp8")
    elif "Loading the checkpoint" in text or ((match := _BEGIN.search(text)) and int(match[1]) > 1):
        yield items.Said("initial_weights", "loaded")


READER = LogReader(name="torchtitan", dialect=reader, claims=read_claims, needles=items.Needles(NEEDLES, CLAIM_NEEDLES))

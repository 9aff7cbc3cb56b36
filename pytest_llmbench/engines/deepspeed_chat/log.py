"""DeepSpeed-Chat's log: its three steps, as upstream prints them and as Lambda's fork does.

The step of a line may depend on the lines before it: the number of the loss starts again in every epoch, upstream's
throughput lacks a number, and in step 3 the actor and the critic count separately. So each log gets its own `reader()`,
which keeps that state; `parse` reads one line alone. The loss is that of rank 0.

Proof that the run did its work: every process `exits successfully`, as the launcher reports, or the fork's
`Throughput:`, printed once after the last step. `saving model ...` is insufficient, as it is printed before the save
completes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from pytest_llmbench.core.record.claims import on_off
from pytest_llmbench.readers import items, patterns
from pytest_llmbench.readers.items import Printed, Said, Skipped
from pytest_llmbench.readers.log import LogReader
from pytest_llmbench.readers.numbers import as_number, number, unix_time
from pytest_llmbench.readers.printed import Table, in_dots, whole_number, with_claims

# Two ranks' lines without the line's end in between: each prints that on its own.
_GLUED = re.compile(r"(?=Epoch: \d{1,9}, Step: |Model Parameters: )", re.ASCII)
_WORLD_SIZE = re.compile(r"\bdist_world_size=(\d{1,9})\b|:print\]\s+world_size \.+ (\d{1,9})\s*$", re.ASCII)
_CONFIG = re.compile(r":print\]\s+(train_batch_size|gradient_accumulation_steps) \.+ (\d{1,9})\s*$", re.ASCII)
_NODES = re.compile(r"\blaunch\.py:\d+:main\] WORLD INFO DICT: \{(.*)\}\s*$", re.ASCII)
_NODE = re.compile(r"'([^'\s]{1,255})': \[([\d, ]*)\]", re.ASCII)
_EPOCH = re.compile(r"Beginning of Epoch (\d{1,9})/\d+, Total (Micro|Generation) Batches (\d{1,9})\s*$", re.ASCII)
_TIME = re.compile(r"\[(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3})\] ", re.ASCII)
_TIMER = re.compile(r"\bepoch=\d+/micro_step=\d+/global_step=(\d{1,12}), (?=RunningAvg)(.*)", re.ASCII)
_LOSS = re.compile(r"Epoch: (\d{1,9}), Step: (\d{1,9}), Rank: 0, loss = (.*)", re.ASCII)
_PPO = re.compile(r"epoch: ?(\d{1,9}) ?\| ?step: ?(\d{1,9}) ?\|(.*)", re.ASCII | re.IGNORECASE)
_SPEED = re.compile(r"(?:End-to-End => |Model Parameters: .{1,40}, )(Latency: .*)", re.ASCII)
_EXECUTION = re.compile(r"Execution time: (\d+\.\d+) seconds for (\d+) steps", re.ASCII)
_THROUGHPUT = re.compile(r"Throughput: (\d+\.\d+) samples/sec", re.ASCII)
_EXIT = re.compile(r"\blaunch\.py:\d+:main\] Process \d+ exits successfully\.", re.ASCII)
_RETURN_CODE = re.compile(r"\blaunch\.py:\d+:sigkill_handler\] .* (exits with return code = -?\d+)\s*$", re.ASCII)
# `Latency: 0.10s`, `Time/seq 0.01s`, `BW: 0.33 GB/sec`, `MemAllocated=5.53GB`
_QUANTITY = re.compile(
    r"\s*([A-Za-z][^:=\[\]]{0,40}?)[:= ] ?"
    r"([-+.\de]+|[-+]?nan|[-+]?inf) ?(?:s|ms|B|GB|GB/sec)?\s*",
    re.ASCII,
)


# Every line with items contains one of these, apart from the words of failures.
NEEDLES = (
    b"poch", b"Latency: ", b"dist_world_size=", b":print]", b"Execution time: ", b"Throughput: ",
    b"launch.py:",
)  # fmt: skip


def reader() -> items.Parse:
    """Return a dialect for one log, whose lines are to be given in order."""
    return _Log().read


@dataclass(slots=True)
class _Log:
    """State from earlier lines that the next ones need."""

    world_size: int | None = None
    exits: int = 0
    samples: int | None = None  # of one optimizer step
    accumulates: bool = False  # a step has several batches, and only DeepSpeed's timer counts steps
    batches: int | None = None  # of an epoch; None before the first
    ppo: bool = False
    step: items.StepLine | None = None

    def read(self, text: str) -> Iterable[items.Item]:
        parts = (self._parse_step, self._parse_setting, self._parse_end)
        return [item for piece in _GLUED.split(text) for part in parts for item in part(piece)]

    def _parse_step(self, text: str) -> Iterator[items.Item]:
        if match := _TIMER.search(text):
            if not self.ppo:
                at = unix_time(stamp[1]) if (stamp := _TIME.match(text)) else None
                values = _all_quantities(match[2], ",")
                yield self._add(replace(self._timer_step(int(match[1]), values), at=at))
        elif match := _PPO.match(text):
            values = _all_quantities(match[3], "|")
            yield self._add(items.StepLine(step=self._number(match[1], match[2]), reported=values))
        elif self.accumulates:
            return
        elif match := _LOSS.match(text):
            yield self._add(items.StepLine(step=self._number(match[1], match[2]), loss=number("loss", match[3])))
        elif self.batches is not None and (match := _SPEED.match(text)):
            # An unnumbered speed line is about the last step, or about the next if that has its speed.
            step = 1 if self.step is None else self.step.step + ("Latency" in self.step.reported)
            yield self._add(_speed_step(step, _quantities(match[1], ",")))

    def _parse_setting(self, text: str) -> Iterator[items.Item]:
        if match := _EPOCH.match(text):
            self.batches, self.ppo = int(match[3]), match[2] == "Generation"
            self.step = None if match[1] == "1" else self.step
        elif match := _WORLD_SIZE.search(text):
            self.world_size = self.world_size or int(match[1] or match[2])
            yield items.WorldSize(int(match[1] or match[2]))
        elif match := _NODES.search(text):
            for node in _NODE.finditer(match[1]):
                yield items.Node(node[1], len(node[2].split(",")))
        elif match := _CONFIG.search(text):
            if match[1] == "train_batch_size":
                self.samples = self.samples or int(match[2])
            else:
                self.accumulates |= int(match[2]) > 1
            yield items.Total(match[1], float(match[2]))

    def _parse_end(self, text: str) -> Iterator[items.Item]:
        if match := _EXECUTION.search(text):
            yield items.Total("execution_time_s", float(match[1]))
            yield items.Total("execution_steps", float(match[2]))
        elif match := _THROUGHPUT.search(text):
            yield from (items.Total("throughput_samples_per_s", float(match[1])), items.Completed(match[0]))
        elif _EXIT.search(text):
            self.exits += 1
            if self.batches is not None and self.exits == self.world_size:
                yield items.Completed(f"{self.exits} of {self.world_size} processes exit successfully")
        elif match := _RETURN_CODE.search(text):
            yield items.Failed(f"a process {match[1]}")
            yield items.BadEnd(match[1])
        elif message := patterns.failure(text):
            yield items.Failed(message)

    def _number(self, epoch: str, step: str) -> int:
        if int(epoch) and self.batches is None:
            raise items.Unreadable(
                f"step {step} of epoch {epoch}: the log does not give the number of steps of an epoch"
            )
        return int(epoch) * (self.batches or 0) + int(step) + 1

    def _add(self, line: items.StepLine) -> items.StepLine:
        """Merge these values with those of an earlier line about the same step."""
        old = self.step
        line = replace(line, revises=True)
        if old is not None and old.step == line.step:
            names = ("interval", "at", "seconds", "samples", "loss", "peak_memory_bytes")
            kept = {name: getattr(old, name) for name in names if getattr(line, name) is None}
            line = replace(line, **kept, reported={**old.reported, **line.reported})
        self.step = line
        return line

    def _timer_step(self, step: int, values: dict[str, float]) -> items.StepLine:
        """Build a step of DeepSpeed's timer line: the last step's rate, of all ranks, and rank 0's memory."""
        rate, peak = values.get("CurrSamplesPerSec"), values.pop("MaxMemAllocated", None)
        if rate is None or not rate > 0.0:
            raise items.Unreadable(f"its CurrSamplesPerSec is {rate}")
        return items.StepLine(
            step=step,
            interval=1,
            seconds=self.samples / rate if self.samples else None,
            samples=self.samples,
            peak_memory_bytes=round(peak * 2**30) if peak is not None and 0.0 < peak < 2**30 else None,
            reported=values,
        )


def _speed_step(step: int, values: dict[str, float]) -> items.StepLine:
    """Build a step of upstream's throughput line, whose batch in steps 1 and 2 is one rank's: samples stay None."""
    latency, rate, batch = (values.get(name) for name in ("Latency", "Samples/sec", "Batch Size"))
    if latency is None or rate is None or batch is None:
        raise items.Unreadable("its Latency, Samples/sec or Batch Size is not a number")
    # Both have two decimals and come from the same time: the bigger one has more digits.
    seconds = batch / rate if rate > max(latency, 0.0) else latency
    return items.StepLine(step=step, seconds=seconds, reported=values)


def _all_quantities(text: str, sign: str) -> dict[str, float]:
    """Parse a line of quantities alone; anything else between the signs makes it unreadable."""
    values = _quantities(text, sign)
    if len(values) <= text.count(sign):
        raise items.Unreadable(f"not all of {text.strip()!r} are numbers")
    return values


def _quantities(text: str, sign: str) -> dict[str, float]:
    """Parse values between signs, by name; only numbers count."""
    matches = (_QUANTITY.fullmatch(piece) for piece in text.split(sign) if len(piece) < 200)
    values = {match[1].strip(): as_number(match[2]) for match in matches if match}
    return {name: value for name, value in values.items() if value is not None}


_SKIPPED = re.compile(r"\[Rank 0\] step=(\d{1,12}), skipped=(\d{1,12}),", re.ASCII)
_NUMBER = re.compile(r"\d{1,12}", re.ASCII)
_COMMAND = re.compile(r"\[runner\.py:\d+:main\] cmd = (.*)", re.ASCII)
_SIZE = re.compile(
    r"Model Parameters: (\d{1,6}\.\d+) B, Latency: .{0,200}, Batch Size: (\d{1,9}), Sequence Length: (\d{1,9})\s*$",
    re.ASCII,
)
# A published model, by its name or its folder in a cache: the only hint at its size.
_OPT = re.compile(r"\bfacebook(?:/|--)opt-([\d.]+[mb])(?:/|$)", re.ASCII)
_OPT_SIZES = {
    "125m": (12, 768), "350m": (24, 1024), "1.3b": (24, 2048), "2.7b": (32, 2560), "6.7b": (32, 4096),
    "13b": (40, 5120), "30b": (48, 7168), "66b": (64, 9216),
}  # fmt: skip
# It prints three decimals.
_READABLE_BILLIONS = 0.1


# Every line with claims contains one of these.
CLAIM_NEEDLES = (b":print]", b":main] cmd = ", b"Model Parameters: ")


def read_claims(text: str) -> Iterator[Said | Printed | Skipped]:
    """Yield the settings that a line prints."""
    if ":print]" in text:
        yield from with_claims(in_dots(text), _SETTINGS)
    elif match := _SKIPPED.search(text):
        yield Skipped(int(match[1]), int(match[2]))
    elif match := _COMMAND.search(text):
        yield from _command_claims(match[1].split())
    elif match := _SIZE.match(text):
        if float(match[1]) >= _READABLE_BILLIONS:
            yield Said("parameters_of_rank", 1e9 * float(match[1]))
        yield from (Said("micro_batch_size", int(match[2])), Said("sequence_length", int(match[3])))


def _command_claims(words: Sequence[str]) -> Iterator[Said]:
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
        if "--disable_dropout" in words:
            yield Said("dropout", "0")
        yield Said("lora", lora(rank, alone="--only_optimize_lora" in words))
        yield Said("activation_checkpointing", "full" if "--gradient_checkpointing" in words else "none")


def lora(rank: object, *, alone: bool) -> str:
    """Describe in a claim whether matrices of low rank are trained, and whether alone."""
    if str(rank) == "0":
        return "none"
    return f"of rank {rank}, which alone is trained" if alone else f"of rank {rank}"


_SETTINGS: Table = {
    "train_batch_size": ("global_batch_size", whole_number),
    "train_micro_batch_size_per_gpu": ("micro_batch_size", whole_number),
    "zero_optimization_stage": ("sharding", {"0": "none", "1": "optimizer", "2": "gradients", "3": "full"}.get),
    "fp16_enabled": ("fp16", lambda text: on_off(text == "True")),
    "bfloat16_enabled": ("bf16", lambda text: on_off(text == "True")),
}
# Counts of skipped steps are needed as long as the log goes on.
READER = LogReader(
    name="deepspeed_chat",
    dialect=reader,
    claims=read_claims,
    needles=items.Needles((*NEEDLES, b", skipped="), CLAIM_NEEDLES),
)

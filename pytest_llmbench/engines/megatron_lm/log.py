"""The log of Megatron-LM from v1.0 (2020) to core 0.19 (2026), Megatron-DeepSpeed, Megatron-Bridge and JSC's version.

A step is a line such as

     [2026-11-21 02:46:00.792986] iteration       10/      40 | consumed samples:          320 | elapsed time per
     iteration (ms): 629.1 | ... | lm loss: 9.622718E+00 | ... | number of nan iterations:   0 |

of fields `key: value |`, which differ between versions. A field without a place in `StepLine` is reported by its words
in lower case, without the part in brackets and joined by `_`: `throughput per GPU (TFLOP/s/GPU)` is
`throughput_per_gpu`, `TFLOPs` is `tflops`. An iteration that was skipped, or whose loss is NaN, lacks `lm loss`
(`lm-loss` in some forks). Text after the last field is ignored, as another rank may print before the line ends.

Megatron-Bridge prints the same line. Its rank 0 prints another one for each step, which becomes a part of it:

    Step Time : 9.09s GPU utilization: 663.5MODEL_TFLOP/s/GPU

Normal ends are the end of training, `--exit-interval` and `--exit-duration-in-mins`; an end by a signal is a failure.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from pytest_llmbench.readers import items, megatron_claims, patterns
from pytest_llmbench.readers.log import LogReader
from pytest_llmbench.readers.numbers import as_number, count, duration, number, unix_time
from pytest_llmbench.readers.printed import in_yaml

_ITERATION = re.compile(
    r"(?:\[(?P<at>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?P<micro>\.\d{6})?)\] )?"
    r"\biteration +(?P<step>\d+)/ *(?P<last>\d+) +\|",
    re.ASCII,
)
# The rest of a line that lost its beginning. The digit excludes quoted source code.
_ELAPSED = re.compile(r"elapsed time per iteration \(\w+\): *[\d.]", re.ASCII)
_UNIT = re.compile(r"\biteration +\d+/.*elapsed time per iteration \((\w+)\)", re.ASCII)
# Damaged text instead of the time.
_OTHER_TIME = re.compile(r"\[[^\[\]]{0,40}:[^\[\]]{0,20}\] ?$")
# The beginning of a line that lost its rest; the slash excludes `validation loss at iteration 10 |`.
_BEGUN = re.compile(r"\biteration +\d+/", re.ASCII)
_KEY = re.compile(r"[A-Za-z][\w /().,%-]*", re.ASCII)
_IN_BRACKETS = re.compile(r"\([^()]*\)")
_NO_WORD = re.compile(r"[^a-z0-9]+")

_PER_SECOND = {"elapsed time per iteration (ms)": 1000.0, "elapsed time per iteration (s)": 1.0}
_BATCH, _LENGTH, _LOSS, _NORM = "global batch size", "actual seqlen", "lm loss", "grad norm"
# Names of the loss in forks, in lower case and without signs, by preference; else the only loss counts.
_LOSSES_OF_FORKS = ("lm loss", "language model loss", "loss", "train loss", "training loss", "total loss")
_OTHER_LOSS = re.compile(
    r"\b(?:scale|z|aux\w*|balanc\w*|moe|mtp\w*|sop|valid\w*|test|eval\w*|indexer|kl|reward)\b", re.ASCII
)
# A value of the iteration with the mean so far: `2701.3/2712.7`, `2701.3 (2712.7)`, `2701.3, avg: 2712.7`, or scatter.
_WITH_MEAN = re.compile(
    r"([+-]?[\d.]+(?:[eE][+-]?\d+)?) *(?:/ *|[(\[{~±]|\+/-|[,;] +(?=[a-z])|(?<= )(?=(?:avg|mean|ema)\b))"
    r"[A-Za-z_ .:=~±+/-]{0,20}[\d.]+(?:[eE][+-]?\d+)?[A-Za-z_ .]{0,20}[)\]}]?",
    re.ASCII,
)
_OWN_PLACE = {*_PER_SECOND, _BATCH, _LOSS, _NORM}
# The last field that is read is the second one, from version 2.0 on, which brought the first two; before it, the third.
_CONSUMED, _NAN, _SCALE = "consumed samples", "number of nan iterations", "loss scale"
_OFTEN = ("consumed samples", "learning rate", "loss scale", "number of skipped iterations", "number of nan iterations")

_STEP_TIME = re.compile(
    r"\bStep Time : {1,9}(\d{1,9}\.\d\d)s GPU utilization: {1,9}(\d{1,9}\.\d)(?:MODEL_)?TFLOP/s/GPU\s*$", re.ASCII
)
_WORLD_SIZE = re.compile(r"using world size: (\d{1,9})(?:,| and)", re.ASCII)
_LOG_INTERVAL = re.compile(r" *log_interval \.+ (\d{1,9})\s*", re.ASCII)
_COMPLETED = re.compile(
    r"\[(?:after training is done|exiting program at iteration \d+|exiting program after [\d.e-]+ minutes)\] datetime:",
    re.ASCII,
)
_BEGIN = re.compile(r"\[before the start of training step\] datetime: [\d: .-]{19,30}", re.ASCII)
_FAILED = re.compile(r"\[exiting program after receiving SIG|rerun_state_machine:Unexpected result ")


# Every line with items contains one of these, apart from the words of failures.
NEEDLES = (
    b"iteration", b"using world size", b"log_interval", b"[before the start", b"[after training", b"save-checkpoint",
    b"[exiting program", b"rerun_state_machine:", b"Step Time :",
)  # fmt: skip


def reader() -> items.Parse:
    """Return a dialect for one log, all of whose lines have the duration in one unit."""
    units: dict[str, str] = {}
    beside: dict[str, float] = {}  # the numbers of rank 0

    def read(text: str) -> Iterable[items.Item]:
        if "Step Time :" in text:
            if (match := _STEP_TIME.search(text)) is None:
                raise items.Unreadable("the step time and rate of rank 0 cannot be read")
            beside.update(step_time=float(match[1]), model_tflops=float(match[2]))
            return ()
        unit = match[1] if "elapsed time" in text and (match := _UNIT.search(text)) else None
        if unit is not None and units.setdefault("first", unit) != unit:
            raise items.Unreadable(f"its time is in {unit}, and that of earlier lines in {units['first']}")
        if "iteration" not in text or not (_ITERATION.search(text) or _ELAPSED.search(text)):  # the slowest is last
            return _other(text)
        step = _step(text)
        step = replace(step, reported={**step.reported, **beside})
        beside.clear()
        return [step]

    return read


def _other(text: str) -> Iterator[items.Item]:
    if match := _WORLD_SIZE.search(text):
        yield items.WorldSize(int(match[1]))
    if match := _BEGIN.search(text):
        yield items.Begun(match[0].strip())
    # Evaluations and checkpoints, which rank 0 or the last rank reports.
    if "save-checkpoint" in text or ("iteration" in text and ("validation" in text or "checkpoint" in text)):
        yield items.Pause()
    if match := _LOG_INTERVAL.fullmatch(text):
        yield items.LogInterval(int(match[1]))
    if _COMPLETED.search(text):
        yield items.Completed(text)
    if _FAILED.search(text) or patterns.failure(text):
        yield items.Failed(text)


def _step(text: str) -> items.StepLine:
    head = _head(text)
    step, last = (count(name, head[name]) for name in ("step", "last"))
    if step > last:
        raise items.Unreadable(f"iteration {step} of {last}")
    at = None if head["at"] is None else unix_time(head["at"])
    if at is None and head["at"] is not None:
        raise items.Unreadable(f"its time is {head['at']}")
    fields = _fields(text[head.end() :])
    if _LOSS not in fields and (key := _loss_of_fork(fields)):
        fields[_LOSS] = fields.pop(key)
    for key in (_LOSS, _NORM, *_OFTEN):
        if key in fields:
            number(key, fields[key])
    samples = count(_BATCH, fields[_BATCH]) if _BATCH in fields else None
    length = count(_LENGTH, fields[_LENGTH]) if _LENGTH in fields else None
    return items.StepLine(
        step=step,
        at=at,
        first_apart=head["micro"] is not None,  # from core 0.16 on
        seconds=_seconds(fields),
        tokens=samples * length if samples is not None and length is not None else None,
        samples=samples,
        loss=as_number(fields.get(_LOSS)),
        grad_norm=as_number(fields.get(_NORM)),
        reported={_name(key): value for key, text in fields.items()
                  if key not in _OWN_PLACE and (value := as_number(text)) is not None},
    )  # fmt: skip


def _loss_of_fork(fields: Iterable[str]) -> str | None:
    """The key of the loss of the training in a fork that has its own name for it."""
    spelt = {_NO_WORD.sub(" ", key.lower()).strip(): key for key in fields}
    losses = {name: key for name, key in spelt.items() if "loss" in name or "cross entropy" in name}
    losses = {name: key for name, key in losses.items() if not _OTHER_LOSS.search(name)}
    names = [name for name in _LOSSES_OF_FORKS if name in losses] or ([*losses] if len(losses) == 1 else [])
    return losses[names[0]] if names else None


def _head(text: str) -> re.Match[str]:
    """Match the one iteration of a line; two in one line mean lost text."""
    head = _ITERATION.search(text)
    if head is None:
        raise items.Unreadable("a line without its iteration number")
    if head["at"] is None and _OTHER_TIME.search(text[max(0, head.start() - 50) : head.start()]):
        raise items.Unreadable("its time cannot be read")
    if len(_BEGUN.findall(text)) > 1 or len(_ELAPSED.findall(text)) > 1:
        raise items.Unreadable("two iterations in one line")
    return head


def _fields(text: str) -> dict[str, str]:
    *parts, rest = text.split("|")
    fields: dict[str, str] = {}
    behind = False  # in the text of another rank, after the line's own fields
    for part in parts:
        key, colon, value = part.partition(":")
        key = key.strip() if colon and _KEY.fullmatch(key.strip()) else ""  # empty for anything but a field
        if key in fields:
            raise items.Unreadable(f"{key} twice")
        behind = behind or not key
        if behind and not _whole(fields):
            raise items.Unreadable(f"{part.strip()[:40]!r} is not a field")
        if not behind:
            pair = _WITH_MEAN.fullmatch(value.strip())
            fields[key] = pair[1] if pair else value
    if not _whole(fields) and (rest.strip() or _CONSUMED in fields):
        raise items.Unreadable(f"cut off after {next(reversed(fields), 'its number')}: {rest.strip()[:40]!r}")
    return fields


def _whole(fields: Mapping[str, str]) -> bool:
    return _NAN in fields or (_SCALE in fields and _CONSUMED not in fields)


def _seconds(fields: Mapping[str, str]) -> float:
    keys = [key for key in _PER_SECOND if key in fields]
    if len(keys) != 1:
        raise items.Unreadable("elapsed time twice" if keys else "no elapsed time")
    return duration(keys[0], fields[keys[0]]) / _PER_SECOND[keys[0]]


def _name(key: str) -> str:
    return _NO_WORD.sub("_", _IN_BRACKETS.sub("", key).lower()).strip("_")


_SHORT = {"bf16", "fp16", "fp4", "fp8", "lr", "normalization", "optimizer"}
_SECTION = re.compile(r"(?:\[(\w{1,40})\](?: Non-default values .{0,200})?|([a-z]\w{0,40})):\s*", re.ASCII)


def _claims(text: str) -> Iterator[items.Said | items.Printed]:
    """Yield the settings that a line prints: as Megatron-LM does, or as Megatron-Bridge does in YAML."""
    if match := _SECTION.fullmatch(text):
        yield items.Printed(match[1] or match[2], "", indent=0)
    elif settings := [setting for setting in in_yaml(text) if "_" in setting.name or setting.name in _SHORT]:
        yield from settings
    else:
        yield from megatron_claims.parse_claims(text)


READER = LogReader(
    name="megatron_lm", dialect=reader, claims=_claims, needles=items.Needles(NEEDLES, (b":", *megatron_claims.NEEDLES))
)

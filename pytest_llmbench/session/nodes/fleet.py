"""The nodes that a check sees: probes go out as steps of the held job, one answer per rank comes back."""

import json
import time
from collections.abc import Callable, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any

from pytest_llmbench.checks.base import Answer, Probe, Site
from pytest_llmbench.cluster.jobs import Job
from pytest_llmbench.core.errors import ClusterError
from pytest_llmbench.core.files import make_folder
from pytest_llmbench.core.plain import read_json
from pytest_llmbench.core.wire import layout

_LOOK_S = 0.05
# Files of ranks that have ended may reach this machine a moment later.
_LAG_S = 3.0
_MOST_AT_ONCE = 64

Start = Callable[[Probe, Path, Sequence[str]], Job]


@dataclass(frozen=True, kw_only=True, slots=True)
class _Step:
    """A probe under way, or why it never was."""

    probe: Probe
    hosts: tuple[str, ...]
    folder: Path
    job: Job | None
    refused: str = ""


@dataclass
class HeldFleet:
    """Runs the probes of a check on the held nodes (see `checks.base.Fleet`).

    Attributes:
        hosts: the nodes, in Slurm's own order, which is that of the ranks.
        start: starts a probe on nodes, in a folder.
        look: called while waiting; it raises ClusterError when the nodes are gone or the session ends.
        remembered: answers of shared probes of the session so far.
        unreachable: nodes on which nothing can be started, and why; this fleet adds to it.
        commands: the started processes, in order.
    """

    site: Site
    hosts: tuple[str, ...]
    folder: Path
    _: KW_ONLY
    start: Start
    look: Callable[[], None]
    remembered: dict[str, list[Answer]]
    unreachable: dict[str, str]
    commands: list[str] = field(default_factory=list)
    _count: int = 0

    def run(self, probes: Sequence[Probe]) -> list[list[Answer]]:
        """Run probes, all at once, and wait for them."""
        steps = [self._begin(probe) for probe in probes]
        late = self._wait(steps)
        answers = [_answers(step, late=step in late) for step in steps]
        return [self._again(*pair) for pair in zip(steps, answers, strict=True)]

    def once(self, probe: Probe) -> list[Answer]:
        """Run a probe that several checks share the first time it is asked for, and remember what it gave."""
        key = json.dumps([probe.name, probe.entry, probe.config, probe.hosts or self.hosts], sort_keys=True)
        if key not in self.remembered:
            self.remembered[key] = self.run([probe])[0]
        return self.remembered[key]

    def _begin(self, probe: Probe) -> _Step:
        self._count += 1
        folder = self.folder / layout.STEPS / f"{self._count:03d}-{probe.name}"
        hosts = tuple(host for host in self.hosts if probe.hosts is None or host in probe.hosts)
        make_folder(folder)
        try:
            job = self.start(probe, folder, hosts)
        except ClusterError as error:
            return _Step(probe=probe, hosts=hosts, folder=folder, job=None, refused=str(error))
        self.commands.append(job.command)
        return _Step(probe=probe, hosts=hosts, folder=folder, job=job)

    def _wait(self, steps: Sequence[_Step]) -> list[_Step]:
        """Wait for all steps; end those that are busy at their deadline, and return them."""
        began = time.monotonic()
        late: list[_Step] = []
        try:
            busy = [step for step in steps if step.job is not None]
            while busy:
                self.look()
                busy = [step for step in busy if step.job is not None and step.job.status().alive]
                over = [step for step in busy if time.monotonic() - began > step.probe.deadline_s]
                late += over
                for step in over:
                    _cancel(step)
                busy = [step for step in busy if step not in over]
                time.sleep(_LOOK_S)
        except BaseException:
            for step in steps:
                _cancel(step)
            raise
        return late

    def _again(self, step: _Step, answers: list[Answer]) -> list[Answer]:
        """Ask silent nodes again, each alone, where an unreachable node kept the others from answering."""
        probe, silent = step.probe, {answer.host for answer in answers if answer.data is None}
        never = {answer.host for answer in answers if answer.why is not None and answer.why.startswith(_NEVER)}
        if probe.together or not never or len(step.hosts) < 2:
            return answers
        asked = [host for host in step.hosts if host in silent]
        again: dict[str, list[Answer]] = {}
        for first in range(0, len(asked), _MOST_AT_ONCE):
            hosts = asked[first : first + _MOST_AT_ONCE]
            probes = [replace(probe, name=f"{probe.name}-{host}", hosts=(host,)) for host in hosts]
            again |= dict(zip(hosts, self.run(probes), strict=True))
        per_node = probe.ranks_per_node
        for host in asked:
            # Nothing is asked of it again: each time, srun would take its half minute to give up.
            why = again[host][0].why
            if why is not None and why.startswith(_NEVER):
                self.unreachable[host] = why
        return [
            replace(again[answer.host][answer.rank % per_node], rank=answer.rank) if answer.host in again else answer
            for answer in answers
        ]


_NEVER = "never started"


def _cancel(step: _Step) -> None:
    if step.job is not None and step.job.status().alive:
        step.job.cancel()


def _answers(step: _Step, *, late: bool) -> list[Answer]:
    world = len(step.hosts) * step.probe.ranks_per_node
    paths = [layout.answer(step.folder, rank) for rank in range(world)]
    patience = time.monotonic() + (_LAG_S if step.job is not None and not late else 0.0)
    began = step.folder / layout.PHASES
    while not all(path.exists() for path in paths) and time.monotonic() < patience and began.is_dir():
        time.sleep(_LOOK_S)
    return [_answer(step, rank, path, late=late) for rank, path in enumerate(paths)]


def _answer(step: _Step, rank: int, path: Path, *, late: bool) -> Answer:
    per_node = step.probe.ranks_per_node
    local_rank, host = rank % per_node, step.hosts[rank // per_node]
    content: dict[str, Any] = {}
    try:
        if not isinstance(content := read_json(path.read_bytes()), dict):
            raise ValueError("expected an object")  # noqa: TRY004, TRY301 - as of what is not JSON
    except FileNotFoundError:
        content = {"why": _why_silent(step, rank, late=late)}
    except (OSError, ValueError) as error:
        content = {"why": f"its answer {path} cannot be read: {error}"}
    return Answer(
        host=str(content.get("host", host)), rank=rank, local_rank=local_rank, data=content.get("data"),
        why=content.get("why"),
    )  # fmt: skip


def _why_silent(step: _Step, rank: int, *, late: bool) -> str:
    words = step.refused or (step.job.last_words() if step.job is not None else "")
    said = f": {' / '.join(words.splitlines()[-3:])}" if words else ""
    phase = _phase(step.folder, rank)
    if phase is None:
        return f"{_NEVER}{said}"
    if late:
        return f"hangs in phase `{phase}`: no answer within {step.probe.deadline_s:g} s"
    return f"died in phase `{phase}`{said}"


def _phase(folder: Path, rank: int) -> str | None:
    try:
        text = layout.phase(folder, rank).read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    return text.partition(" ")[2].strip() or None

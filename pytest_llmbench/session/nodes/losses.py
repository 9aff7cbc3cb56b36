"""Nodes that a session lost while its runs were on them: later runs keep off them, and the quarantine list has them."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from pytest_llmbench.cluster.executors import JobRequest
from pytest_llmbench.cluster.quarantine import remove_bad
from pytest_llmbench.cluster.runs import Session
from pytest_llmbench.cluster.settings import Settings


class LostNodes:
    """The nodes that Slurm took away from runs because they had failed.

    Attributes:
        names: all of them, in the order of their loss.
        of_run: those of each run and of its superseded attempts, by the run's key.
        say: told what people should know.
    """

    def __init__(self, settings: Settings, session: Session, say: Callable[[str], None]) -> None:
        self.names: tuple[str, ...] = ()
        self.of_run: dict[str, tuple[str, ...]] = defaultdict(tuple)
        self._settings = settings
        self._session = session
        self.say = say

    def take(self, name: str, nodes: Sequence[str]) -> None:
        """Note that a run lost these nodes, print it, and put them on the quarantine list, if there is one.

        Args:
            name: key of the run, or `allocation` for the job that holds nodes.
            nodes: the nodes.
        """
        self.of_run[name] = tuple(dict.fromkeys((*self.of_run[name], *nodes)))
        new = {node: f"it failed under {name}" for node in nodes if node not in self.names}
        if not new:
            return
        self.names += tuple(new)
        self.say(f"{', '.join(new)} failed under {name}: later runs of this session avoid it where they can")
        if self._settings.simulate is None:
            for line in remove_bad(new, self._settings, self._session):
                self.say(line)

    def kept_off(self, request: JobRequest) -> JobRequest:
        """A request that excludes the nodes lost so far."""
        return request if not self.names else replace(request, slurm=excluding(request.slurm, self.names))


def excluding(options: Mapping[str, str], nodes: Sequence[str]) -> dict[str, str]:
    """Options of sbatch that exclude these nodes, too."""
    return {**options, "exclude": ",".join(filter(None, (options.get("exclude"), *nodes)))}

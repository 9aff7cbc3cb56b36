"""The gate between validation and training: which nodes may train, and which runs go without."""

from collections.abc import Sequence
from dataclasses import dataclass

from pytest_llmbench.session.nodes.validation import Validator
from pytest_llmbench.session.script.prepared import PreparedRun


@dataclass(frozen=True, kw_only=True, slots=True)
class Gate:
    """The nodes that validation leaves.

    Attributes:
        fit: the nodes that may train.
        stopped: runs that do not happen, each with the check and the node that stopped it.
        note: the new nodes of the other runs, for people; empty if nothing changes.
    """

    fit: tuple[str, ...]
    stopped: tuple[tuple[PreparedRun, str], ...]
    note: str = ""


def gate(runs: Sequence[PreparedRun], validator: Validator, hosts: Sequence[str]) -> Gate:
    """Give the fit nodes to as many runs as they are enough for.

    Groups of nodes are formed from the fit ones, so the last groups may have no nodes.
    """
    out = "; ".join(f"{host} failed {why}" for host, why in validator.out.items())
    fit = tuple(host for host in hosts if host not in validator.out)
    everything = validator.why_gated(hosts)
    stopped = []
    for run in runs:
        needed = run.topology.nodes * (run.spec.group or 1)
        if everything is not None:
            stopped.append((run, f"gated: {everything}"))
        elif needed > len(fit):
            stopped.append((run, f"gated: {out}; {len(fit)} fit nodes are too few for {needed}"))
    moved = f"runs go to the {len(fit)} fit nodes ({', '.join(fit)}): {out}"
    return Gate(fit=fit, stopped=tuple(stopped), note=moved if out and len(stopped) < len(runs) else "")

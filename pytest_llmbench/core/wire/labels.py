"""Labels: the lines that tie a command's log to its run.

Our driver prints the first one before anything else does. If a run has a process of ours on each of its nodes, every
node prints one.
"""

import re
from dataclasses import dataclass
from typing import Any, ClassVar

# What a line holds that may have one.
NEEDLE = b"#llmbench "
# The environment variable that has all of a label but the host, for a run's script.
VARIABLE = "LLMBENCH_LABEL"  #: variable LLMBENCH_LABEL: the line that ties a log to its run, without the host
# For a shell on a node, before the command that is its `"$@"`: one task of each node speaks for it.
PRINT = (
    f'if [ -n "${{{VARIABLE}:-}}" ] && [ "${{SLURM_LOCALID:-0}}" = 0 ]; '
    f'then echo "${VARIABLE} host=${{SLURMD_NODENAME:-$(uname -n)}} #"; fi; exec "$@"'
)
# Without its end it was cut off: then a number or a name may have lost some of it.
_LABEL = re.compile(r"#llmbench run=(\S+) launched=(\d{1,12}\.\d{3}) of=(\d{1,9}) host=(\S+) #", re.ASCII)


@dataclass(frozen=True, kw_only=True, slots=True)
class Label:
    """One label."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}  # for the records that have it

    token: str  # of the run
    launched: float  # Unix time at which the driver began, the same in all labels of a launch
    of: int  # number of nodes that print one
    host: str  # the node that printed this one

    @property
    def beginning(self) -> str:
        """All of the line but the host."""
        return f"#llmbench run={self.token} launched={self.launched:.3f} of={self.of}"

    def __str__(self) -> str:
        return f"{self.beginning} host={self.host} #"


def labels_in(text: str) -> tuple[list[Label], str]:
    """Split a line into its labels and the rest of it: another rank may have printed before the line's end."""
    matches = (match.groups() for match in _LABEL.finditer(text))
    labels = [Label(token=token, launched=float(at), of=int(of), host=host) for token, at, of, host in matches]
    return labels, _LABEL.sub("", text) if labels else text

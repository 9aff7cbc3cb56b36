"""Leases: nodes of an allocation, each lent to one run at a time."""

from collections.abc import Sequence

from pytest_llmbench.core.errors import ClusterError

# Nodes lent to one run.
Lease = tuple[str, ...]


class TooFewLeftError(ClusterError):
    """A run needs more nodes than are left after others were lost."""


class LeasePool:
    """Lends the hosts of one allocation to runs; `out` are its other hosts, and `lost` those that have failed since.

    A single thread uses it, so it works without a lock.
    """

    def __init__(self, hosts: Sequence[str], out: Sequence[str] = ()) -> None:
        self._hosts = tuple(hosts)
        self._out = tuple(out)
        self._free = list(self._hosts)
        self.lost: Lease = ()

    def lose(self, hosts: Sequence[str]) -> None:
        """Stop lending these hosts, because they failed."""
        self.lost += tuple(host for host in self._hosts if host in hosts and host not in self.lost)
        self._free = [host for host in self._free if host not in self.lost]

    def acquire(self, nodes: int) -> Lease | None:
        """Lend `nodes` hosts, or None while too few are free.

        Raises TooFewLeftError if too few are left after others were lost, and ClusterError if the whole allocation is
        smaller.
        """
        left = [host for host in self._hosts if host not in self.lost]
        if len(left) < nodes <= len(self._hosts):
            raise TooFewLeftError(
                f"the run needs {nodes} nodes; the allocation has lost {', '.join(self.lost)}, and has {len(left)} "
                f"left ({', '.join(left) or 'none'}): give --nodes {nodes + len(self.lost)} to have a spare node, or "
                "--llmbench-retries 1 to ask for new ones"
            )
        if nodes > len(self._hosts):
            raise ClusterError(
                f"the run needs {nodes} nodes; the allocation has {len(self._hosts)} ({', '.join(self._hosts)}): "
                f"give --nodes {nodes + len(self._out)} or a smaller --nodes-per-run"
            )
        if nodes > len(self._free):
            return None
        lent, self._free = self._free[:nodes], self._free[nodes:]
        return tuple(lent)

    def acquire_group(self, group: int, nodes: int) -> Lease | None:
        """Lend the `group`-th `nodes` hosts, counted from 1, or None while one of them is in use.

        Raises TooFewLeftError if one of its hosts was lost, and ClusterError if the allocation is too small for the
        group.
        """
        # Hosts that are left over from the groups come into the places of lost ones.
        every, places = list(self._hosts), len(self._hosts) // nodes * nodes
        spare = [place for place in range(places, len(every)) if every[place] not in self.lost]
        lost = [place for place in range(places) if every[place] in self.lost]
        for place, other in zip(lost, spare, strict=False):
            every[place], every[other] = every[other], every[place]
        self._hosts = tuple(every)
        hosts = self._hosts[(group - 1) * nodes : group * nodes]
        if len(hosts) < nodes:
            raise ClusterError(
                f"group {group} of {nodes} nodes is not there: the allocation has {len(self._hosts)} nodes "
                f"({', '.join(self._hosts)})"
            )
        if gone := [host for host in hosts if host in self.lost]:
            raise TooFewLeftError(
                f"group {group} ({', '.join(hosts)}) is not whole any more: the allocation has lost {', '.join(gone)}: "
                "give --llmbench-retries 1 to ask for new nodes, or run it again"
            )
        if not set(hosts) <= set(self._free):
            return None
        self._free = [host for host in self._free if host not in hosts]
        return hosts

    def beyond_groups(self, nodes: int) -> tuple[str, ...]:
        """The hosts that are left over from the groups of `nodes`."""
        return self._hosts[len(self._hosts) // nodes * nodes :]

    def release(self, lease: Lease) -> None:
        """Take hosts back, keeping the pool in its first order so that runs sit close together."""
        self._free = [host for host in self._hosts if host not in self.lost and (host in self._free or host in lease)]

"""Leases: the nodes of an allocation, lent to runs so that no two share one."""

from collections.abc import Sequence

from pytest_llmbench.core.errors import ClusterError

# Nodes lent to one run.
Lease = tuple[str, ...]


class LeasePool:
    """The hosts of one allocation, but for those that are `out`: they are never lent.

    Its owner is a single thread, so there is no lock.
    """

    def __init__(self, hosts: Sequence[str], out: Sequence[str] = ()) -> None:
        self._hosts = tuple(hosts)
        self._out = tuple(out)
        self._free = list(self._hosts)

    def acquire(self, nodes: int) -> Lease | None:
        """Lend `nodes` hosts, or None while too few are free.

        Raises:
            ClusterError: the pool will never have that many.
        """
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
        """Lend the `group`-th `nodes` hosts, counted from 1, or None while not all of them are free.

        Raises:
            ClusterError: the pool has no such group.
        """
        hosts = self._hosts[(group - 1) * nodes : group * nodes]
        if len(hosts) < nodes:
            raise ClusterError(
                f"group {group} of {nodes} nodes is not there: the allocation has {len(self._hosts)} nodes "
                f"({', '.join(self._hosts)})"
            )
        if not set(hosts) <= set(self._free):
            return None
        self._free = [host for host in self._free if host not in hosts]
        return hosts

    def beyond_groups(self, nodes: int) -> tuple[str, ...]:
        """The hosts that are in no group of `nodes`."""
        return self._hosts[len(self._hosts) // nodes * nodes :]

    def release(self, lease: Lease) -> None:
        """Take hosts back, keeping the pool in its first order so that runs sit close together."""
        self._free = [host for host in self._hosts if host in self._free or host in lease]

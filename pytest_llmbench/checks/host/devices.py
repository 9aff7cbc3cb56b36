"""Environment variables that name network devices, by the rules of those who read them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceVariable:
    """How a variable names devices.

    Attributes:
        kinds: source of the devices: `interfaces`, `infiniband`.
        prefixes: whether a name stands for all that begin with it, unless `=` stands before the list.
        ports: whether `:1` after a name is a port.
        every: whether each name must be there, not just one.
        everything: a word that stands for all devices.
    """

    kinds: tuple[str, ...]
    prefixes: bool = False
    ports: bool = False
    every: bool = False
    everything: str | None = None


RULES = {
    "NCCL_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), prefixes=True, ports=True),
    "NCCL_IB_HCA": DeviceVariable(kinds=("infiniband",), prefixes=True, ports=True),
    "GLOO_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), every=True),
    "TP_SOCKET_IFNAME": DeviceVariable(kinds=("interfaces",), every=True),
    "UCX_NET_DEVICES": DeviceVariable(kinds=("interfaces", "infiniband"), ports=True, everything="all"),
}


def chosen(value: str, there: Collection[str], rule: DeviceVariable) -> tuple[set[str], list[str]]:
    """The devices that a variable's value chooses, and its names that fit none of them.

    `^` before the list leaves the named ones out, and `=` before it (after a `^`) asks for whole names. Only a list
    that does not leave out has names that miss something.

    Args:
        value: the variable's.
        there: names of the devices there are.
        rule: the variable's.
    """
    leave_out = value.startswith("^")
    rest = value.removeprefix("^")
    whole = not rule.prefixes or rest.startswith("=")
    names = [name for part in rest.removeprefix("=").split(",") if (name := part.strip())]
    fits = {name: _fitting(name, there, rule, whole=whole) for name in names}
    found = set[str]().union(*fits.values())
    if leave_out:
        return set(there) - found, []
    return found, [name for name, devices in fits.items() if not devices]


def _fitting(name: str, there: Collection[str], rule: DeviceVariable, *, whole: bool) -> set[str]:
    if name == rule.everything:
        return set(there)
    plain = name.partition(":")[0] if rule.ports else name
    return {device for device in there if device == plain or (not whole and device.startswith(plain))}

"""PCI addresses, which the kernel, the driver and nvidia-smi write in different ways."""

import re

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-9a-f]))?", re.IGNORECASE | re.ASCII)


def pci_address(text: str) -> str:
    """Write a PCI address as sysfs does: `00000000:1B:00.0` and `PCI:0000:1b:00` are `0000:1b:00.0`.

    A text without an address is returned as it is.
    """
    match = _ADDRESS.search(text)
    if match is None:
        return text.strip()
    domain, bus, device, function = match.groups()
    return f"{int(domain or '0', 16):04x}:{bus}:{device}.{function or '0'}".lower()

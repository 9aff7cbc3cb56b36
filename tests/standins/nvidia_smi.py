"""A stand-in for a node with GPUs: programs `nvidia-smi`, `dmesg` and `journalctl` for its PATH.

They accept what the package asks them and nothing else, and print what a healthy node prints unless a test says
otherwise. The XML has the tags of the driver version that is asked for, written here from NVIDIA's documentation.
"""

import os
from collections.abc import Mapping
from pathlib import Path

BOOT = "[    0.000000] Linux version 5.15.0-1056 (gcc 11.4.0) #64-Ubuntu SMP\n"
LOADED = "[    9.120000] NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.90.07\n"
LINKS = 18

# Parts of the XML: of a GPU, and what stands in it from driver 535 on and before that.
_GPU, _MODERN, _OLD = (
    (Path(__file__).parents[1] / "data" / "nvidia_smi" / f"{name}.xml").read_text("utf-8")
    for name in ("gpu", "modern", "old")
)
_REASONS = ("gpu_idle", "sw_power_cap", "hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown",
            "sw_thermal_slowdown", "applications_clocks_setting")  # fmt: skip


def bus(index: int) -> str:
    """The PCI address of a GPU as sysfs and the checks write it."""
    return f"0000:{0x10 + index:02x}:00.0"


def gpu_xml(index: int, *, driver: str = "550.90.07", changes: Mapping[str, str] | None = None) -> str:
    """One `<gpu>`, with texts replaced as `changes` says; each of them has to be there."""
    major = int(driver.partition(".")[0])
    word = "event" if major >= 535 else "throttle"
    reasons = "".join(
        f"<clocks_{word}_reason_{name}>{'Active' if name == 'gpu_idle' else 'Not Active'}</clocks_{word}_reason_{name}>"
        for name in _REASONS
    )
    rest = _MODERN if major >= 535 else _OLD
    text = _GPU.format(bus=bus(index).upper(), index=index, word=word, reasons=reasons, rest=rest)
    for old, new in (changes or {}).items():
        assert old in text, old
        text = text.replace(old, new)
    return text


def smi_xml(gpus: int = 2, *, driver: str = "550.90.07", changes: Mapping[int, Mapping[str, str]] | None = None) -> str:
    """What `nvidia-smi -q -x` prints; `changes` by GPU."""
    every = "".join(gpu_xml(index, driver=driver, changes=(changes or {}).get(index)) for index in range(gpus))
    return (
        '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">\n<nvidia_smi_log>\n'
        f"\t<driver_version>{driver}</driver_version>\n\t<attached_gpus>{gpus}</attached_gpus>\n{every}</nvidia_smi_log>\n"
    )


def links_text(gpus: int = 2, *, inactive: Mapping[int, int] | None = None) -> str:
    """What `nvidia-smi nvlink -s` prints; `inactive` is the link of a GPU that is down."""
    lines: list[str] = []
    for gpu in range(gpus):
        lines.append(f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-00000000-0000-0000-0000-{gpu:012d})")
        for link in range(LINKS):
            dead = (inactive or {}).get(gpu) == link
            lines.append(f"\t Link {link}: {'<inactive>' if dead else '26.562 GB/s'}")
    return "\n".join(lines) + "\n"


def gpu_node(
    folder: Path, *, xml: str | None = None, links: str | None = None, log: str | None = BOOT + LOADED, code: int = 0,
    errors: str = "",
) -> dict[str, str]:  # fmt: skip
    """Make the programs of a node in a folder, and return the environment that finds them first.

    Args:
        folder: of the node.
        xml: what `nvidia-smi -q -x` prints; of two healthy GPUs, when not given.
        links: what `nvidia-smi nvlink -s` prints; likewise.
        log: what `dmesg` prints; None where nobody may read the log.
        code: how nvidia-smi ends.
        errors: what `nvidia-smi -q -x` prints on its error output.
    """
    folder.mkdir(parents=True)
    (folder / "xml").write_text(smi_xml() if xml is None else xml, encoding="utf-8")
    (folder / "links").write_text(links_text() if links is None else links, encoding="utf-8")
    (folder / "log").write_text(log or "", encoding="utf-8")
    (folder / "errors").write_text(errors, encoding="utf-8")
    smi = f"""case "$*" in
"-q -x") cat {folder}/xml; cat {folder}/errors >&2; exit {code};;
"nvlink -s") cat {folder}/links; exit {code};;
*) echo "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help."; exit 2;;
esac"""
    refused = "echo 'dmesg: read kernel buffer failed: Operation not permitted' >&2; exit 1"
    dmesg = f"[ $# = 0 ] || exit 2\n{refused if log is None else f'cat {folder}/log'}"
    for name, body in (("nvidia-smi", smi), ("dmesg", dmesg), ("journalctl", "exit 1")):
        path = folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
    return {"PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"}

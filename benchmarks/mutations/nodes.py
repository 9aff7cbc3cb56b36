"""What programs on the nodes print: nccl-tests, dcgmi, nvidia-smi, and the kernel."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from unittest import mock

from benchmarks.mutations.judging import Checks, Files, new_folder
from benchmarks.mutations.subjects import Subject, sample
from pytest_llmbench.checks.base import Site, get_check
from pytest_llmbench.checks.collectives.nodes.nccl_tests import NcclTestsOutput, NcclTestsOutputs
from pytest_llmbench.checks.dcgm.nodes.diagnostics import DiagnosticOutput, DiagnosticRun
from pytest_llmbench.checks.gpu.kernel_log import Condensed
from pytest_llmbench.core.wire.answers import NcclLines
from tests.standins import nccl_tests as nccl
from tests.standins.dcgm_outputs import FAULTY, VERSIONS, Said, printed
from tests.standins.nvidia_smi import BOOT, LOADED, bus, links_text, smi_xml

_ANY = re.compile(rb"\S")
_FILE = "output"
_NCCL = ("n1:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM",)
_XID = f"[  99.0] NVRM: Xid (PCI:{bus(1)}): 48, pid=1, name=python, DBE\n"


def nccl_text() -> Iterator[Subject]:
    """The tables of nccl-tests: real ones, and those of other collectives by a stand-in."""
    for name, gpus in (("nccl-tests/dgxc_all_reduce_8xH100_root-column.txt", 8),
                       ("logs/nccl_tests_all_reduce_4_h200.txt", 4)):  # fmt: skip
        if (text := sample(name)) is not None:
            yield from _table("all_reduce", text, gpus)
    for collective in ("all_reduce", "all_gather", "broadcast"):
        yield from _table(collective, _nccl(collective, "no_json")[0], 4)


def nccl_json() -> Iterator[Subject]:
    """The file that nccl-tests write from version 2.17.3 on, by a stand-in: there is no real one."""
    for collective in ("all_reduce", "reduce_scatter"):
        told = {**json.loads(_nccl(collective)[1]), "args": [f"{collective}_perf"], "env": []}
        text = json.dumps(told, indent=1).encode()
        judge = _collective(collective, 4, lambda files: {"text": "", "written": _text(files)})
        bare = text.replace(b'"end_time"', b'"time"')
        for what, each in (("", text), (", without its end", bare)):
            yield Subject(
                name=collective + what, files={_FILE: each}, judge=judge, telling=_ANY,
                proves=lambda files: b'"end_time"' in files[_FILE],
            )  # fmt: skip


def dcgm_json() -> Iterator[Subject]:
    """Documents of dcgmi: healthy nodes, and one with a faulty GPU."""
    for version in VERSIONS:
        yield _diagnosis(f"healthy, {version}", printed(version), 0)
        yield _diagnosis(f"a faulty GPU, {version}", printed(version, {"memory": {1: Said("Fail", FAULTY)}}), 226)


def nvidia_smi() -> Iterator[Subject]:
    """`nvidia-smi -q -x`, by all checks of GPUs that read nothing else."""
    bad = {"<current_link_width>16x<": "<current_link_width>8x<", "<dram_uncorrectable>0<": "<dram_uncorrectable>3<",
           "hw_thermal_slowdown>Not Active<": "hw_thermal_slowdown>Active<"}  # fmt: skip
    names = ("gpu_inventory", "gpu_ecc", "gpu_pcie", "gpu_throttle", "gpu_processes")
    for name, text in (("healthy", smi_xml()), ("a bad GPU", smi_xml(changes={1: bad}))):
        yield _gpus(name, text, "xml", *names)


def nvlink() -> Iterator[Subject]:
    """`nvidia-smi nvlink -s`."""
    for name, text in (("healthy", links_text()), ("a link is down", links_text(inactive={1: 3}))):
        yield _gpus(name, text, "links", "gpu_nvlink")


def kernel_log() -> Iterator[Subject]:
    """The driver's lines in the kernel's log."""
    noise = "".join(f"[  {second}.5] nvidia-nvlink: Nvlink Core is being used\n" for second in range(10, 30))
    for name, text in (("healthy", BOOT + LOADED + noise), ("a GPU with an Xid", BOOT + LOADED + noise + 2 * _XID)):
        yield _gpus(name, text, "log", "gpu_xid")


def _table(collective: str, text: bytes, gpus: int) -> Iterator[Subject]:
    judge, rows = (
        _collective(collective, gpus, lambda files: {"text": _text(files), "written": None}),
        rb"^\s*\d|^# [OA]",
    )
    footer = re.compile(rb"^# (?:Out of bounds|Avg bus).*\n", re.MULTILINE)
    for what, each in (("", text), (", without its end", footer.sub(b"", text))):
        yield Subject(
            name=f"{collective} on {gpus}{what}", files={_FILE: each}, judge=judge, telling=re.compile(rows),
            proves=lambda files: b"Avg bus bandwidth" in files[_FILE] and b"Out of bounds" in files[_FILE],
        )  # fmt: skip


def _collective(collective: str, gpus: int, told: Any) -> Checks:
    def answer(files: Files) -> Mapping[str, Any]:
        run = NcclTestsOutput(command=f"{collective}_perf", code=0, **told(files))
        lines = NcclLines(lines=_NCCL, variables={})
        return NcclTestsOutputs(device="NVIDIA H200", runs={collective: run}, nccl=lines).model_dump()

    site = Site(system="mutations", nodes=1, gpus_per_node=gpus, selected=(collective,))
    return Checks(
        checks=(get_check(collective),), site=site, answer=answer, options={"backend": "nccl_tests", "path": "/nccl"}
    )  # fmt: skip


def _nccl(collective: str, modes: str = "") -> tuple[bytes, str]:
    """What the stand-in prints of four GPUs, and what it writes."""
    with TemporaryDirectory() as folder:
        file, printed = Path(folder) / "result.json", io.StringIO()
        argv = ["-g", "4", "-b", "8", "-e", str(8 << 30), "-f", "2", *([] if modes else ["-J", str(file)])]
        with mock.patch.dict(os.environ, {"STANDIN_NCCL_TESTS": modes}), contextlib.redirect_stdout(printed):
            nccl.main(f"{collective}_perf", argv)
        return printed.getvalue().encode(), "" if modes else file.read_text()


def _diagnosis(name: str, text: str, code: int) -> Subject:
    def answer(files: Files) -> Mapping[str, Any]:
        output = DiagnosticOutput(command="dcgmi", code=code, seconds=9.0, stdout=_text(files), stderr="")
        return DiagnosticRun(missing=None, output=output).model_dump()

    site = Site(system="mutations", nodes=1, gpus_per_node=2)
    judge = Checks(checks=(get_check("dcgm"),), site=site, answer=answer, options={"level": 3})
    return Subject(name=name, files={_FILE: text.encode()}, judge=judge, telling=_ANY)


def _gpus(name: str, text: str, told: str, *checks: str) -> Subject:
    """One node, of which one of three outputs is damaged and the others are those of a healthy node."""
    xml = new_folder() / "smi.xml"
    healthy = {"xml": smi_xml(), "links": links_text(), "log": BOOT + LOADED}

    def answer(files: Files) -> Mapping[str, Any]:
        said = {**healthy, told: _text(files)}
        xml.write_text(said["xml"], encoding="utf-8")
        output = {"command": "nvidia-smi", "code": 0, "error": None, "text": ""}
        lines, errors = said["log"].splitlines(), Condensed()
        for line in lines:
            errors.add(line.encode())
        kept, times = zip(*errors.lines(), strict=True) if errors.lines() else ((), ())
        whole = bool(lines) and "Linux version" in lines[0]
        log = {"source": "dmesg", "whole": whole, "refused": [], "lines": kept, "times": times}
        return {"smi": output, "smi_file": str(xml), "nvlink": {**output, "text": said["links"]}, "kernel_log": log}

    site = Site(system="mutations", nodes=1, gpus_per_node=2, gpu_model="H100 80GB HBM3", gpu_memory_gib=80)
    judge = Checks(checks=tuple(map(get_check, checks)), site=site, answer=answer, options={})
    return Subject(name=name, files={_FILE: text.encode()}, judge=judge, telling=_ANY)


def _text(files: Files) -> str:
    """As the ranks that ask programs read what those print."""
    return files[_FILE].decode("utf-8", errors="replace")

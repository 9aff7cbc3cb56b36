"""Logs without end: whatever their size is, reading them takes little memory."""

import subprocess
import sys
from pathlib import Path

import pytest

# Address space on top of the imports: less than the file, and less than a tenth of the size that it claims.
ROOM = 64 << 20
SIZE = 192 << 20
READ = """
import resource, sys
from pathlib import Path
from pytest_llmbench.cluster.jobs import _tail
from pytest_llmbench.engines.base import BatchLog
from pytest_llmbench.engines.deepspeed_chat import eval_batch
from pytest_llmbench.readers.log import READERS
from pytest_llmbench.readers.log import last_step, last_words, read_log
from pytest_llmbench.readers.steps.progress import last_step as last_of_steps
from pytest_llmbench.readers.steps.step_log import read_steps

folder = Path(sys.argv[1])
readers = [READERS.load(name) for name in sys.argv[3:]]
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, 2 * (pages * resource.getpagesize() + int(sys.argv[2]),))
log = folder / "steps" / "rank-00000.jsonl"
for reader in readers:
    series = read_log([log], reader.dialect(), reader.claims, reader.needles)
    assert series.steps == (), series.steps
    last_step(log, reader.dialect())
    last_words(log)
eval_batch.evaluate([BatchLog(path=log, hosts=())], 1.0)
assert len(_tail(log)) <= 1 << 16
steps = read_steps(folder)
assert steps.steps == () and len(steps.unreadable) == 1
last_of_steps(folder)
"""


@pytest.mark.parametrize(("of", "reader"), [(b"", "megatron_lm"), (b"x", "metaseq"), (b"{", "nemo"), (b" ", "metaseq")])
def test_a_line_without_end_takes_little_memory(of: bytes, reader: str, tmp_path: Path) -> None:
    log = tmp_path / "steps" / "rank-00000.jsonl"
    log.parent.mkdir()
    with log.open("wb") as file:
        for _ in range(SIZE >> 20 if of else 0):
            file.write(of * (1 << 20))
        file.truncate(SIZE)
    command = [sys.executable, "-c", READ, str(tmp_path), str(ROOM), reader]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]

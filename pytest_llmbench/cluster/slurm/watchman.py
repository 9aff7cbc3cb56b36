"""A small process that outlives pytest: it cancels the waiting jobs of a session that died without being resumed.

A job that runs ends itself when its session falls silent, and can be adopted until then. A job that waits in the queue,
or that an sbatch submits after the death of pytest, has to be cancelled. After an orderly end all jobs are gone, but a
controller that was killed may list an ended job as alive again: that one is cancelled, too. The watchman runs on
pytest's own machine, and dies with it.
"""

import contextlib
import subprocess
from pathlib import Path

from pytest_llmbench.cluster.slurm.commands import clean_environment
from pytest_llmbench.core.wire import layout

# Shorter than the patience of jobs that run: those that wait have little to lose, and leave the queue in a minute.
RESUMED_WITHIN_S = 30.0
# A controller that was just killed is back after this, in all likelihood.
AFTER_END_S = 15.0
# A command of Slurm that takes longer than this hangs.
ANSWER_S = 20.0
# After an orderly end, it asks at most twice, with this limit on each answer and this pause between them: a minute
# later, the session is gone as a whole.
LAST_ANSWER_S = 10.0
# Arguments: the sign of life, the end in order, seconds, token, seconds for a command's answer, and after an end in
# order seconds before the first command, and for it. Its input ends with pytest, however that ends.
_SCRIPT = """
sep=$(printf '\\037')
# A copy of the session's folder that is resumed has jobs with the same token, and scripts of its own.
is_here() {
    job_folder=$(cd -P "${1%/*}" 2>/dev/null && pwd -P)
    case "$job_folder/" in "$(cd -P "${owner%/*}" && pwd -P)"/*|/) true ;; *) false ;; esac
}
cancel() {
    states=$1 token=$2 pause=$3 answer=$4 tries=$5
    while [ "$tries" -gt 0 ]; do
        tries=$((tries - 1))
        # Words end at this character, as a path may have blanks.
        if jobs=$(timeout "$answer" squeue --noheader --states="$states" --user="$(id -un)" \
            --format="%i${sep}%o${sep}%k"); then
            echo "$jobs" | while IFS="$sep" read -r id job_script mark; do
                # It may have been resumed in the meantime: the jobs are those of its heir then.
                [ "$(cat "$owner")" = "$seen" ] && [ "${mark%% *}" = "$token" ] && is_here "$job_script" &&
                    timeout "$answer" scancel "$id"
            done
            return
        fi
        [ "$tries" -eq 0 ] || sleep "$pause"
    done
}
owner=$1
read -r _
seen=$(cat "$owner")
if [ -e "$2" ]; then
    (
        sleep "$6"
        [ -e "$2" ] || exit 0
        cancel PENDING,RUNNING,SUSPENDED "$4" "$7" "$7" 2
    ) &
    exit
fi
sleep "$3"
[ "$(cat "$owner")" = "$seen" ] && [ ! -e "$2" ] || exit 0
cancel PENDING "$4" 30 "$5" 10
"""


class Watchman:
    """Waits for the death of this process."""

    def __init__(self, folder: Path, token: str) -> None:
        mine = (str(folder / layout.OWNER), str(folder / layout.STOP), f"{RESUMED_WITHIN_S:g}", token)
        words = (*mine, f"{ANSWER_S:g}", f"{AFTER_END_S:g}", f"{LAST_ANSWER_S:g}")
        self._process = subprocess.Popen(
            ["sh", "-c", _SCRIPT, "llmbench-watchman", *words], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL, env=clean_environment(), cwd="/", start_new_session=True,
        )  # fmt: skip

    def dismiss(self) -> None:
        """End it, once the end in order is on disk. Safe to call twice."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(1.0)

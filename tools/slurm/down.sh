#!/usr/bin/env bash
# Stop the Slurm that up.sh started, and undo what it did to the machine.
#
#   tools/slurm/down.sh            keep the state (accounting, logs) for the next up.sh
#   WIPE=1 tools/slurm/down.sh     remove it as well
#
# LLMBENCH_SLURM is the base folder, as for up.sh. Harmless where nothing runs.
set -euo pipefail
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$HERE/lib.sh"

# A job's processes can outlive its entry in squeue: wait for all that is ours and no daemon
# (slurmscriptd is slurmctld's child).
job_pids() {
  local pid comm
  for pid in $(marked_pids); do
    read -r comm 2>/dev/null <"/proc/$pid/comm" || continue
    [[ $comm =~ ^(munged|mariadbd|slurmdbd|slurmctld|slurmscriptd|slurmd)$ ]] || printf '%s\n' "$pid"
  done
}

# Completing jobs do not count: those of a node whose slurmd has died stay that way.
jobs_ended() { [[ -z $(squeue -h -t PD,R,S,CF -o %A 2>/dev/null) ]] && none job_pids; }

# While Slurm still works, so that jobs are ended, written to accounting and told to their
# clients. Stopping slurmctld under a job, or right after it, leaves its srun and slurmstepd
# behind.
end_jobs() {
  local jobs
  daemon_pid slurmctld >/dev/null || return 0
  mapfile -t jobs < <(timeout 10 squeue -h -o %A 2>/dev/null | sort -un)
  if ((${#jobs[@]})); then
    say "cancelling ${#jobs[@]} job(s)"
    timeout 10 scancel "${jobs[@]}" 2>/dev/null || true
  fi
  # Those that ignore SIGTERM have KillWait, 5 s.
  wait_for 12 jobs_ended || say "some jobs did not end in 12 s"
}

stop_all() {
  local file name running=()
  # slurmctld first: it would note the loss of every node as a fault.
  stop_daemon slurmctld
  for file in "$RUN"/slurmd-*.pid; do
    [[ -e $file ]] || continue
    name=${file##*/}
    stop_daemon "${name%.pid}" &
    running+=($!)
  done
  ((${#running[@]} == 0)) || wait "${running[@]}"
  stop_daemon slurmdbd
  stop_daemon mariadbd
  stop_daemon munged
}

restore_machine() {
  if [[ -L $SYSTEM_CONF && $(readlink "$SYSTEM_CONF") == "$CONF" ]]; then
    rm -f "$SYSTEM_CONF"
  fi
  if grep -q "$HOSTS_TAG\$" /etc/hosts; then edit_hosts ''; fi
}

main() {
  require_root
  check_base
  if [[ ! -d $BASE ]]; then
    end_all orphan_pids
    restore_machine
    say "nothing at $BASE"
    return
  fi
  lock
  if [[ -e $HOSTS ]] && ! none marked_pids; then
    end_jobs
    stop_all
    # A step that no slurmd could end, a daemon that has lost its pid file.
    end_all marked_pids
    say "down"
  else
    say "already down"
  fi
  end_all orphan_pids
  restore_machine
  if [[ ${WIPE:-0} == 1 ]]; then
    rm -rf -- "$BASE"
    say "removed $BASE"
  fi
}

main "$@"

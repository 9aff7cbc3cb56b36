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

jobs_gone() { [[ -z $(squeue -h -o %A 2>/dev/null) ]]; }

# A job's processes can outlive its entry in squeue: wait for all that is ours and no daemon.
job_pids() {
  local pid comm
  for pid in $(marked_pids); do
    read -r comm 2>/dev/null <"/proc/$pid/comm" || continue
    [[ $comm =~ ^(munged|mariadbd|slurmdbd|slurmctld|slurmd)$ ]] || printf '%s\n' "$pid"
  done
}
no_job_pids() { [[ -z $(job_pids) ]]; }

# While Slurm still works, so that jobs are ended, written to accounting and told to their
# clients: stopping slurmctld under a job leaves its srun and slurmstepd behind.
cancel_jobs() {
  local jobs
  daemon_pid slurmctld >/dev/null || return 0
  # -t all lists finished jobs too (for MinJobAge); the default lists what is not finished.
  mapfile -t jobs < <(timeout 10 squeue -h -o %A 2>/dev/null | sort -un)
  ((${#jobs[@]})) || return 0
  say "cancelling ${#jobs[@]} job(s)"
  timeout 10 scancel "${jobs[@]}" 2>/dev/null || true
  # KillWait is 5 s for those that ignore SIGTERM.
  wait_for 15 jobs_gone || say "some jobs did not end in 15 s"
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

# Whatever still carries our mark: a step that no slurmd could end, a daemon that has lost
# its pid file.
sweep() {
  local pids
  mapfile -t pids < <(marked_pids)
  ((${#pids[@]})) || return 0
  say "ending ${#pids[@]} left-over process(es)"
  kill "${pids[@]}" 2>/dev/null || true
  wait_for 5 none_marked && return 0
  mapfile -t pids < <(marked_pids)
  kill -KILL "${pids[@]}" 2>/dev/null || true
  wait_for 5 none_marked || die 1 "cannot end: $(marked_pids | xargs)"
}
none_marked() { [[ -z $(marked_pids) ]]; }

restore_machine() {
  local hosts
  if [[ -L $SYSTEM_CONF && $(readlink "$SYSTEM_CONF") == "$CONF" ]]; then
    rm -f "$SYSTEM_CONF"
  fi
  if grep -qF "$HOSTS_TAG" /etc/hosts; then
    hosts=$(hosts_without_our_line)
    printf '%s\n' "$hosts" >/etc/hosts
  fi
}

main() {
  require_root
  check_base
  if [[ ! -d $BASE ]]; then
    restore_machine
    say "nothing at $BASE"
    return
  fi
  lock
  if [[ -e $HOSTS ]] && ! none_marked; then
    cancel_jobs
    wait_for 10 no_job_pids || true
    stop_all
    sweep
    say "down"
  else
    say "already down"
  fi
  restore_machine
  if [[ ${WIPE:-0} == 1 ]]; then
    rm -rf -- "$BASE"
    say "removed $BASE"
  fi
}

main "$@"

# shellcheck shell=bash
# What up.sh and down.sh share. Sourced, not run.

# Everything lives under BASE, and everything that is started carries a mark (see marked),
# so that no other Slurm on the machine is ever mistaken for ours.
BASE=$(realpath -m -- "${LLMBENCH_SLURM:-/tmp/llmbench-slurm}")
ETC=$BASE/etc RUN=$BASE/run LOG=$BASE/log
CONF=$ETC/slurm.conf
HOSTS=$ETC/hosts
SYSTEM_CONF=/etc/slurm/slurm.conf
HOSTS_TAG="# llmbench-slurm $BASE"

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# Inside a job of some cluster, its SLURM_* variables would steer our own client calls.
for variable in "${!SLURM_@}" "${!SBATCH_@}" "${!SQUEUE_@}" "${!SINFO_@}"; do
  unset "$variable"
done
export SLURM_CONF=$CONF

say() { printf '%s\n' "slurm: $*"; }
die() {
  local status=$1
  shift
  printf '%s\n' "slurm: error: $*" >&2
  exit "$status"
}

require_root() {
  [[ $EUID -eq 0 ]] || die 2 "must be run as root (namespaces, device nodes, munge)"
}

check_base() {
  # Unix socket paths end at 107 characters, and slurmd puts some below spool/.
  [[ $BASE =~ ^(/[A-Za-z0-9._-]+)+$ && ${#BASE} -le 60 ]] ||
    die 2 "LLMBENCH_SLURM=$BASE: need a path of at most 60 letters, digits and ._-/"
  # Under /tmp anyone could have made it first.
  [[ ! -e $BASE || (-d $BASE && -O $BASE) ]] || die 2 "$BASE exists and is not a directory of root's"
}

# One up.sh or down.sh at a time. The lock file lies beside BASE, since BASE may be wiped,
# and is never removed: a waiter would then hold a lock on a file that is no longer there.
lock() {
  exec 9>"$BASE.lock"
  flock -w 120 9 || die 1 "another up.sh or down.sh has held $BASE.lock for 120 s"
}

# wait_for SECONDS COMMAND...: poll until it succeeds.
wait_for() {
  local left=$(($1 * 20))
  shift
  until "$@"; do
    ((left-- > 0)) || return 1
    sleep 0.05
  done
}

# marked PID: is it a process of ours? Each is started with our hosts file bind-mounted
# over /etc/hosts, its children inherit that, and nobody else has it. Unlike a pid or a name
# this cannot be taken over by another process.
marked() { [[ /proc/$1/root/etc/hosts -ef $HOSTS ]]; }

marked_pids() {
  local dir
  for dir in /proc/[0-9]*; do
    if marked "${dir#/proc/}"; then printf '%s\n' "${dir#/proc/}"; fi
  done
}

# A daemon is named munged, mariadbd, slurmdbd, slurmctld or slurmd-<node>; what is before
# the dash is the name of its process. daemon_pid prints the pid if it is alive and ours.
daemon_pid() {
  local name=$1 pid comm arguments
  read -r pid 2>/dev/null <"$RUN/$name.pid" || [[ -n ${pid-} ]] || return 1
  read -r comm 2>/dev/null <"/proc/$pid/comm" || return 1
  [[ $comm == "${name%%-*}" ]] && marked "$pid" || return 1
  if [[ $name == *-* ]]; then
    # Not some other node's slurmd that has been given this pid.
    mapfile -d '' -t arguments 2>/dev/null <"/proc/$pid/cmdline" || return 1
    [[ " ${arguments[*]} " == *" -N ${name#*-} "* ]] || return 1
  fi
  printf '%s\n' "$pid"
}

gone() { ! kill -0 "$1" 2>/dev/null; }

# stop_daemon NAME: ask, wait until it has ended, insist.
stop_daemon() {
  local pid
  if pid=$(daemon_pid "$1"); then
    kill "$pid" 2>/dev/null || true
    if ! wait_for 15 gone "$pid"; then
      kill -KILL "$pid" 2>/dev/null || true
      wait_for 5 gone "$pid" || true
    fi
  fi
  rm -f "$RUN/$1.pid" "$RUN/$1.fingerprint"
}

# Edit /etc/hosts in place: in a container it is a mount point, which cannot be replaced.
hosts_without_our_line() { grep -vF "$HOSTS_TAG" /etc/hosts || true; }

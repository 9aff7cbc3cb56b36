# shellcheck shell=bash
# Functions shared by up.sh and down.sh. Sourced, not run.
# shellcheck disable=SC2034  # some names are used in these only

# Everything lives under BASE, and everything that is started carries a mark (see marked),
# so that no other Slurm on the machine is ever mistaken for ours.
#: test variable LLMBENCH_SLURM: `make slurm-up`: its folder
BASE=$(realpath -m -- "${LLMBENCH_SLURM:-/tmp/llmbench-slurm}")
ETC=$BASE/etc RUN=$BASE/run LOG=$BASE/log
CONF=$ETC/slurm.conf
HOSTS=$ETC/hosts
SYSTEM_CONF=/etc/slurm/slurm.conf
HOSTS_TAG="# llmbench-slurm $BASE"
# The folder of a Slurm that bundle.sh made, instead of the machine's own; down.sh finds the one that up.sh was given.
PREFIX=${SLURM_PREFIX-$(cat "$ETC/prefix" 2>/dev/null || true)}
[[ -z $PREFIX ]] || PREFIX=$(realpath -m -- "$PREFIX")
# Libraries of PREFIX that the machine lacks.
LIBRARIES=$BASE/lib
# If the machine does not allow a node its own hostname and /etc/hosts, this is in the
# environment of everything that is started.
MARK=OF_LLMBENCH_SLURM=$BASE
ONE_HOSTNAME=$ETC/one-hostname

export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
if [[ -n $PREFIX ]]; then
  export PATH=$PREFIX/bin:$PATH LD_LIBRARY_PATH=$PREFIX/plugins:$LIBRARIES
fi
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

# One up.sh or down.sh at a time. The lock file lies next to BASE, since BASE may be wiped,
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

# Has everything that we start a hostname and an /etc/hosts of its own?
isolated() { [[ ! -e $ONE_HOSTNAME ]]; }

# marked PID: is it a process of ours? Each is started with our hosts file bind-mounted
# over /etc/hosts, its children inherit that, and no other process has it. Unlike a pid or a name
# this cannot be taken over by another process.
marked() {
  if isolated; then
    [[ /proc/$1/root/etc/hosts -ef $HOSTS ]]
  else
    grep -qzFx "$MARK" "/proc/$1/environ" 2>/dev/null
  fi
}

marked_pids() {
  local dir
  if ! isolated; then
    grep -lzFx "$MARK" /proc/[0-9]*/environ 2>/dev/null | sed 's,^/proc/\([0-9]*\)/.*,\1,' || true
    return
  fi
  for dir in /proc/[0-9]*; do
    if marked "${dir#/proc/}"; then printf '%s\n' "${dir#/proc/}"; fi
  done
}

# Processes of ours whose base folder was removed by hand under them. They would hold the
# ports, and even work with a new munged, since that makes its socket at the same path. Their
# hosts file is a deleted one, and the pid namespace rules out some container's processes.
orphan_pids() {
  local pid
  for pid in $(stat -L -c '%h %n' /proc/[0-9]*/root/etc/hosts 2>/dev/null | sed -n 's,^0 /proc/\([0-9]*\)/.*,\1,p'); do
    if [[ /proc/$pid/ns/pid -ef /proc/self/ns/pid ]] &&
      grep -qzFx "SLURM_CONF=$CONF" "/proc/$pid/environ" 2>/dev/null; then
      printf '%s\n' "$pid"
    fi
  done
}

# end_all LIST: ask all pids that the function LIST prints to end, then insist.
end_all() {
  local pids signal
  for signal in TERM KILL; do
    mapfile -t pids < <("$1")
    ((${#pids[@]})) || return 0
    say "ending ${#pids[@]} left-over process(es)"
    kill -"$signal" "${pids[@]}" 2>/dev/null || true
    wait_for 3 none "$1" && return 0
  done
  die 1 "cannot end: $("$1" | xargs)"
}
none() { [[ -z $("$1") ]]; }

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

# Not "kill -0": that still finds a process that has ended and that a slow init (PID 1 of a
# container) has not reaped for seconds. Such a one has no root folder any more.
gone() { ! marked "$1"; }

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

# edit_hosts FIRST_LINE: put it at the head of /etc/hosts, instead of the line that we put
# there before; with an empty one, only take that out. Not by renaming a new file: in a
# container /etc/hosts is a mount point. The dot keeps empty lines at the end from $().
edit_hosts() {
  local rest
  rest=$(grep -v "$HOSTS_TAG\$" /etc/hosts 2>/dev/null || true; printf .)
  { if [[ -n $1 ]]; then printf '%s %s\n' "$1" "$HOSTS_TAG"; fi; printf '%s' "${rest%.}"; } >/etc/hosts
}

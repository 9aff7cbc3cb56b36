#!/usr/bin/env bash
# Bring up a real multi-node Slurm on this one machine: munged, MariaDB, slurmdbd, slurmctld
# and one slurmd for each node, on loopback only, without systemd and without cgroups. For
# Debian 12, as root.
#
#   tools/slurm/up.sh              start what does not run; nothing to do takes 0.1 s
#   FRESH=1 tools/slurm/up.sh      wipe all state first
#   NODES=4 GPUS=2 tools/slurm/up.sh
#   GPUS=real tools/slurm/up.sh    the GPUs of this machine: n1.. have one each (partition split),
#                                  g1 has all of them (partition whole)
#   NODES=gpus GPUS=4 tools/slurm/up.sh     the same with dummy device files as GPUs
#
# Run it again at any time: it restarts dead daemons, returns nodes that are down or
# drained, and applies a changed configuration (jobs live through that).
#
#   LLMBENCH_SLURM       base folder, /tmp/llmbench-slurm
#   LLMBENCH_SLURM_PORT  first TCP port of the 2000 that are ours, 17000
#   NODES CPUS MEM GPUS  nodes n1..n<NODES>, and what each pretends to have: 8, 16, 8000 (MB), 8;
#                        with NODES=gpus, CPUs and memory are for each GPU, by default its share
#   SLURM_PREFIX         a folder that bundle.sh made, in place of installed packages
#   ACCOUNTING           0 for none: no MariaDB, no slurmdbd, no sacct; 0 with SLURM_PREFIX, else 1
#   ISOLATE              0 not to use namespaces: all nodes then have this machine's hostname.
#                        By default they are used wherever they can be
#   WAIT                 seconds to wait until every node is usable, 60; 0 to leave the nodes as they are
#
# Exit status: 0 all nodes usable; 1 something does not start; 2 cannot be run here.
set -euo pipefail
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$HERE/lib.sh"
# shellcheck source=nodes.sh
. "$HERE/nodes.sh"
# shellcheck source=prefix.sh
. "$HERE/prefix.sh"

GPUS=${GPUS:-8} NODES=${NODES:-$([[ $GPUS == real ]] && echo gpus || echo 8)} WAIT=${WAIT:-60}
ACCOUNTING=${ACCOUNTING:-$([[ -n $PREFIX ]] && echo 0 || echo 1)}
# Below the ephemeral range (32768-), where any client's socket may sit on a port, and away
# from Slurm's own 6817-6819.
PORT=${LLMBENCH_SLURM_PORT:-17000} #: test variable LLMBENCH_SLURM_PORT: `make slurm-up`: its first port
# shellcheck disable=SC2034  # fill uses them by name
DBD_PORT=$PORT CTLD_PORT=$((PORT + 1)) NODE_PORT=$((PORT + 100)) # n1 has NODE_PORT + 1
# shellcheck disable=SC2034
SRUN_PORTS=$((PORT + 1000))-$((PORT + 1999))
STARTED=$EPOCHREALTIME

step() {
  local now=${EPOCHREALTIME/./}
  local ms=$(((now - ${STARTED/./}) / 1000))
  printf 'slurm: [%3d.%02d s] %s\n' $((ms / 1000)) $((ms % 1000 / 10)) "$*"
}

# fail NAME: a daemon does not start; show why.
fail() {
  printf '%s\n' "slurm: error: $1 does not start; its logs end with" >&2
  tail -n 8 "$LOG/$1.out" "$LOG/$1.log" >&2 2>/dev/null || true
  if grep -qs 'Address already in use' "$LOG/$1.out" "$LOG/$1.log"; then
    printf '%s\n' "slurm: another process may have the port (LLMBENCH_SLURM_PORT=$PORT):" >&2
    ss -Hltnp "sport >= :$PORT and sport < :$((PORT + 1000))" >&2 || true
  fi
  exit 1
}

check_settings() {
  local name
  [[ $ACCOUNTING =~ ^[01]$ ]] || die 2 "ACCOUNTING=$ACCOUNTING: need 0 or 1"
  plan_nodes
  for name in NODES CPUS MEM GPUS PORT; do
    [[ ${!name} =~ ^[1-9][0-9]*$ ]] ||
      die 2 "$name=${!name}: need a positive number; besides, NODES may be gpus, and GPUS real"
  done
  [[ $WAIT =~ ^[0-9]+$ ]] || die 2 "WAIT=$WAIT: need a number of seconds"
  ((NODES <= 800)) || die 2 "NODES=$NODES: at most 800"
  ((PORT >= 1024 && PORT + 1999 <= 65535)) || die 2 "LLMBENCH_SLURM_PORT=$PORT: need 1024 to 63536"
  name_nodes
}

install_packages() {
  local command missing=() policy=/usr/sbin/policy-rc.d made=0 status=0
  for command in slurmctld slurmd sbatch munged munge unmunge \
    $( ((ACCOUNTING == 0)) || echo slurmdbd sacctmgr mariadbd mariadb-install-db mariadb); do
    command -v "$command" >/dev/null || missing+=("$command")
  done
  ((${#missing[@]})) || return 0
  command -v apt-get >/dev/null ||
    die 2 "missing ${missing[*]}, and there is no apt-get to install slurm-wlm slurmdbd mariadb-server munge"
  step "installing slurm-wlm slurmdbd mariadb-server munge (missing: ${missing[*]})"
  # The packages would start daemons of their own; we need none of those.
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    made=1
  fi
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq \
    --no-install-recommends slurm-wlm slurmdbd mariadb-server munge >/dev/null; } || status=$?
  ((made == 0)) || rm -f "$policy"
  ((status == 0)) || die 1 "apt-get failed (exit status $status)"
}

make_folders() {
  umask 022
  mkdir -p "$BASE"/{etc,log,run,state,spool,dev,munge,db} "${NAMES[@]/#/$BASE/spool/}"
  chmod 700 "$BASE/state" "$BASE/db"
}

# See whether this machine lets a process have a hostname and an /etc/hosts of its own.
choose_isolation() {
  [[ -e /etc/hosts ]] || : >/etc/hosts
  if [[ ${ISOLATE:-1} == 1 ]] && unshare --uts --mount sh -c \
    'hostname llmbench && mount --bind /etc/hosts /etc/hosts' 2>/dev/null; then
    rm -f "$ONE_HOSTNAME"
    CTL=ctl
  else
    [[ $LAYOUT == gpus ]] || die 2 "no namespaces here (unshare --uts --mount fails), and emulated nodes need them"
    : >"$ONE_HOSTNAME"
    CTL=$(uname -n)
    say "no namespaces: all nodes have the hostname $CTL"
  fi
}

# write FILE MODE <text: only if it differs, and in place, since running nodes have the
# hosts file mounted.
write() {
  local text old=
  text=$(cat)
  if [[ -e $1 ]]; then old=$(<"$1"); fi
  if [[ ! -e $1 || $old != "$text" ]]; then
    (umask 077 && printf '%s\n' "$text" >"$1")
    chmod "$2" "$1"
  fi
}

# fill TEMPLATE: put our values where it says @NAME@.
fill() {
  local text name
  text=$(<"$HERE/$1.in")
  for name in BASE CTL CTLD_PORT DBD_PORT SRUN_PORTS PLUGIN_DIR CPUS MEM GPUS NODE_LINES GRES_LINES SMALL_NODES MARK; do
    text=${text//@$name@/"${!name}"}
  done
  [[ ! $text =~ @[A-Z_]+@ ]] || die 1 "$HERE/$1.in: unknown name ${BASH_REMATCH[0]}"
  printf '%s\n' "$text"
}

# The environment that a shell needs to use this Slurm.
environment() {
  printf 'export SLURM_CONF=%s\n' "$CONF"
  if [[ -n $PREFIX ]]; then
    # shellcheck disable=SC2016  # for that shell
    printf 'export PATH=%s:$PATH LD_LIBRARY_PATH=%s${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}\n' \
      "$PREFIX/bin" "$PREFIX/plugins:$LIBRARIES"
  fi
}

configure() {
  # shellcheck disable=SC2034  # fill uses them by name
  local self NODE_LINES GRES_LINES SMALL_NODES PLUGIN_DIR=''
  # shellcheck disable=SC2034
  SMALL_NODES="n[1-$((NODES < 4 ? NODES : 4))]"
  # shellcheck disable=SC2034
  [[ -z $PREFIX ]] || PLUGIN_DIR="PluginDir=$PREFIX/plugins"
  describe_nodes
  {
    fill slurm.conf
    fill "$LAYOUT.conf"
    if ((ACCOUNTING)); then fill accounting.conf; fi
  } | write "$CONF" 644
  fill gres.conf | write "$ETC/gres.conf" 644
  fill cgroup.conf | write "$ETC/cgroup.conf" 644
  fill slurmdbd.conf | write "$ETC/slurmdbd.conf" 600
  fill taskprolog.sh | write "$ETC/taskprolog.sh" 755
  write "$ETC/plugstack.conf" 644 </dev/null
  write "$ETC/prefix" 644 <<<"$PREFIX"
  environment | write "$BASE/env.sh" 644

  # The /etc/hosts of the daemons and jobs: the machine's, less its lines for the names
  # that are ours (a name with two addresses would use either).
  self=$(uname -n)
  {
    printf '127.0.0.1 localhost ctl %s\n' "$self"
    printf '127.0.0.1 %s\n' "${NAMES[@]}"
    awk -v self="$self" '{ for (i = 2; i <= NF && $i !~ /^#/; i++)
      if ($i == self || $i == "localhost" || $i == "ctl" || $i ~ /^[gn][0-9]+$/) next; print }' /etc/hosts
  } | write "$HOSTS" 644

  # A daemon that was started with another fingerprint is restarted. Comments do not count.
  SLURM_FINGERPRINT=$(cat "$ETC"/{slurm,gres,cgroup}.conf | grep -v '^#' | cksum)
  DBD_FINGERPRINT=$(grep -v '^#' "$ETC/slurmdbd.conf" | cksum)
}

# Make clients work in any shell. Tools that submit jobs may strip SLURM_* from the
# environment, SLURM_CONF included (submitit does), so exporting that is not enough: the
# place where Slurm looks by itself must lead to our file. A real installation's file there
# is left alone, and the user then has to source env.sh. All else that clients need (munge
# socket, ports, plugstack.conf) is named in slurm.conf.
link_system_conf() {
  local target
  SYSTEM_WIDE=1
  if [[ -L $SYSTEM_CONF ]]; then
    target=$(readlink "$SYSTEM_CONF")
    [[ $target == "$CONF" ]] || SYSTEM_WIDE=0
  elif [[ -e $SYSTEM_CONF ]]; then
    SYSTEM_WIDE=0
  else
    mkdir -p "${SYSTEM_CONF%/*}"
    ln -s "$CONF" "$SYSTEM_CONF"
  fi
}

# srun and salloc listen on the address that the hostname resolves to (NoInAddrAny). It may
# resolve to nothing, and on Debian it is often 127.0.1.1, where the daemons would not look.
resolve_own_name() {
  local self address
  self=$(uname -n)
  if ! isolated; then
    edit_hosts "127.0.0.1 $self ${NAMES[*]}"
    return
  fi
  address=$(getent ahostsv4 "$self" | awk 'NR == 1 { print $1 }') || true
  [[ $address != 127.0.0.1 ]] || return 0
  edit_hosts "127.0.0.1 $self"
  step "made $self 127.0.0.1 in /etc/hosts (down.sh takes it out)"
}

# up_to_date NAME FINGERPRINT: does it run, with this configuration? Stops it if with another.
up_to_date() {
  local old=
  daemon_pid "$1" >/dev/null || return 1
  read -r old 2>/dev/null <"$RUN/$1.fingerprint" || true
  [[ $old != "$2" ]] || return 0
  step "configuration of $1 changed"
  stop_daemon "$1"
  return 1
}

# launch [--fork] NAME HOSTNAME FINGERPRINT COMMAND...: start a daemon (with --fork, one that
# does not go to the background by itself) in a UTS and mount namespace of its own, with that hostname and our hosts file. So the hostname is the node name in every
# job, node names resolve there, the machine's own name plays no part, and marked() can tell
# our processes. The environment is fresh, since jobs may inherit it.
launch() {
  local fork=() name host fingerprint inside=()
  if [[ $1 == --fork ]]; then
    fork=("$1")
    shift
  fi
  name=$1 host=$2 fingerprint=$3
  shift 3
  rm -f "$RUN/$name.pid"
  printf '%s\n' "$fingerprint" >"$RUN/$name.fingerprint"
  # 9 is the lock, which a daemon would hold for as long as it lives.
  (
    cd /
    # shellcheck disable=SC2016  # for the inner shell
    ! isolated || inside=(unshare --uts --mount sh -c
      'hostname "$1" && mount --bind "$2" /etc/hosts && shift 2 && exec "$@"' sh "$host" "$HOSTS")
    exec setsid "${fork[@]}" env -i PATH="$PATH" HOME=/root LANG=C.UTF-8 SLURM_CONF="$CONF" "$MARK" \
      ${PREFIX:+LD_LIBRARY_PATH="$LD_LIBRARY_PATH"} MYSQL_UNIX_PORT="$BASE/db/db.sock" "${inside[@]}" "$@"
  ) </dev/null >"$LOG/$name.out" 2>&1 9>&-
}

# wait_up NAME SECONDS COMMAND...: until the command succeeds or the daemon has died.
wait_up() {
  local name=$1 seconds=$2
  shift 2
  if ! wait_for "$seconds" up_or_dead "$name" "$@" || ! daemon_pid "$name" >/dev/null; then
    fail "$name"
  fi
}
up_or_dead() {
  local name=$1
  shift
  "$@" || { [[ -s $RUN/$name.pid ]] && ! daemon_pid "$name" >/dev/null; }
}

munge_works() {
  munge -n -S "$BASE/munge/munge.sock" 2>/dev/null | unmunge -S "$BASE/munge/munge.sock" >/dev/null 2>&1
}
start_munged() {
  up_to_date munged 1 && return
  if [[ ! -s $BASE/munge/munge.key ]]; then
    (umask 077 && head -c 128 /dev/urandom >"$BASE/munge/munge.key")
  fi
  launch munged ctl 1 munged --force --key-file="$BASE/munge/munge.key" \
    --socket="$BASE/munge/munge.sock" --pid-file="$RUN/munged.pid" \
    --seed-file="$BASE/munge/munge.seed" --log-file="$LOG/munged.log" || fail munged
  wait_up munged 10 munge_works
  step "munged up"
}

sql() { mariadb --no-defaults -uroot -S "$BASE/db/db.sock" "$@"; }
mariadbd_answers() { sql -e 'select 1' >/dev/null 2>&1; }
start_mariadbd() {
  up_to_date mariadbd 1 && return
  # Made under another name and then renamed: half a database must not pass for one.
  if [[ ! -d $BASE/db/data ]]; then
    rm -rf "$BASE/db/new"
    mariadb-install-db --no-defaults --user=root --datadir="$BASE/db/new" --skip-test-db \
      --auth-root-authentication-method=socket --auth-root-socket-user=root \
      >"$LOG/mariadbd.out" 2>&1 </dev/null || fail mariadbd
    mv "$BASE/db/new" "$BASE/db/data"
    step "database made"
  fi
  # No TCP port at all, and no effort to survive a power cut. Slurm asks for the lock timeout.
  launch --fork mariadbd ctl 1 mariadbd --no-defaults --user=root --datadir="$BASE/db/data" \
    --socket="$BASE/db/db.sock" --pid-file="$RUN/mariadbd.pid" --skip-networking \
    --skip-log-bin --innodb-buffer-pool-size=64M --innodb-lock-wait-timeout=900 \
    --innodb-flush-log-at-trx-commit=0 --innodb-flush-method=nosync --innodb-doublewrite=0
  wait_up mariadbd 30 mariadbd_answers
  sql -e 'CREATE DATABASE IF NOT EXISTS slurm_acct_db' || fail mariadbd
  step "mariadbd up"
}

slurmdbd_answers() { timeout 5 sacctmgr -nP list cluster >/dev/null 2>&1; }
start_slurmdbd() {
  up_to_date slurmdbd "$DBD_FINGERPRINT" && return
  launch slurmdbd ctl "$DBD_FINGERPRINT" slurmdbd || fail slurmdbd
  wait_up slurmdbd 30 slurmdbd_answers
  step "slurmdbd up"
}

# Jobs need an account (AccountingStorageEnforce). root, and the caller of sudo, get the
# default account "proj" and the qos "normal" and "high". All in one sacctmgr, which skips
# what exists: each call of it costs a third of a second, and so does looking. Hence the note
# of who has been added, kept next to the database.
accounts_script() {
  local user
  cat <<'END'
add cluster llmbench
add qos high Priority=100
add account proj Cluster=llmbench Description=tests Organization=tests
END
  for user in "$@"; do
    printf 'add user %s Account=proj Cluster=llmbench\n' "$user"
    printf 'modify user where name=%s cluster=llmbench set DefaultAccount=proj qos=normal,high DefaultQOS=normal\n' "$user"
  done
  printf 'quit\n'
}
add_accounts() {
  local user users=(root) note=$BASE/db/accounts assocs
  [[ -z ${SUDO_USER-} || $SUDO_USER == root ]] || users+=("$SUDO_USER")
  # Users of earlier calls stay.
  if [[ -e $note ]]; then
    mapfile -t -O "${#users[@]}" users <"$note"
    mapfile -t users < <(printf '%s\n' "${users[@]}" | sort -u)
    [[ $(<"$note") != "$(printf '%s\n' "${users[@]}")" ]] || return 0
  fi
  accounts_script "${users[@]}" | timeout 60 sacctmgr -i >"$LOG/accounts.out" 2>&1 || true
  assocs=$(timeout 10 sacctmgr -nP show assoc cluster=llmbench account=proj format=user,qos) || assocs=
  for user in "${users[@]}"; do
    if ! grep -q "^$user|.*high" <<<"$assocs"; then
      cat "$LOG/accounts.out" >&2
      die 1 "cannot give $user an account"
    fi
  done
  printf '%s\n' "${users[@]}" | sort -u >"$note"
  step "accounts made for ${users[*]}"
}

slurmctld_answers() { [[ $(timeout 5 scontrol ping 2>/dev/null) == *"is UP"* ]]; }
start_slurmctld() {
  up_to_date slurmctld "$SLURM_FINGERPRINT" && return
  # -i: rather start without a state file that a crash has left broken.
  launch slurmctld ctl "$SLURM_FINGERPRINT" slurmctld -i || fail slurmctld
  wait_up slurmctld 30 slurmctld_answers
  step "slurmctld up"
}

start_slurmds() {
  local node name file started=0
  for node in "${NAMES[@]}"; do
    name=slurmd-$node
    up_to_date "$name" "$SLURM_FINGERPRINT" && continue
    launch "$name" "$node" "$SLURM_FINGERPRINT" slurmd -N "$node" ${PREFIX:+-d "$PREFIX/bin/slurmstepd"} ||
      fail "$name"
    started=$((started + 1))
  done
  # Nodes of an earlier run with others.
  for file in "$RUN"/slurmd-*.pid; do
    name=${file##*/} name=${name%.pid} node=${name#slurmd-}
    if [[ " ${NAMES[*]} " != *" $node "* ]]; then
      stop_daemon "$name"
      step "stopped $node"
    fi
  done
  ((started == 0)) || step "started $started slurmd"
}

# All nodes usable? Returns to service those that an earlier crash has left down, or that
# an operator has drained.
nodes_usable() {
  local node state usable=0 resume=()
  while read -r node state; do
    case $state in
      idle | mixed | allocated | completing | reserved | planned | maint) usable=$((usable + 1)) ;;
      down* | drain* | fail* | error* | unknown*) resume+=("$node") ;;
    esac
  done < <(timeout 5 sinfo -h -N -o '%N %T' 2>/dev/null | sort -u)
  for node in "${resume[@]}"; do
    # Refused while slurmd has not answered yet; the next round tries again.
    if scontrol update nodename="$node" state=resume >/dev/null 2>&1; then step "resumed $node"; fi
  done
  ((usable == ${#NAMES[@]}))
}

report() {
  step "up: ${#NAMES[@]} nodes"
  sinfo
  if [[ -n $PREFIX ]]; then
    say "its commands are in $PREFIX/bin. In each shell first:"
  elif ((SYSTEM_WIDE)); then
    say "sinfo, srun, sbatch and sacct work in any shell ($SYSTEM_CONF leads here)"
  else
    say "$SYSTEM_CONF belongs to another Slurm and was left alone. In each shell first:"
  fi
  printf '. %s/env.sh\n' "$BASE"
}

main() {
  require_root
  check_base
  check_settings
  if [[ -n $PREFIX ]]; then check_prefix; else install_packages; fi
  [[ ${FRESH:-0} != 1 ]] || WIPE=1 "$HERE/down.sh"
  lock
  [[ -e $HOSTS ]] || end_all orphan_pids
  make_folders
  make_devices
  choose_isolation
  configure
  link_system_conf
  resolve_own_name
  start_munged
  if ((ACCOUNTING)); then
    start_mariadbd
    start_slurmdbd
    add_accounts
  fi
  start_slurmctld
  start_slurmds
  if ((WAIT)) && ! wait_for "$WAIT" nodes_usable; then
    sinfo -N -l >&2 || true
    die 1 "not all nodes are usable after $WAIT s; see $LOG"
  fi
  report
}

main "$@"

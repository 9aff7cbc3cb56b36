# shellcheck shell=bash
# Functions shared by the builds of all frameworks. Sourced by build.sh, not run.
# shellcheck disable=SC2034,SC2154  # a framework's framework.sh sets and uses some names

REPO=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.." && pwd)
STARTED=$SECONDS

step() { printf '%s: [%4d s] %s\n' "${FRAMEWORK-frameworks}" $((SECONDS - STARTED)) "$*"; }
die() {
  local status=$1
  shift
  printf '%s: error: %s\n' "${FRAMEWORK-frameworks}" "$*" >&2
  exit "$status"
}

# Set the paths of everything of this framework.
places() {
  INTO=$(realpath -m -- "${LLMBENCH_FRAMEWORKS:-$REPO/.frameworks}")/$FRAMEWORK
  SOURCE=$INTO/src DATA=$INTO/data SYSTEM=$INTO/system.yaml
  VENV=$(realpath -m -- "${VENV:-$(said venv_at || echo "$INTO/venv")}")
  CHECKOUT=${CHECKOUT:-$(said checkout || true)}
  [[ -z $REPOSITORY || ${#CLONES[@]} -gt 0 ]] || CLONES=("src=$PIN")
  # They stand in a YAML file, in shell scripts and in commands of make.
  [[ $INTO$VENV$REPO =~ ^[A-Za-z0-9/._+-]+$ ]] ||
    die 2 "$INTO: need a path of letters, digits and /._+- (LLMBENCH_FRAMEWORKS, --venv, and this repository's own)"
}

# A setting of the last build.
said() { cat "$INTO/$1" 2>/dev/null; }

how_to_get() { printf 'git clone %s.git' "$REPOSITORY"; }

command_to_build() {
  printf '%s/tools/frameworks/build.sh %s' "$REPO" "$FRAMEWORK"
  [[ -z $REPOSITORY ]] || printf ' --checkout %s' "${CHECKOUT:-DIR}"
  [[ $VENV == "$INTO/venv" ]] || printf ' --venv %s' "$VENV"
}

# Prints nothing where it is whole; else one line: what is missing, the command that builds it, and what that needs.
whats_missing() {
  local missing
  missing=$(first_missing)
  [[ -n $missing ]] || return 0
  printf '%s: %s; build it with: %s' "$FRAMEWORK" "$missing" "$(command_to_build)"
  [[ -z $REPOSITORY || -n $CHECKOUT ]] || printf ' (DIR: a checkout of %s that has %s: %s)' "$REPOSITORY" "$PINNED" "$(how_to_get)"
  printf '\n'
  return 1
}

first_missing() {
  if [[ ! -d $INTO ]]; then
    echo "$TITLE has no environment in $INTO"
  elif [[ ! -f $SYSTEM ]]; then
    echo "the environment of $TITLE in $INTO is not whole: its build did not end"
  elif [[ $(said digest) != "$(digest)" ]]; then
    echo "the environment of $TITLE in $INTO was built from other pins, or for another checkout of pytest-llmbench"
  elif ! all_at_pin 2>/dev/null; then
    echo "the source of $TITLE in $INTO is not $PINNED unchanged, or the checkout whose objects it borrows is gone"
  elif [[ ! -x $VENV/bin/python ]] || ! "$VENV/bin/python" -c '' 2>/dev/null; then
    echo "the interpreter $VENV/bin/python does not start"
  fi
}

# The digest of all that an environment is made from.
digest() {
  { echo "$REPO $VENV" && cat "$HERE"/*.sh && find "$HERE/$FRAMEWORK" -type f ! -name '*.pyc' -print0 | sort -z | xargs -0 cat; } |
    short_sum
}

# The digest of all that the packages are made from.
digest_of_packages() {
  { "$PYTHON" -VV && cat "$HERE/$FRAMEWORK/constraints.txt" && echo "${FIRST[*]}" && declare -f packages; } | short_sum
}

short_sum() { sha256sum | cut -c1-16; }

# One build at a time; the lock lies next to the folder, which may be removed by hand.
lock() {
  mkdir -p "$INTO"
  exec 9>"$INTO.lock"
  flock -n 9 || die 1 "another build of $FRAMEWORK is under way: it holds $INTO.lock"
}

check_tools() {
  local program candidate
  for program in git "${PROGRAMS[@]}"; do
    command -v "$program" >/dev/null || die 2 "there is no $program: on Debian, apt-get install git g++ make"
  done
  for candidate in ${PYTHON:-python3.11 python3}; do
    if "$candidate" -c 'import sys, venv, ensurepip; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null; then
      PYTHON=$candidate
      check_headers
      return
    fi
  done
  die 2 "${PYTHON:-python3.11 or python3} is no Python 3.11 with venv, for which the versions are pinned:" \
    "give --python, or on Debian 12 apt-get install python3-venv"
}

check_headers() {
  ((${#PROGRAMS[@]} == 0)) ||
    [[ -f $("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h ]] ||
    die 2 "$PYTHON has no Python.h, and $TITLE compiles modules: on Debian, apt-get install python3-dev"
}

check_checkout() {
  local clone advice
  [[ -n $REPOSITORY ]] || return 0
  advice="give --checkout DIR, a checkout of $REPOSITORY that has $PINNED: $(how_to_get)"
  [[ -n $CHECKOUT ]] || die 2 "no checkout is named: $advice"
  [[ -d $CHECKOUT ]] || die 2 "there is no folder $CHECKOUT: $advice"
  CHECKOUT=$(realpath -- "$CHECKOUT")
  [[ $(git -C "$CHECKOUT" rev-parse --show-toplevel) -ef $CHECKOUT ]] || die 2 "$CHECKOUT is no git checkout: $advice"
  for clone in "${CLONES[@]}"; do
    git -C "$CHECKOUT" cat-file -e "${clone#*=}^{commit}" 2>/dev/null || die 2 \
      "the checkout $CHECKOUT lacks $PINNED, the pinned version; it is at $(git -C "$CHECKOUT" describe --tags --always)." \
      "Bring it with: git -C $CHECKOUT fetch $REPOSITORY ${clone#*=}"
  done
}

all_at_pin() {
  local clone
  for clone in "${CLONES[@]}"; do
    at_pin "$INTO/${clone%%=*}" "${clone#*=}" || return 1
  done
}

# at_pin FOLDER COMMIT
at_pin() { [[ $(git -C "$1" rev-parse HEAD) == "$2" && -z $(git -C "$1" status --porcelain) ]]; }

make_source() {
  local clone
  [[ -n $REPOSITORY ]] || return 0
  printf '%s\n' "$CHECKOUT" >"$INTO/checkout"
  for clone in "${CLONES[@]}"; do
    make_clone "$INTO/${clone%%=*}" "${clone#*=}"
  done
}

# make_clone FOLDER COMMIT
make_clone() {
  local git_said
  if at_pin "$1" "$2" 2>/dev/null && grep -Fxq "$(objects_of "$CHECKOUT")" "$1/.git/objects/info/alternates"; then
    step "the source is there: $1"
    return
  fi
  step "the source: ${2:0:8} of $CHECKOUT, into $1"
  rm -rf "$1"
  git clone --quiet --shared --no-checkout "$CHECKOUT" "$1"
  git -C "$1" sparse-checkout set --no-cone "${PATHS[@]}"
  # Its output matters only if it fails: it also names files that are neither here nor wanted.
  git_said=$(git -C "$1" -c advice.detachedHead=false checkout --quiet "$2" 2>&1) ||
    die 1 "$CHECKOUT lacks files of $2; bring them with git -C $CHECKOUT checkout $2. git said: $git_said"
}

objects_of() { (cd "$1" && realpath -- "$(git rev-parse --git-common-dir)/objects"); }

# It may be made again.
check_venv() {
  [[ ! -e $VENV || -f $VENV/pyvenv.cfg ]] || die 2 "--venv $VENV is there, and is no virtual environment: name another"
}

make_venv() {
  if [[ -x $VENV/bin/python && $(said packages) == "$(digest_of_packages)" && $(said venv_at) == "$VENV" ]]; then
    step "the packages are there: $VENV"
    return
  fi
  step "the packages of $FRAMEWORK/constraints.txt, into $VENV"
  rm -f "$INTO/packages"
  printf '%s\n' "$VENV" >"$INTO/venv_at"
  "$PYTHON" -m venv --clear "$VENV"
  pip_install "${FIRST[@]}"
  packages
  digest_of_packages >"$INTO/packages"
}

# Only what is pinned.
pip_install() {
  # shellcheck disable=SC2086  # several arguments
  "$VENV/bin/python" -m pip --disable-pip-version-check install --quiet \
    -c "$HERE/$FRAMEWORK/constraints.txt" ${PIP_ARGS-} "$@" ||
    die 1 "pip could not install the packages: see above. Run it again when that is mended"
}

write_system() {
  {
    echo "# Written by tools/frameworks/build.sh: $TITLE at $PINNED, on the CPU ranks of this machine."
    echo "name: ${FRAMEWORK}_on_cpu"
    echo "cluster: local"
    echo "gpus_per_node: 0"
    echo "cpu_ranks_per_node: 2"
    echo "environments:"
    environment
  } >"$SYSTEM.new"
  digest >"$INTO/digest"
  mv "$SYSTEM.new" "$SYSTEM"
}

#!/usr/bin/env bash
# Build the environment in which a framework trains on the CPU ranks of this machine, for tests/real: a virtual
# environment with pinned packages, the framework's source at a pinned commit, and what its tiny models need.
#
#   tools/frameworks/build.sh megatron_lm --checkout ~/src/Megatron-LM
#   tools/frameworks/build.sh all --checkouts ~/src    every framework whose checkout is in ~/src
#   tools/frameworks/build.sh megatron_lm --check      say what is missing and how to get it; build nothing
#   tools/frameworks/build.sh all --check              the same of each
#
# Frameworks: megatron_lm, deepspeed_chat, metaseq, nemo, nemo_launcher, torchtitan.
#
# The checkout only has to contain the pinned commit. It is never changed: the source is a clone of its own that borrows
# the checkout's objects, so keep the checkout. Run it again at any time: what is whole is kept, and what is not is
# built. The system file is written last, so where there is one, all the rest is there.
#
#   --checkout DIR    the framework's repository; by default the one of the last build (nemo and torchtitan need none)
#   --python PYTHON   a Python 3.11, for which the versions are pinned; by default python3.11 or python3
#   --venv DIR        the virtual environment of one framework; by default it is in the framework's folder
#   LLMBENCH_FRAMEWORKS   the folder of all environments, by default .frameworks in this repository
#   PIP_ARGS          further arguments for pip, such as --extra-index-url URL of PyTorch's index for the CPU
#
# Exit status: 0 built, or whole; 1 something failed or is missing; 2 wrong arguments, or it cannot be built here.
# shellcheck disable=SC2034  # lib.sh uses what is set here
set -euo pipefail
HERE=$(cd -- "$(dirname -- "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=lib.sh
. "$HERE/lib.sh"

ALL=(megatron_lm deepspeed_chat metaseq nemo nemo_launcher torchtitan)

usage() {
  sed -n '2,/^# shellcheck/{/shellcheck/d;s/^# \{0,1\}//p}' "${BASH_SOURCE[0]}" >&2
  exit 2
}

# A process for each, as each has functions and settings of its own.
build_all() {
  local name checkout given status=0
  [[ -z $CHECKOUT && -z $VENV ]] || die 2 "--checkout and --venv are for one framework; all takes --checkouts DIR"
  [[ (-n $CHECK && -z $CHECKOUTS) || -d $CHECKOUTS ]] ||
    die 2 "all needs --checkouts DIR, the folder of the checkouts${CHECKOUTS:+: there is no $CHECKOUTS}"
  for name in "${ALL[@]}"; do
    # shellcheck source=/dev/null
    checkout=$(. "$HERE/$name/framework.sh" && basename "$REPOSITORY")
    given=(${CHECK:+--check} ${PYTHON:+--python "$PYTHON"})
    if [[ -n $checkout && -n $CHECKOUTS && -e $CHECKOUTS/$checkout ]]; then
      given+=(--checkout "$CHECKOUTS/$checkout")
    elif [[ -n $checkout && -z $CHECK ]]; then
      "${BASH_SOURCE[0]}" "$name" --check || true
      continue
    fi
    "${BASH_SOURCE[0]}" "$name" "${given[@]}" || status=1
  done
  exit $status
}

arguments() {
  FRAMEWORK=$1 CHECKOUT='' CHECKOUTS='' PYTHON='' VENV='' CHECK=''
  shift
  while (($#)); do
    case $1 in
      --check) CHECK=1 && shift && continue ;;
      --checkout | --checkouts | --python | --venv) [[ -n ${2-} ]] || die 2 "$1 needs a value" ;;
      *) die 2 "unknown argument $1: see the head of tools/frameworks/build.sh" ;;
    esac
    case $1 in
      --checkout) CHECKOUT=$2 ;;
      --checkouts) CHECKOUTS=$2 ;;
      --python) PYTHON=$2 ;;
      --venv) VENV=$2 ;;
    esac
    shift 2
  done
}

build() {
  check_checkout
  check_tools
  check_venv
  lock
  rm -f "$SYSTEM"
  make_source
  make_venv
  step "preparing what its tests need"
  prepare
  step "trying it out"
  try || die 1 "$TITLE cannot be used: see above"
  write_system
  step "built, $(du -sh "$INTO" | cut -f1): $SYSTEM. Test it with"
  printf '    LLMBENCH_FRAMEWORKS=%s .venv/bin/pytest -n0 %s\n' "$(dirname "$INTO")" "$TESTS"
}

# Read whole before it starts, so that to edit this file disturbs no build.
main() {
  [[ $# -gt 0 && $1 != -* ]] || usage
  arguments "$@"
  [[ $FRAMEWORK != all ]] || build_all
  [[ " ${ALL[*]} " == *" $FRAMEWORK "* ]] || die 2 "there is no framework $FRAMEWORK; there are all, ${ALL[*]}"
  CLONES=()
  # shellcheck source=/dev/null
  . "$HERE/$FRAMEWORK/framework.sh"
  [[ -z $CHECKOUTS ]] || die 2 "--checkouts is for all; $FRAMEWORK alone takes --checkout DIR"
  [[ -z $CHECKOUT || -n $REPOSITORY ]] || die 2 "$TITLE takes no --checkout: its source is $PINNED"
  places
  if [[ -n $CHECK ]]; then whats_missing; else build; fi
  exit
}

main "$@"

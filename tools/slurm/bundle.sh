#!/usr/bin/env bash
# Put the Slurm of Debian 12 into one folder that runs where there is no apt and no network.
#
#   tools/slurm/bundle.sh DIR      makes the folder DIR, and DIR.tar.xz of it; for Debian 12
#
# Carry the archive to a machine with glibc 2.36 or newer (Ubuntu 24.04 is one), unpack it anywhere, and there
#
#   SLURM_PREFIX=DIR GPUS=real tools/slurm/up.sh
#
#   DIR/bin        commands and daemons, slurmstepd among them
#   DIR/plugins    Slurm's plugins, and its own library
#   DIR/lib        libraries of others; up.sh takes only those that the machine lacks
#   DIR/packages   what it was made of, with versions
#
# Accounting is left out: it takes MariaDB, which is larger than all the rest.
set -euo pipefail

PACKAGES=(
  munge slurm-client slurm-wlm-basic-plugins slurmctld slurmd
  # Libraries that those load, except the C library and others that every Linux has.
  libaudit1 libbz2-1.0 libcap-ng0 libgcrypt20 libgpg-error0 libhttp-parser2.9 libhwloc15 libjson-c5 libjwt0
  liblz4-1 libmunge2 libnuma1 libpam0g libreadline8 libtinfo6 libudev1 libyaml-0-2 zlib1g
)

say() { printf '%s\n' "bundle: $*"; }
die() {
  printf '%s\n' "bundle: error: $*" >&2
  exit 2
}

main() {
  local to work package file library
  (($# == 1)) && [[ $1 != -* ]] || die "usage: tools/slurm/bundle.sh DIR"
  to=$(realpath -m -- "$1")
  [[ ! -e $to ]] || die "$to is there already: name a folder that is not"
  command -v apt-get >/dev/null || die "no apt-get here: run this on Debian 12"
  work=$(mktemp -d)
  # shellcheck disable=SC2064  # its value now
  trap "rm -rf -- '$work'" EXIT
  mkdir -p "$work/debs" "$to"/{bin,lib,plugins}
  cd "$work/debs"
  apt-get download -qq "${PACKAGES[@]}" 2>/dev/null ||
    { apt-get update -qq && apt-get download -qq "${PACKAGES[@]}"; } || die "apt-get does not get the packages"
  for package in *.deb; do dpkg-deb --extract "$package" "$work/root"; done
  for package in *.deb; do
    # shellcheck disable=SC2016  # for dpkg-deb
    dpkg-deb --show --showformat='${Package} ${Version}\n' "$package"
  done >"$to/packages"
  cd "$work/root"
  cp -a usr/bin/. usr/sbin/. "$to/bin/"
  # Some commands have "-wlm" at the end of their names, because of another package's.
  for file in "$to"/bin/*-wlm; do mv "$file" "${file%-wlm}"; done
  cp -a usr/lib/*/slurm-wlm/. "$to/plugins/"
  # There is no PMIx, and slurmd would complain of that for ever.
  rm -f "$to"/plugins/mpi_pmix*.so
  while IFS= read -r library; do
    cp -a "$library" "$to/lib/"
  done < <(find usr/lib/*-linux-gnu lib/*-linux-gnu -maxdepth 1 -name 'lib*.so.*' 2>/dev/null)
  tar -C "${to%/*}" -cJf "$to.tar.xz" "${to##*/}"
  say "$(wc -l <"$to/packages") packages, $(du -sm "$to" | cut -f1) MB in $to, $(du -k "$to.tar.xz" | cut -f1) kB in $to.tar.xz"
}

main "$@"

# shellcheck shell=bash
# Running the Slurm that bundle.sh has put into PREFIX. Sourced by up.sh, not run.

# The machine's own libraries stay what they are: jobs inherit LD_LIBRARY_PATH, and PyTorch must
# not load another libz because Slurm came with one.
link_libraries() {
  local file name known
  rm -rf -- "$LIBRARIES"
  mkdir -p "$LIBRARIES"
  known=$(ldconfig -p 2>/dev/null || true)
  for file in "$PREFIX"/lib/lib*.so.*; do
    name=${file##*/}
    [[ $known == *$'\t'"$name "* ]] || ln -s "$file" "$LIBRARIES/$name"
  done
}

check_prefix() {
  local missing
  [[ -x $PREFIX/bin/slurmd && -d $PREFIX/plugins ]] ||
    die 2 "SLURM_PREFIX=$PREFIX: nothing that tools/slurm/bundle.sh made is there; unpack its archive"
  ((ACCOUNTING == 0)) || die 2 "ACCOUNTING=1: there is no MariaDB in $PREFIX"
  link_libraries
  missing=$(ldd "$PREFIX"/bin/{slurmctld,slurmd,slurmstepd,srun,sbatch,scontrol,munged,munge} 2>&1 |
    grep -E 'not found|No such file' | sort -u) || true
  [[ -z $missing ]] || die 2 "the Slurm in $PREFIX does not run here: $missing"
}

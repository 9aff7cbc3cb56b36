# shellcheck shell=bash
# The nodes that up.sh makes, and their hardware. Sourced, not run.
# shellcheck disable=SC2034,SC2154  # some names are used, or set, in up.sh only

# The GPUs of this machine, in the order in which CUDA numbers them: a container may have only
# some of the host's.
real_gpus() { find /dev -maxdepth 1 -type c -name 'nvidia[0-9]*' | sort -V; }

# Sets LAYOUT (emulated or gpus), GPUS, CPUS and MEM to what NODES and GPUS ask for, DEVICES to
# the files of the GPUs, and NAMES to the nodes.
plan_nodes() {
  DEVICES=() NAMES=() LAYOUT=emulated
  if [[ $GPUS == real ]]; then
    [[ $NODES == gpus ]] || die 2 "NODES=$NODES: with GPUS=real there is a node for each GPU, NODES=gpus"
    mapfile -t DEVICES < <(real_gpus)
    GPUS=${#DEVICES[@]}
    ((GPUS)) || die 2 "GPUS=real: there is no /dev/nvidia0 here"
  fi
  if [[ $NODES == gpus ]]; then
    LAYOUT=gpus NODES=$GPUS
    # All nodes are this machine, and have their share of it.
    CPUS=${CPUS:-$(($(nproc) > 2 * GPUS ? $(nproc) / GPUS : 2))}
    MEM=${MEM:-$(awk -v gpus="$GPUS" '/^MemTotal:/ { print int($2 / 1024 * 0.9 / gpus) }' /proc/meminfo)}
  fi
  CPUS=${CPUS:-16} MEM=${MEM:-8000}
}

name_nodes() {
  local index
  for ((index = 1; index <= NODES; index++)); do NAMES+=("n$index"); done
  if [[ $LAYOUT == gpus ]]; then NAMES+=(g1); fi
}

# Fake GPUs are copies of /dev/null: slurmd counts character devices only.
make_devices() {
  local index
  ((${#DEVICES[@]} == 0)) || return 0
  for ((index = 0; index < GPUS; index++)); do
    DEVICES+=("$BASE/dev/nvidia$index")
    [[ -c ${DEVICES[index]} ]] || mknod "${DEVICES[index]}" c 1 3 ||
      die 2 "cannot make device nodes here (mknod refused)"
  done
}

# The lines of slurm.conf and gres.conf that differ from node to node.
describe_nodes() {
  local index name host has share lines='' gres=''
  for ((index = 1; index <= ${#NAMES[@]}; index++)); do
    name=${NAMES[index - 1]} has='' host=$CTL
    if isolated; then host=$name; fi
    if [[ $LAYOUT == gpus ]]; then
      share=1
      [[ $name != g1 ]] || share=$GPUS
      has=" CPUs=$((share * CPUS)) CoresPerSocket=$((share * CPUS)) RealMemory=$((share * MEM)) Gres=gpu:$share"
    fi
    lines+="NodeName=$name NodeHostname=$host NodeAddr=127.0.0.1 Port=$((NODE_PORT + index))$has"$'\n'
  done
  if [[ $LAYOUT == emulated ]]; then
    gres="Name=gpu Type=fake File=$BASE/dev/nvidia[0-$((GPUS - 1))] Flags=nvidia_gpu_env"
  else
    for ((index = 1; index <= GPUS; index++)); do
      gres+="NodeName=n$index Name=gpu File=${DEVICES[index - 1]} Flags=nvidia_gpu_env"$'\n'
      gres+="NodeName=g1 Name=gpu File=${DEVICES[index - 1]} Flags=nvidia_gpu_env"$'\n'
    done
  fi
  NODE_LINES=$lines GRES_LINES=$gres
}

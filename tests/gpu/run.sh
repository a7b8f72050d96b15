#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs real NCCL calls on this machine's GPUs with the plugin loaded and compares what the agent heard with CUDA events.
#   tests/gpu/run.sh [--out FOLDER] [--iterations N] [--no-build]
#   --out FOLDER     where calls, operations, the verdict and a recording go (default build/gpu)
# One GPU: two ranks share it, taken by NCCL for two nodes (NCCL_HOSTID), over loopback sockets; then only counts and
# upper bounds of durations are checked, since the ranks take turns on the GPU. More GPUs: one rank on each, durations
# within 5 %. A second pass with the recorder instead of the plugin writes a recording (tests/data/nccl-traces format).
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/../../scripts/common.sh"
cd "$root"

out=build/gpu iterations=5 build=1
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=${2:?--out wants a folder}; shift 2 ;;
    --iterations) iterations=${2:?--iterations wants a number}; shift 2 ;;
    --no-build) build=0; shift ;;
    *) echo "run.sh: unknown argument '$1'; see the head of the script" >&2; exit 2 ;;
  esac
done

gpus=$( (nvidia-smi -L 2>/dev/null || true) | grep -c '^GPU ' || true)
if [ "$gpus" -eq 0 ]; then
  echo "run.sh: no GPU here (nvidia-smi -L names none); nothing was tested" >&2
  exit 77
fi
ranks=$gpus shared=()
if [ "$gpus" -eq 1 ]; then
  ranks=2 shared=(--shared-gpu)
fi

if [ "$build" -eq 1 ]; then
  scripts/fetch-nccl.sh >/dev/null || echo "run.sh: fetch-nccl.sh failed; NCCL must be installed then" >&2
  mkdir -p build
  cmake --preset release >build/release.configure.log 2>&1 || { cat build/release.configure.log >&2; exit 1; }
  cmake --build --preset release -j "$jobs" -- --quiet
fi
bin=$root/build/release
program=$bin/tests/ncclscope-gpu-nccl
if [ ! -x "$program" ]; then
  echo "run.sh: $program was not built: NCCL or the CUDA runtime was not found (build/release.configure.log)" >&2
  exit 1
fi

mkdir -p "$out"
out=$(cd "$out" && pwd)
rm -f "$out"/*.jsonl "$out"/*.json "$out"/unique-id
work=$(mktemp -d)
agent=
cleanup() {
  [ -z "$agent" ] || kill "$agent" 2>/dev/null || true
  rm -rf "$work"
}
trap cleanup EXIT

"$bin/agent/ncclscope-agent" --socket "$work/agent.sock" --api-socket "$work/api.sock" --listen 127.0.0.1:0 \
  --ready-file "$work/ready" 2>"$out/agent.log" &
agent=$!
for _ in $(seq 100); do
  [ ! -e "$work/ready" ] || break
  kill -0 "$agent" 2>/dev/null || { cat "$out/agent.log" >&2; exit 1; }
  sleep 0.1
done

# run_ranks PREFIX: one process per rank; further environment comes from the caller
run_ranks() {
  local prefix=$1 pids=() rank device code=0
  rm -f "$out/unique-id"
  for ((rank = 0; rank < ranks; rank++)); do
    device=$((rank % gpus))
    (
      if [ "$gpus" -eq 1 ]; then
        export NCCL_HOSTID=ncclscope-node$rank NCCL_SOCKET_IFNAME=lo NCCL_IB_DISABLE=1
      fi
      [ -z "${RECORDER_FOLDER:-}" ] || export NCCLSCOPE_SIM_RECORD=$RECORDER_FOLDER/rank$rank.jsonl
      exec timeout 300 "$program" --rank "$rank" --ranks "$ranks" --device "$device" --iterations "$iterations" \
        --id-file "$out/unique-id" >"$out/$prefix-$rank.jsonl" 2>"$out/$prefix-$rank.log"
    ) &
    pids+=($!)
  done
  for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
  rm -f "$out/unique-id"
  [ "$code" -eq 0 ] || { echo "run.sh: a rank ended with $code" >&2; tail -n 5 "$out/$prefix"-*.log >&2; }
  return "$code"
}

heading "$ranks ranks on $gpus GPU(s), with the plugin"
LD_LIBRARY_PATH=$bin/plugin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
  NCCL_PROFILER_PLUGIN=libnccl-profiler-ncclscope.so NCCLSCOPE_SOCKET=$work/agent.sock run_ranks calls
sleep 2 # the last frames, and the next snapshot
"$bin/cli/ncclscope" tail --agent "$work/api.sock" --once --json --operations >"$out/operations.jsonl"
"$bin/cli/ncclscope" books --agent "$work/api.sock" >"$out/books.txt"

recorder=$bin/sim/recorder_plugin/libnccl-profiler-recorder5.so
if [ -e "$recorder" ]; then
  heading "the same with the recorder"
  mkdir -p "$out/recording"
  RECORDER_FOLDER=$out/recording LD_LIBRARY_PATH=$(dirname "$recorder")${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
    NCCL_PROFILER_PLUGIN=$(basename "$recorder") run_ranks recorded-calls
fi

heading "ncclscope probe, with the plugin"
probed=0
LD_LIBRARY_PATH=$bin/plugin${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH} \
  NCCL_PROFILER_PLUGIN=libnccl-profiler-ncclscope.so NCCLSCOPE_SOCKET=$work/agent.sock \
  timeout 300 "$bin/cli/ncclscope" probe --max-bytes 64M --iterations 5 --warmup 2 --timeout 240s --json \
  >"$out/probe.json" 2>"$out/probe.log" || probed=$?
[ "$probed" -eq 0 ] || { echo "run.sh: the probe ended with $probed" >&2; tail -n 5 "$out/probe.log" >&2; }
sleep 2
"$bin/cli/ncclscope" tail --agent "$work/api.sock" --once --json --operations >"$out/probe-operations.jsonl"

heading "verdict"
nvidia-smi --query-gpu=name,driver_version --format=csv,noheader | sort | uniq -c
python=/usr/bin/python3
[ -x "$python" ] || python=python3
failed=0
"$python" tests/gpu/check.py --calls "$out"/calls-*.jsonl --operations "$out/operations.jsonl" "${shared[@]}" \
  --json "$out/verdict.json" || failed=1
"$python" tests/gpu/check.py --probe "$out/probe.json" --calls "$out"/calls-*.jsonl \
  --operations "$out/probe-operations.jsonl" || failed=1
exit "$failed"

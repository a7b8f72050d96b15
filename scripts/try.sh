#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Shows ncclscope at work on this machine, without a GPU: builds it, starts one agent for each of two emulated nodes, runs
# an emulated training job on them with the real plugin, shows its metrics and a frame of `ncclscope top`, cleans up.
#   scripts/try.sh [--for 30s] [--fault SPEC] [--keep] [--no-install]
#   --for 30s       how long the job runs (s, m or h; default 20s)
#   --fault SPEC    what goes wrong, such as late:rank=3,ms=40 (see build/release/cli/ncclscope simulate --help)
#   --keep          leaves the agents running and says how to stop them
#   --no-install    installs no packages
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

duration=20s keep=0 install=1 faults=()
while [ $# -gt 0 ]; do
  case $1 in
    --for) duration=${2:?--for wants a duration such as 30s}; shift 2 ;;
    --fault) faults+=(--fault "${2:?--fault wants a specification such as late:rank=3,ms=40}"); shift 2 ;;
    --keep) keep=1; shift ;;
    --no-install) install=0; shift ;;
    *) echo "try.sh: unknown argument '$1'; known: --for --fault --keep --no-install" >&2; exit 2 ;;
  esac
done
if ! [[ $duration =~ ^[0-9]+[smh]?$ ]]; then
  echo "try.sh: --for wants a number with s, m or h, such as 30s, not '$duration'" >&2
  exit 2
fi

[ "$install" -eq 0 ] || scripts/install-deps.sh
heading "build"
mkdir -p build
cmake --preset release >build/release.configure.log 2>&1 || { cat build/release.configure.log; exit 1; }
cmake --build build/release -j "$jobs" --target ncclscope ncclscope-agent ncclscope_plugin ncclscope-sim-rank -- --quiet
bin=$root/build/release
cli=$bin/cli/ncclscope

work=$(mktemp -d "${TMPDIR:-/tmp}/ncclscope-try.XXXXXX")
agents=() job=
cleanup() {
  [ -z "$job" ] || kill "$job" 2>/dev/null || true
  if [ "$keep" -eq 1 ] && [ ${#agents[@]} -gt 0 ]; then
    echo
    echo "Now look at the page of each agent: ${pages[*]}"
    echo "The agents are still running. To stop them: kill ${agents[*]}; rm -r $work"
    return
  fi
  for pid in "${agents[@]}"; do kill "$pid" 2>/dev/null || true; done
  for pid in "${agents[@]}"; do wait "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

heading "one agent for each of two nodes"
sockets=() apis=() pages=()
for node in 0 1; do
  folder=$work/node$node
  mkdir -p "$folder"
  cat >"$folder/agent.toml" <<TOML
node = "node$node"
socket = "$folder/agent.sock"
api_socket = "$folder/api.sock"
listen = "127.0.0.1:0"
ready_file = "$folder/ready"
TOML
  setsid "$bin/agent/ncclscope-agent" --config "$folder/agent.toml" >"$folder/log" 2>&1 </dev/null &
  agents+=($!)
  sockets+=(--socket "$folder/agent.sock")
  apis+=(--agent "$folder/api.sock")
done
for node in 0 1; do
  folder=$work/node$node
  for _ in $(seq 100); do
    [ ! -e "$folder/ready" ] || break
    kill -0 "${agents[$node]}" 2>/dev/null || { echo "try.sh: the agent of node$node ended:" >&2; cat "$folder/log" >&2; exit 1; }
    sleep 0.1
  done
  pages+=("http://$(sed -n 's/^http=//p' "$folder/ready")/")
  echo "node$node: its page ${pages[$node]}, for Prometheus ${pages[$node]}metrics"
done

heading "a job of 2 x 4 ranks for $duration: TP2 x PP2 x DP2"
# A few cores for all ranks: within 0.1 % of their time the plugin's governor would time only slices of operations.
NCCLSCOPE_OVERHEAD_BUDGET=${NCCLSCOPE_OVERHEAD_BUDGET:-0.5} "$cli" simulate --nodes 2 --gpus 4 --layout megatron:tp=2,pp=2,dp=2 --duration "$duration" --job-id 4711 \
  --job-name try "${faults[@]}" "${sockets[@]}" &
job=$!
echo "while it runs, from another terminal:"
echo "  $cli diagnose --job 4711 ${apis[*]}"
echo "  $cli top ${apis[*]}"
sleep 5
echo "ncclscope top:"
"$cli" top "${apis[@]}" --once || true
code=0
wait "$job" || code=$?
job=
sleep 1.5 # the next snapshot

heading "what Prometheus would see"
for node in 0 1; do
  address=$(sed -n 's/^http=//p' "$work/node$node/ready")
  echo "node$node, http://$address/metrics, for example:"
  { curl -sS "http://$address/metrics" || true; } | grep -E '^ncclscope_collective_(bus_bytes|busy_seconds)_total' | head -n 2
done
heading "the loss books"
"$cli" books "${apis[@]}" || code=$?
echo
if [ "$code" -eq 0 ]; then
  echo "All went well."
  [ "$keep" -eq 1 ] || echo "Next: scripts/try.sh --keep leaves the agents running; then look at the page of each in a browser."
else
  echo "Something ended with $code; logs: $work/node*/log" >&2
  keep=1
fi
exit "$code"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long checks that are too slow for every test run: fuzzers for minutes, ten million operations past a full ring,
# all recordings three times. One JSON line per check.
#   scripts/soak.sh [--seconds N] [--json FILE]
#   --seconds N   time for each fuzzer (default 300)
#   --json FILE   also writes the lines there (default docs/measurements/soak.json)
# Needs clang-14 with libFuzzer (scripts/install-deps.sh). Findings stay in build/fuzz/findings. Ends with 1 on any.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

seconds=300 json=docs/measurements/soak.json
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds wants a number}; shift 2 ;;
    --json) json=${2:?--json wants a file}; shift 2 ;;
    *) echo "soak.sh: unknown argument '$1'; see the head of the script" >&2; exit 2 ;;
  esac
done
[[ "$seconds" =~ ^[0-9]+$ ]] || { echo "soak.sh: --seconds wants a whole number, not '$seconds'" >&2; exit 2; }

mkdir -p build
cmake --preset fuzz >build/fuzz.configure.log 2>&1 || { cat build/fuzz.configure.log >&2; exit 1; }
cmake --build --preset fuzz -j "$jobs" -- --quiet >&2

shopt -s nullglob
fuzzers=(build/fuzz/fuzz/*)
if [ ${#fuzzers[@]} -eq 0 ]; then
  echo "soak.sh: no fuzzer was built; is tests/fuzz empty?" >&2
  exit 1
fi

findings=build/fuzz/findings
mkdir -p "$findings" "$(dirname "$json")"
: >"$json.new"
code=0
for fuzzer in "${fuzzers[@]}"; do
  [ -x "$fuzzer" ] && [ -f "$fuzzer" ] || continue
  name=$(basename "$fuzzer")
  work=build/fuzz/corpus/$name       # grows; the small corpus of the repository is only read
  mkdir -p "$work"
  seeds=()
  for folder in "tests/fuzz/corpus/$name" "tests/fuzz/corpus/${name#ncclscope_}" "tests/fuzz/corpus/${name%_fuzzer}"; do
    [ -d "$folder" ] && seeds+=("$folder")
  done
  heading "fuzz $name, $seconds s" >&2
  result=0
  "$fuzzer" -max_total_time="$seconds" -print_final_stats=1 -artifact_prefix="$findings/$name-" \
    "$work" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1 || result=$?
  runs=$(sed -n 's/^stat::number_of_executed_units: *//p' "build/fuzz/$name.log")
  ok=true
  if [ "$result" -ne 0 ] || [ -z "$runs" ]; then
    ok=false code=1
    tail -n 30 "build/fuzz/$name.log" >&2
  fi
  printf '{"check":"fuzz","name":"%s","seconds":%d,"runs":%d,"seed_folders":%d,"date":"%s","ok":%s}\n' \
    "$name" "$seconds" "${runs:-0}" "${#seeds[@]}" "$(date -u +%Y-%m-%d)" "$ok" | tee -a "$json.new"
done

# The release's programs: a flood past a full ring with exact books, and every recording again and again.
cmake --preset release >build/release.configure.log 2>&1 || { cat build/release.configure.log >&2; exit 1; }
cmake --build --preset release -j "$jobs" -- --quiet >&2
# soak_check NAME COUNT COMMAND...: one JSON line; COUNT says how much was done.
soak_check() {
  local name=$1 count=$2 ok=true begin=$SECONDS
  shift 2
  heading "$name" >&2
  "$@" >"build/soak-$name.log" 2>&1 || { ok=false code=1; tail -n 30 "build/soak-$name.log" >&2; }
  printf '{"check":"%s","count":%d,"seconds":%d,"date":"%s","ok":%s}\n' \
    "$name" "$count" "$((SECONDS - begin))" "$(date -u +%Y-%m-%d)" "$ok" | tee -a "$json.new"
}
soak_check books_after_flood 10000000 env NCCLSCOPE_TEST_FLOOD=10000000 build/release/tests/plugin_survives_test \
  --gtest_filter='Survives.AFullRingByDroppingTheOldestAndCountingThem'
for round in 1 2 3; do
  soak_check "recordings_round_$round" "$(find tests/data/nccl-traces -mindepth 1 -maxdepth 1 -type d | wc -l)" \
    build/release/cli/ncclscope verify-trace tests/data/nccl-traces/*/
done
printf '{"check":"machine","commit":"%s","machine":"%s x %s","kernel":"%s"}\n' "$(git rev-parse --short HEAD)" \
  "$(nproc)" "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)" "$(uname -r)" | tee -a "$json.new"
mv "$json.new" "$json"
exit "$code"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The long checks that are too slow for every test run: fuzzers for minutes, ten million operations past a full ring,
# a day of cluster life on the injected clock, three thousand jobs to diagnose and some through real agents, the container
# images compiled from scratch, rules and alerts by a current Prometheus, all recordings three times. One JSON line per check.
#   scripts/soak.sh [--seconds N] [--json FILE] [--only REGEX]
#   --seconds N   time for each fuzzer (default 300)
#   --only REGEX  only checks whose name matches (the fuzzers are called fuzzers); FILE keeps its lines of all others
#   --json FILE   also writes the lines there (default docs/measurements/soak.json)
# Needs clang-14 with libFuzzer (scripts/install-deps.sh). Findings stay in build/fuzz/findings. Ends with 1 on any.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

seconds=300 json=docs/measurements/soak.json only=''
while [ $# -gt 0 ]; do
  case $1 in
    --seconds) seconds=${2:?--seconds wants a number}; shift 2 ;;
    --json) json=${2:?--json wants a file}; shift 2 ;;
    --only) only=${2:?--only wants a regular expression}; shift 2 ;;
    *) echo "soak.sh: unknown argument '$1'; see the head of the script" >&2; exit 2 ;;
  esac
done
[[ "$seconds" =~ ^[0-9]+$ ]] || { echo "soak.sh: --seconds wants a whole number, not '$seconds'" >&2; exit 2; }

least_executions=10000000   # of all fuzzers together

mkdir -p build "$(dirname "$json")"
wanted() { [[ -z "$only" || "$1" =~ $only ]]; }
presets=(release)
! wanted fuzzers || presets+=(fuzz)
for preset in "${presets[@]}"; do
  cmake --preset "$preset" >"build/$preset.configure.log" 2>&1 || { cat "build/$preset.configure.log" >&2; exit 1; }
  cmake --build --preset "$preset" -j "$jobs" -- --quiet >&2
done

code=0
commit=$(git rev-parse --short HEAD)
: >"$json.new"
if [ -z "$only" ]; then
  printf '{"check":"machine","commit":"%s","machine":"%s x %s","kernel":"%s","date":"%s"}\n' \
    "$commit" "$(nproc)" "$(sed -n 's/^model name[^:]*: *//p' /proc/cpuinfo | head -1)" "$(uname -r)" \
    "$(date -u +%Y-%m-%dT%H:%M:%SZ)" | tee "$json.new"
fi

if wanted fuzzers; then
  heading "fuzzers, $seconds s each" >&2
  scripts/fuzz.py --seconds "$seconds" --json build/fuzz.json >&2 || code=1
  tee -a "$json.new" <build/fuzz.json
  executions=$(sed -n 's/.*"executions": \([0-9]*\).*/\1/p' build/fuzz.json | awk '{ sum += $1 } END { print sum + 0 }')
  enough=true
  [ "$executions" -ge "$least_executions" ] || { enough=false code=1; }
  printf '{"check":"fuzz_executions","count":%d,"at_least":%d,"ok":%s}\n' "$executions" "$least_executions" "$enough" |
    tee -a "$json.new"
fi

# soak_check NAME COUNT COMMAND...: one JSON line; COUNT says how much was done.
soak_check() {
  local name=$1 count=$2 ok=true begin=$SECONDS
  wanted "$name" || return 0
  shift 2
  heading "$name" >&2
  "$@" >"build/soak-$name.log" 2>&1 || { ok=false code=1; tail -n 30 "build/soak-$name.log" >&2; }
  printf '{"check":"%s","commit":"%s","count":%d,"seconds":%d,"date":"%s","ok":%s}\n' \
    "$name" "$commit" "$count" "$((SECONDS - begin))" "$(date -u +%Y-%m-%d)" "$ok" | tee -a "$json.new"
}
flood=10000000
soak_check ring_after_flood "$flood" env NCCLSCOPE_TEST_FLOOD=$flood build/release/tests/plugin_survives_test \
  --gtest_filter='Survives.AFullRingByDroppingTheOldestAndCountingThem'
soak_check books_after_flood "$flood" env NCCLSCOPE_TEST_FLOOD=$flood \
  /usr/bin/python3 tests/e2e/pipeline/pipeline.py --build build/release flood
soak_check node_day 10000 build/release/tests/agent_churn_test --hours 24 --jobs 10000 --alive 100 --communicators 64
soak_check diagnosis 3000 build/release/tools/diagnosis_bench --faulty 1000 --healthy 1000 --hangs 1000 \
  --most-ranks 4096 --threads "$(nproc)" --json build/diagnosis.json
! wanted diagnosis || [ ! -f build/diagnosis.json ] || tee -a "$json.new" <build/diagnosis.json
soak_check diagnosis_through_agents 160 /usr/bin/python3 tests/bench/diagnosis/through_agents.py --build build/release \
  --faulty 60 --healthy 40 --hangs 60 --most-ranks 64 --json build/through_agents.json
! wanted diagnosis_through_agents || [ ! -f build/through_agents.json ] || tee -a "$json.new" <build/through_agents.json
soak_check bandwidth_drop 1000 /usr/bin/python3 tests/bench/bandwidth_drop.py --days 1000 --seed 2
soak_check bandwidth_drop_operations 1000 /usr/bin/python3 tests/bench/bandwidth_drop.py --days 1000 --operations 60 --seed 3
soak_check bandwidth_drop_kinds 1000 /usr/bin/python3 tests/bench/bandwidth_drop.py --days 1000 --drops 500 --kinds 2 --seed 4
! wanted images_compiled || { scripts/fetch-helm.sh >&2 && scripts/fetch-debian.sh >&2; }
soak_check images_compiled 2 /usr/bin/python3 tests/e2e/containers/images.py --build build/release --compile
for kind in lines sizes communicators; do
  for threads in 2 8; do
    name=report_memory_${kind}_$threads
    soak_check "$name" 1 /usr/bin/python3 tests/bench/report/report_memory.py --build build/release --kind "$kind" --threads "$threads" \
      --json "build/$name.json"
    ! wanted "$name" || [ ! -f "build/$name.json" ] || tee -a "$json.new" <"build/$name.json"
  done
done
# CI has Debian's Prometheus 2.42; in Prometheus 3 a range leaves out the sample at its beginning.
if wanted current_prometheus; then
  current=$(scripts/fetch-prometheus.sh)
  soak_check current_prometheus_rules "$(find deploy/prometheus/tests -name '*.test.yml' | wc -l)" \
    env PATH="$current:$PATH" /usr/bin/python3 -B deploy/prometheus/tests/write.py --run
  for scenario in slow hangs inhibitions; do
    soak_check "current_prometheus_alerts_$scenario" 1 \
      env PATH="$current:$PATH" /usr/bin/python3 tests/e2e/alerts/alerts.py --build build/release "$scenario"
  done
fi
for round in 1 2 3; do
  soak_check "recordings_round_$round" "$(find tests/data/nccl-traces -mindepth 1 -maxdepth 1 -type d | wc -l)" \
    build/release/cli/ncclscope verify-trace tests/data/nccl-traces/*/
done
if [ -n "$only" ] && [ -f "$json" ]; then
  # A line takes the place of the older one of its check (of its fuzzer), or comes last.
  awk 'function key(line) { match(line, /"check": ?"[^"]*"(, "name": "[^"]*")?/); return substr(line, RSTART, RLENGTH) }
       NR == FNR { newest[key($0)] = $0; order[++count] = key($0); next }
       { k = key($0); if (k in newest) { print newest[k]; delete newest[k] } else print }
       END { for (i = 1; i <= count; i++) if (order[i] in newest) print newest[order[i]] }' "$json.new" "$json" >"$json.merged"
  mv "$json.merged" "$json.new"
fi
mv "$json.new" "$json"
exit "$code"

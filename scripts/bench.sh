#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Measures the bars: builds the release, runs every benchmark, prints one JSON line per bar.
#   scripts/bench.sh [--json FILE] [--filter REGEX] [--no-build]
#   --json FILE      also writes the lines to FILE
#   --filter REGEX   only benchmark programs whose name matches
# Which figure belongs to which bar stands in scripts/bench_bars.py. Ends with 1 if a bar is missed or not measured.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root"

json='' filter='' build=1
while [ $# -gt 0 ]; do
  case $1 in
    --json) json=${2:?--json wants a file}; shift 2 ;;
    --filter) filter=${2:?--filter wants a regular expression}; shift 2 ;;
    --no-build) build=0; shift ;;
    *) echo "bench.sh: unknown argument '$1'; see the head of the script" >&2; exit 2 ;;
  esac
done

mkdir -p build
if [ "$build" -eq 1 ]; then
  cmake --preset release >build/release.configure.log 2>&1 || { cat build/release.configure.log >&2; exit 1; }
  cmake --build --preset release -j "$jobs" -- --quiet >&2
fi

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
shopt -s nullglob
programs=(build/release/bench/*)
if [ ${#programs[@]} -eq 0 ]; then
  echo "bench.sh: no benchmark in build/release/bench; is NCCLSCOPE_BUILD_BENCHMARKS off?" >&2
  exit 1
fi
code=0
for program in "${programs[@]}"; do
  name=$(basename "$program")
  [ -x "$program" ] && [ -f "$program" ] || continue
  [[ -z "$filter" || "$name" =~ $filter ]] || continue
  echo "bench.sh: $name" >&2
  # A benchmark that counts wrongly says so with SkipWithError; bench_bars.py turns that into a missed bar.
  if ! "$program" --benchmark_out="$results/$name.json" --benchmark_out_format=json >&2; then
    echo "bench.sh: $name failed" >&2
    code=1
  fi
done
if [[ -z "$filter" || agent_load =~ $filter ]]; then
  echo "bench.sh: agent_load" >&2
  /usr/bin/python3 tests/bench/agent_load.py --build build/release --out "$results/agent_load.json" || code=1
fi
if [[ -z "$filter" || report_bench =~ $filter ]]; then
  echo "bench.sh: report_bench" >&2
  scripts/fetch-duckdb.sh >&2 || code=1
  scripts/fetch-echarts.sh >&2 || code=1
  /usr/bin/python3 tests/bench/report/report_bench.py --build build/release --out "$results/report_bench.json" >&2 || code=1
fi
if [[ -z "$filter" || health_bars =~ $filter ]]; then
  echo "bench.sh: health_bars" >&2
  /usr/bin/python3 tests/bench/health_bars.py --build build/release --out "$results/health_bars.json" || code=1
fi
if [[ -z "$filter" || rules_cost =~ $filter ]]; then
  echo "bench.sh: rules_cost" >&2
  if current=$(scripts/fetch-prometheus.sh); then
    /usr/bin/python3 tests/bench/rules_cost.py --prometheus "$current/prometheus" --out "$results/rules_cost.json" >&2 || code=1
  else
    code=1
  fi
fi
if [ -n "$json" ]; then
  /usr/bin/python3 scripts/bench_bars.py ${filter:+--partial} "$results" | tee "$json" || code=1
else
  /usr/bin/python3 scripts/bench_bars.py ${filter:+--partial} "$results" || code=1
fi
exit "$code"

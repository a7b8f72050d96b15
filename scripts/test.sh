#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The project's tests: builds, runs every ctest, then sanitizers, fuzzers for seconds, format and lint. Ends with "N passed,
# N failed".
#   scripts/test.sh [--fast]     --fast leaves out sanitizers and clang-tidy (use it while working)
# Environment: NCCLSCOPE_JOBS (default: all cores). Build folders: build/release, build/asan, build/tsan.
set -uo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"
cd "$root" || exit 1

fast=0
for argument in "$@"; do
  case $argument in
    --fast) fast=1 ;;
    *) echo "test.sh: unknown argument '$argument'; the only option is --fast" >&2; exit 2 ;;
  esac
done

passed=0 failed=0 skipped=0
failures=()

# check NAME COMMAND...: one check that passes or fails as a whole
check() {
  local name=$1 begin=$SECONDS
  shift
  heading "$name"
  if "$@"; then
    passed=$((passed + 1))
  else
    failed=$((failed + 1))
    failures+=("$name")
  fi
  echo "-- $name: $((SECONDS - begin)) s"
}

configure_and_build() {
  cmake --preset "$1" >"build/$1.configure.log" 2>&1 || { cat "build/$1.configure.log"; return 1; }
  grep -E 'ncclscope|Warning' "build/$1.configure.log"
  cmake --build --preset "$1" -j "$jobs" -- --quiet
}

# run_ctest PRESET [CTEST ARGUMENT...]: adds the counts of one ctest run
run_ctest() {
  local preset=$1 report=$root/build/$1/ctest.xml begin=$SECONDS
  shift
  heading "tests ($preset${*:+ $*})"
  rm -f "$report"
  ctest --preset "$preset" -j "$jobs" --output-junit "$report" "$@"
  local code=$? counts
  if ! counts=$(/usr/bin/python3 scripts/ctest_counts.py "$report"); then
    failed=$((failed + 1))
    failures+=("tests ($preset): no report")
  else
    local p f s names
    IFS=$'\t' read -r p f s names <<<"$counts"
    passed=$((passed + p)) failed=$((failed + f)) skipped=$((skipped + s))
    [ "$f" -eq 0 ] || failures+=("tests ($preset): $names")
    if [ "$code" -ne 0 ] && [ "$f" -eq 0 ]; then
      failed=$((failed + 1))
      failures+=("tests ($preset): ctest ended with $code")
    fi
  fi
  echo "-- tests ($preset): $((SECONDS - begin)) s"
}

mkdir -p build
if [ "$fast" -eq 0 ]; then
  heading "NCCL and CUDA headers for the GPU test"
  scripts/fetch-nccl.sh || echo "fetch-nccl.sh failed: tests/gpu is compiled only if NCCL is found elsewhere"
fi
heading "Grafana's SDK and panels for the dashboards"
scripts/fetch-grafana.sh || echo "fetch-grafana.sh failed: whether dashboards are as generated, and how they look, is not checked"
heading "helm and Kubernetes' types for the chart"
scripts/fetch-helm.sh || echo "fetch-helm.sh failed: the chart and the container images' files are not checked"
heading "Apache ECharts for the report's pictures"
scripts/fetch-echarts.sh || echo "fetch-echarts.sh failed: the report's pictures are not checked"
heading "a Debian for the container images"
scripts/fetch-debian.sh || echo "fetch-debian.sh failed: container images are not built"
heading "DuckDB for the report, and pandas to compare it with"
scripts/fetch-duckdb.sh || echo "fetch-duckdb.sh failed: ncclscope report is not tested (with CI=true its tests fail)"
scripts/fetch-pandas.sh || echo "fetch-pandas.sh failed: ncclscope report is not tested (with CI=true its tests fail)"
check "build (release)" configure_and_build release
built=$((failed == 0))
if [ "$built" -gt 0 ]; then
  run_ctest release -LE e2e
  run_ctest release -L e2e -LE real_time
  # What is measured there is dozens of emulated ranks in real time on a few cores: one that gets no core for long is late,
  # rightly so. A second try is allowed to these only, and is seen in the output.
  run_ctest release -L real_time --repeat until-pass:2
fi
check "format" scripts/format.sh --check
if [ "$fast" -eq 0 ] && [ "$built" -eq 1 ]; then
  for preset in asan tsan; do
    before=$failed
    check "build ($preset)" configure_and_build "$preset"
    [ "$failed" -gt "$before" ] || run_ctest "$preset"
  done
  before=$failed
  check "build (fuzz)" configure_and_build fuzz
  [ "$failed" -gt "$before" ] || check "fuzzers, 5 s each" scripts/fuzz.py --seconds 5
  check "clang-tidy" /usr/bin/python3 scripts/tidy.py --build build/release --jobs "$jobs"
fi

heading "summary"
command -v ccache >/dev/null && ccache -s | grep -E 'Hits|Misses' | head -2
for failure in "${failures[@]}"; do echo "FAILED: $failure"; done
echo "took $((SECONDS - started)) s"
if [ "$skipped" -gt 0 ]; then
  echo "$passed passed, $failed failed, $skipped skipped"
else
  echo "$passed passed, $failed failed"
fi
[ "$failed" -eq 0 ]

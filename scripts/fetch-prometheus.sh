#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds a current Prometheus and promtool, once (4 minutes on 2 cores), beside the older ones that Debian has: sites run both, and
# ranges, label matchers and the cost of rules differ. The folder that holds them is printed; put it in front of PATH.
#   scripts/fetch-prometheus.sh
# Needs Go (as recent as Prometheus asks for, which go says if not) and its module proxy. Without service discovery: static targets
# are all that tests scrape.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=3.16.0
module=v0.316.0   # what Go calls it
target=$cache/prometheus-$version
if [ -e "$target/complete" ]; then
  echo "$target"
  exit 0
fi
if ! command -v go >/dev/null; then
  echo "fetch-prometheus.sh: no Go here: only Debian's Prometheus is there to test with" >&2
  exit 1
fi
make_work
mkdir "$work/programs"
for program in prometheus promtool; do
  (cd "$work" && GOBIN=$work/programs nice go install -p "$jobs" -trimpath -tags remove_all_sd \
    -ldflags "-s -w -X github.com/prometheus/common/version.Version=$version" \
    "github.com/prometheus/prometheus/cmd/$program@$module") >&2
done
"$work/programs/prometheus" --version >&2
touch "$work/programs/complete"
rm -rf "$target"
mv "$work/programs" "$target"
echo "$target"

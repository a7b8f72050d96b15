#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings what the dashboards are made and tested with, once:
#   the Grafana Foundation SDK (Python, 0.3 MB): writes dashboards/grafana/*.json
#   Grafana's own panels, React, vite and TypeScript (from npm, 460 MB): draw the dashboards in a browser and check their
#   schema; versions are pinned in tests/e2e/dashboards/drawing/package-lock.json
# Their folders are printed; generate.py and the tests look there. All of it is Apache-2.0 or MIT; no Grafana server is used.
#   scripts/fetch-grafana.sh [--sdk-only]
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

sdk_version='1769699379!11.6.0'  # an epoch, and the release of Grafana it writes for
sdk=$cache/grafana-sdk-11.6.0
drawing=$root/tests/e2e/dashboards/drawing
panels=$cache/grafana-panels-$(sha256sum "$drawing/package-lock.json" | cut -c1-12)

make_work

if [ ! -e "$sdk/complete" ]; then
  /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" \
    "grafana-foundation-sdk==$sdk_version"
  /usr/bin/python3 -m zipfile -e "$work"/wheels/*.whl "$work/sdk"
  touch "$work/sdk/complete"
  rm -rf "$sdk"
  mv "$work/sdk" "$sdk"
fi
echo "$sdk"
[ "${1:-}" != --sdk-only ] || exit 0

if [ ! -e "$panels/complete" ]; then
  if ! command -v npm >/dev/null; then
    echo "fetch-grafana.sh: no npm here: dashboards are not drawn by Grafana's panels (install nodejs 20 or later, and npm)" >&2
    exit 1
  fi
  mkdir "$work/panels"
  cp "$drawing/package.json" "$drawing/package-lock.json" "$work/panels/"
  (cd "$work/panels" && npm install --legacy-peer-deps --ignore-scripts --no-audit --no-fund --loglevel=error)
  touch "$work/panels/complete"
  rm -rf "$panels"
  mv "$work/panels" "$panels"
fi
echo "$panels"

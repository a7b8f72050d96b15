#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings what the dashboards are made with, once: the Grafana Foundation SDK (Python, 0.3 MB, Apache-2.0), which writes
# dashboards/grafana/*.json. Its folder is printed; generate.py looks there.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

sdk_version='1769699379!11.6.0'  # an epoch, and the release of Grafana it writes for
sdk=$cache/grafana-sdk-11.6.0

mkdir -p "$cache"
work=$(mktemp -d "$cache/fetch.XXXXXX")
trap 'rm -rf "$work"' EXIT

if [ ! -e "$sdk/complete" ]; then
  /usr/bin/python3 -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: --dest "$work/wheels" \
    "grafana-foundation-sdk==$sdk_version"
  /usr/bin/python3 -m zipfile -e "$work"/wheels/*.whl "$work/sdk"
  touch "$work/sdk/complete"
  rm -rf "$sdk"
  mv "$work/sdk" "$sdk"
fi
echo "$sdk"

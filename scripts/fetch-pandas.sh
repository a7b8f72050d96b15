#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings pandas, pyarrow and DuckDB's Python module (wheels from PyPI, for /usr/bin/python3, 400 MB unpacked), once: the
# independent computation that tests compare `ncclscope report` with, and the other side of its benchmark. The folder is
# printed; tests put it on PYTHONPATH.
#   scripts/fetch-pandas.sh
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

packages=(pandas==2.3.3 pyarrow==22.0.0 numpy==2.2.6 duckdb==1.4.4)
target=$cache/pandas-$(printf '%s\n' "${packages[@]}" | sha256sum | cut -c1-12)
if [ -e "$target/complete" ]; then
  echo "$target"
  exit 0
fi
make_work
/usr/bin/python3 -m pip install --quiet --disable-pip-version-check --root-user-action=ignore --only-binary=:all: \
  --retries 5 --target "$work/site" "${packages[@]}"
touch "$work/site/complete"
rm -rf "$target"
mv "$work/site" "$target"
echo "$target"

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings libduckdb.so (MIT, 70 MB), which `ncclscope report` opens when it runs, from its npm package: once; its folder is
# printed, and the program looks there. Other ways: any libduckdb.so of DuckDB 1.4 or later named by NCCLSCOPE_DUCKDB, or put
# beside the program or into <prefix>/lib/ncclscope.
#   scripts/fetch-duckdb.sh
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

version=1.5.6  # also in cli/report/CMakeLists.txt
case $(uname -m) in
  x86_64) package=@duckdb/node-bindings-linux-x64@1.5.6-r.1 sum=3f4962cdd266eab2b479a5b5a4a6d063d279b2954ae814ed00385d553b747633 ;;
  aarch64) package=@duckdb/node-bindings-linux-arm64@1.5.6-r.1 sum='' ;;  # npm's own checksum only
  *) echo "fetch-duckdb.sh: no DuckDB for $(uname -m) on npm; set NCCLSCOPE_DUCKDB to a libduckdb.so of your own" >&2; exit 1 ;;
esac
target=$cache/duckdb-$version
if [ -e "$target/libduckdb.so" ]; then
  echo "$target"
  exit 0
fi
if ! command -v npm >/dev/null; then
  echo "fetch-duckdb.sh: no npm here (install nodejs 20 or later, and npm), or set NCCLSCOPE_DUCKDB to a libduckdb.so" >&2
  exit 1
fi

make_work
npm_pack "$package"
tar -xzf "$work"/*.tgz -C "$work" package/libduckdb.so package/LICENSE
if [ -n "$sum" ] && ! echo "$sum  $work/package/libduckdb.so" | sha256sum --check --quiet; then
  echo "fetch-duckdb.sh: $package is not the one that was checked (expected SHA-256 $sum)" >&2
  exit 1
fi
rm -rf "$target"
mv "$work/package" "$target"
echo "$target"

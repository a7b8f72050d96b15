#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes a small Debian 12 with mmdebstrap, once (170 MB), from where apt gets its packages: what the tests of the container images
# begin with in place of debian:12-slim, as no image registry is needed then. Its path is printed. Needs root.
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

target=$cache/debian-12.tar
if [ -e "$target" ]; then
  echo "$target"
  exit 0
fi
if ! command -v mmdebstrap >/dev/null; then
  echo "fetch-debian.sh: no mmdebstrap here (scripts/install-deps.sh brings it): images are not built" >&2
  exit 1
fi
make_work
sources=()
for file in /etc/apt/sources.list.d/debian.sources /etc/apt/sources.list; do
  if [ -s "$file" ] && [ ${#sources[@]} -eq 0 ]; then
    sources=("$file")
  fi
done
nice mmdebstrap --quiet --variant=minbase --mode=root bookworm "$work/debian.tar" "${sources[@]}"
mv "$work/debian.tar" "$target"
echo "$target"

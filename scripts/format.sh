#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Formats the tracked C++ files with clang-format 14, or only names those that are not formatted.
#   scripts/format.sh [--check] [PATH ...]     PATH: only below these (default: everything)
set -euo pipefail
cd "$(dirname "$0")/.."

check=0
if [ "${1:-}" = --check ]; then
  check=1
  shift
fi
bad=0 count=0
while IFS= read -r -d '' file; do
  [ -f "$file" ] || continue
  count=$((count + 1))
  clang-format-14 --dry-run -Werror "$file" >/dev/null 2>&1 && continue
  bad=$((bad + 1))
  echo "$file"
  [ "$check" -eq 1 ] || clang-format-14 -i "$file"
done < <(git ls-files -z -- "${@:-.}" | grep -zE '\.(h|cc)$')
if [ "$check" -eq 1 ]; then
  echo "$count files, $bad not formatted (scripts/format.sh puts it right)"
  [ "$bad" -eq 0 ]
else
  echo "$count files, $bad changed"
fi

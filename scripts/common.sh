# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it: where the repository is, how many jobs, ccache, headings with the time, and how things are
# fetched into the cache.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${NCCLSCOPE_JOBS:-$(nproc)}
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ncclscope

# Objects are found again from another clone too: paths below the clone are hashed relative to the build folder.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

started=$SECONDS
heading() { printf '\n== %s  +%ds  %s\n' "$(date -u +%H:%M:%SZ)" "$((SECONDS - started))" "$*"; }

# make_work: $work becomes an empty folder beside what is fetched, and goes at the end
make_work() {
  mkdir -p "$cache"
  work=$(mktemp -d "$cache/fetch.XXXXXX")
  trap 'rm -rf "$work"' EXIT
}

# npm_pack PACKAGE: brings its archive into $work
npm_pack() {
  local attempt
  for attempt in 1 2 3; do
    (cd "$work" && npm pack --silent "$1" >/dev/null) && return
    [ "$attempt" -eq 3 ] || sleep $((attempt * 5))
  done
  echo "$(basename "$0"): npm could not fetch $1" >&2
  return 1
}

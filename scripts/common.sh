# SPDX-License-Identifier: Apache-2.0
# Sourced by the scripts beside it: where the repository is, how many jobs, ccache, headings with the time.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${NCCLSCOPE_JOBS:-$(nproc)}
cache=${XDG_CACHE_HOME:-${HOME:-/tmp}/.cache}/ncclscope

# Objects are found again from another clone too: paths below the clone are hashed relative to the build folder.
export CCACHE_BASEDIR="$root" CCACHE_NOHASHDIR=1

started=$SECONDS
heading() { printf '\n== %s  +%ds  %s\n' "$(date -u +%H:%M:%SZ)" "$((SECONDS - started))" "$*"; }

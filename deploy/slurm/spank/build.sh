#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Builds the SPANK plugin for the SLURM of this machine: SLURM refuses one that was built for another release.
#   build.sh [-I FOLDER] [OUTPUT]     FOLDER holds slurm/spank.h (default: where the compiler looks)
#                                     OUTPUT is a file (default: ncclscope_spank.so), put there by a rename
# Needs a C++17 compiler (CXX, default c++) and SLURM's headers (libslurm-dev, slurm-devel).
set -eu
include=
if [ "${1:-}" = -I ]; then
  [ -r "$2/slurm/spank.h" ] || { echo "build.sh: there is no $2/slurm/spank.h" >&2; exit 1; }
  include=-I$2
  shift 2
fi
output=${1:-ncclscope_spank.so}
here=$(CDPATH='' cd "$(dirname "$0")" && pwd)
# Quoted where it may hold blanks; $include is left out when it is empty.
${CXX:-c++} -std=c++17 -O2 -fPIC -shared -s ${include:+"$include"} \
  -static-libstdc++ -static-libgcc -Wl,-z,relro "-Wl,--version-script,$here/exports.map" \
  -o "$output.new" "$here/ncclscope_spank.cc" "$here/choice.cc"
mv "$output.new" "$output"
echo "built $output"

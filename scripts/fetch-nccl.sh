#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Brings NCCL and the CUDA runtime (headers and libraries, from their Python wheels) for tests/gpu, where neither a
# CUDA toolkit nor NCCL is installed. About 300 MB, once; the folder is printed and cmake/FindNcclscopeNccl.cmake
# looks there. No GPU and no driver are needed to compile and link.
#   scripts/fetch-nccl.sh   NCCLSCOPE_NCCL_VERSION (default 2.28.9), NCCLSCOPE_CUDART_VERSION (12.8.90)
#   The runtime's headers include crt/*.h and nv/target, which two other wheels carry: NCCLSCOPE_NVCC_VERSION
#   (12.8.93), NCCLSCOPE_CCCL_VERSION (12.8.90)
set -euo pipefail
# shellcheck source=scripts/common.sh
. "$(dirname "$0")/common.sh"

nccl=${NCCLSCOPE_NCCL_VERSION:-2.28.9}
cudart=${NCCLSCOPE_CUDART_VERSION:-12.8.90}
nvcc=${NCCLSCOPE_NVCC_VERSION:-12.8.93}
cccl=${NCCLSCOPE_CCCL_VERSION:-12.8.90}
target=$cache/nccl-$nccl-cudart-$cudart
if [ -e "$target/complete" ]; then
  echo "$target"
  exit 0
fi

python=
for candidate in python3 /usr/bin/python3; do
  if "$candidate" -m pip --version >/dev/null 2>&1; then
    python=$candidate
    break
  fi
done
if [ -z "$python" ]; then
  echo "fetch-nccl.sh: no Python with pip; install python3-pip (scripts/install-deps.sh does)" >&2
  exit 1
fi

make_work
"$python" -m pip download --quiet --disable-pip-version-check --no-deps --only-binary=:all: \
  --dest "$work/wheels" "nvidia-nccl-cu12==$nccl" "nvidia-cuda-runtime-cu12==$cudart" \
  "nvidia-cuda-nvcc-cu12==$nvcc" "nvidia-cuda-cccl-cu12==$cccl"
for wheel in "$work"/wheels/*.whl; do
  "$python" -m zipfile -e "$wheel" "$work/site"
done
mv "$work/site/nvidia/cuda_nvcc/include/crt" "$work/site/nvidia/cuda_cccl/include/nv" "$work/site/nvidia/cuda_runtime/include/"
rm -rf "$work/wheels" "$work/site/nvidia/cuda_nvcc" "$work/site/nvidia/cuda_cccl" "$target"
touch "$work/site/complete"
mv "$work/site" "$target"
echo "$target"

# SPDX-License-Identifier: Apache-2.0
# ncclscope-gpu-nccl: real NCCL calls with CUDA-event timing. Compiled wherever NCCL and a CUDA runtime are found;
# run by tests/gpu/run.sh on a machine with a GPU, never by ctest.
if(NCCLSCOPE_SANITIZE)
  return()
endif()
find_package(NcclscopeNccl QUIET)
if(NcclscopeNccl_FOUND)
  message(STATUS "ncclscope: tests/gpu is built with NCCL ${NcclscopeNccl_VERSION} (${NCCLSCOPE_NCCL_LIBRARY})")
  ncclscope_executable(ncclscope-gpu-nccl SOURCES gpu/nccl_calls.cc LINK ncclscope::nccl)
else()
  message(STATUS "ncclscope: tests/gpu is left out: no NCCL or CUDA runtime found. "
    "Run scripts/fetch-nccl.sh, or set NCCL_HOME and CUDA_HOME.")
endif()

# Its checker needs no GPU and is tested like any other code.
ncclscope_repo_check(gpu_checker_selftest ${CMAKE_SOURCE_DIR}/tests/gpu/check.py --selftest)

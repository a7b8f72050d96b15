# SPDX-License-Identifier: Apache-2.0
# Finds NCCL and the CUDA runtime, for programs that call them (tests/gpu, probe). Neither the plugin nor the agent
# needs them. Searched, in this order:
#   NCCL_HOME, CUDA_HOME            as variables or in the environment
#   a CUDA toolkit, system folders  /usr/local/cuda, /usr
#   Python wheels                   nvidia-nccl-cu12 and nvidia-cuda-runtime-cu12 in site-packages
#   the cache of scripts/fetch-nccl.sh
# Defines NcclscopeNccl_FOUND, NcclscopeNccl_VERSION and the target ncclscope::nccl.

set(roots)
foreach(name NCCL_HOME NCCL_ROOT CUDA_HOME CUDA_PATH)
  if(DEFINED ${name})
    list(APPEND roots ${${name}})
  endif()
  if(DEFINED ENV{${name}})
    list(APPEND roots $ENV{${name}})
  endif()
endforeach()
list(APPEND roots /usr/local/cuda)

set(wheel_folders)
find_program(NCCLSCOPE_PYTHON NAMES python3)
if(NCCLSCOPE_PYTHON)
  execute_process(COMMAND ${NCCLSCOPE_PYTHON} -c
    "import site, sys; print(';'.join(site.getsitepackages() + [site.getusersitepackages()]))"
    OUTPUT_VARIABLE site_packages OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  list(APPEND wheel_folders ${site_packages})
endif()
if(DEFINED ENV{XDG_CACHE_HOME})
  set(cache $ENV{XDG_CACHE_HOME})
else()
  set(cache $ENV{HOME}/.cache)
endif()
file(GLOB fetched ${cache}/ncclscope/nccl-*)
list(SORT fetched COMPARE NATURAL ORDER DESCENDING)
list(APPEND wheel_folders ${fetched})

set(nccl_hints ${roots})
set(cuda_hints ${roots})
foreach(folder IN LISTS wheel_folders)
  list(APPEND nccl_hints ${folder}/nvidia/nccl)
  list(APPEND cuda_hints ${folder}/nvidia/cuda_runtime)
endforeach()

find_path(NCCLSCOPE_NCCL_INCLUDE nccl.h HINTS ${nccl_hints} PATH_SUFFIXES include)
find_library(NCCLSCOPE_NCCL_LIBRARY NAMES nccl libnccl.so.2 HINTS ${nccl_hints} PATH_SUFFIXES lib lib64)
find_path(NCCLSCOPE_CUDART_INCLUDE cuda_runtime_api.h HINTS ${cuda_hints} PATH_SUFFIXES include)
find_library(NCCLSCOPE_CUDART_LIBRARY NAMES cudart libcudart.so.13 libcudart.so.12 HINTS ${cuda_hints}
  PATH_SUFFIXES lib lib64)
mark_as_advanced(NCCLSCOPE_PYTHON NCCLSCOPE_NCCL_INCLUDE NCCLSCOPE_NCCL_LIBRARY NCCLSCOPE_CUDART_INCLUDE
  NCCLSCOPE_CUDART_LIBRARY)

set(NcclscopeNccl_VERSION)
if(NCCLSCOPE_NCCL_INCLUDE)
  file(STRINGS ${NCCLSCOPE_NCCL_INCLUDE}/nccl.h numbers REGEX "^#define NCCL_(MAJOR|MINOR|PATCH) +[0-9]+")
  string(REGEX REPLACE "[^0-9;]" "" numbers "${numbers}")
  string(REPLACE ";" "." NcclscopeNccl_VERSION "${numbers}")
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(NcclscopeNccl
  REQUIRED_VARS NCCLSCOPE_NCCL_LIBRARY NCCLSCOPE_NCCL_INCLUDE NCCLSCOPE_CUDART_LIBRARY NCCLSCOPE_CUDART_INCLUDE
  VERSION_VAR NcclscopeNccl_VERSION)

if(NcclscopeNccl_FOUND AND NOT TARGET ncclscope::nccl)
  add_library(ncclscope::nccl INTERFACE IMPORTED)
  target_include_directories(ncclscope::nccl SYSTEM INTERFACE
    ${NCCLSCOPE_NCCL_INCLUDE} ${NCCLSCOPE_CUDART_INCLUDE})
  target_link_libraries(ncclscope::nccl INTERFACE ${NCCLSCOPE_NCCL_LIBRARY} ${NCCLSCOPE_CUDART_LIBRARY})
endif()

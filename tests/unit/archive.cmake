# SPDX-License-Identifier: Apache-2.0
if(NOT TARGET ncclscope_archive)
  return()
endif()
ncclscope_test(archive_test
  SOURCES unit/archive/archive_test.cc
  LINK ncclscope_archive
  LABELS unit sanitize)

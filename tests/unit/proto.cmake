# SPDX-License-Identifier: Apache-2.0
ncclscope_test(proto_frame_test
  SOURCES unit/proto/frame_test.cc
  LINK ncclscope_proto
  LABELS unit sanitize)
target_compile_definitions(proto_frame_test PRIVATE
  NCCLSCOPE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data")

# SPDX-License-Identifier: Apache-2.0
# Recordings of NCCL: the replayer against a recorder, the whole chain against every recording.
add_library(ncclscope_recorder_plugin MODULE e2e/traces/recorder_plugin.cc)
target_link_libraries(ncclscope_recorder_plugin PRIVATE ncclscope_proto ncclscope_options)

ncclscope_test(ncclscope_replayer_roundtrip_test
  SOURCES e2e/traces/replayer_roundtrip_test.cc
  LINK ncclscope_traces
  LABELS e2e
  TIMEOUT 300)
target_compile_definitions(ncclscope_replayer_roundtrip_test PRIVATE
  NCCLSCOPE_REPLAY="$<TARGET_FILE:ncclscope-replay>"
  NCCLSCOPE_RECORDER_PLUGIN="$<TARGET_FILE:ncclscope_recorder_plugin>"
  NCCLSCOPE_TRACES="${CMAKE_SOURCE_DIR}/tests/data/nccl-traces")
add_dependencies(ncclscope_replayer_roundtrip_test ncclscope-replay ncclscope_recorder_plugin)

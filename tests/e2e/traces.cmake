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

# Every recording through the real plugin and a real agent.
if(TARGET ncclscope_plugin AND TARGET ncclscope-agent)
  file(GLOB NCCLSCOPE_TRACE_FOLDERS LIST_DIRECTORIES true CONFIGURE_DEPENDS
    ${CMAKE_SOURCE_DIR}/tests/data/nccl-traces/*)
  list(FILTER NCCLSCOPE_TRACE_FOLDERS EXCLUDE REGEX "README\\.md$")
  set(NCCLSCOPE_VERIFY_TRACE ncclscope-verify-trace
    --plugin $<TARGET_FILE:ncclscope_plugin> --agent $<TARGET_FILE:ncclscope-agent>
    --replayer $<TARGET_FILE:ncclscope-replay>)
  add_test(NAME ncclscope_every_recording
    COMMAND ${NCCLSCOPE_VERIFY_TRACE} --check-limits ${NCCLSCOPE_TRACE_FOLDERS})
  set_tests_properties(ncclscope_every_recording PROPERTIES LABELS e2e TIMEOUT 600)

  # The comparison can fail: each interface, graphs of masks, Send/Recv, copy engines, stale and unfinished operations.
  set(NCCLSCOPE_SELFTEST_FOLDERS
    allreduce2-net-full-v5 allreduce2-net-full-v3 allreduce2-net-full-v1 alltoall3-shm-small-v5
    sendrecv3-net-full-v5 abort2-net-small-v5 group2-net-full-v2 split4-shm-full-v4
    ce2-p2p-nccl2.30-full-v6 selfinplace2-shm-full-v5 group2-net-nccl2.30-null-v6)
  list(TRANSFORM NCCLSCOPE_SELFTEST_FOLDERS PREPEND ${CMAKE_SOURCE_DIR}/tests/data/nccl-traces/)
  add_test(NAME ncclscope_recordings_selftest
    COMMAND ${NCCLSCOPE_VERIFY_TRACE} --selftest ${NCCLSCOPE_SELFTEST_FOLDERS})
  set_tests_properties(ncclscope_recordings_selftest PROPERTIES LABELS e2e TIMEOUT 600)
endif()

# The verdict on the recordings that show something: whom it names, and whom it leaves alone.
if(TARGET ncclscope_plugin AND TARGET ncclscope-agent)
  ncclscope_test(ncclscope_recordings_verdict_test
    SOURCES e2e/traces/verdict_test.cc
    LINK ncclscope_verify_trace ncclscope_cli
    LABELS e2e
    TIMEOUT 300)
  if(TARGET ncclscope_recordings_verdict_test)
    target_compile_definitions(ncclscope_recordings_verdict_test PRIVATE
      NCCLSCOPE_PLUGIN="$<TARGET_FILE:ncclscope_plugin>"
      NCCLSCOPE_AGENT="$<TARGET_FILE:ncclscope-agent>"
      NCCLSCOPE_REPLAY="$<TARGET_FILE:ncclscope-replay>"
      NCCLSCOPE_TRACES="${CMAKE_SOURCE_DIR}/tests/data/nccl-traces")
    add_dependencies(ncclscope_recordings_verdict_test ncclscope-replay ncclscope_plugin ncclscope-agent)
  endif()
endif()

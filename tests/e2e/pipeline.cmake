# SPDX-License-Identifier: Apache-2.0
# Emulated jobs through the real plugin and agents, compared with what a recorder saw of the same job.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

ncclscope_executable(ncclscope-run-job SOURCES e2e/pipeline/run_job.cc LINK ncclscope_sim)

foreach(scenario exact budget absent_at_start stopped_agent killed_agent restarted_agent flood crashed_rank signals detail
    other_users kept_connections)
  add_test(NAME pipeline_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/pipeline/pipeline.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(pipeline_${scenario} PROPERTIES LABELS e2e TIMEOUT 180 PROCESSORS 2 SKIP_RETURN_CODE 77)
endforeach()

# SPDX-License-Identifier: Apache-2.0
# Every expression of every dashboard on a live Prometheus of emulated jobs, and the dashboards drawn by Grafana's own panels.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

add_library(ncclscope_fake_cuda SHARED support/fake_cuda.cc)
target_link_libraries(ncclscope_fake_cuda PRIVATE ncclscope_options)
set_target_properties(ncclscope_fake_cuda PROPERTIES OUTPUT_NAME cuda SOVERSION 1)

add_test(NAME dashboards_have_data
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/dashboards/dashboards.py --build ${CMAKE_BINARY_DIR} have_data)
set_tests_properties(dashboards_have_data PROPERTIES LABELS e2e TIMEOUT 240 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)

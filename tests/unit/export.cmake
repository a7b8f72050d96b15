# SPDX-License-Identifier: Apache-2.0
ncclscope_test(export_test
  SOURCES unit/export/catalogue_test.cc unit/export/http_test.cc unit/export/label_text_test.cc
    unit/export/snapshot_fixture.cc unit/export/text_writer_test.cc
    unit/export/web_access_test.cc
  LINK ncclscope_agent_export ncclscope_agent_prometheus
  LABELS unit sanitize)
if(TARGET export_test)
  target_compile_definitions(export_test PRIVATE NCCLSCOPE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endif()

ncclscope_test(api_base_test
  SOURCES unit/export/access_list_test.cc unit/export/api_base_test.cc
  LINK ncclscope_agent_api_base
  LABELS unit sanitize)

ncclscope_test(api_baseline_test
  SOURCES unit/export/api_baseline_test.cc
  LINK ncclscope_api
  LABELS unit)
if(TARGET api_baseline_test)
  target_compile_definitions(api_baseline_test PRIVATE NCCLSCOPE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endif()

find_program(BUF buf)
if(BUF)
  add_test(NAME api_buf_lint COMMAND ${BUF} lint WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto)
  add_test(NAME api_buf_breaking COMMAND ${BUF} breaking --against baseline.binpb WORKING_DIRECTORY ${CMAKE_SOURCE_DIR}/proto)
  set_tests_properties(api_buf_lint api_buf_breaking PROPERTIES LABELS unit)
endif()

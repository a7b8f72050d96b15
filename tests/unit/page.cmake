# SPDX-License-Identifier: Apache-2.0
ncclscope_test(page_test
  SOURCES unit/page/bandwidth_history_test.cc unit/page/node_page_test.cc unit/export/snapshot_fixture.cc
  LINK ncclscope_agent_page nlohmann_json::nlohmann_json
  LABELS unit sanitize)
if(TARGET page_test)
  target_compile_definitions(page_test PRIVATE NCCLSCOPE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endif()

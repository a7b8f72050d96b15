# SPDX-License-Identifier: Apache-2.0
ncclscope_test(agent_core_test
  SOURCES
    unit/agent/aggregator_test.cc
    unit/agent/books_test.cc
    unit/agent/index_window_test.cc
    unit/agent/parts_test.cc
    unit/agent/quota_test.cc
    unit/agent/session_test.cc
  LINK ncclscope_agent_aggregate
  LABELS unit sanitize)

ncclscope_test(agent_series_test
  SOURCES unit/agent/series_test.cc
  LINK ncclscope_agent_aggregate ncclscope_agent_export
  LABELS unit sanitize)

ncclscope_test(agent_inspector_test
  SOURCES unit/agent/inspector_test.cc
  LINK ncclscope_agent_aggregate ncclscope_agent_export
  LABELS unit sanitize)

ncclscope_test(agent_slurm_test
  SOURCES
    unit/agent/job_refresh_test.cc
    unit/agent/job_table_test.cc
    unit/agent/squeue_test.cc
  LINK ncclscope_agent_aggregate
  LABELS unit sanitize)
target_compile_definitions(agent_slurm_test PRIVATE
  NCCLSCOPE_SQUEUE_ANSWERS="${CMAKE_SOURCE_DIR}/tests/data/squeue")

find_package(nlohmann_json CONFIG REQUIRED)
ncclscope_test(agent_identity_test
  SOURCES unit/agent/identity_fixture_test.cc unit/agent/identity_parts_test.cc
  LINK ncclscope_agent_identity nlohmann_json::nlohmann_json
  LABELS unit sanitize)
if(TARGET agent_identity_test)
  target_compile_definitions(agent_identity_test PRIVATE
    NCCLSCOPE_IDENTITY_CASES="${CMAKE_SOURCE_DIR}/tests/data/identity")
endif()

ncclscope_test(agent_hostile_test
  SOURCES unit/agent/hostile_tenant_test.cc
  LINK ncclscope_agent_aggregate ncclscope_agent_export
  LABELS unit sanitize)

ncclscope_test(agent_churn_test
  SOURCES unit/agent/churn_test.cc
  LINK ncclscope_agent_aggregate ncclscope_agent_export
  LABELS unit sanitize)
if(TARGET agent_churn_test)
  target_compile_definitions(agent_churn_test PRIVATE NCCLSCOPE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")
endif()

ncclscope_test(agent_archive_test
  SOURCES unit/agent/archive_test.cc
  LINK ncclscope_agent_archive
  LABELS unit sanitize)

ncclscope_test(agent_node_inspector_test
  SOURCES unit/agent/node_inspector_test.cc
  LINK ncclscope_agent_aggregate
  LABELS unit sanitize)
if(TARGET agent_node_inspector_test)
  target_compile_definitions(agent_node_inspector_test PRIVATE NCCLSCOPE_MACHINES="${CMAKE_BINARY_DIR}/tests/machines")
  add_dependencies(agent_node_inspector_test ncclscope_machines)
endif()

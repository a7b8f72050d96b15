# SPDX-License-Identifier: Apache-2.0
ncclscope_test(cli_program_test
  SOURCES integration/cli/cli_test.cc unit/export/snapshot_fixture.cc
  LINK ncclscope_agent_api nlohmann_json::nlohmann_json
  LABELS integration)
if(TARGET cli_program_test)
  target_compile_definitions(cli_program_test PRIVATE NCCLSCOPE_PROGRAM="$<TARGET_FILE:ncclscope>")
  add_dependencies(cli_program_test ncclscope)
endif()

ncclscope_test(access_test
  SOURCES integration/cli/access_test.cc unit/export/snapshot_fixture.cc
  LINK ncclscope_agent_api nlohmann_json::nlohmann_json
  LABELS integration)
if(TARGET access_test)
  target_compile_definitions(access_test PRIVATE NCCLSCOPE_PROGRAM="$<TARGET_FILE:ncclscope>")
  add_dependencies(access_test ncclscope)
endif()

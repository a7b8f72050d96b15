# SPDX-License-Identifier: Apache-2.0
ncclscope_test(cli_test
  SOURCES unit/cli/configuration_test.cc unit/cli/diagnose_test.cc unit/cli/job_report_test.cc unit/cli/other_sources_test.cc unit/cli/running_test.cc
    unit/cli/text_test.cc unit/cli/top_model_test.cc
  LINK ncclscope_cli
  LABELS unit sanitize)
if(TARGET cli_test)
  target_compile_definitions(cli_test PRIVATE NCCLSCOPE_TEST_DATA="${CMAKE_SOURCE_DIR}/tests/data"
    NCCLSCOPE_MACHINES="${CMAKE_BINARY_DIR}/tests/machines"
    NCCLSCOPE_MACHINE_DATA="${CMAKE_SOURCE_DIR}/tests/data/topology")
  add_dependencies(cli_test ncclscope_machines)
endif()

ncclscope_test(cli_inspector_log_test
  SOURCES unit/cli/inspector_log_test.cc
  LINK ncclscope_inspector_log ZLIB::ZLIB
  LABELS unit sanitize)

ncclscope_test(cli_archive_test
  SOURCES unit/cli/replay_frames_test.cc
  LINK ncclscope_cli_archive
  LABELS unit sanitize)

ncclscope_test(cli_scratch_test
  SOURCES unit/cli/scratch_test.cc
  LINK ncclscope_scratch
  LABELS unit sanitize)
ncclscope_test(cli_report_test
  SOURCES unit/cli/report_test.cc
  LINK ncclscope_report ncclscope_archive
  LABELS unit)
target_compile_definitions(cli_report_test PRIVATE NCCLSCOPE_SOURCE_DIR="${CMAKE_SOURCE_DIR}")

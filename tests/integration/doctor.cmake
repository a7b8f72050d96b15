# SPDX-License-Identifier: Apache-2.0
ncclscope_test(doctor_program_test
  SOURCES integration/cli/doctor_test.cc
  LINK nlohmann_json::nlohmann_json
  LABELS integration)
if(TARGET doctor_program_test)
  target_compile_definitions(doctor_program_test PRIVATE NCCLSCOPE_PROGRAM="$<TARGET_FILE:ncclscope>"
    NCCLSCOPE_MACHINES="${CMAKE_BINARY_DIR}/tests/machines"
    NCCLSCOPE_MACHINE_DATA="${CMAKE_SOURCE_DIR}/tests/data/topology")
  add_dependencies(doctor_program_test ncclscope ncclscope_machines)
endif()

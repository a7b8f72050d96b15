# SPDX-License-Identifier: Apache-2.0
# The emulator against recordings, and whole simulated jobs.
find_package(nlohmann_json QUIET CONFIG)
find_package(ZLIB QUIET)
if(NOT nlohmann_json_FOUND OR NOT ZLIB_FOUND)
  message(STATUS "Tests of the emulator against recordings are left out: nlohmann-json or zlib missing")
  return()
endif()

ncclscope_test(sim_agreement_test
  SOURCES integration/sim/agreement_test.cc integration/sim/trace_view.cc
  LINK ncclscope_sim nlohmann_json::nlohmann_json ZLIB::ZLIB
  LABELS integration TIMEOUT 300)
target_compile_definitions(sim_agreement_test PRIVATE
  NCCLSCOPE_TRACES="${CMAKE_SOURCE_DIR}/tests/data/nccl-traces"
  NCCLSCOPE_SIM_RANK_PROGRAM="$<TARGET_FILE:ncclscope-sim-rank>"
  NCCLSCOPE_RECORDER_DIRECTORY="$<TARGET_FILE_DIR:ncclscope_recorder_v5>")
foreach(interface RANGE 1 7)
  add_dependencies(sim_agreement_test ncclscope_recorder_v${interface})
endforeach()
add_dependencies(sim_agreement_test ncclscope-sim-rank)

ncclscope_test(sim_simulation_test
  SOURCES integration/sim/simulation_test.cc integration/sim/trace_view.cc
  LINK ncclscope_sim nlohmann_json::nlohmann_json ZLIB::ZLIB
  LABELS integration TIMEOUT 300)
target_compile_definitions(sim_simulation_test PRIVATE
  NCCLSCOPE_SIM_RANK_PROGRAM="$<TARGET_FILE:ncclscope-sim-rank>"
  NCCLSCOPE_RECORDER_DIRECTORY="$<TARGET_FILE_DIR:ncclscope_recorder_v5>")
add_dependencies(sim_simulation_test ncclscope-sim-rank)
foreach(interface RANGE 1 7)
  add_dependencies(sim_simulation_test ncclscope_recorder_v${interface})
endforeach()

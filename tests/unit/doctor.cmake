# SPDX-License-Identifier: Apache-2.0
if(NCCLSCOPE_BUILD_TESTS)
  add_library(ncclscope_fake_nvml SHARED ${CMAKE_SOURCE_DIR}/tests/support/fake_nvml.cc)
  target_link_libraries(ncclscope_fake_nvml PRIVATE ncclscope_options)
endif()

ncclscope_test(doctor_test
  SOURCES unit/doctor/installation_test.cc unit/doctor/output_test.cc
  LINK ncclscope_doctor
  LABELS unit sanitize)
if(TARGET doctor_test)
  target_compile_definitions(doctor_test PRIVATE NCCLSCOPE_MACHINES="${NCCLSCOPE_MACHINES}"
    NCCLSCOPE_MACHINE_DATA="${CMAKE_SOURCE_DIR}/tests/data/topology"
    NCCLSCOPE_GOLDEN="${CMAKE_SOURCE_DIR}/tests/data/golden"
    NCCLSCOPE_PLUGIN="$<TARGET_FILE:ncclscope_plugin>"
    NCCLSCOPE_FAKE_NVML="$<TARGET_FILE:ncclscope_fake_nvml>")
  add_dependencies(doctor_test ncclscope_machines ncclscope_plugin ncclscope_fake_nvml)
endif()

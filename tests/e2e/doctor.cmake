# SPDX-License-Identifier: Apache-2.0
# `ncclscope doctor` and `diagnose` about the configuration of emulated jobs, their runs, and wrong installations.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

foreach(scenario settings silent_settings small_messages protocol bandwidth network installation claimed)
  add_test(NAME doctor_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/doctor/doctor.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(doctor_${scenario} PROPERTIES LABELS e2e TIMEOUT 120 PROCESSORS 2)
endforeach()

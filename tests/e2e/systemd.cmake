# SPDX-License-Identifier: Apache-2.0
# Service files as systemd judges them, and the packages on a booted machine.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

add_test(NAME systemd_units
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/systemd/units.py --agent $<TARGET_FILE:ncclscope-agent>)
set_tests_properties(systemd_units PROPERTIES LABELS repo TIMEOUT 60 SKIP_RETURN_CODE 77)
add_test(NAME systemd_packages
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/systemd/packages.py --build ${CMAKE_BINARY_DIR})
set_tests_properties(systemd_packages PROPERTIES LABELS e2e TIMEOUT 600 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)

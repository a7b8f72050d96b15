# SPDX-License-Identifier: Apache-2.0
# Emulated jobs with NCCL Inspector's environment: its files and its page, held to its format and its readers.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

foreach(scenario lines newer_lines textfiles page)
  add_test(NAME inspector_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/inspector/inspector.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(inspector_${scenario} PROPERTIES LABELS e2e TIMEOUT 180 PROCESSORS 2)
endforeach()

# SPDX-License-Identifier: Apache-2.0
# The agent's own page in a real browser, over an emulated job.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

add_test(NAME node_page
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/page/page.py --build ${CMAKE_BINARY_DIR} use)
set_tests_properties(node_page PROPERTIES LABELS e2e TIMEOUT 120 PROCESSORS 2 SKIP_RETURN_CODE 77)

# SPDX-License-Identifier: Apache-2.0
# The chart with the real helm (no cluster), its policies and its guide.
if(NCCLSCOPE_SANITIZE)
  return()
endif()

set(agent_option)
if(TARGET ncclscope-agent)
  set(agent_option --agent $<TARGET_FILE:ncclscope-agent>)
endif()
add_test(NAME helm_chart COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/helm/chart.py ${agent_option})
set_tests_properties(helm_chart PROPERTIES LABELS e2e TIMEOUT 600 SKIP_RETURN_CODE 77)

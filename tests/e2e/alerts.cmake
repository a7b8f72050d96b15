# SPDX-License-Identifier: Apache-2.0
# Emulated jobs with faults: agents, a real Prometheus with the rules, a real Alertmanager, and what must arrive.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

foreach(scenario slow hangs inhibitions)
  add_test(NAME alerts_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/alerts/alerts.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(alerts_${scenario} PROPERTIES LABELS e2e TIMEOUT 180 RUN_SERIAL TRUE)
endforeach()
set_tests_properties(alerts_slow PROPERTIES LABELS "e2e;real_time")

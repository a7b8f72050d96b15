# SPDX-License-Identifier: Apache-2.0
# Emulated jobs with faults on two nodes, and what `ncclscope diagnose` says of them.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

# Rates are measured alone; how far everybody is can be told beside other tests.
foreach(scenario rates hangs unseen_hangs unreachable_agent remote dumps)
  add_test(NAME diagnose_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/diagnose/diagnose.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(diagnose_${scenario} PROPERTIES LABELS e2e TIMEOUT 120 PROCESSORS 2)
endforeach()
set_tests_properties(diagnose_rates PROPERTIES RUN_SERIAL TRUE LABELS "e2e;real_time")

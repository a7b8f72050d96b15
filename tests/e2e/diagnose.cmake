# SPDX-License-Identifier: Apache-2.0
# Emulated jobs with faults on two nodes, and what `ncclscope diagnose` says of them.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

# Rates are measured alone; how far everybody is can be told beside other tests.
foreach(scenario healthy late_gpu)
  add_test(NAME diagnose_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/diagnose/diagnose.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(diagnose_${scenario} PROPERTIES LABELS e2e TIMEOUT 120 RUN_SERIAL TRUE)
endforeach()
add_test(NAME diagnose_dumps
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/diagnose/diagnose.py --build ${CMAKE_BINARY_DIR} dumps)
set_tests_properties(diagnose_dumps PROPERTIES LABELS e2e TIMEOUT 60)
foreach(scenario never_called mismatch gone stuck never_started stopped outside unreachable_agent remote)
  add_test(NAME diagnose_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/diagnose/diagnose.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(diagnose_${scenario} PROPERTIES LABELS e2e TIMEOUT 120 PROCESSORS 2)
endforeach()

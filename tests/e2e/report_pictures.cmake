# SPDX-License-Identifier: Apache-2.0
# What `ncclscope report` draws: numbers, SVG files, and the page in a real browser. What it makes of throughput and archives.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope)
  return()
endif()

foreach(scenario page compare)
  add_test(NAME report_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/report/pictures.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(report_${scenario} PROPERTIES LABELS e2e TIMEOUT 600 PROCESSORS 2 SKIP_RETURN_CODE 77)
endforeach()

foreach(scenario paths both)
  add_test(NAME report_archive_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/report/archives.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(report_archive_${scenario} PROPERTIES LABELS e2e TIMEOUT 300 PROCESSORS 2 SKIP_RETURN_CODE 77)
endforeach()

foreach(scenario csv prometheus)
  add_test(NAME report_throughput_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/report/throughput.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(report_throughput_${scenario} PROPERTIES LABELS e2e TIMEOUT 300 PROCESSORS 2 SKIP_RETURN_CODE 77)
endforeach()

# SPDX-License-Identifier: Apache-2.0
ncclscope_test(http_server_test
  SOURCES integration/export/http_server_test.cc
  LINK ncclscope_agent_export
  LABELS integration sanitize)

ncclscope_test(api_test
  SOURCES integration/export/api_test.cc unit/export/snapshot_fixture.cc
  LINK ncclscope_agent_api
  LABELS integration sanitize)

# Independent readers of the golden expositions, where they are installed.
find_program(PROMTOOL promtool)
if(PROMTOOL)
  add_test(NAME export_promtool_check_metrics
    COMMAND sh -c "\"$1\" check metrics < \"$2\"" promtool ${PROMTOOL}
      ${CMAKE_CURRENT_SOURCE_DIR}/data/golden/metrics.prom)
  set_tests_properties(export_promtool_check_metrics PROPERTIES LABELS integration)
else()
  message(STATUS "ncclscope: promtool is not installed, the golden exposition is not linted")
endif()
execute_process(COMMAND /usr/bin/python3 -c "import prometheus_client.openmetrics.parser"
  RESULT_VARIABLE python_client_missing OUTPUT_QUIET ERROR_QUIET)
if(python_client_missing EQUAL 0)
  foreach(format IN ITEMS openmetrics text)
    set(golden metrics.openmetrics)
    if(format STREQUAL text)
      set(golden metrics.prom)
    endif()
    add_test(NAME export_strict_${format}_parser
      COMMAND sh -c "/usr/bin/python3 \"$1\" \"$2\" < \"$3\"" check
        ${CMAKE_CURRENT_SOURCE_DIR}/integration/export/check_exposition.py ${format}
        ${CMAKE_CURRENT_SOURCE_DIR}/data/golden/${golden})
    set_tests_properties(export_strict_${format}_parser PROPERTIES LABELS integration)
  endforeach()
else()
  message(STATUS "ncclscope: python3-prometheus-client is not installed, no strict parser check")
endif()

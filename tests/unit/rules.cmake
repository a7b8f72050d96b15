# SPDX-License-Identifier: Apache-2.0
# Prometheus' rules and alerts, through promtool: syntax, and what each alert says in which case.
if(NCCLSCOPE_SANITIZE)
  return()
endif()

set(rules ${CMAKE_SOURCE_DIR}/deploy/prometheus)
find_program(NCCLSCOPE_PROMTOOL promtool)
find_program(NCCLSCOPE_AMTOOL amtool)
mark_as_advanced(NCCLSCOPE_PROMTOOL NCCLSCOPE_AMTOOL)
if(NOT NCCLSCOPE_PROMTOOL OR NOT NCCLSCOPE_AMTOOL)
  message(FATAL_ERROR "ncclscope: promtool and amtool are needed to test rules (Debian's packages prometheus and "
    "prometheus-alertmanager; scripts/install-deps.sh installs them)")
endif()

add_test(NAME rules_check COMMAND ${NCCLSCOPE_PROMTOOL} check rules ${rules}/recording.yml ${rules}/alerts.yml)
add_test(NAME rules_alertmanager_check COMMAND ${NCCLSCOPE_AMTOOL} check-config ${rules}/alertmanager.yml)
set_tests_properties(rules_check rules_alertmanager_check PROPERTIES LABELS unit TIMEOUT 60)

# One test for each alert, so that they run side by side; the longest takes 90 s of CPU. A new file is found at the next configure.
file(GLOB files CONFIGURE_DEPENDS ${rules}/tests/*.test.yml)
foreach(file IN LISTS files)
  get_filename_component(alert ${file} NAME_WE)
  add_test(NAME rules_${alert} COMMAND ${NCCLSCOPE_PROMTOOL} test rules ${file})
  set_tests_properties(rules_${alert} PROPERTIES LABELS unit TIMEOUT 400)
endforeach()

# The simulation of drops of bandwidth computes what the shipped rules do. (All of it: scripts/soak.sh.)
add_test(NAME rules_drop_formula
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/bench/bandwidth_drop.py --check-only)
set_tests_properties(rules_drop_formula PROPERTIES LABELS unit TIMEOUT 400)

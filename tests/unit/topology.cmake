# SPDX-License-Identifier: Apache-2.0
# The machines of tests/data/topology as files, made when their descriptions change.
if(NCCLSCOPE_BUILD_TESTS)
  set(machines)
  foreach(machine bond broadcom downgraded flatvm grace mig multiport nonic onesided pcie4 rail8 roce switchvm vmbus)
    list(APPEND machines ${CMAKE_SOURCE_DIR}/tests/data/topology/${machine}.machine)
  endforeach()
  set(NCCLSCOPE_MACHINES ${CMAKE_BINARY_DIR}/tests/machines)
  add_custom_command(OUTPUT ${NCCLSCOPE_MACHINES}.made
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/support/make_machines.py ${NCCLSCOPE_MACHINES} ${machines}
    COMMAND ${CMAKE_COMMAND} -E touch ${NCCLSCOPE_MACHINES}.made
    DEPENDS ${machines} ${CMAKE_SOURCE_DIR}/tests/support/make_machines.py
    VERBATIM)
  add_custom_target(ncclscope_machines DEPENDS ${NCCLSCOPE_MACHINES}.made)
endif()

ncclscope_test(topology_test
  SOURCES unit/topology/description_test.cc unit/topology/limits_test.cc unit/topology/machines_test.cc unit/topology/odd_sysfs_test.cc
    unit/topology/prerequisites_test.cc unit/topology/settings_test.cc unit/topology/xml_test.cc
  LINK ncclscope_topology
  LABELS unit sanitize)
if(TARGET topology_test)
  target_compile_definitions(topology_test PRIVATE NCCLSCOPE_MACHINES="${NCCLSCOPE_MACHINES}"
    NCCLSCOPE_MACHINE_DATA="${CMAKE_SOURCE_DIR}/tests/data/topology")
  add_dependencies(topology_test ncclscope_machines)
endif()

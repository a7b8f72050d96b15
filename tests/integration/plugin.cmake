# SPDX-License-Identifier: Apache-2.0
add_library(ncclscope_test_support STATIC support/stub_agent.cc)
target_link_libraries(ncclscope_test_support PUBLIC ncclscope_proto PRIVATE ncclscope_options)
target_include_directories(ncclscope_test_support PUBLIC ${CMAKE_SOURCE_DIR})

# A process loads the plugin once, so every test of these programs is a process of its own.
function(ncclscope_plugin_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT" "SOURCES;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 60)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  target_link_libraries(${name} PRIVATE ncclscope_test_support ncclscope_proto ncclscope_options
    GTest::gmock GTest::gtest_main Threads::Threads ${CMAKE_DL_LIBS})
  target_compile_definitions(${name} PRIVATE
    NCCLSCOPE_PLUGIN_PATH="$<TARGET_FILE:ncclscope_plugin>")
  set_target_properties(${name} PROPERTIES ENABLE_EXPORTS ON)
  add_dependencies(${name} ncclscope_plugin)
  # gtest_discover_tests cannot pass a list: one label "integration-sanitize", which -L finds by either word.
  string(REPLACE ";" "-" labels "${ARG_LABELS}")
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST
    PROPERTIES LABELS "${labels}" TIMEOUT ${ARG_TIMEOUT})
  if("sanitize" IN_LIST ARG_LABELS)
    add_dependencies(ncclscope_sanitize_tests ${name})
  endif()
endfunction()

ncclscope_plugin_test(plugin_records_test
  SOURCES integration/plugin/operations_test.cc integration/plugin/network_phases_test.cc
  LABELS integration sanitize)
ncclscope_plugin_test(plugin_governor_test
  SOURCES integration/plugin/governor_test.cc
  LABELS integration sanitize TIMEOUT 180)
ncclscope_plugin_test(plugin_survives_test
  SOURCES integration/plugin/survives_test.cc
  LABELS integration sanitize TIMEOUT 180)
ncclscope_plugin_test(plugin_inspector_test
  SOURCES integration/plugin/inspector_test.cc
  LABELS integration sanitize TIMEOUT 180)
# It counts allocations with a malloc of its own, in whose place a sanitizer puts another one: it could not even start.
if(NOT NCCLSCOPE_SANITIZE)
  ncclscope_plugin_test(plugin_manners_test
    SOURCES integration/plugin/manners_test.cc
    LABELS integration)
endif()

add_executable(ncclscope_plugin_job integration/plugin/job.cc)
target_link_libraries(ncclscope_plugin_job PRIVATE ncclscope_proto ncclscope_options
  Threads::Threads ${CMAKE_DL_LIBS})
target_compile_definitions(ncclscope_plugin_job PRIVATE
  NCCLSCOPE_PLUGIN_PATH="$<TARGET_FILE:ncclscope_plugin>")
set_target_properties(ncclscope_plugin_job PROPERTIES ENABLE_EXPORTS ON)
add_dependencies(ncclscope_plugin_job ncclscope_plugin)
foreach(name plugin_survives_test plugin_inspector_test)
  target_compile_definitions(${name} PRIVATE NCCLSCOPE_PLUGIN_JOB="$<TARGET_FILE:ncclscope_plugin_job>")
  add_dependencies(${name} ncclscope_plugin_job)
endforeach()

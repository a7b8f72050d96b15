# SPDX-License-Identifier: Apache-2.0
add_executable(plugin_bench bench/plugin_bench.cc)
target_link_libraries(plugin_bench PRIVATE ncclscope_test_support ncclscope_plugin_objects ncclscope_proto ncclscope_options
  benchmark::benchmark Threads::Threads ${CMAKE_DL_LIBS})
target_compile_definitions(plugin_bench PRIVATE NCCLSCOPE_PLUGIN_PATH="$<TARGET_FILE:ncclscope_plugin>")
set_target_properties(plugin_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench ENABLE_EXPORTS ON)
add_dependencies(plugin_bench ncclscope_plugin)

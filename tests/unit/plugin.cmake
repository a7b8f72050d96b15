# SPDX-License-Identifier: Apache-2.0
ncclscope_test(plugin_unit_test
  SOURCES unit/plugin/record_ring_test.cc unit/plugin/names_test.cc unit/plugin/handle_test.cc
          unit/plugin/mask_test.cc unit/plugin/clock_bound_test.cc unit/plugin/governor_test.cc
          unit/plugin/slice_comparison_test.cc unit/plugin/inspector_options_test.cc
          unit/plugin/inspector_text_test.cc unit/plugin/environment_test.cc
          unit/plugin/oldest_operation_test.cc
  LINK ncclscope_plugin_objects ncclscope_proto
  LABELS unit sanitize)
if(TARGET plugin_unit_test)
  target_compile_definitions(plugin_unit_test PRIVATE NCCLSCOPE_VERSION="${PROJECT_VERSION}")
endif()

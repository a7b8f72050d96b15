# SPDX-License-Identifier: Apache-2.0
# The emulator's parts, its loader over all releases, and one emulated process with its hazards.
ncclscope_test(sim_parts_test SOURCES unit/sim/parts_test.cc LINK ncclscope_sim
  LABELS unit sanitize)

foreach(name loader host)
  ncclscope_test(sim_${name}_test SOURCES unit/sim/${name}_test.cc unit/sim/probe_plugin.cc
    LINK ncclscope_sim ncclscope_sim_exports LABELS unit sanitize)
  set_target_properties(sim_${name}_test PROPERTIES ENABLE_EXPORTS ON)
  target_compile_definitions(sim_${name}_test PRIVATE
    NCCLSCOPE_RECORDER_DIRECTORY="$<TARGET_FILE_DIR:ncclscope_recorder_v5>")
  foreach(interface RANGE 1 7)
    add_dependencies(sim_${name}_test ncclscope_recorder_v${interface})
  endforeach()
endforeach()

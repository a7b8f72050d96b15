# SPDX-License-Identifier: Apache-2.0
ncclscope_test(probe_test
  SOURCES unit/probe/conductor_test.cc unit/probe/judgement_test.cc unit/probe/place_test.cc unit/probe/plan_test.cc
  LINK ncclscope_cli
  LABELS unit sanitize)
ncclscope_test(probe_session_test
  SOURCES unit/probe/rendezvous_test.cc unit/probe/session_test.cc
  LINK ncclscope_probe
  LABELS integration sanitize)
if(TARGET probe_session_test)
  ncclscope_executable(ncclscope-stand-in-worker SOURCES support/probe_worker.cc LINK ncclscope_probe)
  target_compile_definitions(probe_session_test PRIVATE
    NCCLSCOPE_STAND_IN_WORKER="$<TARGET_FILE:ncclscope-stand-in-worker>")
  add_dependencies(probe_session_test ncclscope-stand-in-worker)
endif()

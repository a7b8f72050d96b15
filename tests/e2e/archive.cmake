# SPDX-License-Identifier: Apache-2.0
# What agents keep of emulated jobs, killed ones included; recorded and replayed.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-agent)
  return()
endif()

ncclscope_executable(ncclscope-archive-dump SOURCES e2e/archive/archive_dump.cc LINK ncclscope_archive)

foreach(scenario clean_end killed_agent hang replay_archive record_replay replay_others replay_pace)
  add_test(NAME archive_${scenario}
    COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/archive/archive.py --build ${CMAKE_BINARY_DIR} ${scenario})
  set_tests_properties(archive_${scenario} PROPERTIES LABELS e2e TIMEOUT 180 PROCESSORS 2)
endforeach()

# SPDX-License-Identifier: Apache-2.0
# A real SLURM on this machine (controller, two nodes, munge) whose jobs run the emulator. One at a time, and for at most
# a minute: SLURM's own schedulers take a second each.
if(NCCLSCOPE_SANITIZE OR NOT TARGET ncclscope-run-job)
  return()
endif()

add_test(NAME slurm_jobs
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/slurm/slurm.py --build ${CMAKE_BINARY_DIR})
set_tests_properties(slurm_jobs PROPERTIES LABELS e2e TIMEOUT 120 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)

# The SPANK plugin in another such cluster, and what happens there when things are missing, broken or hung.
add_test(NAME slurm_spank
  COMMAND /usr/bin/python3 ${CMAKE_SOURCE_DIR}/tests/e2e/slurm/spank.py --build ${CMAKE_BINARY_DIR})
set_tests_properties(slurm_spank PROPERTIES LABELS e2e TIMEOUT 150 RUN_SERIAL TRUE SKIP_RETURN_CODE 77)

# SPDX-License-Identifier: Apache-2.0
ncclscope_executable(diagnosis_bench
  SOURCES
    bench/diagnosis/agents.cc
    bench/diagnosis/diagnosis_bench.cc
    bench/diagnosis/hang_trial.cc
    bench/diagnosis/job_model.cc
    bench/diagnosis/scenario.cc
    bench/diagnosis/series.cc
    bench/diagnosis/trial.cc
  LINK ncclscope_agent_aggregate ncclscope_agent_export ncclscope_verdict)
set_target_properties(diagnosis_bench PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tools)

# A sample; scripts/soak.sh plays a thousand of each, up to 4,096 ranks.
if(NCCLSCOPE_BUILD_TESTS)
  add_test(NAME diagnosis_sample
    COMMAND diagnosis_bench --faulty 150 --healthy 150 --hangs 100 --most-ranks 128)
  set_tests_properties(diagnosis_sample PROPERTIES LABELS bench TIMEOUT 300)
endif()

# The same question through real plugins, agents and the command line; rates are measured, so nothing else may run.
if(NCCLSCOPE_BUILD_TESTS AND TARGET ncclscope-agent)
  add_test(NAME diagnosis_through_agents
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/bench/diagnosis/through_agents.py --build ${CMAKE_BINARY_DIR})
  set_tests_properties(diagnosis_through_agents PROPERTIES LABELS bench TIMEOUT 240 RUN_SERIAL TRUE)
endif()

# The shipped rules in Prometheus' own engine say the same.
if(NCCLSCOPE_BUILD_TESTS)
  add_test(NAME diagnosis_rules_agree
    COMMAND /usr/bin/python3 ${CMAKE_CURRENT_SOURCE_DIR}/bench/diagnosis/rules_agree.py
      $<TARGET_FILE:diagnosis_bench>)
  set_tests_properties(diagnosis_rules_agree PROPERTIES LABELS bench TIMEOUT 300)
endif()

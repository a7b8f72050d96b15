# SPDX-License-Identifier: Apache-2.0
ncclscope_test(agent_signals_test
  SOURCES
    unit/agent/dimension_test.cc
    unit/agent/signals_test.cc
    unit/agent/step_period_test.cc
  LINK ncclscope_agent_signals
  LABELS unit sanitize)

# A thousand schedules take their time: not among the tests for the sanitizers.
ncclscope_test(agent_step_schedules_test
  SOURCES unit/agent/step_schedules_test.cc
  LINK ncclscope_agent_signals
  LABELS unit
  TIMEOUT 300)

ncclscope_test(agent_job_signals_test
  SOURCES unit/agent/job_signals_test.cc
  LINK ncclscope_agent_aggregate
  LABELS unit sanitize)

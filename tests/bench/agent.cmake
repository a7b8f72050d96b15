# SPDX-License-Identifier: Apache-2.0
ncclscope_benchmark(agent_ingest_bench
  SOURCES bench/agent_ingest_bench.cc
  LINK ncclscope_agent_aggregate)

# Needs an agent to drive, so it is not among the benchmarks that scripts/bench.sh runs by themselves.
ncclscope_executable(agent_load
  SOURCES bench/agent_load.cc
  LINK ncclscope_agent_base ncclscope_proto)
set_target_properties(agent_load PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tools)

ncclscope_benchmark(agent_archive_bench
  SOURCES bench/agent_archive_bench.cc
  LINK ncclscope_agent_archive)

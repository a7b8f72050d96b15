# SPDX-License-Identifier: Apache-2.0
ncclscope_executable(agent_ingest_bench
  SOURCES bench/agent_ingest_bench.cc
  LINK ncclscope_agent_aggregate benchmark::benchmark)

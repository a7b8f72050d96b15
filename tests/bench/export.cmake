# SPDX-License-Identifier: Apache-2.0
ncclscope_benchmark(export_bench
  SOURCES bench/export_bench.cc unit/export/snapshot_fixture.cc
  LINK ncclscope_agent_page ncclscope_agent_prometheus)

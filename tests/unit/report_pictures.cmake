# SPDX-License-Identifier: Apache-2.0
# Comparison, steps, throughput and page of `ncclscope report`. Tables in DuckDB are skipped where its library is absent.
ncclscope_test(report_comparison_test
  SOURCES unit/cli/report_comparison_test.cc
  LINK ncclscope_report
  LABELS unit)

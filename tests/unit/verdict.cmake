# SPDX-License-Identifier: Apache-2.0
ncclscope_test(verdict_test
  SOURCES unit/verdict/hang_test.cc unit/verdict/judge_test.cc unit/verdict/statistics_test.cc
    unit/verdict/window_test.cc
  LINK ncclscope_verdict
  LABELS unit sanitize)

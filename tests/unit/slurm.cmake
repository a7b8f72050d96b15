# SPDX-License-Identifier: Apache-2.0
ncclscope_test(spank_choice_test
  SOURCES unit/slurm/choice_test.cc
  LINK ncclscope_spank_choice
  LABELS unit sanitize)

// SPDX-License-Identifier: Apache-2.0
// ncclscope-sim-rank: one rank of a simulated job, or one process of a recorded program. Started by
// sim/simulation.cc and by tests; people start `ncclscope simulate`.
#include "sim/simulation.h"

int main(int argc, char** argv) {
  return ncclscope::sim::rank_main(argc, argv);
}

// SPDX-License-Identifier: Apache-2.0
// The small programs that were run with real NCCL host code to make the recordings in
// tests/data/nccl-traces: the same calls in the same order, to be run on the emulator. One process
// of one program per call.
#pragma once

#include <string>
#include <vector>

namespace ncclscope::sim {

/// Names of the programs, for instance "allreduce2-net".
std::vector<std::string> program_names();
/// Number of processes of a program; 0: not known.
int program_processes(const std::string& name);

/// ncclscope-sim-rank --program NAME --process P --release R --world SHM --actor SLOT [--pace fast]
int program_main(int argc, char** argv);

}  // namespace ncclscope::sim

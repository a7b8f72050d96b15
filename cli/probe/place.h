// SPDX-License-Identifier: Apache-2.0
//
// Which process of how many this one is, and where the first one is: from options, or from the
// variables of torchrun, Open MPI, PMI (MPICH, Intel MPI) or SLURM, whichever started us last.
//   Thread: pure; the environment is given.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::cli::probe {

/// Value of a variable; empty if it is not set.
using Environment = std::function<std::string(const char*)>;

struct PlaceOptions {
  int process = -1, processes = -1, local = -1;  // -1 = not given
  std::string root;                              // HOST or HOST:PORT
  std::string rendezvous;                        // a folder that all processes share
};

struct Place {
  std::uint32_t process = 0, processes = 1;
  std::uint32_t local = 0;             // of this node's processes
  bool alone_on_node = true;           // then it takes all GPUs
  std::string source = "one process";  // who says so
  std::string key;              // the same for all processes of a run, another one for others
  std::string root_host;        // empty: by the folder
  std::uint16_t root_port = 0;  // 0 = one of candidate_ports(key)
  bool one_node = false;        // all processes are on this node, as far as is known
  std::string error;            // why the place is not known; then nothing else counts
};

[[nodiscard]] Place find_place(const PlaceOptions& options, const Environment& environment);

/// The first name of SLURM's "n[08-10,12],login": "n08". Empty if there is none.
[[nodiscard]] std::string first_host(std::string_view list);

/// Ports that the first process tries to listen at, in this order; below those that systems give to
/// outgoing connections.
[[nodiscard]] std::vector<std::uint16_t> candidate_ports(std::string_view key);
/// 64 bits of a text in 16 hex digits, the same on all machines.
[[nodiscard]] std::string digest(std::string_view text);

}  // namespace ncclscope::cli::probe

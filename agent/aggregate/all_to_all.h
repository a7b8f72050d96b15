// SPDX-License-Identifier: Apache-2.0
//
// Recognises an all-to-all in the Sends and Receives of one plan (kernel launch): NCCL reports it
// as such only from copy engines. It must hold one Send to and one Receive from every rank of the
// communicator, the rank itself included. Where counts are uneven, NCCL leaves out transfers of
// nothing: from four ranks on, half of the peers in each direction are enough then, as long as the
// rank's own transfer is there. That one is what tells an all-to-all from everything else: pipeline
// stages, rings and halos never send to themselves, and the root of a gather or scatter has its
// peers in one direction only. A rank that copies its own part without NCCL is recognised where it
// exchanges with all others, from four ranks on: a ring of three looks the same.
//   Thread: reactor.   Cost: O(transfers), nothing but a scan where there are too few of them.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

namespace ncclscope::agent {

/// One Send or Receive.
struct Transfer {
  std::int32_t peer = -1;
  bool is_send = false;
  std::uint64_t bytes = 0;
};

/// An all-to-all as one rank sees it. Where sent and received differ, the larger one counts: it
/// takes the time.
struct AllToAll {
  std::uint64_t bytes = 0;      // S of nccl-tests: all its parts, its own if NCCL moves it
  std::uint64_t bus_bytes = 0;  // without its own part: S * (n-1)/n where all parts are equal
  bool even = false;            // all parts are equal
};

class AllToAllRecogniser {
 public:
  static constexpr std::uint32_t kMaxRanks = 65'536;

  /// @param rank   of the communicator whose transfers these are, -1 = unknown: recognises nothing
  /// @param nranks 0 = unknown: recognises nothing
  [[nodiscard]] std::optional<AllToAll> recognise(std::span<const Transfer> transfers,
                                                  std::int32_t rank, std::uint32_t nranks);

 private:
  /// Remembers a peer; false if it was known, or is none.
  static bool mark(std::vector<std::uint64_t>& seen, std::int32_t peer, std::uint32_t nranks);

  std::vector<std::uint64_t> sent_, received_;  // one bit per peer; kept to save allocations
};

}  // namespace ncclscope::agent

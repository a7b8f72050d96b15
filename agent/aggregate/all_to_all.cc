// SPDX-License-Identifier: Apache-2.0
//
// One pass over the transfers with a bit per peer and direction.
#include "agent/aggregate/all_to_all.h"

#include <algorithm>

namespace ncclscope::agent {

bool AllToAllRecogniser::mark(std::vector<std::uint64_t>& seen, std::int32_t peer,
                              std::uint32_t nranks) {
  if (peer < 0 || static_cast<std::uint32_t>(peer) >= nranks) return false;
  const auto at = static_cast<std::uint32_t>(peer);
  std::uint64_t& word = seen[at / 64];
  const std::uint64_t bit = std::uint64_t{1} << (at % 64);
  const bool fresh = (word & bit) == 0;
  word |= bit;
  return fresh;
}

std::optional<AllToAll> AllToAllRecogniser::recognise(std::span<const Transfer> transfers,
                                                      std::int32_t rank, std::uint32_t nranks) {
  if (rank < 0 || nranks < 2 || nranks > kMaxRanks || transfers.size() < 4) return std::nullopt;
  const bool to_itself = std::any_of(transfers.begin(), transfers.end(),
                                     [&](const Transfer& t) { return t.peer == rank; });
  if (!to_itself && (nranks < 4 || transfers.size() != 2 * (nranks - 1))) return std::nullopt;

  const std::size_t words = (nranks + 63) / 64;
  sent_.assign(words, 0);
  received_.assign(words, 0);
  std::uint64_t sent_bytes = 0;
  std::uint64_t received_bytes = 0;
  std::uint64_t own_bytes = 0;
  std::uint32_t sends = 0;
  std::uint32_t own = 0;
  bool even = true;
  for (const Transfer& t : transfers) {
    if (!mark(t.is_send ? sent_ : received_, t.peer, nranks)) return std::nullopt;
    (t.is_send ? sent_bytes : received_bytes) += t.bytes;
    sends += t.is_send ? 1u : 0u;
    even = even && t.bytes == transfers.front().bytes;
    if (t.peer == rank) {
      ++own;
      own_bytes = std::max(own_bytes, t.bytes);
    }
  }
  if (own != (to_itself ? 2u : 0u)) return std::nullopt;
  const auto receives = static_cast<std::uint32_t>(transfers.size()) - sends;
  const std::uint32_t peers = to_itself ? nranks : nranks - 1;
  const bool complete = sends == peers && receives == peers;
  if (!complete && !to_itself) return std::nullopt;
  if (!complete && (nranks < 4 || sends < nranks / 2 || receives < nranks / 2)) return std::nullopt;

  AllToAll found;
  found.bytes = std::max(sent_bytes, received_bytes);
  found.bus_bytes = found.bytes - std::min(found.bytes, own_bytes);
  found.even = complete && even;
  return found;
}

}  // namespace ncclscope::agent

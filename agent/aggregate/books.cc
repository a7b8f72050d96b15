// SPDX-License-Identifier: Apache-2.0
//
// The two identities. Sums wrap on overflow, as the plugin's counters would: a hostile sender only
// fools itself.
#include "agent/aggregate/books.h"

#include <algorithm>
#include <cstddef>

namespace ncclscope::agent {

BooksCheck check_books(const ProcessSnapshot& process) noexcept {
  BooksCheck out;
  const std::uint64_t agents_side =
      process.records_received + process.records_before + process.records_lost;
  if (!process.books_seen) {
    // Nothing is known of the plugin's side; the agent's own must hold all the same.
    out.plugin = true;
    out.transit = agents_side == process.highest_index;
    return out;
  }

  const wire::Books& books = process.books;
  constexpr auto kOverwritten = static_cast<std::size_t>(wire::DropReason::kOverwritten);
  std::uint64_t dropped = 0;
  for (std::size_t i = 0; i < wire::kDropReasonCount; ++i)
    if (i != kOverwritten) dropped += books.dropped[i];
  // Counters that moved while the plugin read them are judged with its next books.
  const bool exact = books.flags == 0;
  out.plugin = !exact || books.seen == books.recorded + dropped + books.open;

  const bool sample_is_current = books.records_written >= process.highest_index;
  out.pending = sample_is_current ? books.records_written - process.highest_index : 0;
  out.transit = agents_side == process.highest_index;
  if (sample_is_current) {
    // What the agent missed must be what the plugin says it overwrote.
    out.transit = out.transit && process.records_lost <= books.records_overwritten;
  }
  if (process.said_goodbye && !process.connected) {
    out.transit = out.transit && process.highest_index == books.records_written &&
                  process.records_lost == books.records_overwritten;
  }
  return out;
}

std::uint64_t missing_operations(const RankSnapshot& rank) noexcept {
  // What the plugin dropped it knows at once, also from before this agent's time.
  return std::max(rank.dropped, rank.missing);
}

std::optional<double> coverage(const CommunicatorSnapshot& communicator) noexcept {
  double seen = 0;
  double missing = 0;
  for (const RankSnapshot& rank : communicator.ranks) {
    seen += static_cast<double>(rank.seen);
    missing += static_cast<double>(missing_operations(rank));
  }
  if (seen <= 0) return std::nullopt;
  return std::max(0.0, (seen - missing) / seen);
}

}  // namespace ncclscope::agent

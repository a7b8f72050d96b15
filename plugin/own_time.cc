// SPDX-License-Identifier: Apache-2.0
#include "plugin/own_time.h"

#include <algorithm>

#include "plugin/handle.h"

namespace ncclscope::plugin {
namespace {
constexpr std::uint64_t kLongestCallNs = 1'000;
constexpr int kClockReads = 32;
}  // namespace

std::uint64_t measure_clock_cost() noexcept {
  std::uint64_t least = ~std::uint64_t{0};
  for (int i = 0; i < kClockReads; ++i) {
    const std::uint64_t a = monotonic_ns();
    least = std::min(least, monotonic_ns() - a);
  }
  return least;
}

void begin_or_end_measuring(Process& p, Lane& lane, std::size_t type, std::uint64_t count,
                            bool begin) noexcept {
  p.measuring.store(begin, kRelaxed);
  if (!begin) return;
  lane.launcher.store(pthread_self(), kRelaxed);
  // 1 to 255 operations from here, 128 on average.
  const std::uint64_t mixed = (count ^ lane.session_id) * 0x9E3779B97F4A7C15u;
  p.measured_calls.store(static_cast<std::uint32_t>(mixed >> 31), kRelaxed);
  lane.next_measured[type].store(count + 1 + (mixed >> 32) % (2 * kSampleOperations - 1), kRelaxed);
}

void add_own_time(const void* token, std::uint64_t start_ns) noexcept {
  const std::uint64_t took = monotonic_ns() - start_ns;
  Process& p = process();
  const Token t = Token::from_handle(token);
  // Another process's context (PXN): its work is the first lane's.
  Lane* lane = p.lanes[t.salt() == p.salt ? t.lane() : 0].load(kAcquire);
  if (lane == nullptr || took <= p.clock_cost_ns) return;
  lane->sampled_ns.fetch_add(
      std::min(took - p.clock_cost_ns, kLongestCallNs) * kSampleOperations * kSampleCalls,
      kRelaxed);
}

}  // namespace ncclscope::plugin

// SPDX-License-Identifier: Apache-2.0
#include "plugin/slice_comparison.h"

#include <algorithm>

namespace ncclscope::plugin {
namespace {

/// Natural logarithm of a positive, normal number. By hand: the plugin needs nothing but libc.
double log_of(double x) noexcept {
  int exponent = 0;
  while (x > 1.5) {
    x /= 2;
    ++exponent;
  }
  while (x < 0.75) {
    x *= 2;
    --exponent;
  }
  // 2 atanh(z) with z in [-1/7, 1/5].
  const double z = (x - 1) / (x + 1);
  const double z2 = z * z;
  double term = z, sum = 0;
  for (int i = 1; i < 24; i += 2) {
    sum += term / i;
    term *= z2;
  }
  constexpr double kLn2 = 0.693147180559945309;
  return 2 * sum + exponent * kLn2;
}

/// exp(x) - 1 for small x.
double exp_minus_1(double x) noexcept {
  double term = x, sum = 0;
  for (int i = 2; i < 24; ++i) {
    sum += term;
    term *= x / i;
  }
  return sum;
}

double square_root(double x) noexcept {
  if (x <= 0) return 0;
  double root = std::max(x, 1.0);
  for (int i = 0; i < 64; ++i) root = (root + x / root) / 2;
  return root;
}

}  // namespace

const SliceComparison::Block* SliceComparison::find(const Track& track,
                                                    std::uint32_t number) noexcept {
  const Block& block = track.blocks[number % kBlocks];
  return block.time_ns != 0 && block.number == number ? &block : nullptr;
}

void SliceComparison::add(std::uint16_t communicator, std::uint32_t block, std::uint64_t time_ns,
                          bool on) noexcept {
  Track& track = tracks_[communicator % kTracks];
  if (track.communicator != communicator) {
    track = {};
    track.communicator = communicator;
  }
  track.blocks[block % kBlocks] = {time_ns, block, on, false};
  // It may complete what is known of its neighbours, too: records come in the order of completion.
  for (std::uint32_t centre = block >= 2 ? block - 2 : 0; centre <= block + 1; ++centre) {
    if (centre != 0) compare(track, centre);
  }
}

void SliceComparison::compare(Track& track, std::uint32_t number) noexcept {
  const Block* before = find(track, number - 1);
  const Block* block = find(track, number);
  const Block* after = find(track, number + 1);
  const Block* end = find(track, number + 2);
  if (before == nullptr || block == nullptr || after == nullptr || end == nullptr) return;
  if (block->compared || block->on == before->on || block->on == after->on) return;
  if (before->time_ns >= block->time_ns || block->time_ns >= after->time_ns ||
      after->time_ns >= end->time_ns)
    return;
  track.blocks[number % kBlocks].compared = true;
  const auto d0 = static_cast<double>(block->time_ns - before->time_ns);
  const auto d1 = static_cast<double>(after->time_ns - block->time_ns);
  const auto d2 = static_cast<double>(end->time_ns - after->time_ns);
  if (std::max({d0, d1, d2}) > kLargestFactor * std::min({d0, d1, d2})) return;
  const double difference = log_of(d1) - (log_of(d0) + log_of(d2)) / 2;
  const double cost = block->on ? difference : -difference;
  ++count_;
  const double distance = cost - mean_;
  mean_ += distance / static_cast<double>(count_);
  squares_ += distance * (cost - mean_);
}

double SliceComparison::ratio() const noexcept {
  return count_ < 2 ? 0 : exp_minus_1(mean_);
}

double SliceComparison::standard_error() const noexcept {
  if (count_ < 2) return 0;
  const auto n = static_cast<double>(count_);
  return square_root(squares_ / (n - 1) / n);
}

}  // namespace ncclscope::plugin

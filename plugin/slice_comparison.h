// SPDX-License-Identifier: Apache-2.0
//
// What NCCL's own work for GPU times costs the job, seen from the host: a block of 16 collectives
// with GPU times lasts longer, from its first API call to the next block's, than one without. A
// block is compared with the one before and the one after it, which had the other setting. The
// logarithm of its time less the mean of theirs has an expected value of 0 where the setting costs
// nothing, whatever the calls of a training step look like, since the sampled blocks lie at random
// places.
//   Thread: one. Pure; no allocation.
#pragma once

#include <array>
#include <cstdint>

namespace ncclscope::plugin {

class SliceComparison {
 public:
  /// The first operation of block number `block` of a communicator was called at `time_ns`; GPU
  /// times were asked for (`on`) or not. In any order.
  void add(std::uint16_t communicator, std::uint32_t block, std::uint64_t time_ns,
           bool on) noexcept;

  [[nodiscard]] std::uint64_t count() const noexcept { return count_; }
  /// Time with GPU times / time without - 1. Nothing is known before the second comparison: 0.
  [[nodiscard]] double ratio() const noexcept;
  /// Its standard error.
  [[nodiscard]] double standard_error() const noexcept;

 private:
  static constexpr std::size_t kTracks = 64;  // communicators followed at a time
  static constexpr std::size_t kBlocks = 8;   // remembered of each
  /// Beyond this a pause (a checkpoint) lies in one of the three blocks: it tells nothing.
  static constexpr double kLargestFactor = 8.0;

  struct Block {
    std::uint64_t time_ns = 0;  // 0 = none
    std::uint32_t number = 0;
    bool on = false;
    bool compared = false;
  };
  struct Track {
    std::uint16_t communicator = 0;  // ids begin at 1
    std::array<Block, kBlocks> blocks{};
  };
  static const Block* find(const Track& track, std::uint32_t number) noexcept;
  void compare(Track& track, std::uint32_t number) noexcept;

  std::array<Track, kTracks> tracks_{};
  std::uint64_t count_ = 0;
  double mean_ = 0;
  double squares_ = 0;  // sum of squared distances from the mean
};

}  // namespace ncclscope::plugin

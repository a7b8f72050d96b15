// SPDX-License-Identifier: Apache-2.0
//
// Sums of one window of time for Inspector's textfiles, and their text: one file per GPU that the
// process uses. Operations with equal labels are summed, so that no series comes twice.
//   Thread: the writer's.   Memory: fixed; operations beyond kMaxRows different labels are refused.
#pragma once

#include <cstddef>
#include <cstdint>

#include "plugin/inspector/queue.h"
#include "plugin/inspector/text.h"
#include "proto/model/inspector.h"

namespace ncclscope::plugin::inspector {

class Windows {
 public:
  static constexpr std::size_t kMaxRows = 1024;
  /// Longest text of a row: two lines.
  static constexpr std::size_t kMaxRowBytes = 2560;
  static constexpr std::size_t kMaxGpus = kMaxLanes;

  struct Gpu {
    char file[96] = {};  // name of its textfile
    char uuid[48] = {};  // with the bus id and the ordinal, what tells GPUs apart here
    char pci_bus_id[24] = {};
    std::int32_t device = -1;
    std::int32_t index = -1;  // on the node
    bool shown = false;       // its file is there
  };

  /// False: no room for one more.
  bool add(const Options& options, const Writer& writer, const Context& context,
           const LineText& operation) noexcept;

  [[nodiscard]] std::size_t gpus() const noexcept { return gpu_count_; }
  [[nodiscard]] Gpu& gpu(std::size_t i) noexcept { return gpus_[i]; }
  /// The textfile of a GPU; nothing if it had no operation. False: `out` is too small.
  bool put_text(TextBuffer& out, const Options& options, const Writer& writer,
                std::size_t gpu) const noexcept;
  /// The next window begins.
  void clear() noexcept;

 private:
  struct Row {
    std::uint8_t gpu = 0;
    model::Function function{};
    model::Algorithm algorithm{};
    model::Protocol protocol{};
    model::inspector::SizeRange size;
    std::uint32_t nranks = 0, nnodes = 0;
    char name[3 * wire::kMaxCommNameBytes + 1] = {};  // as a label shows it
    std::uint64_t operations = 0;
    double microseconds = 0;  // sum
    std::uint64_t with_bandwidth = 0;
    double logarithms = 0;  // of the bus bandwidths above 0, sum

    [[nodiscard]] bool same_labels(const Row& other) const noexcept;
  };

  /// Which of the GPUs it is; made if new. kMaxGpus: no room.
  std::size_t gpu_of(const Options& options, const Writer& writer, const Context& context) noexcept;

  Gpu gpus_[kMaxGpus];
  std::size_t gpu_count_ = 0;
  Row rows_[kMaxRows];
  std::size_t row_count_ = 0;
  std::uint16_t table_[2 * kMaxRows] = {};  // row + 1 by hash, 0 = none
};

}  // namespace ncclscope::plugin::inspector

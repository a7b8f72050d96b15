// SPDX-License-Identifier: Apache-2.0
//
// What the second thread does: takes items out of the queue, makes lines or sums of them, writes
// files.
//   Thread: its own.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/inspector/files.h"
#include "plugin/inspector/options.h"
#include "plugin/inspector/queue.h"
#include "plugin/inspector/text.h"
#include "plugin/inspector/windows.h"

namespace ncclscope::plugin::inspector {

class FileWriter {
 public:
  /// `options` must outlive this.
  void set_up(const Options& options, Shared& shared, std::int32_t pid,
              std::uint64_t now_ns) noexcept;

  /// One turn: writes what is due. `alive`: communicators that are; `last`: the process is exiting.
  void work(std::uint64_t now_ns, bool alive, bool last) noexcept;
  /// When there is something to do even if nothing happens, CLOCK_MONOTONIC; ~0: never.
  [[nodiscard]] std::uint64_t due_ns() const noexcept {
    return options_->interval_ns == 0 ? ~std::uint64_t{0} : due_ns_;
  }

 private:
  // The textfile of one GPU may hold all rows.
  static constexpr std::size_t kTextBytes = Windows::kMaxRows * Windows::kMaxRowBytes + 4096;
  static constexpr std::size_t kP2pTextBytes = 256 * 1024;
  static constexpr std::size_t kMaxLines = 4096;  // before they are written
  static constexpr std::size_t kChannels = 8192;  // of operations that are not complete

  /// A file and the lines that are on their way into it.
  struct Output {
    struct Line {
      std::uint32_t end = 0;  // in the text
      std::uint16_t context = 0;
      bool p2p = false;
    };
    LineFile file;
    Line lines[kMaxLines];
    std::size_t count = 0;
  };

  void take_all() noexcept;
  void take(const Item& item) noexcept;
  bool describe(const Item& item, LineText& line) noexcept;
  void collect_channels(const wire::Operation& operation, LineText& line) noexcept;
  void write_line(std::uint16_t context, const LineText& line) noexcept;
  void write_statistics(std::uint16_t context) noexcept;
  void end_context(std::uint16_t context) noexcept;
  void flush(Output& output, TextBuffer& text) noexcept;
  void flush_lines() noexcept;
  void write_textfiles() noexcept;
  void remove_textfiles() noexcept;

  const Options* options_ = nullptr;
  Shared* shared_ = nullptr;
  Writer writer_;
  std::uint64_t due_ns_ = 0;
  std::int64_t realtime_offset_ns_ = 0;
  TextBuffer text_{memory_, sizeof memory_};
  TextBuffer p2p_text_{p2p_memory_, sizeof p2p_memory_};
  Output output_, p2p_output_;
  Windows windows_;
  std::uint64_t channel_count_ = 0;  // ever; the newest kChannels are held
  std::array<ChannelTrace, kMaxTracedChannels> traces_;
  // Not initialised: pages that are never used are never there.
  wire::ChannelDetail channels_[kChannels];
  char memory_[kTextBytes];
  char p2p_memory_[kP2pTextBytes];
};

}  // namespace ncclscope::plugin::inspector

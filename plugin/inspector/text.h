// SPDX-License-Identifier: Apache-2.0
//
// NCCL Inspector's lines and label values, byte by byte. Text in a buffer of fixed size; nothing
// here allocates, asks the system, or depends on the locale.
//   Thread: one per buffer.   Units: nanoseconds, bytes; 10^9 bytes per second in the text.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

#include "plugin/inspector/options.h"
#include "proto/model/operation.h"
#include "proto/wire/frame.h"

namespace ncclscope::plugin::inspector {

/// Appends to memory that somebody else owns. What does not fit is left out, and full() says so.
class TextBuffer {
 public:
  TextBuffer(char* memory, std::size_t bytes) noexcept : memory_(memory), bytes_(bytes) {}

  [[nodiscard]] const char* data() const noexcept { return memory_; }
  [[nodiscard]] std::size_t size() const noexcept { return used_; }
  [[nodiscard]] std::size_t room() const noexcept { return bytes_ - used_; }
  [[nodiscard]] bool full() const noexcept { return full_; }
  [[nodiscard]] std::string_view view() const noexcept { return {memory_, used_}; }
  void clear() noexcept {
    used_ = 0;
    full_ = false;
  }

  TextBuffer& put(std::string_view text) noexcept;
  TextBuffer& put(std::uint64_t number) noexcept;
  TextBuffer& put_signed(std::int64_t number) noexcept;
  /// "0x" and lower-case digits without padding.
  TextBuffer& put_hex(std::uint64_t number) noexcept;
  /// With six decimals; what is no number or negative is 0, what is above 10^12 is that.
  TextBuffer& put_fixed(double number) noexcept;
  /// The same without zeros at the end.
  TextBuffer& put_short(double number) noexcept;
  /// As it stands between the quotes of a JSON string, '/' escaped too. Bytes that are not valid
  /// UTF-8 become U+FFFD.
  TextBuffer& put_json(std::string_view text) noexcept;
  /// As it stands between the quotes of a label value. Control characters become U+FFFD too.
  TextBuffer& put_label(std::string_view text) noexcept;

 private:
  TextBuffer& append(char c) noexcept {
    if (used_ == bytes_) {
      full_ = true;
    } else {
      memory_[used_++] = c;
    }
    return *this;
  }

  char* memory_;
  std::size_t bytes_;
  std::size_t used_ = 0;
  bool full_ = false;
};

/// The process, as every line tells it.
struct Writer {
  char host[65] = {};
  std::int32_t pid = 0;
};

/// A communicator, as its lines tell it.
struct CommunicatorText {
  std::uint64_t hash = 0;
  std::int32_t rank = -1;
  std::uint32_t nranks = 0, nnodes = 0;  // 0 = unknown
  char name[wire::kMaxCommNameBytes + 1] = {};
};

/// Callbacks of one channel, ns since the epoch.
struct ChannelTrace {
  std::uint8_t channel = 0;
  std::uint64_t start_ns = 0, stop_ns = 0;
};

enum class TimeSource : std::uint8_t { kKernelGpu, kKernelCpu };

/// One operation, as its line tells it.
struct LineText {
  model::Function function{};
  model::Algorithm algorithm{};
  model::Protocol protocol{};
  model::DataType datatype{};
  TimeSource source = TimeSource::kKernelGpu;
  std::uint64_t sequence = 0;
  std::int32_t peer = -1;          // of Send and Recv
  std::uint64_t count = 0;         // elements
  std::uint64_t duration_ns = 0;   // first start to last stop over the channels
  std::uint64_t completed_ns = 0;  // since the epoch
  bool traced = false;             // with event traces
  std::uint64_t enqueued_ns = 0;   // since the epoch
  std::span<const ChannelTrace> channels;
};

/// Bytes that a line without event traces cannot exceed, and those of each channel in it.
inline constexpr std::size_t kMaxLineBytes = 2048;
inline constexpr std::size_t kMaxChannelBytes = 320;
inline constexpr std::size_t kMaxTracedChannels = 64;

/// Whole microseconds, to the nearest, and never 0.
[[nodiscard]] constexpr std::uint64_t microseconds(std::uint64_t ns) noexcept {
  const std::uint64_t us = (ns + 500) / 1000;
  return us == 0 ? 1 : us;
}

/// One line of the operation, its end included.
void put_line(TextBuffer& out, const Writer& writer, Format format, const CommunicatorText& c,
              const LineText& line) noexcept;

/// What was written and lost since the last such line (v4.1 and later).
struct StatisticsText {
  std::uint64_t collectives = 0, collectives_lost = 0, collectives_lost_before = 0;
  std::uint64_t p2p = 0, p2p_lost = 0, p2p_lost_before = 0;
};
void put_statistics(TextBuffer& out, const Writer& writer, Format format, const CommunicatorText& c,
                    const StatisticsText& statistics, std::uint64_t now_ns) noexcept;

}  // namespace ncclscope::plugin::inspector

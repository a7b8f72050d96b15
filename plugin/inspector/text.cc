// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/text.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "proto/model/bandwidth.h"
#include "proto/model/inspector.h"

#ifndef NCCLSCOPE_VERSION
#define NCCLSCOPE_VERSION "0.0.0"
#endif

namespace ncclscope::plugin::inspector {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";  // U+FFFD
constexpr std::string_view kHexDigits = "0123456789abcdef";

/// Length of the valid UTF-8 sequence at the start of `text` (not empty), 0 if there is none.
std::size_t utf8_sequence(std::string_view text) noexcept {
  const auto byte = [&text](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned first = byte(0);
  if (first < 0x80) return 1;
  const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  if (first < 0xC2 || first > 0xF4 || text.size() < length) return 0;
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return 0;
  }
  const unsigned second = byte(1);
  // Overlong forms, surrogates, beyond U+10FFFF.
  if ((first == 0xE0 && second < 0xA0) || (first == 0xED && second > 0x9F) ||
      (first == 0xF0 && second < 0x90) || (first == 0xF4 && second > 0x8F))
    return 0;
  return length;
}

void put_header(TextBuffer& out, const Writer& writer, Format format, const CommunicatorText& c,
                std::uint64_t now_ns) noexcept {
  const std::string_view name = c.name[0] == '\0' ? model::inspector::kUnknown : c.name;
  out.put(R"({"header":{"id":")").put_hex(c.hash).put(R"(","comm_name":")").put_json(name);
  out.put(R"(","rank":)").put_signed(c.rank).put(R"(,"n_ranks":)").put(c.nranks);
  out.put(R"(,"nnodes":)").put(c.nnodes);
  out.put(R"(},"metadata":{"inspector_output_format_version":")");
  out.put(format == Format::kV40 ? "v4.0" : "v4.2");
  out.put(R"(","git_rev":"ncclscope-)" NCCLSCOPE_VERSION);
  out.put(R"(","rec_mechanism":"nccl_profiler_interface","dump_timestamp_us":)");
  out.put(now_ns / 1000).put(R"(,"hostname":")").put_json(writer.host);
  out.put(R"(","pid":)").put_signed(writer.pid).put("}");
}

/// The order of an operation's callbacks, which is what Inspector numbers them by.
struct Callbacks {
  struct One {
    std::uint64_t time_ns;
    std::uint16_t place;  // 0 start of the task, 1 its stop, then start, record, stop by channel
  };
  One in_order[2 + 3 * kMaxTracedChannels];
  std::uint16_t number[2 + 3 * kMaxTracedChannels];  // by place, from 1

  explicit Callbacks(const LineText& line) noexcept {
    std::uint16_t count = 0;
    const auto add = [&](std::uint64_t time_ns) {
      // Sorted as they come: nearly in order already, and equal times stay in it.
      std::uint16_t at = count;
      while (at > 0 && in_order[at - 1].time_ns > time_ns) {
        in_order[at] = in_order[at - 1];
        --at;
      }
      in_order[at] = {time_ns, count};
      ++count;
    };
    add(line.enqueued_ns);
    add(line.enqueued_ns);
    for (const ChannelTrace& channel : line.channels) {
      add(channel.start_ns);
      add(channel.stop_ns);
      add(channel.stop_ns);
    }
    for (std::uint16_t i = 0; i < count; ++i)
      number[in_order[i].place] = static_cast<std::uint16_t>(i + 1);
  }
};

void put_traces(TextBuffer& out, std::string_view prefix, const LineText& line) noexcept {
  const Callbacks callbacks(line);
  const auto pair = [&](std::string_view name, std::string_view suffix, std::uint64_t value) {
    out.put("\"").put(name).put(suffix).put("\":").put(value);
  };
  const auto head = [&](std::string_view suffix, std::uint64_t start, std::uint64_t stop) {
    out.put(",\"event_trace").put(suffix).put("\":{\"").put(prefix).put("start").put(suffix);
    out.put("\":").put(start).put(",\"").put(prefix).put("stop").put(suffix).put("\":");
    out.put(stop).put(",\"kernel_events\":[");
  };
  const auto channel = [&](std::string_view suffix, std::size_t i, std::uint64_t start,
                           std::uint64_t stop, std::uint64_t record) {
    out.put(i == 0 ? "{" : ",{");
    pair("channel_id", "", line.channels[i].channel);
    out.put(",");
    pair("kernel_start", suffix, start);
    out.put(",");
    pair("kernel_stop", suffix, stop);
    out.put(",");
    pair("kernel_record", suffix, record);
    out.put("}");
  };
  head("_sn", callbacks.number[0], callbacks.number[1]);
  for (std::size_t i = 0; i < line.channels.size(); ++i) {
    const std::uint16_t* number = callbacks.number + 2 + 3 * i;
    channel("_sn", i, number[0], number[2], number[1]);
  }
  out.put("]}");
  head("_ts", line.enqueued_ns / 1000, line.enqueued_ns / 1000);
  for (std::size_t i = 0; i < line.channels.size(); ++i) {
    const ChannelTrace& t = line.channels[i];
    channel("_ts", i, t.start_ns / 1000, t.stop_ns / 1000, t.stop_ns / 1000);
  }
  out.put("]}");
}

}  // namespace

TextBuffer& TextBuffer::put(std::string_view text) noexcept {
  const std::size_t fits = std::min(text.size(), room());
  std::memcpy(memory_ + used_, text.data(), fits);
  used_ += fits;
  full_ = full_ || fits < text.size();
  return *this;
}

TextBuffer& TextBuffer::put(std::uint64_t number) noexcept {
  char digits[20];
  std::size_t at = sizeof digits;
  do {
    digits[--at] = static_cast<char>('0' + number % 10);
    number /= 10;
  } while (number != 0);
  return put(std::string_view(digits + at, sizeof digits - at));
}

TextBuffer& TextBuffer::put_signed(std::int64_t number) noexcept {
  if (number >= 0) return put(static_cast<std::uint64_t>(number));
  return append('-').put(~static_cast<std::uint64_t>(number) + 1);
}

TextBuffer& TextBuffer::put_hex(std::uint64_t number) noexcept {
  char digits[16];
  std::size_t at = sizeof digits;
  do {
    digits[--at] = kHexDigits[number % 16];
    number /= 16;
  } while (number != 0);
  return put("0x").put(std::string_view(digits + at, sizeof digits - at));
}

TextBuffer& TextBuffer::put_fixed(double number) noexcept {
  constexpr double kMost = 1e12;
  constexpr std::uint64_t kMillion = 1'000'000;
  if (!(number > 0)) number = 0;
  const auto millionths = static_cast<std::uint64_t>(std::llround(std::min(number, kMost) * 1e6));
  put(millionths / kMillion).append('.');
  std::uint64_t rest = millionths % kMillion;
  for (std::uint64_t unit = kMillion / 10; unit != 0; unit /= 10) {
    append(static_cast<char>('0' + rest / unit));
    rest %= unit;
  }
  return *this;
}

TextBuffer& TextBuffer::put_short(double number) noexcept {
  put_fixed(number);
  if (full_) return *this;
  while (memory_[used_ - 1] == '0') --used_;
  if (memory_[used_ - 1] == '.') --used_;
  return *this;
}

TextBuffer& TextBuffer::put_json(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    const char c = text[0];
    if (length == 0) {
      put(kReplacement);
    } else if (c == '"' || c == '\\' || c == '/') {
      append('\\').append(c);
    } else if (static_cast<unsigned char>(c) < 0x20) {
      const auto code = static_cast<unsigned char>(c);
      if (c == '\n') {
        put("\\n");
      } else if (c == '\t') {
        put("\\t");
      } else {
        put("\\u00").append(kHexDigits[code / 16]).append(kHexDigits[code % 16]);
      }
    } else {
      put(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return *this;
}

TextBuffer& TextBuffer::put_label(std::string_view text) noexcept {
  while (!text.empty()) {
    const std::size_t length = utf8_sequence(text);
    const char c = text[0];
    if (c == '\n') {
      put("\\n");
    } else if (length == 0 || static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
      put(kReplacement);
    } else if (c == '"' || c == '\\') {
      append('\\').append(c);
    } else {
      put(text.substr(0, length));
    }
    text.remove_prefix(std::max<std::size_t>(length, 1));
  }
  return *this;
}

void put_line(TextBuffer& out, const Writer& writer, Format format, const CommunicatorText& c,
              const LineText& line) noexcept {
  const bool p2p = model::is_point_to_point(line.function);
  const std::string_view prefix = p2p ? "p2p_" : "coll_";
  const auto key = [&](std::string_view name) -> TextBuffer& {
    return out.put(",\"").put(prefix).put(name).put("\":");
  };
  put_header(out, writer, format, c, line.completed_ns);
  out.put(p2p ? R"(,"p2p_perf":{"p2p":")" : R"(,"coll_perf":{"coll":")");
  out.put(model::inspector::name(line.function)).put("\"");
  if (format == Format::kV42 && !p2p) {
    key("algo").put("\"").put(model::name(line.algorithm)).put("\"");
    key("proto").put("\"").put(model::name(line.protocol)).put("\"");
  }
  key("sn").put(line.sequence);
  if (p2p) key("peer").put_signed(line.peer);
  key("msg_size_bytes").put(model::inspector::rank_bytes(line.count, line.datatype));
  key("exec_time_us").put(microseconds(line.duration_ns));
  key("timing_source");
  out.put(line.source == TimeSource::kKernelGpu ? R"("kernel_gpu")" : R"("kernel_cpu")");
  const std::uint64_t bytes =
      model::message_bytes(line.function, line.count, line.datatype, c.nranks);
  // Bytes per nanosecond are 10^9 bytes per second.
  const double bandwidth = line.duration_ns == 0
                               ? 0.0
                               : static_cast<double>(bytes) / static_cast<double>(line.duration_ns);
  key("algobw_gbs").put_fixed(bandwidth);
  key("busbw_gbs").put_fixed(bandwidth * model::bus_factor(line.function, c.nranks));
  if (line.traced) put_traces(out, prefix, line);
  out.put("}}\n");
}

void put_statistics(TextBuffer& out, const Writer& writer, Format format, const CommunicatorText& c,
                    const StatisticsText& s, std::uint64_t now_ns) noexcept {
  put_header(out, writer, format, c, now_ns);
  out.put(R"(,"dump_stats":{"coll_records":)").put(s.collectives);
  out.put(R"(,"coll_dropped_total":)").put(s.collectives_lost);
  out.put(R"(,"coll_dropped_since_last_dump":)")
      .put(s.collectives_lost - s.collectives_lost_before);
  out.put(R"(,"p2p_records":)").put(s.p2p).put(R"(,"p2p_dropped_total":)").put(s.p2p_lost);
  out.put(R"(,"p2p_dropped_since_last_dump":)").put(s.p2p_lost - s.p2p_lost_before);
  out.put("}}\n");
}

}  // namespace ncclscope::plugin::inspector

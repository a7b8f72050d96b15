// SPDX-License-Identifier: Apache-2.0
//
// Lines of NCCL Inspector's JSON files, formats v4.0 to v4.4, into plain values. One parser per
// file, since
//   - lines of v4.3 and v4.4 are a stream: a `dump_stats` line says whose the next lines are and
//   how many there will be;
//   - what does not change from line to line (communicator, process) is parsed once and then
//   recognised byte by byte, which
//     makes ordinary lines a matter of 0.1 us; lines of any other shape (other order of keys,
//     unknown keys, white space) go to a general JSON parser and give the same values.
// The text is not trusted. Pure but for memory.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace ncclscope::cli::inspector_log {

/// `header` and `metadata` without the time: the same for all lines of a communicator's rank.
/// Empty, -1: not given.
struct Context {
  std::string id;         // "0x..." as written
  std::string comm_name;  // "unknown" becomes empty
  std::int32_t rank = -1, n_ranks = -1, nnodes = -1;
  std::string version;  // "v4.0"
  std::string git_rev;
  std::string hostname;
  std::int64_t pid = -1;

  bool operator==(const Context&) const = default;
};

/// What `coll_perf` or `p2p_perf` says. Numbers are as written; times of traces are 0 where there
/// is no trace.
struct Performance {
  static constexpr double kNone = std::numeric_limits<double>::quiet_NaN();

  const Context* context = nullptr;  // lives until the parser forgets it
  std::int64_t dump_timestamp_us = 0;
  bool point_to_point = false;
  // Texts point into the line or into the parser: they are valid until the next call of parse(),
  // and no longer than the line.
  std::string_view operation;  // "AllReduce", "Send"
  std::string_view algorithm;  // v4.2 and later, else empty
  std::string_view protocol;
  std::string_view timing_source;  // "kernel_gpu", "kernel_cpu", "collective_cpu"
  std::int64_t sequence = -1;
  std::int32_t peer = -1;
  std::int64_t message_bytes = -1;
  std::int64_t exec_time_us = -1;
  double algbw_gbs = kNone, busbw_gbs = kNone;
  // Of verbose lines: callbacks on the host, microseconds since the epoch.
  std::int32_t channels = -1;
  std::int64_t enqueued_us = 0, kernel_start_us = 0, kernel_stop_us = 0;
};

class LineParser {
 public:
  enum class Kind : std::uint8_t {
    kPerformance,  // performance() is an operation
    kOther,        // nothing for operations: dump_stats, proxy_trace, an empty line
    kBad,          // error() says why
  };

  LineParser();
  ~LineParser();
  LineParser(const LineParser&) = delete;
  LineParser& operator=(const LineParser&) = delete;

  [[nodiscard]] Kind parse(std::string_view line);
  Kind parse(std::string&& line) = delete;  // performance() would point into a line that is gone
  [[nodiscard]] const Performance& performance() const { return performance_; }
  /// Why the last line was bad. The caller knows file and line.
  [[nodiscard]] const std::string& error() const { return error_; }
  /// How often all contexts were forgotten, since there were too many of them (a process that makes
  /// communicators without end): but for the last operation's, those given before are gone then.
  [[nodiscard]] std::uint64_t forgotten() const { return forgotten_; }
  /// Operations that a v4.3 or v4.4 marker announced and that have not come (yet).
  [[nodiscard]] std::int64_t announced_left() const {
    return collectives_left_ + p2p_left_ + proxy_left_;
  }
  /// Operations that the writer itself said it had lost, over all communicators (v4.1 and later).
  [[nodiscard]] std::int64_t dropped_by_writer() const { return dropped_by_writer_; }

 private:
  struct Shape;
  Kind parse_fast(std::string_view line, const Shape& shape, Performance& out) const;
  Kind parse_any(std::string_view line);
  Kind take_payload(bool point_to_point);
  Kind take_marker(std::int64_t collectives, std::int64_t p2p, std::int64_t proxy);
  Kind bad(std::string reason);
  void learn(std::string_view line);
  Shape* known_shape(std::string_view line);
  void follow(Shape& shape);
  const Context* known_context(Context&& context);
  void forget_contexts();

  struct ContextHash {
    std::size_t operator()(const Context& context) const;
  };

  Performance performance_;
  std::string operation_, algorithm_, protocol_,
      timing_source_;  // what performance_ points to after the general parser
  std::string error_;
  std::unordered_set<Context, ContextHash> contexts_;
  std::unordered_map<std::string_view, std::unique_ptr<Shape>> shapes_;  // by Shape::before
  Shape* last_ = nullptr;
  std::uint64_t forgotten_ = 0;
  // The stream of v4.3 and v4.4.
  bool streaming_ = false;
  const Context* stream_context_ = nullptr;
  std::int64_t stream_timestamp_us_ = 0;
  std::int64_t collectives_left_ = 0, p2p_left_ = 0, proxy_left_ = 0;
  std::int64_t dropped_by_writer_ = 0;
};

}  // namespace ncclscope::cli::inspector_log

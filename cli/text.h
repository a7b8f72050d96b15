// SPDX-License-Identifier: Apache-2.0
//
// Numbers with units, and tables, for people. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::cli {

/// "0 B", "512 B", "4 KiB", "1.5 GiB".
[[nodiscard]] std::string format_bytes(std::uint64_t bytes);
/// "123.4 GB/s" (10^9 bytes per second, as nccl-tests prints it).
[[nodiscard]] std::string format_bandwidth(double bytes_per_second);
/// "850 ns", "12.3 us", "4.56 ms", "1.23 s", "3 min 20 s".
[[nodiscard]] std::string format_duration(double seconds);
/// "0.25/s", "12.3/s", "4567/s".
[[nodiscard]] std::string format_rate(double per_second);
/// "12:34:56.123456" in local time.
[[nodiscard]] std::string format_time_of_day(std::int64_t since_epoch_ns);

/// "90", "90s", "5m", "1h" in seconds; empty if it is anything else, negative or not finite.
[[nodiscard]] std::optional<double> parse_duration(const std::string& text);

/// Names come from other people's programs: control characters, which could steer a terminal,
/// become '?'.
[[nodiscard]] std::string printable(std::string_view text);

/// Columns as wide as their longest cell, two spaces between them.
class Table {
 public:
  enum class Align : unsigned char { kLeft, kRight };
  struct Column {
    std::string title;
    Align align = Align::kLeft;
  };
  explicit Table(std::vector<Column> columns) : columns_(std::move(columns)) {}

  /// As many cells as there are columns.
  void add(std::vector<std::string> cells);
  [[nodiscard]] std::size_t rows() const { return rows_.size(); }
  /// Header and at most `max_rows` rows, each line cut to `max_width` characters (0 = no limit).
  [[nodiscard]] std::string render(std::size_t max_rows = SIZE_MAX,
                                   std::size_t max_width = 0) const;

 private:
  std::vector<Column> columns_;
  std::vector<std::vector<std::string>> rows_;
};

}  // namespace ncclscope::cli

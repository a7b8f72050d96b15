// SPDX-License-Identifier: Apache-2.0
#include "cli/text.h"

#include <time.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <exception>

namespace ncclscope::cli {
namespace {

/// Three significant digits and a unit.
std::string with_unit(double value, const char* unit) {
  char text[64];
  const int decimals = value >= 99.95 ? 0 : value >= 9.995 ? 1 : 2;
  std::snprintf(text, sizeof text, "%.*f%s", decimals, value, unit);
  return text;
}

/// Characters of UTF-8 text; what is shown wider or narrower than one column is not known here.
std::size_t width(std::string_view text) {
  return static_cast<std::size_t>(std::count_if(text.begin(), text.end(), [](char c) {
    return (static_cast<unsigned char>(c) & 0xC0) != 0x80;
  }));
}

std::string cut(std::string text, std::size_t max_width) {
  if (max_width == 0 || width(text) <= max_width) return text;
  std::size_t seen = 0;
  for (std::size_t i = 0; i < text.size(); ++i) {
    if ((static_cast<unsigned char>(text[i]) & 0xC0) == 0x80) continue;
    if (seen++ == max_width) return text.substr(0, i);
  }
  return text;
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  constexpr std::array<const char*, 6> kUnits = {" KiB", " MiB", " GiB", " TiB", " PiB", " EiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < kUnits.size()) {
    value /= 1024;
    ++unit;
  }
  if (value == std::floor(value))
    return std::to_string(static_cast<std::uint64_t>(value)) + kUnits[unit];
  return with_unit(value, kUnits[unit]);
}

std::string format_bandwidth(double bytes_per_second) {
  return with_unit(std::max(0.0, bytes_per_second) * 1e-9, " GB/s");
}

std::string format_duration(double seconds) {
  if (!(seconds > 0)) return "0 s";
  if (seconds < 999.5e-9) return with_unit(seconds * 1e9, " ns");
  if (seconds < 999.5e-6) return with_unit(seconds * 1e6, " us");
  if (seconds < 999.5e-3) return with_unit(seconds * 1e3, " ms");
  if (seconds < 60) return with_unit(seconds, " s");
  const auto whole = static_cast<std::uint64_t>(std::min(seconds, 1e15));
  if (whole < 3600) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole % 3600 / 60) + " min";
}

std::string format_rate(double per_second) {
  return with_unit(std::max(0.0, per_second), "/s");
}

std::string format_time_of_day(std::int64_t since_epoch_ns) {
  if (since_epoch_ns <= 0) return "--:--:--.------";
  const time_t seconds = since_epoch_ns / 1'000'000'000;
  tm local{};
  localtime_r(&seconds, &local);
  char text[64];
  std::snprintf(text, sizeof text, "%02d:%02d:%02d.%06lld", local.tm_hour, local.tm_min,
                local.tm_sec, static_cast<long long>(since_epoch_ns % 1'000'000'000 / 1'000));
  return text;
}

std::optional<double> parse_duration(const std::string& text) {
  std::size_t used = 0;
  double value = 0;
  try {
    value = std::stod(text, &used);
  } catch (const std::exception&) {
    return std::nullopt;
  }
  const std::string unit = text.substr(used);
  const double factor = unit.empty() || unit == "s" ? 1 : unit == "m" ? 60 : unit == "h" ? 3600 : 0;
  if (factor == 0 || !std::isfinite(value) || value < 0) return std::nullopt;
  return value * factor;
}

std::string printable(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    // U+0080 to U+009F are control characters too: C2 80 to C2 9F in UTF-8.
    const bool c1 =
        byte == 0xC2 && i + 1 < text.size() && static_cast<unsigned char>(text[i + 1]) < 0xA0;
    if (c1) ++i;
    out += c1 || byte < 0x20 || byte == 0x7F ? '?' : text[i];
  }
  return out;
}

void Table::add(std::vector<std::string> cells) {
  cells.resize(columns_.size());
  rows_.push_back(std::move(cells));
}

std::string Table::render(std::size_t max_rows, std::size_t max_width) const {
  const std::size_t shown = std::min(max_rows, rows_.size());
  std::vector<std::size_t> widths;
  for (std::size_t c = 0; c < columns_.size(); ++c) {
    std::size_t widest = width(columns_[c].title);
    for (std::size_t r = 0; r < shown; ++r) widest = std::max(widest, width(rows_[r][c]));
    widths.push_back(widest);
  }
  const auto line = [&](const auto& cell_of) {
    std::string out;
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const std::string& cell = cell_of(c);
      const std::string padding(widths[c] - width(cell), ' ');
      if (c > 0) out += "  ";
      out += columns_[c].align == Align::kRight ? padding + cell : cell + padding;
    }
    out.erase(out.find_last_not_of(' ') + 1);
    return cut(std::move(out), max_width) + "\n";
  };
  std::string out = line([&](std::size_t c) -> const std::string& { return columns_[c].title; });
  for (std::size_t r = 0; r < shown; ++r)
    out += line([&](std::size_t c) -> const std::string& { return rows_[r][c]; });
  return out;
}

}  // namespace ncclscope::cli

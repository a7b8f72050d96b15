// SPDX-License-Identifier: Apache-2.0
//
// A picture of the report: what Apache ECharts is to draw, and the same numbers as a table, which
// is what screen readers, keyboards and scripts use. Plain data.
//   Options are JSON, so they hold no functions: a "formatter" or "valueFormatter" that begins with
//   '@' names one of chart.js.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace ncclscope::cli::report {

/// How a column's values are to be written.
enum class Unit : std::uint8_t {
  kText,
  kCount,
  kBytes,
  kBandwidth,  // bytes per second
  kSeconds,
  kShare,   // of 1
  kNumber,  // without a unit
  kTime,    // nanoseconds since 1970
};

struct TableColumn {
  std::string title;
  Unit unit = Unit::kText;
};

struct PictureTable {
  std::string caption;
  std::vector<TableColumn> columns;
  /// As many cells as columns: null, number or string.
  std::vector<std::vector<nlohmann::json>> rows;
};

struct Picture {
  std::string name;     // of the SVG file, without ending
  std::string section;  // heading it stands under
  std::string title;
  std::string text;  // what it shows and how to read it
  nlohmann::ordered_json option;
  int height = 420;  // pixels; all are as wide as the page
  PictureTable table;
};

/// Something that stands out, in plain words.
struct Insight {
  enum class Weight : std::uint8_t { kInformation, kNotice, kFault };
  Weight weight = Weight::kInformation;
  std::string kind;                         // "late_gpu", "untimed", ... for scripts
  std::string text;                         // one sentence
  std::string detail;                       // what it rests on; may be empty
  std::int64_t since_ns = 0, until_ns = 0;  // since 1970; 0 = the whole run
};

/// "1.23 GB/s", "12 ms", ... as the tables show it; "-" for null.
[[nodiscard]] std::string formatted(const nlohmann::json& value, Unit unit);

}  // namespace ncclscope::cli::report

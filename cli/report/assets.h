// SPDX-License-Identifier: Apache-2.0
//
// What the report's page is made of: our own files, inside the program, and Apache ECharts, which
// scripts/fetch-echarts.sh brings and an install puts into share/ncclscope.
#pragma once

#include <stdexcept>
#include <string>
#include <string_view>

namespace ncclscope::cli::report {

[[nodiscard]] std::string_view page_html() noexcept;
[[nodiscard]] std::string_view page_script() noexcept;
[[nodiscard]] std::string_view chart_script() noexcept;

class AssetError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

struct DrawingLibrary {
  std::string folder;
  std::string script;   // echarts.min.js
  std::string licence;  // LICENSE and NOTICE
};

/// Throws AssetError with how to get it where it is not found.
[[nodiscard]] DrawingLibrary drawing_library();

}  // namespace ncclscope::cli::report

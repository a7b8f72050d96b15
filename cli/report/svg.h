// SPDX-License-Identifier: Apache-2.0
//
// Pictures as SVG files, without a browser: Apache ECharts in an interpreter of ECMAScript inside
// the program (Duktape). Not thread-safe. The interpreter has no access to files or network.
#pragma once

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>

#include "cli/report/assets.h"

namespace ncclscope::cli::report {

class DrawingError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

class SvgRenderer {
 public:
  /// Takes about a second: the library is compiled. Throws DrawingError.
  explicit SvgRenderer(const DrawingLibrary& library);
  ~SvgRenderer();
  SvgRenderer(const SvgRenderer&) = delete;
  SvgRenderer& operator=(const SvgRenderer&) = delete;

  [[nodiscard]] std::string render(const nlohmann::ordered_json& option, int width, int height);

 private:
  struct Context;
  std::unique_ptr<Context> context_;
};

}  // namespace ncclscope::cli::report

// SPDX-License-Identifier: Apache-2.0
//
// The report as one self-contained page, and its pictures as SVG files. Names come from tenants:
// everything that is not ours goes into the page as text.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cli/report/assets.h"
#include "cli/report/picture.h"

namespace ncclscope::cli::report {

/// A heading with paragraphs, pictures and tables below it.
struct PageSection {
  std::string title;
  std::string text;  // may be empty
  std::vector<PictureTable> tables;
};

struct Page {
  std::string heading, subheading, version;
  std::vector<std::pair<std::string, std::string>> facts;  // name, value
  std::vector<Insight> insights;
  std::vector<PageSection> sections;  // in front of the pictures
  std::vector<Picture> pictures;      // those of one section stand together
};

/// & < > " as entities.
[[nodiscard]] std::string html_escaped(std::string_view text);

/// "2026-06-19 06:56:24" in UTC.
[[nodiscard]] std::string utc_text(std::int64_t ns);

[[nodiscard]] std::string page_text(const Page& page, const DrawingLibrary& library);

struct WrittenPage {
  std::string html;              // path
  std::vector<std::string> svg;  // paths
};

/// Writes DIR/report.html and DIR/svg/*.svg. Throws std::runtime_error naming the file.
WrittenPage write_page(const Page& page, const std::string& folder);

}  // namespace ncclscope::cli::report

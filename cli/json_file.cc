// SPDX-License-Identifier: Apache-2.0
#include "cli/json_file.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "cli/text.h"

namespace ncclscope::cli {

std::string read_text_file(const std::string& path, std::uintmax_t most_bytes) {
  std::ifstream file;
  if (path != "-") {
    file.open(path, std::ios::binary);
    if (!file)
      throw std::runtime_error(printable(path) + ": cannot be read: " +
                               std::strerror(errno));  // NOLINT(concurrency-mt-unsafe)
  }
  std::istream& in = path == "-" ? std::cin : file;
  std::string text;
  std::string part(std::size_t{1} << 16, '\0');
  while (in.read(part.data(), static_cast<std::streamsize>(part.size())) || in.gcount() > 0) {
    text.append(part, 0, static_cast<std::size_t>(in.gcount()));
    if (text.size() > most_bytes)
      throw std::runtime_error(printable(path) + ": larger than " + format_bytes(most_bytes));
  }
  return text;
}

nlohmann::json parse_json(const std::string& name, const std::string& text) {
  try {
    return nlohmann::json::parse(text);
  } catch (const nlohmann::json::parse_error& error) {
    const std::size_t at = std::min(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const auto begin = text.begin();
    const auto end = begin + static_cast<std::ptrdiff_t>(at);
    const auto line = std::count(begin, end, '\n') + 1;
    const std::size_t newline = at == 0 ? std::string::npos : text.rfind('\n', at - 1);
    const std::size_t column = newline == std::string::npos ? at + 1 : at - newline;
    const bool cut = at >= text.size();
    throw std::runtime_error(
        printable(name) + ":" + std::to_string(line) + ":" + std::to_string(column) +
        (cut ? ": no JSON: it ends too early; was it cut off?" : ": no JSON from here on"));
  }
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
//
// Files that others wrote: read whole, with a bound, and JSON with errors that name file, line and
// column. Errors are thrown as std::runtime_error.
#pragma once

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace ncclscope::cli {

/// "-" is standard input.
[[nodiscard]] std::string read_text_file(const std::string& path, std::uintmax_t most_bytes);

/// @param name  of the file, for errors
[[nodiscard]] nlohmann::json parse_json(const std::string& name, const std::string& text);

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <stdexcept>
#include <string>

namespace ncclscope::tests {

/// What the std::runtime_error says that `call` throws; empty if it throws none.
template <typename Call>
std::string error_of(Call&& call) {
  try {
    call();
  } catch (const std::runtime_error& error) {
    return error.what();
  }
  return "";
}

}  // namespace ncclscope::tests

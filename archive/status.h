// SPDX-License-Identifier: Apache-2.0
//
// What went wrong, for people. Messages name the file, the offset in it, the value, and what would
// be right.
#pragma once

#include <string>
#include <utility>

namespace ncclscope::archive {

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  explicit Status(std::string message) : message_(std::move(message)) {}

  [[nodiscard]] bool ok() const noexcept { return message_.empty(); }
  /// Empty when ok().
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  std::string message_;
};

}  // namespace ncclscope::archive

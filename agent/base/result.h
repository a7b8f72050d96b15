// SPDX-License-Identifier: Apache-2.0
//
// Errors as values: Status (what went wrong, for people and for code) and Result<T> (a value or a
// Status). Messages name the thing, the value, and what would be right. Neither type throws on its
// own.
#pragma once

#include <cassert>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

namespace ncclscope::agent {

enum class ErrorCode : std::uint8_t {
  kOk,
  kInvalidArgument,  // the caller or the user gave something wrong
  kNotFound,
  kInUse,   // somebody else holds it
  kSystem,  // a system call failed
};

class [[nodiscard]] Status {
 public:
  Status() noexcept = default;
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)) {
    assert(code != ErrorCode::kOk);
  }
  /// "<what>: <strerror(error)>".
  static Status system(std::string what, int error = errno) {
    what += ": ";
    what += std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe enough
    return {ErrorCode::kSystem, std::move(what)};
  }
  static Status invalid(std::string message) {
    return {ErrorCode::kInvalidArgument, std::move(message)};
  }

  [[nodiscard]] bool ok() const noexcept { return code_ == ErrorCode::kOk; }
  [[nodiscard]] ErrorCode code() const noexcept { return code_; }
  [[nodiscard]] const std::string& message() const noexcept { return message_; }

 private:
  ErrorCode code_ = ErrorCode::kOk;
  std::string message_;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : value_(std::move(value)) {}         // NOLINT(google-explicit-constructor)
  Result(Status status) : status_(std::move(status)) {  // NOLINT(google-explicit-constructor)
    assert(!status_.ok());
  }
  [[nodiscard]] bool ok() const noexcept { return value_.has_value(); }
  [[nodiscard]] const Status& status() const noexcept { return status_; }
  /// Only when ok().
  [[nodiscard]] T& value() & { return *value_; }
  [[nodiscard]] const T& value() const& { return *value_; }
  [[nodiscard]] T&& value() && { return *std::move(value_); }

 private:
  std::optional<T> value_;
  Status status_;
};

/// Joins strings and whole numbers: concat("pid ", 7, " of uid ", 0).
namespace internal {
inline void append(std::string& out, std::string_view s) {
  out += s;
}
template <typename Number>
requires std::is_integral_v<Number>
void append(std::string& out, Number n) {
  out += std::to_string(n);
}
}  // namespace internal
template <typename... Parts>
[[nodiscard]] std::string concat(const Parts&... parts) {
  std::string out;
  (internal::append(out, parts), ...);
  return out;
}

}  // namespace ncclscope::agent

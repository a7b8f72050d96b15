// SPDX-License-Identifier: Apache-2.0
//
// Counters of the way in.   Thread: reactor.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

#include "proto/wire/decode.h"

namespace ncclscope::agent {

/// Why something that came in was not taken. The first ones are wire::DecodeError by number.
enum class IngestError : std::uint8_t {
  kDecodeFirst = 0,
  kNoHello = 9,           // the first record was not Hello, or none came in time
  kBadIndex = 10,         // indexed records without a usable first_index
  kBadSession = 11,       // session id 0, or another one in mid-connection
  kSessionConflict = 12,  // the session id belongs to another process
  kLimit = 13,            // too many connections or sessions
  kUnknownCommunicator =
      14,                // a record names a communicator that was not announced (record skipped)
  kWrongDirection = 15,  // a record that only agents send
  kAcceptFailed = 16,    // the agent had no descriptor for a connection
};
inline constexpr std::size_t kIngestErrorCount = 17;
static_assert(static_cast<int>(wire::DecodeError::kBadString) + 1 ==
              static_cast<int>(IngestError::kNoHello));

[[nodiscard]] constexpr IngestError to_ingest_error(wire::DecodeError e) noexcept {
  return static_cast<IngestError>(e);
}
[[nodiscard]] constexpr std::string_view name(IngestError e) noexcept {
  constexpr std::string_view kNames[] = {"no_hello",         "bad_index",    "bad_session",
                                         "session_conflict", "limit",        "unknown_communicator",
                                         "wrong_direction",  "accept_failed"};
  const auto i = static_cast<std::size_t>(e);
  const auto first = static_cast<std::size_t>(IngestError::kNoHello);
  return i < first ? wire::name(static_cast<wire::DecodeError>(e)) : kNames[i - first];
}

struct IngestStats {
  std::uint64_t connections_accepted = 0;
  std::uint32_t connections_open = 0;
  std::uint64_t refused_connections = 0;  // told why and closed, or closed at once at the limit
  std::uint64_t frames = 0;               // well-formed ones
  std::uint64_t bytes_received = 0;
  std::uint64_t records = 0;
  std::uint64_t unknown_records = 0;  // types this version does not know, skipped
  std::array<std::uint64_t, kIngestErrorCount> errors{};

  void count(IngestError e) { ++errors[static_cast<std::size_t>(e)]; }
  [[nodiscard]] std::uint64_t error(IngestError e) const {
    return errors[static_cast<std::size_t>(e)];
  }
};

}  // namespace ncclscope::agent

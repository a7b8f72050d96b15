// SPDX-License-Identifier: Apache-2.0
//
// API messages as JSON for scripts: field names as in the .proto files, all fields present, 64-bit
// numbers as numbers (protobuf's own JSON makes them strings). Exception: session_id, a random
// 64-bit number, is a string of 16 hex digits.
#pragma once

#include <google/protobuf/message.h>

#include <nlohmann/json_fwd.hpp>

namespace ncclscope::cli {

[[nodiscard]] nlohmann::ordered_json message_json(const google::protobuf::Message& message);

}  // namespace ncclscope::cli

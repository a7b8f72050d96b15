// SPDX-License-Identifier: Apache-2.0
//
// Recordings of NCCL's callbacks into an agent: each recorded process is played into the real
// plugin (ncclscope-replay does that), whose frames are taken here as an agent would take them, and
// passed on through IngestService.Publish.
//   Errors that are not the agent's are thrown as std::runtime_error.
#pragma once

#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "cli/verify_trace/session.h"

namespace ncclscope::cli {

struct RecordingReport {
  std::vector<std::uint64_t> sessions;  // ids, of all processes
};

/// Whether `path` is a folder with rank<r>.jsonl.gz.
[[nodiscard]] bool is_recording(const std::filesystem::path& path);

/// Replays all processes of a recording, one after another being irrelevant: all at once.
/// @param job     empty: the folder's name
/// @param status  not OK: the agent is gone or refused
[[nodiscard]] RecordingReport publish_recording(
    const std::filesystem::path& folder, const std::string& job, const Programs& programs,
    const std::shared_ptr<grpc::ChannelInterface>& channel, grpc::Status& status);

}  // namespace ncclscope::cli

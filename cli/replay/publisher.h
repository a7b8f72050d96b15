// SPDX-License-Identifier: Apache-2.0
//
// Sends frames of many sessions into one agent, over IngestService.Publish: a stream for each
// session, as many at a time as the agent takes from one caller. A session whose stream had to give
// way goes on later where it was.
//   Thread: one; each stream has a thread that reads the agent's answers.
#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <string>
#include <unordered_map>

#include "cli/replay/session.h"
#include "ncclscope/v1/ingest.grpc.pb.h"

namespace ncclscope::cli {

class Publisher {
 public:
  static constexpr std::size_t kMaxStreams = 8;

  explicit Publisher(const std::shared_ptr<grpc::ChannelInterface>& channel);
  ~Publisher();
  Publisher(const Publisher&) = delete;
  Publisher& operator=(const Publisher&) = delete;

  /// Sends a frame; waits while the agent wants that. Not OK: the session or the agent is gone.
  [[nodiscard]] grpc::Status send(const ReplayedFrame& frame);
  /// Ends all streams in good order: every frame has then been taken.
  [[nodiscard]] grpc::Status finish();

 private:
  class Stream;
  [[nodiscard]] grpc::Status open(ReplayedSession& session, std::uint64_t time_ns);
  [[nodiscard]] grpc::Status close(Stream& stream);

  std::unique_ptr<v1::IngestService::Stub> stub_;
  std::list<std::unique_ptr<Stream>> streams_;  // that used last in front
  std::unordered_map<const ReplayedSession*, std::list<std::unique_ptr<Stream>>::iterator> of_;
};

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
//
// Two threads per stream: one reads frames and answers them, the other forwards. Both write, under
// one lock.
#include "agent/api/ingest_service.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

namespace ncclscope::agent {
namespace {

constexpr std::chrono::milliseconds kForwardWait{200};
constexpr std::chrono::milliseconds kTurnWait{100};

using Stream = grpc::ServerReaderWriter<v1::PublishResponse, v1::PublishRequest>;

class Writer {
 public:
  explicit Writer(Stream& stream) : stream_(stream) {}
  /// False when the stream is broken or the session has ended.
  bool send(const IngestChannel::Response& response) {
    const std::lock_guard lock(mutex_);
    v1::PublishResponse message;
    for (const std::string& frame : response.frames) {
      message.set_frame(frame);
      if (!stream_.Write(message)) return false;
    }
    return !response.closed;
  }

 private:
  Stream& stream_;
  std::mutex mutex_;
};

}  // namespace

IngestServiceImpl::IngestServiceImpl(IngestGateway* gateway, const CallContext& calls,
                                     std::size_t max_publishers)
    : gateway_(gateway),
      calls_(calls),
      publishers_(max_publishers, std::max<std::size_t>(1, max_publishers / 2)) {}

grpc::Status IngestServiceImpl::Publish(grpc::ServerContext* context, Stream* stream) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kPublish, caller);
      !status.ok())
    return status;
  if (gateway_ == nullptr)
    return {grpc::StatusCode::UNIMPLEMENTED, "this agent takes no frames over gRPC"};
  const StreamLimit::Permit permit = publishers_.acquire(caller);
  if (!permit.granted())
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            "the agent takes " + publishers_.text("streams of frames")};
  const std::unique_ptr<IngestChannel> channel =
      gateway_->open("grpc " + caller.principal(), caller.uid);
  if (channel == nullptr)
    return {grpc::StatusCode::UNAVAILABLE, "the agent is stopping or takes no more sessions"};

  Writer writer(*stream);
  std::atomic<bool> reading_ended = false;
  std::thread forwarder([&] {
    while (!reading_ended && !calls_.stopping) {
      if (!writer.send(channel->take(kForwardWait))) break;
    }
    // The session or the agent has ended while the other thread waits for a frame: end its wait.
    if (!reading_ended) context->TryCancel();
  });
  v1::PublishRequest request;
  while (stream->Read(&request)) {
    IngestChannel::Response response = channel->submit(request.frame());
    // While a frame waits for its turn nothing is read, so that in the end the sender waits.
    while (response.retry_after.count() > 0 && !context->IsCancelled() && !calls_.stopping) {
      std::this_thread::sleep_for(std::min(response.retry_after, kTurnWait));
      response = channel->submit(request.frame());
    }
    if (response.retry_after.count() > 0 || !writer.send(response)) break;
  }
  reading_ended = true;
  forwarder.join();
  return grpc::Status::OK;
}

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/publisher.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "proto/wire/decode.h"

namespace ncclscope::cli {
namespace {

constexpr std::chrono::seconds kWelcomeLimit{10};

const char* text_of(std::uint16_t reason) {
  switch (static_cast<wire::RefuseReason>(reason)) {
    case wire::RefuseReason::kVersion:
      return "it speaks another version of the protocol";
    case wire::RefuseReason::kMalformed:
      return "a frame was malformed";
    case wire::RefuseReason::kNoHello:
      return "it got no Hello";
    case wire::RefuseReason::kQuota:
      return "a limit on sessions, jobs or memory is reached (its log says which)";
    case wire::RefuseReason::kShutdown:
      return "it is stopping";
    default:
      return "no reason given (its log says more)";
  }
}

std::uint64_t send_time_of(std::span<const std::byte> packet) {
  wire::FrameHeader header{};
  static_cast<void>(wire::read_header(packet, header));
  return header.send_time_ns;
}

/// What a new stream of the session would have to say again.
void note_communicators(std::span<const std::byte> packet, ReplayedSession& session) {
  wire::FrameHeader header{};
  const auto note = [&session](std::uint8_t type, std::span<const std::byte> record,
                               std::uint64_t) {
    std::uint16_t id = 0;
    std::memcpy(&id, record.data() + sizeof(wire::RecordHeader), sizeof id);
    switch (static_cast<wire::RecordType>(type)) {
      case wire::RecordType::kCommunicatorInit:
        session.told[id].assign(record.begin(), record.end());
        break;
      case wire::RecordType::kCommunicatorFinalize:
        session.told.erase(id);
        break;
      default:
        break;
    }
    return true;
  };
  static_cast<void>(wire::read_frame(packet, header, note));
}

}  // namespace

/// One session's stream.
class Publisher::Stream {
 public:
  Stream(v1::IngestService::Stub& stub, ReplayedSession& session)
      : session_(session), stream_(stub.Publish(&context_)), reader_([this] { read(); }) {}
  ~Stream() {
    if (!reader_.joinable()) return;
    context_.TryCancel();
    reader_.join();
    static_cast<void>(stream_->Finish());
  }

  [[nodiscard]] const ReplayedSession& session() const { return session_; }
  bool write(std::span<const std::byte> packet) {
    v1::PublishRequest request;
    request.set_frame(packet.data(), packet.size());
    return stream_->Write(request);
  }
  /// Says Hello and the communicators that live, and waits for the agent's Welcome.
  grpc::Status greet(std::uint64_t time_ns) {
    std::vector<std::byte> buffer(wire::kMaxFrameBytes);
    wire::FrameWriter writer(buffer);
    writer.add_bytes(session_.hello);
    if (!write(writer.finish(0, time_ns))) return end();
    for (const auto& [id, record] : session_.told) {
      if (writer.add_bytes(record)) continue;
      if (!write(writer.finish(0, time_ns))) return end();
      writer.add_bytes(record);
    }
    if (!writer.empty() && !write(writer.finish(0, time_ns))) return end();
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kWelcomeLimit, [this] { return welcome_ || over_; })) {
      lock.unlock();
      context_.TryCancel();
      static_cast<void>(end());
      return {grpc::StatusCode::DEADLINE_EXCEEDED, "no answer to the Hello of " + session_.name};
    }
    lock.unlock();
    return welcome_ ? grpc::Status::OK : end();
  }
  /// Waits until the agent has taken everything. What went wrong, if something did.
  grpc::Status end() {
    stream_->WritesDone();
    reader_.join();
    grpc::Status status = stream_->Finish();
    if (refused_) {
      return {grpc::StatusCode::FAILED_PRECONDITION,
              "it refused " + session_.name + ": " + text_of(*refused_)};
    }
    return status;
  }

 private:
  void read() {
    v1::PublishResponse response;
    while (stream_->Read(&response)) {
      const std::string& frame = response.frame();
      wire::FrameHeader header{};
      const auto take = [this](std::uint8_t type, std::span<const std::byte> record,
                               std::uint64_t) {
        const std::lock_guard lock(mutex_);
        if (type == static_cast<std::uint8_t>(wire::RecordType::kWelcome)) welcome_ = true;
        wire::Refuse refuse{};
        if (type == static_cast<std::uint8_t>(wire::RecordType::kRefuse) &&
            wire::read_record(record, refuse)) {
          refused_ = refuse.reason;
        }
        return true;
      };
      static_cast<void>(wire::read_frame(
          {reinterpret_cast<const std::byte*>(frame.data()), frame.size()}, header, take));
      changed_.notify_all();
    }
    const std::lock_guard lock(mutex_);
    over_ = true;
    changed_.notify_all();
  }

  ReplayedSession& session_;
  grpc::ClientContext context_;
  std::unique_ptr<grpc::ClientReaderWriter<v1::PublishRequest, v1::PublishResponse>> stream_;
  std::mutex mutex_;
  std::condition_variable changed_;
  bool welcome_ = false;
  bool over_ = false;
  std::optional<std::uint16_t> refused_;
  std::thread reader_;
};

Publisher::Publisher(const std::shared_ptr<grpc::ChannelInterface>& channel)
    : stub_(v1::IngestService::NewStub(channel)) {}
Publisher::~Publisher() = default;

grpc::Status Publisher::close(Stream& stream) {
  grpc::Status status = stream.end();
  const auto it = of_.find(&stream.session());
  streams_.erase(it->second);
  of_.erase(it);
  return status;
}

grpc::Status Publisher::open(ReplayedSession& session, std::uint64_t time_ns) {
  if (streams_.size() >= kMaxStreams) {
    if (grpc::Status status = close(*streams_.back()); !status.ok()) return status;
  }
  auto stream = std::make_unique<Stream>(*stub_, session);
  if (grpc::Status status = stream->greet(time_ns); !status.ok()) return status;
  streams_.push_front(std::move(stream));
  of_[&session] = streams_.begin();
  return grpc::Status::OK;
}

grpc::Status Publisher::send(const ReplayedFrame& frame) {
  ReplayedSession& session = *frame.session;
  auto it = of_.find(&session);
  if (it == of_.end()) {
    if (grpc::Status status = open(session, send_time_of(frame.packet)); !status.ok())
      return status;
    it = of_.find(&session);
  }
  streams_.splice(streams_.begin(), streams_, it->second);
  Stream& stream = **it->second;
  if (stream.write(frame.packet)) {
    note_communicators(frame.packet, session);
    return grpc::Status::OK;
  }
  grpc::Status status = close(stream);
  if (status.ok()) status = {grpc::StatusCode::UNAVAILABLE, "it ended the stream: it is stopping"};
  return status;
}

grpc::Status Publisher::finish() {
  grpc::Status worst;
  while (!streams_.empty()) {
    if (grpc::Status status = close(*streams_.back()); !status.ok()) worst = status;
  }
  return worst;
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
//
// Threads: one accepts the plugins' connections; each connection has two, one for either direction.
#include "cli/replay/recording.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <fstream>
#include <mutex>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cli/verify_trace/processes.h"
#include "cli/verify_trace/trace.h"
#include "ncclscope/v1/ingest.grpc.pb.h"
#include "proto/wire/decode.h"
#include "proto/wire/frame.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;
using std::chrono::milliseconds;

constexpr milliseconds kReplayLimit{120'000};
constexpr milliseconds kExitLimit{30'000};
constexpr int kSenderIntervalMs = 5;

/// Where the plugins of the replayed processes find their agent; passes frames on to the true one.
class Relay {
 public:
  Relay(const fs::path& socket_path, const std::shared_ptr<grpc::ChannelInterface>& channel)
      : stub_(v1::IngestService::NewStub(channel)) {
    listener_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path.string().size() >= sizeof address.sun_path)
      throw std::runtime_error(socket_path.string() + ": is too long for a socket");
    std::strncpy(address.sun_path, socket_path.c_str(), sizeof address.sun_path - 1);
    if (listener_ < 0 ||
        ::bind(listener_, reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0 ||
        ::listen(listener_, 64) != 0) {
      const int error = errno;
      if (listener_ >= 0) ::close(listener_);
      throw std::runtime_error(socket_path.string() + ": cannot be listened to: " +
                               std::strerror(error));  // NOLINT(concurrency-mt-unsafe)
    }
    acceptor_ = std::thread([this] { accept_all(); });
  }
  ~Relay() { static_cast<void>(stop()); }
  Relay(const Relay&) = delete;
  Relay& operator=(const Relay&) = delete;

  /// Waits until so many processes have been welcomed, or one was refused. False: not in time.
  bool wait_for_sessions(std::size_t count, milliseconds timeout) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, timeout, [&] { return welcomed_ >= count || !status_.ok(); }) &&
           status_.ok();
  }
  /// Waits until all connections have ended and the agent has taken everything.
  grpc::Status stop() {
    stopping_ = true;
    if (acceptor_.joinable()) acceptor_.join();
    for (auto& connection : connections_) {
      if (connection.thread.joinable()) connection.thread.join();
    }
    if (listener_ >= 0) ::close(std::exchange(listener_, -1));
    const std::lock_guard lock(mutex_);
    return status_;
  }
  [[nodiscard]] std::vector<std::uint64_t> sessions() {
    const std::lock_guard lock(mutex_);
    return sessions_;
  }

 private:
  struct Connection {
    std::thread thread;
  };

  void accept_all() {
    while (!stopping_) {
      pollfd wait{listener_, POLLIN, 0};
      if (::poll(&wait, 1, 50) <= 0) continue;
      const int fd = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) continue;
      connections_.emplace_back();
      connections_.back().thread = std::thread([this, fd] {
        carry(fd);
        ::close(fd);
      });
    }
  }
  void note(const grpc::Status& status) {
    const std::lock_guard lock(mutex_);
    if (status_.ok()) status_ = status;
    changed_.notify_all();
  }
  void note_hello(std::span<const std::byte> packet) {
    wire::FrameHeader header{};
    const auto look = [this](std::uint8_t type, std::span<const std::byte> record, std::uint64_t) {
      wire::Hello hello{};
      if (type != static_cast<std::uint8_t>(wire::RecordType::kHello) ||
          !wire::read_record(record, hello)) {
        return true;
      }
      const std::lock_guard lock(mutex_);
      sessions_.push_back(hello.session_id);
      return true;
    };
    static_cast<void>(wire::read_frame(packet, header, look));
  }
  void carry(int fd) {
    grpc::ClientContext context;
    const auto stream = stub_->Publish(&context);
    std::thread answers([&] {
      v1::PublishResponse response;
      bool first = true;
      while (stream->Read(&response)) {
        static_cast<void>(
            ::send(fd, response.frame().data(), response.frame().size(), MSG_NOSIGNAL));
        if (!std::exchange(first, false)) continue;
        const std::lock_guard lock(mutex_);
        ++welcomed_;
        changed_.notify_all();
      }
      ::shutdown(fd, SHUT_RDWR);  // the agent has ended it: so it is for the plugin
    });
    std::vector<std::byte> packet(wire::kMaxFrameBytes);
    bool first = true;
    for (;;) {
      const ssize_t got = ::recv(fd, packet.data(), packet.size(), 0);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) break;
      const std::span<const std::byte> frame(packet.data(), static_cast<std::size_t>(got));
      if (std::exchange(first, false)) note_hello(frame);
      v1::PublishRequest request;
      request.set_frame(frame.data(), frame.size());
      if (!stream->Write(request)) break;
    }
    stream->WritesDone();
    answers.join();
    if (const grpc::Status status = stream->Finish(); !status.ok()) note(status);
  }

  std::unique_ptr<v1::IngestService::Stub> stub_;
  int listener_ = -1;
  std::atomic<bool> stopping_{false};
  std::thread acceptor_;
  std::deque<Connection> connections_;  // the acceptor's, until it has ended
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t welcomed_ = 0;
  grpc::Status status_;
  std::vector<std::uint64_t> sessions_;
};

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

bool is_recording(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error) && !trace_files(path).empty();
}

RecordingReport publish_recording(const fs::path& folder, const std::string& job,
                                  const Programs& programs,
                                  const std::shared_ptr<grpc::ChannelInterface>& channel,
                                  grpc::Status& status) {
  if (programs.plugin.empty() || programs.replayer.empty()) {
    throw std::runtime_error(
        folder.string() +
        ": a recording needs libnccl-profiler-ncclscope.so and ncclscope-replay "
        "beside this program, and they are not there");
  }
  const std::vector<fs::path> files = trace_files(folder);
  const TemporaryDirectory directory;
  Relay relay(directory.path() / "agent.sock", channel);
  const std::string name = folder.filename().empty() ? folder.parent_path().filename().string()
                                                     : folder.filename().string();
  std::deque<Child> children;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string rank = std::to_string(i);
    const std::vector<std::string> environment = environment_with(
        {"NCCLSCOPE_", "SLURM_", "NCCL_"},
        {"NCCLSCOPE_SOCKET=" + (directory.path() / "agent.sock").string(),
         "NCCLSCOPE_SENDER_INTERVAL_MS=" + std::to_string(kSenderIntervalMs),
         // Recorded time says nothing about what the plugin costs here.
         "NCCLSCOPE_OVERHEAD_BUDGET=1", "SLURM_JOB_ID=" + (job.empty() ? name : job),
         "SLURM_PROCID=" + rank, "SLURM_LOCALID=" + rank, "SLURM_JOB_NAME=" + name});
    children.emplace_back(
        std::vector<std::string>{programs.replayer.string(), files[i].string(), "--plugin",
                                 programs.plugin.string(), "--report",
                                 (directory.path() / (rank + ".json")).string(), "--pause-ms",
                                 std::to_string(3 * kSenderIntervalMs)},
        environment, directory.path() / (rank + ".log"));
  }
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (children[i].wait_for_line("replayed", kReplayLimit)) continue;
    throw std::runtime_error(files[i].string() + ": cannot be replayed: " +
                             text_of(directory.path() / (std::to_string(i) + ".log")));
  }
  // The recorded processes lived for seconds: nobody leaves before the agent knows them all.
  static_cast<void>(relay.wait_for_sessions(children.size(), milliseconds(10'000)));
  for (Child& child : children) child.close_stdin();
  for (Child& child : children) {
    if (child.wait(kExitLimit) == -1) child.stop(milliseconds(1'000));
  }
  status = relay.stop();
  return {relay.sessions()};
}

}  // namespace ncclscope::cli

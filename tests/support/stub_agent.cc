// SPDX-License-Identifier: Apache-2.0
#include "tests/support/stub_agent.h"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <random>
#include <stdexcept>

#include "proto/wire/decode.h"
#include "proto/wire/encode.h"

namespace ncclscope::tests {

StubAgent::StubAgent(std::string path, Behaviour behaviour)
    : path_(std::move(path)), behaviour_(behaviour) {
  instance_ = std::random_device{}() | 1u;
  listener_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path_.size() >= sizeof address.sun_path)
    throw std::runtime_error("socket path too long: " + path_);
  std::memcpy(address.sun_path, path_.data(), path_.size());
  unlink(path_.c_str());
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof address) != 0 ||
      listen(listener_, 64) != 0) {
    throw std::runtime_error("cannot listen on " + path_ + ": " + std::strerror(errno));
  }
  thread_ = std::thread([this] { run(); });
}

StubAgent::~StubAgent() {
  stop_.store(true);
  thread_.join();
  for (const Connection& c : connections_) close(c.fd);
  close(listener_);
  unlink(path_.c_str());
}

template <typename Record>
void StubAgent::answer(int fd, const Record& record) {
  alignas(8) std::byte buffer[256];
  wire::FrameWriter w(buffer);
  w.add(record);
  const auto packet = w.finish(0, 0);
  buffer[offsetof(wire::FrameHeader, major)] = std::byte{behaviour_.major};
  (void)::send(fd, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void StubAgent::send(const wire::SetDetail& detail) {
  const std::lock_guard lock(mutex_);
  for (const Connection& c : connections_) answer(c.fd, detail);
}

bool StubAgent::read(Connection& c) {
  alignas(8) static thread_local std::byte buffer[wire::kMaxFrameBytes];
  const ssize_t n = recv(c.fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN;
  if (n == 0) return false;
  frames_.fetch_add(1);
  bytes_.fetch_add(static_cast<std::uint64_t>(n));
  const std::lock_guard lock(mutex_);
  wire::FrameHeader header;
  std::uint64_t ack = 0;
  const auto error = wire::read_frame(
      {buffer, static_cast<std::size_t>(n)}, header,
      [&](std::uint8_t type, std::span<const std::byte> record, std::uint64_t index) {
        const auto take = [&record](auto& out) { return wire::read_record(record, out); };
        if (index != 0) {
          std::uint64_t& highest = highest_[c.session];
          if (index <= highest) {
            duplicates_.fetch_add(1);
            return true;
          }
          lost_.fetch_add(index - highest - 1);
          highest = index;
          ack = index;
        }
        switch (static_cast<wire::RecordType>(type)) {
          case wire::RecordType::kHello: {
            wire::Hello h;
            if (!take(h)) return false;
            hellos_.push_back(h);
            c.session = h.session_id;
            strings_.clear();
            variables_.clear();
            environment_flags_.reset();
            if (!wire::read_strings(record, sizeof h, h.string_bytes,
                                    [&](wire::StringKey key, std::string_view text) {
                                      strings_[static_cast<std::uint16_t>(key)] = std::string(text);
                                    }))
              return false;
            // What an earlier agent has acknowledged is not this one's.
            if (!highest_.contains(h.session_id)) highest_[h.session_id] = h.acknowledged_index;
            if (behaviour_.garbage) {
              const char text[] = "HTTP/1.1 400 Bad Request";
              (void)::send(c.fd, text, sizeof text, MSG_DONTWAIT | MSG_NOSIGNAL);
            } else if (behaviour_.refuse) {
              wire::Refuse r{};
              wire::set_header(r, wire::RecordType::kRefuse);
              answer(c.fd, r);
            } else if (behaviour_.welcome) {
              wire::Welcome w{};
              wire::set_header(w, wire::RecordType::kWelcome);
              w.agent_instance = instance_;
              w.highest_index = behaviour_.claim_too_much ? 1'000'000'000 : highest_[h.session_id];
              answer(c.fd, w);
            }
            break;
          }
          case wire::RecordType::kCommunicatorInit: {
            wire::CommunicatorInit i;
            if (!take(i)) return false;
            communicators_[i.communicator] = i;
            return wire::read_strings(record, sizeof i, i.string_bytes,
                                      [&](wire::StringKey key, std::string_view text) {
                                        if (key == wire::StringKey::kCommunicatorName)
                                          communicator_names_[i.communicator] = std::string(text);
                                      });
          }
          case wire::RecordType::kProgress: {
            wire::Progress g;
            if (!take(g)) return false;
            progress_[g.communicator] = g;
            break;
          }
          case wire::RecordType::kBooks: {
            wire::Books b;
            if (!take(b)) return false;
            books_[c.session] = b;
            break;
          }
          case wire::RecordType::kNeighbours: {
            wire::Neighbours head;
            if (!take(head)) return false;
            for (std::size_t i = 0; i < head.count; ++i) {
              wire::Neighbour peer;
              if (!wire::read_record(record.subspan(sizeof head + i * sizeof peer), peer))
                return false;
              neighbours_.push_back(peer);
            }
            break;
          }
          case wire::RecordType::kOperation: {
            wire::Operation o;
            if (!take(o)) return false;
            operation_count_.fetch_add(1);
            if (behaviour_.keep_records) operations_.push_back(o);
            break;
          }
          case wire::RecordType::kNetworkPhases: {
            wire::NetworkPhases r;
            if (!take(r)) return false;
            network_.push_back(r);
            break;
          }
          case wire::RecordType::kChannelDetail: {
            wire::ChannelDetail d;
            if (!take(d)) return false;
            channels_.push_back(d);
            break;
          }
          case wire::RecordType::kCommunicatorFinalize: {
            wire::CommunicatorFinalize f;
            if (!take(f)) return false;
            finalized_.push_back(f);
            break;
          }
          case wire::RecordType::kEnvironment: {
            wire::Environment e;
            if (!take(e)) return false;
            environment_flags_ = e.flags;
            return wire::read_strings(record, sizeof e, e.string_bytes,
                                      [&](wire::StringKey key, std::string_view text) {
                                        if (key == wire::StringKey::kVariable)
                                          variables_.emplace_back(text);
                                        else if (!variables_.empty())
                                          variables_.back() += text;
                                      });
          }
          case wire::RecordType::kGoodbye:
            goodbyes_.fetch_add(1);
            break;
          default:
            return false;
        }
        return true;
      });
  if (error != wire::DecodeError::kNone) malformed_.fetch_add(1);
  if (ack != 0 && behaviour_.acknowledge && behaviour_.welcome) {
    wire::Ack a{};
    wire::set_header(a, wire::RecordType::kAck);
    a.index = behaviour_.claim_too_much ? ack + 1'000'000 : ack;
    answer(c.fd, a);
  }
  return true;
}

void StubAgent::run() {
  while (!stop_.load()) {
    std::vector<pollfd> fds{{listener_, POLLIN, 0}};
    {
      const std::lock_guard lock(mutex_);
      for (const Connection& c : connections_) fds.push_back({c.fd, POLLIN, 0});
    }
    if (poll(fds.data(), fds.size(), 5) <= 0) continue;
    for (std::size_t i = 1; i < fds.size(); ++i) {
      if (fds[i].revents == 0) continue;
      // Only this thread changes the list, so the positions still hold.
      if (!read(connections_[i - 1])) {
        const std::lock_guard lock(mutex_);
        close(connections_[i - 1].fd);
        connections_.erase(connections_.begin() + static_cast<std::ptrdiff_t>(i - 1));
        break;
      }
    }
    if (fds[0].revents != 0) {
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) {
        const std::lock_guard lock(mutex_);
        connections_.push_back({fd, 0});
      }
    }
  }
}

#define NCCLSCOPE_LOCKED(type, name)    \
  type StubAgent::name() const {        \
    const std::lock_guard lock(mutex_); \
    return name##_;                     \
  }
using Variables = std::vector<std::string>;
using CommunicatorMap = std::map<std::uint16_t, wire::CommunicatorInit>;
using NameMap = std::map<std::uint16_t, std::string>;
using ProgressMap = std::map<std::uint16_t, wire::Progress>;
using BooksMap = std::map<std::uint64_t, wire::Books>;
NCCLSCOPE_LOCKED(std::vector<wire::Operation>, operations)
NCCLSCOPE_LOCKED(std::vector<wire::NetworkPhases>, network)
NCCLSCOPE_LOCKED(std::vector<wire::ChannelDetail>, channels)
NCCLSCOPE_LOCKED(std::vector<wire::CommunicatorFinalize>, finalized)
NCCLSCOPE_LOCKED(CommunicatorMap, communicators)
NCCLSCOPE_LOCKED(NameMap, communicator_names)
NCCLSCOPE_LOCKED(ProgressMap, progress)
NCCLSCOPE_LOCKED(BooksMap, books)
NCCLSCOPE_LOCKED(std::vector<wire::Hello>, hellos)
NCCLSCOPE_LOCKED(NameMap, strings)
NCCLSCOPE_LOCKED(Variables, variables)
NCCLSCOPE_LOCKED(std::optional<std::uint16_t>, environment_flags)
NCCLSCOPE_LOCKED(std::vector<wire::Neighbour>, neighbours)
#undef NCCLSCOPE_LOCKED

}  // namespace ncclscope::tests

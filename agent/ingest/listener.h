// SPDX-License-Identifier: Apache-2.0
//
// The Unix socket that plugins connect to, and its connections. Any process on the node may connect
// and send anything: one bad, slow or silent peer costs the others nothing.
//   Thread:   reactor.
//   Fairness: principals take turns of at most kFramesPerTurn packets each, however many
//   connections
//             one has; the connections of a principal share its turn. A principal that has used up
//             its bytes per second is not read until it has some again: its plugins feel a full
//             socket, and their rings drop and count.
//   Memory:   one receive buffer for all connections; per connection only what its session needs.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "agent/base/reactor.h"
#include "agent/base/result.h"
#include "agent/base/scoped_fd.h"
#include "agent/ingest/quota.h"
#include "agent/ingest/session.h"
#include "proto/wire/frame.h"

namespace ncclscope::agent {

/// Who is at the other end of a connected socket. The connection was made after `queue_empty_ns`
/// (CLOCK_BOOTTIME), when none was waiting.
using PeerCredentialsSource =
    std::function<Result<PeerIdentity>(int fd, std::uint64_t queue_empty_ns)>;
/// SO_PEERCRED: pid and uid, nothing of jobs.
[[nodiscard]] Result<PeerIdentity> socket_peer_credentials(int fd, std::uint64_t queue_empty_ns);

/// Creates the directory of a socket path (0755) if it is missing, and checks that nobody but this
/// user and root can put anything in its place or into it.
Status make_socket_directory(const std::string& path);

/// Makes a listening SOCK_SEQPACKET socket at `path` with `mode`; creates the directory (0755) if
/// it is missing. A socket file of ours on which nobody listens is replaced; one that answers, one
/// of another user, or a file of another kind is an error.
[[nodiscard]] Result<ScopedFd> listen_seqpacket(const std::string& path, unsigned mode);

class Listener {
 public:
  static constexpr int kFramesPerTurn = 16;
  static constexpr std::size_t kPrincipalsPerTurn = 64;  // then timers and others have their turn

  struct Options {
    std::string path;
    std::size_t max_connections = 4096;
    std::size_t connections_per_principal = 512;
    std::uint64_t bytes_per_second_per_principal = 0;  // 0 = no limit
    int receive_buffer_bytes = 0;    // SO_RCVBUF of connections, 0 = the system's default
    bool keep_over_restart = false;  // the service manager keeps connections for the next start
  };
  /// `passed`: listens at the path already (socket activation); the socket file is not ours then.
  static Result<std::unique_ptr<Listener>> create(
      Reactor& reactor, Ingest& ingest, Options options,
      PeerCredentialsSource credentials = socket_peer_credentials, ScopedFd passed = ScopedFd());
  ~Listener();
  Listener(const Listener&) = delete;
  Listener& operator=(const Listener&) = delete;

  /// A connection that the last agent accepted and the service manager kept as `name`. One whose
  /// process can no longer be told is closed: it connects again.
  void adopt(ScopedFd connection, const std::string& name);
  /// Takes no new connections from now on, and removes the socket file. Existing connections go on.
  void stop_accepting();
  /// Remembers the time if no connection waits. Every few hundred milliseconds: the fresher, the
  /// younger a process may be of which credentials without pidfd can be believed.
  void note_empty_queue();
  /// Reads what is queued on all connections, whatever their quotas. True if there was anything.
  bool drain();
  [[nodiscard]] std::size_t connections() const { return connections_.size(); }
  /// Whether no connection is accepted for the moment, since the process had no descriptor left.
  [[nodiscard]] bool accept_paused() const { return accept_paused_; }

 private:
  class Connection;
  /// The connections of one principal and what they may still do. Outlives them until its bucket is
  /// full again, so that reconnecting gains nothing.
  struct Principal {
    std::string name;
    std::size_t connections = 0;
    ByteBucket bytes;
    std::deque<Connection*> ready;  // with something to read, in the order of their turns
    bool waiting = false;           // in turns_ or paused_
  };

  Listener(Reactor& reactor, Ingest& ingest, Options options, PeerCredentialsSource credentials);
  Status watch_socket();
  void on_accept();
  bool accept_one();
  Connection* admit(ScopedFd fd, PeerIdentity peer, std::string stored_as);
  [[nodiscard]] std::string store(int fd);
  Principal& principal_of(const std::string& name);
  void on_readable(Connection& connection);
  void schedule_turn();
  void take_turns();
  void serve(Principal& principal);
  void pause(Principal& principal);
  void arm_timer();
  void on_timer();
  void close_later(int fd);
  void close_now(int fd);

  Reactor& reactor_;
  Ingest& ingest_;
  Options options_;
  PeerCredentialsSource credentials_;
  ScopedFd socket_;
  ScopedFd timer_;                        // armed while somebody is paused
  std::uint64_t queue_empty_ns_ = 0;      // CLOCK_BOOTTIME
  std::uint64_t stored_ = 0;              // connections given to the service manager
  std::uint64_t device_ = 0, inode_ = 0;  // of our socket file: another agent's is not removed
  std::unordered_map<int, std::unique_ptr<Connection>> connections_;
  std::unordered_map<std::string, std::unique_ptr<Principal>> principals_;
  std::deque<Principal*> turns_;    // with ready connections, in the order of their turns
  std::vector<Principal*> paused_;  // with ready connections, but out of bytes
  bool turn_scheduled_ = false;
  bool accept_paused_ = false;
  std::vector<int> closing_;
  std::shared_ptr<const bool> alive_ =
      std::make_shared<const bool>(true);  // watched by posted closures
  LogLimiter accept_log_;
  // One byte more than a frame may have, so that a longer packet is seen to be one.
  alignas(8) std::array<std::byte, wire::kMaxFrameBytes + 8> buffer_;
};

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// Socket plumbing around Session. Everything is non-blocking; a peer that does not read its answers
// loses Acks, which are cumulative and sent again later.
#include "agent/ingest/listener.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <ctime>
#include <filesystem>
#include <system_error>
#include <utility>

#include "agent/base/service_manager.h"

namespace ncclscope::agent {
namespace {

/// How long whoever is paused waits before it is looked at again.
constexpr long kPauseNs = 20'000'000;

Result<sockaddr_un> unix_address(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  if (path.empty() || path.size() >= sizeof address.sun_path) {
    return Status::invalid(concat("socket path '", path, "' has ", path.size(),
                                  " bytes, but must have 1 to ", sizeof address.sun_path - 1));
  }
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

int connect_or_bind(int (*call)(int, const sockaddr*, socklen_t), int fd,
                    const sockaddr_un& address) {
  return call(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address);
}

Status remove_stale(const std::string& path, const sockaddr_un& address) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) {
    return errno == ENOENT ? Status() : Status::system(concat("cannot look at ", path));
  }
  if (!S_ISSOCK(info.st_mode)) {
    return {ErrorCode::kInUse,
            concat(path, " exists and is not a socket; remove it or choose another socket path")};
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return {ErrorCode::kInUse,
            concat(path, " belongs to uid ", info.st_uid, ", not to the agent (uid ", ::geteuid(),
                   "); remove it if no agent uses it")};
  }
  const ScopedFd probe(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!probe.valid()) return Status::system("socket");
  if (connect_or_bind(::connect, probe.get(), address) == 0 || errno == EAGAIN) {
    return {ErrorCode::kInUse, concat("somebody listens on ", path, " already (another agent?)")};
  }
  if (errno == EPROTOTYPE) {
    return {ErrorCode::kInUse,
            concat(path, " belongs to another program (not a SEQPACKET socket)")};
  }
  if (errno != ECONNREFUSED) return Status::system(concat("cannot probe ", path));
  if (::unlink(path.c_str()) != 0 && errno != ENOENT) {
    return Status::system(concat("cannot remove the stale socket ", path));
  }
  return {};
}

std::uint64_t boot_time_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_BOOTTIME, &now);
  return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(now.tv_nsec);
}

bool is_trusted(uid_t owner) {
  return owner == 0 || owner == ::geteuid();
}

/// One component of the way to the socket's directory (`last`: that directory).
Status check_component(const std::string& path, bool last) {
  struct stat info {};
  if (::lstat(path.c_str(), &info) != 0) return Status::system(concat("cannot look at ", path));
  if (!is_trusted(info.st_uid)) {
    return {ErrorCode::kInvalidArgument, concat(path, " belongs to uid ", info.st_uid,
                                                ": the socket's directory and all above it "
                                                "must belong to root or to the agent's user (uid ",
                                                ::geteuid(), ")")};
  }
  if (S_ISLNK(info.st_mode)) return {};  // its target is a component of the real path
  const mode_t others = info.st_mode & 022u;
  if (others == 0) return {};
  // Above the directory, a sticky bit keeps others from replacing what is ours, and a group that
  // only root or we are in is no other.
  const bool own_group = (others & 02u) == 0 && (info.st_gid == 0 || info.st_gid == ::getegid());
  if (!last && ((info.st_mode & S_ISVTX) != 0 || own_group)) return {};
  return {ErrorCode::kInvalidArgument, concat("others can write to ", path,
                                              ": somebody else could put a socket there; chmod "
                                              "go-w it, or choose another socket path")};
}

/// Nobody but root and this user can replace the directory or what is in it.
Status check_directory(const std::filesystem::path& directory) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(directory, error);
  const std::filesystem::path real = std::filesystem::canonical(directory, error);
  if (error) {
    return {ErrorCode::kSystem,
            concat("cannot resolve the directory ", directory.string(), ": ", error.message())};
  }
  // The path as it is written, since a link in it could be turned elsewhere, and as it really is.
  for (const std::filesystem::path& whole : {absolute, real}) {
    std::filesystem::path part;
    for (const auto& component : whole) {
      part /= component;
      if (component.empty()) continue;  // a slash at the end
      if (Status s = check_component(part.string(), part == real); !s.ok()) return s;
    }
  }
  return {};
}

}  // namespace

namespace {

Status check_passed(int fd, const std::string& path) {
  int type = 0, listening = 0;
  socklen_t size = sizeof type;
  sockaddr_un address{};
  socklen_t length = sizeof address;
  if (::getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &size) != 0 ||
      ::getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &listening, &size) != 0 ||
      ::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    return Status::system("the socket that the service manager passed");
  }
  address.sun_path[sizeof address.sun_path - 1] = '\0';
  if (address.sun_family != AF_UNIX || type != SOCK_SEQPACKET || listening == 0) {
    return Status::invalid(
        "the socket that the service manager passed is not a listening Unix SEQPACKET socket "
        "(ListenSequentialPacket=)");
  }
  if (path != address.sun_path) {
    return Status::invalid(concat("the service manager listens on ", address.sun_path,
                                  ", but socket = '", path, "': make them agree"));
  }
  return make_socket_directory(path);
}

bool has_peer_pidfd(int socket) {
  constexpr int kPeerPidfd = 77;  // SO_PEERPIDFD, Linux 6.5
  int pidfd = -1;
  socklen_t size = sizeof pidfd;
  if (::getsockopt(socket, SOL_SOCKET, kPeerPidfd, &pidfd, &size) != 0) return false;
  const ScopedFd owned(pidfd);
  return owned.valid();
}

}  // namespace

Result<PeerIdentity> socket_peer_credentials(int fd, std::uint64_t /*queue_empty_ns*/) {
  ucred credentials{};
  socklen_t size = sizeof credentials;
  if (::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return Status::system("SO_PEERCRED");
  }
  PeerIdentity peer;
  peer.pid = credentials.pid;
  peer.uid = credentials.uid;
  peer.origin = "the agent socket";
  peer.principal = "uid:" + std::to_string(credentials.uid);
  return peer;
}

Status make_socket_directory(const std::string& path) {
  const std::filesystem::path directory = std::filesystem::path(path).parent_path();
  if (!directory.empty()) {
    std::error_code error;
    const bool made = std::filesystem::create_directories(directory, error);
    if (error) {
      return {ErrorCode::kSystem,
              concat("cannot create the directory ", directory.string(), ": ", error.message())};
    }
    // Plugins in other accounts must get through, and nobody else may put a socket there.
    if (made && ::chmod(directory.c_str(), 0755) != 0) {
      return Status::system(concat("chmod ", directory.string()));
    }
  }
  return check_directory(directory.empty() ? "." : directory);
}

Result<ScopedFd> listen_seqpacket(const std::string& path, unsigned mode) {
  Result<sockaddr_un> address = unix_address(path);
  if (!address.ok()) return address.status();
  if (Status s = make_socket_directory(path); !s.ok()) return s;
  if (Status s = remove_stale(path, address.value()); !s.ok()) return s;
  ScopedFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return Status::system("socket");
  if (connect_or_bind(::bind, fd.get(), address.value()) != 0) {
    return Status::system(concat("cannot bind ", path));
  }
  if (::chmod(path.c_str(), mode) != 0) return Status::system(concat("chmod ", path));
  if (::listen(fd.get(), 512) != 0) return Status::system(concat("cannot listen on ", path));
  return fd;
}

class Listener::Connection final : public SessionCarrier {
 public:
  Connection(Listener& listener, Principal& principal, ScopedFd fd, PeerIdentity peer,
             std::string stored_as)
      : listener_(listener),
        principal_(principal),
        fd_(std::move(fd)),
        session_(listener.ingest_, std::move(peer), *this),
        stored_as_(std::move(stored_as)) {}

  void greet_again() {
    session_.greet_again();
    output_ready();
  }
  /// It is over, and not only for this run of the agent.
  void forget() const {
    if (!stored_as_.empty()) forget_descriptor(stored_as_);
  }

  struct Read {
    int packets = 0;
    bool more = false;  // there may be more: the budget was used up
  };
  /// Reads at most `budget` packets.
  Read read(int budget) {
    Read result;
    for (int left = budget; !over_; --left) {
      if (left == 0) {
        result.more = true;
        break;
      }
      const ssize_t size = ::recv(fd_.get(), listener_.buffer_.data(), listener_.buffer_.size(),
                                  MSG_DONTWAIT | MSG_TRUNC);
      if (size < 0) {
        // A peer that died with our Acks unread resets the connection, but what it sent is still
        // queued: the error is reported once, and the records come after it.
        if (errno == EINTR || errno == ECONNRESET) continue;
        if (errno != EAGAIN) finish();
        break;
      }
      if (size == 0) {  // end of stream (or an empty packet, which nobody sends)
        finish();
        break;
      }
      ++result.packets;
      principal_.bytes.take(static_cast<std::size_t>(size));
      // With MSG_TRUNC, `size` is the packet's real size: the decoder refuses what did not fit.
      const std::size_t held = std::min(static_cast<std::size_t>(size), listener_.buffer_.size());
      if (session_.on_frame({listener_.buffer_.data(), held}) == Session::Verdict::kClose) {
        finish();
        return result;
      }
    }
    if (result.packets > 0) session_.on_burst_end();
    if (session_.has_output()) output_ready();
    return result;
  }

  void output_ready() override {
    session_.take_output(sending_);
    for (const OutFrame& frame : sending_) {
      // A peer that does not read has 200 KiB of answers queued: it will reconnect, or it is dead.
      // One that has gone may have left records, so its end is found by reading.
      [[maybe_unused]] const ssize_t sent =
          ::send(fd_.get(), frame.bytes.data(), frame.size, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
  }
  void session_over() override { finish(); }

  [[nodiscard]] Principal& principal() { return principal_; }
  bool ready = false;  // in the principal's queue

 private:
  void finish() {
    if (over_) return;
    over_ = true;
    if (session_.has_output()) output_ready();
    listener_.close_later(fd_.get());
  }

  Listener& listener_;
  Principal& principal_;
  ScopedFd fd_;
  Session session_;
  std::vector<OutFrame> sending_;
  std::string stored_as_;  // by the service manager; empty: not
  bool over_ = false;
};

Result<std::unique_ptr<Listener>> Listener::create(Reactor& reactor, Ingest& ingest,
                                                   Options options,
                                                   PeerCredentialsSource credentials,
                                                   ScopedFd passed) {
  std::unique_ptr<Listener> listener(
      new Listener(reactor, ingest, std::move(options), std::move(credentials)));
  const std::string& path = listener->options_.path;
  if (passed.valid()) {
    if (Status s = check_passed(passed.get(), path); !s.ok()) return s;
    listener->socket_ = std::move(passed);
  } else {
    Result<ScopedFd> socket = listen_seqpacket(path, 0666);
    if (!socket.ok()) return socket.status();
    listener->socket_ = std::move(socket).value();
    struct stat info {};
    if (::stat(path.c_str(), &info) == 0) {
      listener->device_ = info.st_dev;
      listener->inode_ = info.st_ino;
    }
  }
  Listener* raw = listener.get();
  raw->timer_.reset(::timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!raw->timer_.valid()) return Status::system("timerfd_create");
  if (Status s = reactor.add(raw->timer_.get(), EPOLLIN, [raw](std::uint32_t) { raw->on_timer(); });
      !s.ok()) {
    return s;
  }
  if (Status s = raw->watch_socket(); !s.ok()) return s;
  listener->note_empty_queue();
  return listener;
}

Listener::Listener(Reactor& reactor, Ingest& ingest, Options options,
                   PeerCredentialsSource credentials)
    : reactor_(reactor),
      ingest_(ingest),
      options_(std::move(options)),
      credentials_(std::move(credentials)) {}

Listener::~Listener() {
  stop_accepting();
  if (timer_.valid()) reactor_.remove(timer_.get());
  for (auto& [fd, connection] : connections_) reactor_.remove(fd);
}

Status Listener::watch_socket() {
  return reactor_.add(socket_.get(), EPOLLIN, [this](std::uint32_t) { on_accept(); });
}

void Listener::stop_accepting() {
  if (!socket_.valid()) return;
  reactor_.remove(socket_.get());
  socket_.reset();
  accept_paused_ = false;
  struct stat info {};
  if (::stat(options_.path.c_str(), &info) == 0 && info.st_dev == device_ &&
      info.st_ino == inode_) {
    ::unlink(options_.path.c_str());
  }
}

// ---- accepting
// -----------------------------------------------------------------------------------

void Listener::note_empty_queue() {
  if (!socket_.valid()) return;
  const std::uint64_t now = boot_time_ns();
  pollfd waiting{socket_.get(), POLLIN, 0};
  if (::poll(&waiting, 1, 0) == 0) queue_empty_ns_ = now;
}

void Listener::on_accept() {
  constexpr int kAcceptsPerTurn = 64;
  for (int turn = 0; turn < kAcceptsPerTurn && accept_one(); ++turn) {
  }
}

/// False when there is nothing more to accept for now.
bool Listener::accept_one() {
  const std::uint64_t now = boot_time_ns();
  ScopedFd fd(::accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!fd.valid()) {
    if (errno == EINTR || errno == ECONNABORTED) return true;
    if (errno == EAGAIN) {
      queue_empty_ns_ = now;
      return false;
    }
    // Out of descriptors or memory: the connection stays in the backlog, and asking again at once
    // would only spin.
    accept_log_.log(ingest_.clock().monotonic_ns(), LogLevel::kError,
                    Status::system("cannot accept a connection").message());
    ingest_.stats().count(IngestError::kAcceptFailed);
    reactor_.remove(socket_.get());
    accept_paused_ = true;
    arm_timer();
    return false;
  }
  Result<PeerIdentity> peer = credentials_(fd.get(), queue_empty_ns_);
  if (!peer.ok()) return true;
  std::string stored_as = store(fd.get());
  (void)admit(std::move(fd), std::move(peer).value(), std::move(stored_as));
  return true;
}

std::string Listener::store(int fd) {
  if (!options_.keep_over_restart) return {};
  std::string name = concat("connection-", ::getpid(), "-", ++stored_);
  store_descriptor(fd, name);
  return name;
}

void Listener::adopt(ScopedFd connection, const std::string& name) {
  // Without a pidfd the pid may mean another process by now.
  if (has_peer_pidfd(connection.get())) {
    Result<PeerIdentity> peer = credentials_(connection.get(), 0);
    if (peer.ok()) {
      if (Connection* adopted = admit(std::move(connection), std::move(peer).value(), name)) {
        adopted->greet_again();
        on_readable(*adopted);  // what came meanwhile was announced to the last agent only
      }
      return;
    }
  }
  forget_descriptor(name);
}

/// Null, and the connection is closed, when its principal or the agent has too many.
Listener::Connection* Listener::admit(ScopedFd fd, PeerIdentity peer, std::string stored_as) {
  Principal& principal = principal_of(peer.principal);
  const bool crowded =
      connections_.size() >= options_.max_connections &&
      !within_share(principal.connections, options_.max_connections, principals_.size());
  if (crowded || principal.connections >= options_.connections_per_principal) {
    ingest_.stats().count(IngestError::kLimit);
    ++ingest_.stats().refused_connections;
    ingest_.quotas().exceeded(
        Quota::kConnections, principal.name, ingest_.clock().monotonic_ns(),
        concat("closing the connection of pid ", peer.pid, " (it has ", principal.connections,
               " of ", options_.connections_per_principal, ", all together ", connections_.size(),
               " of ", options_.max_connections, ")"));
    if (!stored_as.empty()) forget_descriptor(stored_as);
    return nullptr;
  }
  ++principal.connections;
  if (options_.receive_buffer_bytes > 0) {
    ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &options_.receive_buffer_bytes,
                 sizeof options_.receive_buffer_bytes);
  }
  const int raw = fd.get();
  auto connection = std::make_unique<Connection>(*this, principal, std::move(fd), std::move(peer),
                                                 std::move(stored_as));
  Connection* pointer = connection.get();
  connections_[raw] = std::move(connection);
  // Edge-triggered: whoever has more to read stands in a queue of ours, not in the kernel's.
  if (!reactor_
           .add(raw, EPOLLIN | EPOLLRDHUP | EPOLLET,
                [this, pointer](std::uint32_t) { on_readable(*pointer); })
           .ok()) {
    close_later(raw);
  }
  return pointer;
}

Listener::Principal& Listener::principal_of(const std::string& name) {
  if (const auto it = principals_.find(name); it != principals_.end()) return *it->second;
  // The idle ones are forgotten here, where they would otherwise accumulate.
  const std::uint64_t now = ingest_.clock().monotonic_ns();
  std::erase_if(principals_, [&](const auto& known) {
    return known.second->connections == 0 && !known.second->waiting &&
           known.second->bytes.full(now);
  });
  auto principal = std::make_unique<Principal>();
  principal->name = name;
  principal->bytes = ByteBucket(options_.bytes_per_second_per_principal);
  return *principals_.emplace(name, std::move(principal)).first->second;
}

// ---- turns
// ---------------------------------------------------------------------------------------

void Listener::on_readable(Connection& connection) {
  if (connection.ready) return;
  connection.ready = true;
  Principal& principal = connection.principal();
  principal.ready.push_back(&connection);
  if (principal.waiting) return;
  principal.waiting = true;
  turns_.push_back(&principal);
  schedule_turn();
}

void Listener::schedule_turn() {
  if (turn_scheduled_) return;
  turn_scheduled_ = reactor_.post([this, alive = std::weak_ptr<const bool>(alive_)] {
    if (!alive.expired()) take_turns();
  });
}

/// One turn for each principal that has something to read.
void Listener::take_turns() {
  turn_scheduled_ = false;
  for (std::size_t i = std::min(turns_.size(), kPrincipalsPerTurn); i > 0; --i) {
    Principal& principal = *turns_.front();
    turns_.pop_front();
    serve(principal);
    if (principal.ready.empty()) {
      principal.waiting = false;
    } else if (!principal.bytes.allows(ingest_.clock().monotonic_ns())) {
      pause(principal);
    } else {
      turns_.push_back(&principal);
    }
  }
  if (!turns_.empty()) schedule_turn();
}

/// Reads at most kFramesPerTurn packets, shared by the connections that are ready.
void Listener::serve(Principal& principal) {
  if (principal.ready.empty()) return;  // they were closed while it waited for its turn
  int budget = kFramesPerTurn;
  const int share =
      std::max(1, budget / static_cast<int>(std::min<std::size_t>(
                               principal.ready.size(), static_cast<std::size_t>(budget))));
  while (budget > 0 && !principal.ready.empty() &&
         principal.bytes.allows(ingest_.clock().monotonic_ns())) {
    Connection& connection = *principal.ready.front();
    principal.ready.pop_front();
    const Connection::Read read = connection.read(std::min(share, budget));
    budget -= read.packets;
    connection.ready = read.more;
    if (read.more) principal.ready.push_back(&connection);
  }
}

void Listener::pause(Principal& principal) {
  paused_.push_back(&principal);
  ingest_.quotas().exceeded(Quota::kBytes, principal.name, ingest_.clock().monotonic_ns(),
                            concat("its ", principal.connections, " connections are read at ",
                                   options_.bytes_per_second_per_principal, " bytes per second"));
  arm_timer();
}

void Listener::arm_timer() {
  itimerspec spec{};
  spec.it_value.tv_nsec = kPauseNs;
  ::timerfd_settime(timer_.get(), 0, &spec, nullptr);
}

void Listener::on_timer() {
  std::uint64_t expirations = 0;
  [[maybe_unused]] const ssize_t ignored = ::read(timer_.get(), &expirations, sizeof expirations);
  if (accept_paused_) accept_paused_ = !watch_socket().ok();
  const std::uint64_t now = ingest_.clock().monotonic_ns();
  std::erase_if(paused_, [&](Principal* principal) {
    if (!principal->bytes.allows(now)) return false;
    turns_.push_back(principal);
    return true;
  });
  if (!turns_.empty()) schedule_turn();
  if (accept_paused_ || !paused_.empty()) arm_timer();
}

// ---- closing
// -------------------------------------------------------------------------------------

/// The connection may be on the stack, so it is destroyed by a posted closure.
void Listener::close_later(int fd) {
  reactor_.remove(fd);
  closing_.push_back(fd);
  if (closing_.size() > 1) return;
  reactor_.post([this, alive = std::weak_ptr<const bool>(alive_)] {
    if (alive.expired()) return;
    for (const int closing : std::exchange(closing_, {})) close_now(closing);
  });
}

void Listener::close_now(int fd) {
  const auto it = connections_.find(fd);
  if (it == connections_.end()) return;
  Connection& connection = *it->second;
  Principal& principal = connection.principal();
  if (connection.ready) std::erase(principal.ready, &connection);
  connection.forget();
  --principal.connections;
  connections_.erase(it);
}

bool Listener::drain() {
  bool any = false;
  std::vector<Connection*> open;
  open.reserve(connections_.size());
  for (auto& [fd, connection] : connections_) open.push_back(connection.get());
  for (Connection* connection : open) any = connection->read(kFramesPerTurn).packets > 0 || any;
  return any;
}

}  // namespace ncclscope::agent

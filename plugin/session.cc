// SPDX-License-Identifier: Apache-2.0
#include "plugin/session.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "plugin/clock.h"
#include "plugin/environment.h"
#include "plugin/inspector/inspector.h"
#include "plugin/settings.h"
#include "plugin/slice_comparison.h"
#include "proto/wire/decode.h"

#ifndef NCCLSCOPE_VERSION
#define NCCLSCOPE_VERSION "0.0.0"
#endif

namespace ncclscope::plugin {
namespace {

/// Longest pause between attempts to connect: part of the ten seconds that a ring bridges.
constexpr std::uint32_t kMaxBackoffMs = 250;
/// State is repeated at least this often, so that an agent can tell a quiet process from a stopped
/// one.
constexpr std::uint32_t kHeartbeatMs = 1'000;
constexpr std::uint32_t kBooksMs = 300;

/// How long to wait for what is usually there at once.
constexpr int kAnswerMs = 20;
constexpr int kLastAnswerMs = 100;  // at exit
/// An agent that has not answered a hello by now is asked again on a new connection.
constexpr std::uint32_t kWelcomeMs = 5'000;
constexpr int kLastDrains = 8;

// One frame under construction; the sender is the only user.
alignas(8) std::byte frame_buffer[wire::kMaxFrameBytes];
// Of all sessions: communicators' ids are the process's. Zero at first, so that the library's file
// does not hold it.
constinit SliceComparison kernel_cost;

/// Set up, and so described. Must be asked before anything else of an entry is read.
bool is_known(const Communicator& c) noexcept {
  const auto status = c.status.load(kAcquire);
  return status == CommunicatorStatus::kLive || status == CommunicatorStatus::kFinalized;
}

std::uint64_t load(const std::atomic<std::uint64_t>& a) noexcept {
  return a.load(kRelaxed);
}

void compare_blocks(const Process& p, const RecordWords& words) noexcept {
  wire::Operation o;
  static_assert(sizeof o == sizeof words);
  std::memcpy(&o, &words, sizeof o);
  if (o.index % kBlockOperations != 0 ||
      model::is_point_to_point(static_cast<model::Function>(o.function)))
    return;
  // A probe leaves NCCL's mask as it is where other communicators live.
  if (p.kernel_slice.load(kRelaxed) <= 1 && p.live_communicators.load(kRelaxed) != 1) return;
  const bool on = wire::timing_of(o) == wire::TimingSource::kGpu;
  const bool off = o.untimed_reason == static_cast<std::uint8_t>(wire::UntimedReason::kNotAsked);
  if (on || off) {
    kernel_cost.add(o.communicator, static_cast<std::uint32_t>(o.index / kBlockOperations),
                    o.api_time_ns, on);
  }
}

std::uint32_t ticks(std::uint32_t ms, std::uint32_t interval_ms) noexcept {
  return std::max(1u, ms / interval_ms);
}

}  // namespace

void Session::forget_comparisons() noexcept {
  kernel_cost = SliceComparison();
}

void Session::disconnect() noexcept {
  if (fd_ >= 0) close(fd_);
  fd_ = -1;
  state_ = State::kDisconnected;
}

void Session::wait_for(short event, int milliseconds) const noexcept {
  pollfd wait{fd_, event, 0};
  (void)poll(&wait, 1, milliseconds);
}

namespace {

/// The directory of the agent's socket, held open: what is checked is what is connected through.
class AgentDirectory {
 public:
  AgentDirectory() noexcept = default;
  AgentDirectory(const AgentDirectory&) = delete;
  AgentDirectory& operator=(const AgentDirectory&) = delete;
  ~AgentDirectory() {
    if (fd_ >= 0) close(fd_);
  }
  /// False unless nobody but its owner can put a socket into it, and nobody but root, its owner and
  /// this user can put another directory in its place.
  bool open(const char* path) noexcept {
    fd_ = ::open(path, O_PATH | O_DIRECTORY | O_CLOEXEC);
    struct stat self {};
    struct stat above {};
    if (fd_ < 0 || fstat(fd_, &self) != 0 || fstatat(fd_, "..", &above, 0) != 0) return false;
    owner_ = self.st_uid;
    const bool owner_only = (self.st_mode & 022u) == 0;
    // In a directory that all may write to, anybody may have been the first to take the name.
    const bool free_for_all = (above.st_mode & 02u) != 0;
    return owner_only && (!free_for_all || owner_ == 0 || owner_ == geteuid());
  }
  [[nodiscard]] int fd() const noexcept { return fd_; }
  [[nodiscard]] uid_t owner() const noexcept { return owner_; }

 private:
  int fd_ = -1;
  uid_t owner_ = 0;
};

/// Connects to `name` in the directory.
bool connect_in(const AgentDirectory& directory, const char* name, int fd,
                const sockaddr_un& whole) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const int length = snprintf(address.sun_path, sizeof address.sun_path, "/proc/self/fd/%d/%s",
                              directory.fd(), name);
  if (length > 0 && static_cast<std::size_t>(length) < sizeof address.sun_path) {
    if (connect(fd, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return true;
    if (errno != ENOENT) return false;
  }
  // Without /proc, by its path: who answers is checked all the same.
  return connect(fd, reinterpret_cast<const sockaddr*>(&whole), sizeof whole) == 0;
}

}  // namespace

bool Session::connect_to_agent(Process& p) noexcept {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  static_assert(sizeof address.sun_path == sizeof p.settings.socket);
  std::memcpy(address.sun_path, p.settings.socket, sizeof address.sun_path);

  // Only the directory's owner and root (a service manager that listens for the agent) can have put
  // the agent's socket there; whoever else answers is not the agent.
  char path[sizeof address.sun_path];
  std::memcpy(path, address.sun_path, sizeof path);
  char* slash = std::strrchr(path, '/');
  if (slash == nullptr) return false;
  const char* name = address.sun_path + (slash - path) + 1;
  slash[slash == path ? 1 : 0] = '\0';
  AgentDirectory directory;
  if (!directory.open(path)) return false;

  fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (fd_ < 0) return false;
  const int buffer = 1 << 20;
  (void)setsockopt(fd_, SOL_SOCKET, SO_SNDBUF, &buffer, sizeof buffer);
  if (!connect_in(directory, name, fd_, address)) {
    disconnect();
    return false;
  }
  ucred peer{};
  socklen_t size = sizeof peer;
  if (getsockopt(fd_, SOL_SOCKET, SO_PEERCRED, &peer, &size) != 0 ||
      (peer.uid != directory.owner() && peer.uid != 0)) {
    disconnect();
    return false;
  }
  ++connection_;
  ++connects_;
  return true;
}

bool Session::flush(wire::FrameWriter& w, std::uint64_t first_index) noexcept {
  if (w.empty()) return true;
  const auto packet = w.finish(first_index, monotonic_ns());
  const ssize_t n = send(fd_, packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n == static_cast<ssize_t>(packet.size())) {
    ++frames_sent_;
    return true;
  }
  if (n < 0 && (errno == EAGAIN || errno == ENOBUFS || errno == EINTR)) {
    // What this frame announced has not arrived: everything is announced again before its next use.
    ++connection_;
    return false;
  }
  disconnect();
  return false;
}

bool Session::send_hello(Process& p, Lane& lane) noexcept {
  wire::Hello hello{};
  hello.interface_version = p.interface_version;
  hello.nccl_version = p.nccl_version;
  hello.capabilities =
      wire::kCapabilityNetworkPhases | wire::kCapabilityChannelDetail | wire::kCapabilitySetDetail;
  hello.session_id = lane.session_id;
  hello.next_index = lane.ring.next_index();
  hello.acknowledged_index = acknowledged_;
  hello.agent_instance = agent_instance_;
  hello.start_time_ns = lane.start_time_ns;
  hello.realtime_offset_ns = realtime_offset_ns();
  hello.pid = static_cast<std::uint32_t>(p.pid);
  hello.uid = static_cast<std::uint32_t>(getuid());
  wire::StringRecordWriter<wire::Hello> record(hello, wire::RecordType::kHello);
  record.add(wire::StringKey::kPluginVersion, NCCLSCOPE_VERSION);
  for (std::size_t i = 0; i < p.claim_count; ++i) record.add(p.claims[i].key, p.claims[i].text);
  if (const int devices = open_rdma_devices(); devices >= 0) {
    char text[12];
    std::snprintf(text, sizeof text, "%d", devices);
    record.add(wire::StringKey::kRdmaDevices, text);
  }
  wire::FrameWriter w(frame_buffer);
  w.add_bytes(record.finish());
  add_environment(w);
  return flush(w, 0);
}

void Session::handle(Process& p, Lane& lane, DetailControl& control,
                     std::span<const std::byte> record) noexcept {
  switch (static_cast<wire::RecordType>(record[0])) {
    case wire::RecordType::kWelcome: {
      wire::Welcome welcome{};
      if (!wire::read_record(record, welcome) || state_ != State::kGreeted) return;
      agent_instance_ = welcome.agent_instance;
      // An agent cannot hold what was not written; a wrong claim is ignored.
      if (welcome.highest_index < lane.ring.next_index())
        acknowledged_ = std::max(acknowledged_, welcome.highest_index);
      cursor_ = acknowledged_ + 1;
      state_ = State::kWelcomed;
      backoff_ticks_ = 1;
      return;
    }
    case wire::RecordType::kAck: {
      wire::Ack ack{};
      if (!wire::read_record(record, ack)) return;
      if (ack.index < cursor_) acknowledged_ = std::max(acknowledged_, ack.index);
      return;
    }
    case wire::RecordType::kSetDetail: {
      wire::SetDetail detail{};
      if (!wire::read_record(record, detail) ||
          detail.level > static_cast<std::uint8_t>(wire::DetailLevel::kFull))
        return;
      control.request(p, {static_cast<wire::DetailLevel>(detail.level), detail.network != 0},
                      detail.duration_ms, monotonic_ns());
      return;
    }
    case wire::RecordType::kHelloAgain:
      // While greeted a Hello of ours is on its way already.
      if (state_ != State::kWelcomed) return;
      ++connection_;  // nothing is announced on it
      state_ = State::kGreeted;
      greeted_ticks_ = 0;
      if (!send_hello(p, lane)) disconnect();
      return;
    case wire::RecordType::kRefuse:
      disconnect();
      // Another version or a quota: trying again at once would not help.
      backoff_ticks_ = ticks(5'000, p.settings.interval_ms);
      wait_ticks_ = backoff_ticks_;
      return;
    default:
      return;
  }
}

void Session::receive(Process& p, Lane& lane, DetailControl& detail) noexcept {
  alignas(8) std::byte buffer[4096];
  for (int i = 0; i < 64 && fd_ >= 0; ++i) {
    const ssize_t n = recv(fd_, buffer, sizeof buffer, MSG_DONTWAIT | MSG_TRUNC);
    if (n == 0) return disconnect();
    if (n < 0) {
      if (errno != EAGAIN && errno != EINTR) disconnect();
      return;
    }
    if (static_cast<std::size_t>(n) > sizeof buffer) return disconnect();
    wire::FrameHeader header;
    const auto error =
        wire::read_frame({buffer, static_cast<std::size_t>(n)}, header,
                         [&](std::uint8_t, std::span<const std::byte> record, std::uint64_t) {
                           handle(p, lane, detail, record);
                           return true;
                         });
    if (error != wire::DecodeError::kNone) {
      disconnect();
      wait_ticks_ = backoff_ticks_ = ticks(kMaxBackoffMs, p.settings.interval_ms);
      return;
    }
  }
}

bool Session::add_communicator(wire::FrameWriter& w, Communicator& c) noexcept {
  const std::uint32_t version = c.info_version.load(kAcquire);
  wire::CommunicatorInit init{};
  init.communicator = c.wire_id.load(kRelaxed);
  init.flags = c.info_flags.load(kRelaxed);
  init.hash = c.hash.load(kRelaxed);
  init.nranks = c.nranks;
  init.nnodes = c.nnodes;
  init.rank = c.rank.load(kRelaxed);
  init.cuda_device = c.device;
  init.init_time_ns = c.init_time_ns;
  wire::StringRecordWriter<wire::CommunicatorInit> record(init,
                                                          wire::RecordType::kCommunicatorInit);
  if (c.name_state.load(kAcquire) == 2 && c.name[0] != '\0')
    record.add(wire::StringKey::kCommunicatorName, c.name);
  if (c.pci_bus_id[0] != '\0') record.add(wire::StringKey::kGpuPciBusId, c.pci_bus_id);
  if (c.uuid[0] != '\0') record.add(wire::StringKey::kGpuUuid, c.uuid);
  if (!w.add_bytes(record.finish())) return false;
  c.announced_version = version;
  c.announced_connection = connection_;
  return true;
}

bool Session::announce(wire::FrameWriter& w, Process& p, Lane& lane,
                       std::uint16_t wire_id) noexcept {
  for (auto& entry : p.communicators) {
    Communicator* c = entry.load(kAcquire);
    if (c == nullptr || !is_known(*c) || c->lane != lane.number ||
        c->wire_id.load(kRelaxed) != wire_id)
      continue;
    if (c->announced_connection == connection_ &&
        c->announced_version == c->info_version.load(kRelaxed))
      return true;
    return add_communicator(w, *c);
  }
  return true;
}

void Session::drain(Process& p, Lane& lane) noexcept {
  wire::FrameWriter w(frame_buffer);
  std::uint64_t frame_first = 0;  // index of the first indexed record in the frame
  std::uint64_t frame_cursor = cursor_;
  std::uint64_t frame_operations = 0;
  std::uint16_t last_announced = wire::kNoCommunicator;
  const auto commit = [&]() {
    if (!flush(w, frame_first)) return false;
    // Sent: what is below first_sent_ was counted on an earlier connection.
    operations_sent_ += frame_operations;
    first_sent_ = std::max(first_sent_, frame_cursor);
    cursor_ = frame_cursor;
    frame_first = 0;
    frame_operations = 0;
    return true;
  };
  // Bounded: a producer at full pace must not keep the sender in here for ever.
  std::uint64_t budget = 4 * kRingRecords;
  while (budget-- > 0) {
    RecordWords words;
    const auto read = lane.ring.read(frame_cursor, words);
    if (read == RecordRing<kRingRecords>::Read::kNotYet) break;
    if (read == RecordRing<kRingRecords>::Read::kOverwritten) {
      if (!commit()) return;
      const std::uint64_t oldest = std::max(lane.ring.oldest_index(), frame_cursor + 1);
      overwritten_ += oldest - frame_cursor;
      frame_cursor = cursor_ = oldest;
      first_sent_ = std::max(first_sent_, oldest);
      continue;
    }
    std::uint8_t type = 0;
    std::uint16_t communicator = 0;
    std::memcpy(&type, &words, sizeof type);
    std::memcpy(&communicator, reinterpret_cast<const std::byte*>(&words) + 2, sizeof communicator);
    // Room for a communicator's description before the record.
    if (w.room() < sizeof words + 512) {
      if (!commit()) return;
    }
    if (communicator != last_announced) {
      if (!announce(w, p, lane, communicator)) return;
      last_announced = communicator;
    }
    w.add_bytes({reinterpret_cast<const std::byte*>(&words), sizeof words});
    if (frame_first == 0) frame_first = frame_cursor;
    if (type == static_cast<std::uint8_t>(wire::RecordType::kOperation) &&
        frame_cursor >= first_sent_) {
      ++frame_operations;
      compare_blocks(p, words);
    }
    ++frame_cursor;
  }
  (void)commit();
}

void Session::fill_books(Process& p, Lane& lane, const DetailControl& detail,
                         wire::Books& books) noexcept {
  books = {};
  wire::set_header(books, wire::RecordType::kBooks);
  books.mask = p.mask.load(kRelaxed);
  books.time_ns = monotonic_ns();
  books.realtime_offset_ns = realtime_offset_ns();
  // Counters move while they are read: read what came first last, and say so when they did move.
  for (int attempt = 0; attempt < 4; ++attempt) {
    books.recorded = load(lane.gone_recorded);
    books.seen = load(lane.gone_seen);
    std::uint64_t dropped = load(lane.gone_dropped);
    books.communicators = 0;
    for (auto& entry : p.communicators) {
      Communicator* c = entry.load(kAcquire);
      if (c == nullptr || !is_known(*c) || c->lane != lane.number) continue;
      const auto status = c->status.load(kRelaxed);
      if (status == CommunicatorStatus::kLive) ++books.communicators;
      books.recorded += load(c->recorded);
      dropped += load(c->dropped);
      books.seen += load(c->next_collective) + load(c->next_p2p);
    }
    std::uint32_t open = 0;
    for (OperationSlot& slot : lane.operations) {
      const auto phase = operation_state::phase(slot.state.load(kAcquire));
      if (phase != operation_state::kFree) ++open;
    }
    books.open = open;
    books.records_written = lane.ring.next_index() - 1;
    if (books.seen == books.recorded + dropped + open) {
      books.flags = 0;
      break;
    }
    books.flags = 1;
  }
  for (std::size_t i = 0; i < wire::kDropReasonCount; ++i) books.dropped[i] = load(lane.dropped[i]);
  for (std::size_t i = 0; i < wire::kUntimedReasonCount; ++i)
    books.untimed[i] = load(lane.untimed[i]);
  for (std::size_t i = 0; i < 16; ++i) {
    books.events[i] = load(lane.events[i]);
    books.callbacks += books.events[i];
  }
  books.records_overwritten = overwritten_;
  // Operation records that went under: written, never sent, and not waiting in the ring either.
  if (overwritten_ != 0 && cursor_ == lane.ring.next_index() &&
      load(lane.operations_pushed) >= operations_sent_) {
    books.dropped[static_cast<std::size_t>(wire::DropReason::kOverwritten)] =
        load(lane.operations_pushed) - operations_sent_;
  }
  books.stops_unmatched = load(lane.stops_unmatched);
  books.children_dropped = load(lane.children_dropped);
  books.callback_ns = load(lane.sampled_ns);
  books.sender_cpu_ns = read_clock_ns(CLOCK_THREAD_CPUTIME_ID);
  books.frames_sent = frames_sent_;
  books.connects = connects_;
  detail.describe(p, books);
  books.nccl_cost_ratio = kernel_cost.ratio();
  books.nccl_cost_error = kernel_cost.standard_error();
  books.nccl_cost_blocks = kernel_cost.count();
  const inspector::Totals files = inspector::totals();
  books.file_lines = files.written;
  books.file_lines_late = files.queue_full;
  books.file_lines_failed = files.failed;
  books.file_records_missed = files.overwritten;
}

bool Session::send_states(Process& p, Lane& lane, const DetailControl& detail, bool last) noexcept {
  wire::FrameWriter w(frame_buffer);
  const std::uint32_t heartbeat = ticks(kHeartbeatMs, p.settings.interval_ms);
  const bool beat = last || ticks_since_books_ + 1 >= heartbeat;
  for (auto& entry : p.communicators) {
    Communicator* c = entry.load(kAcquire);
    if (c == nullptr || !is_known(*c) || c->lane != lane.number) continue;
    const auto status = c->status.load(kRelaxed);
    // Its finalize record was its last word: the agent does not know it any more.
    const std::uint64_t finalized_at = c->finalize_index.load(kAcquire);
    if (finalized_at != 0 && finalized_at < cursor_) continue;
    if (w.room() < 2048 && !flush(w, 0)) return false;
    if (c->announced_connection != connection_ ||
        c->announced_version != c->info_version.load(kAcquire)) {
      if (!add_communicator(w, *c)) return false;
      c->last_progress = {};
      c->announced_neighbours = 0;
    }

    wire::Progress g{};
    wire::set_header(g, wire::RecordType::kProgress);
    g.communicator = c->wire_id.load(kRelaxed);
    g.time_ns = monotonic_ns();
    // Closed before called: equal sums then prove that nothing is open, whatever happens in
    // between.
    g.recorded = c->recorded.load(kAcquire);
    g.dropped = c->dropped.load(kAcquire);
    g.collectives_enqueued = c->next_collective.load(kAcquire);
    g.p2p_enqueued = c->next_p2p.load(kAcquire);
    g.seen = g.collectives_enqueued + g.p2p_enqueued;
    const bool any_open = g.seen != g.recorded + g.dropped;
    const OldestOperation collective =
        any_open ? oldest_operation(lane, *c, false) : OldestOperation{};
    const OldestOperation p2p = any_open ? oldest_operation(lane, *c, true) : OldestOperation{};
    // A call that is only counted is nowhere while it is being written.
    const bool counting = p.calls_only.load(kRelaxed) && any_open &&
                          g.recorded + g.dropped + collective.open + p2p.open < g.seen;
    g.collectives_completed = c->last_progress.collectives_completed;
    g.p2p_completed = c->last_progress.p2p_completed;
    if (collective.certain && p2p.certain && !counting) {
      g.collectives_completed =
          std::max(g.collectives_completed, std::min(collective.index, g.collectives_enqueued));
      g.p2p_completed = std::max(g.p2p_completed, std::min(p2p.index, g.p2p_enqueued));
    }
    g.collectives_started = std::max(load(c->started_collectives), g.collectives_completed);
    g.p2p_started = std::max(load(c->started_p2p), g.p2p_completed);
    g.oldest_index = ~std::uint64_t{0};
    const bool use_p2p = collective.index == ~std::uint64_t{0} && p2p.index != ~std::uint64_t{0};
    const OldestOperation& oldest = use_p2p ? p2p : collective;
    if (oldest.index != ~std::uint64_t{0}) {
      g.oldest_index = oldest.index;
      g.oldest_time_ns = oldest.api_time_ns;
      g.oldest_signature = oldest.signature;
      if (oldest.started) g.flags |= wire::kProgressOldestStarted;
      if (oldest.on_network) g.flags |= wire::kProgressOldestOnNetwork;
      if (use_p2p) g.flags |= wire::kProgressOldestIsP2p;
    }
    // After the oldest open one was looked for: what had ended then counts as ended here.
    if (load(c->ended_collectives) < g.collectives_completed)
      g.flags |= wire::kProgressCollectiveEndsUnknown;
    if (load(c->ended_p2p) < g.p2p_completed) g.flags |= wire::kProgressP2pEndsUnknown;
    if (c->untrusted_from.load(kRelaxed) != kNever) g.flags |= wire::kProgressTimesUntrusted;
    if (status == CommunicatorStatus::kFinalized) g.flags |= wire::kProgressFinalized;
    wire::Progress previous = c->last_progress;
    previous.time_ns = g.time_ns;
    if (beat || std::memcmp(&previous, &g, sizeof g) != 0) {
      if (!w.add(g)) return false;
      c->last_progress = g;
    }

    const std::uint32_t neighbours = c->neighbour_version.load(kRelaxed);
    if (neighbours != c->announced_neighbours) {
      struct {
        wire::Neighbours head;
        wire::Neighbour peers[Communicator::kMaxNeighbours];
      } record{};
      std::uint16_t count = 0;
      for (const auto& cell : c->neighbours) {
        const std::uint64_t bits = load(cell);
        if (bits == 0) continue;
        record.peers[count].peer = static_cast<std::int32_t>(bits & 0xFFFFFFFFu);
        record.peers[count].is_send = static_cast<std::uint8_t>((bits >> 32) & 1u);
        record.peers[count].channels =
            static_cast<std::uint8_t>(__builtin_popcountll((bits >> 40) & 0x7FFFFFu));
        ++count;
      }
      const std::size_t bytes = sizeof(wire::Neighbours) + count * sizeof(wire::Neighbour);
      wire::set_header(record.head, wire::RecordType::kNeighbours, bytes);
      record.head.communicator = c->wire_id.load(kRelaxed);
      record.head.count = count;
      if (!w.add_bytes({reinterpret_cast<const std::byte*>(&record), bytes})) return false;
      c->announced_neighbours = neighbours;
    }
  }

  wire::Books books{};
  ++ticks_since_books_;
  if (beat || ticks_since_books_ >= ticks(kBooksMs, p.settings.interval_ms)) {
    fill_books(p, lane, detail, books);
    const std::uint64_t fingerprint =
        books.seen * 3 + books.recorded * 5 + books.records_written * 7 + books.open * 11 +
        books.mask + books.dropped[0] + books.dropped[3] + acknowledged_ * 13 +
        books.governor_changes * 17 + books.detail_asked * 19 + books.kernel_slice * 23 +
        books.file_lines * 29 + books.file_lines_late * 31 + books.file_lines_failed * 37;
    if (beat || fingerprint != books_fingerprint_) {
      if (w.room() < sizeof books + 64 && !flush(w, 0)) return false;
      w.add(books);
      books_fingerprint_ = fingerprint;
      ticks_since_books_ = 0;
    }
  }
  if (last) {
    wire::Goodbye goodbye{};
    wire::set_header(goodbye, wire::RecordType::kGoodbye);
    w.add(goodbye);
  }
  return flush(w, 0);
}

void Session::recycle_communicators(Process& p, Lane& lane) noexcept {
  // Without an agent, ended communicators wait for the ring to pass; no more than half of the table
  // may wait so.
  unsigned waiting = 0;
  for (auto& entry : p.communicators) {
    const Communicator* c = entry.load(kAcquire);
    if (c != nullptr && c->status.load(kRelaxed) == CommunicatorStatus::kFinalized) ++waiting;
  }
  const bool crowded = waiting > kMaxCommunicators / 2;
  for (auto& entry : p.communicators) {
    Communicator* c = entry.load(kAcquire);
    if (c == nullptr || !is_known(*c) || c->lane != lane.number ||
        c->status.load(kAcquire) != CommunicatorStatus::kFinalized)
      continue;
    const std::uint64_t index = c->finalize_index.load(kAcquire);
    if (inspector::waits_for(lane, index)) continue;
    if (index == 0 || (!crowded && index > acknowledged_ && index >= lane.ring.oldest_index()))
      continue;
    // Operations that a callback still holds keep the entry until the sweeper has closed them.
    bool used = false;
    for (OperationSlot& slot : lane.operations) {
      if (operation_state::phase(slot.state.load(kAcquire)) != operation_state::kFree &&
          slot.communicator.load(kRelaxed) == c->table_index) {
        used = true;
        break;
      }
    }
    if (used) continue;
    lane.gone_seen.fetch_add(load(c->next_collective) + load(c->next_p2p), kRelaxed);
    lane.gone_recorded.fetch_add(load(c->recorded), kRelaxed);
    lane.gone_dropped.fetch_add(load(c->dropped), kRelaxed);
    inspector::forget(*c);
    c->status.store(CommunicatorStatus::kFree, kRelease);
  }
}

void Session::tick(Process& p, Lane& lane, DetailControl& detail, bool last) noexcept {
  const SweepResult sweep = sweep_operations(lane, p.settings.interval_ms, pressed_);
  pressed_ = sweep.pressed;
  inspector::read(p, lane);
  if (state_ == State::kDisconnected) {
    if (wait_ticks_ > 0 && !last) {
      --wait_ticks_;
    } else if (connect_to_agent(p) && send_hello(p, lane)) {
      state_ = State::kGreeted;
      greeted_ticks_ = 0;
      // The answer is usually a fraction of a millisecond away, and a process may be short-lived.
      wait_for(POLLIN, last ? kLastAnswerMs : kAnswerMs);
    } else {
      disconnect();
      backoff_ticks_ = std::min(backoff_ticks_ * 2, ticks(kMaxBackoffMs, p.settings.interval_ms));
      wait_ticks_ = backoff_ticks_ - 1;
    }
  } else if (state_ == State::kGreeted && last) {
    wait_for(POLLIN, kLastAnswerMs);
  }
  if (state_ != State::kDisconnected) receive(p, lane, detail);
  if (state_ == State::kGreeted && ++greeted_ticks_ > ticks(kWelcomeMs, p.settings.interval_ms))
    disconnect();
  if (state_ == State::kWelcomed) drain(p, lane);
  if (last) {
    // The socket's buffer holds less than the ring.
    for (int i = 0;
         i < kLastDrains && state_ == State::kWelcomed && cursor_ < lane.ring.next_index(); ++i) {
      wait_for(POLLOUT, 10);
      drain(p, lane);
    }
  }
  if (state_ == State::kWelcomed) (void)send_states(p, lane, detail, last);
  recycle_communicators(p, lane);
}

}  // namespace ncclscope::plugin

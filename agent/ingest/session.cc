// SPDX-License-Identifier: Apache-2.0
//
// Session protocol and index bookkeeping. The hot path is on_frame -> on_indexed -> sink.operation:
// one bounds check, one copy of 56 bytes and two virtual calls per record.
#include "agent/ingest/session.h"

#include <algorithm>
#include <functional>
#include <set>
#include <utility>

#include "proto/wire/decode.h"
#include "proto/wire/encode.h"

namespace ncclscope::agent {
namespace {

// Far above any real index, far below overflow: 2^62 records are 146 years at 10^9 a second.
constexpr std::uint64_t kMaxIndex = std::uint64_t{1} << 62;

wire::RefuseReason refuse_reason(IngestError error) {
  if (error == to_ingest_error(wire::DecodeError::kBadVersion)) return wire::RefuseReason::kVersion;
  switch (error) {
    case IngestError::kNoHello:
      return wire::RefuseReason::kNoHello;
    case IngestError::kLimit:
      return wire::RefuseReason::kQuota;
    case IngestError::kSessionConflict:
      return wire::RefuseReason::kOther;
    default:
      return wire::RefuseReason::kMalformed;
  }
}

}  // namespace

// ---- Session
// -------------------------------------------------------------------------------------

Session::Session(Ingest& ingest, PeerIdentity peer, SessionCarrier& carrier)
    : ingest_(ingest),
      peer_(std::move(peer)),
      carrier_(carrier),
      opened_at_ns_(ingest.clock_.monotonic_ns()) {
  ingest_.sessions_.insert(this);
  ++ingest_.stats_.connections_accepted;
  ++ingest_.stats_.connections_open;
}

Session::~Session() {
  detach();
  ingest_.sessions_.erase(this);
  --ingest_.stats_.connections_open;
}

void Session::detach() {
  closed_ = true;
  if (state_ == nullptr) return;
  SessionState& state = *std::exchange(state_, nullptr);
  state.connection = nullptr;
  state.closed_at_ns = ingest_.clock_.monotonic_ns();
  ingest_.sink_.session_closed(state);
}

template <typename Record>
void Session::send(Record record, wire::RecordType type) {
  static_assert(sizeof(wire::FrameHeader) + sizeof(Record) <= sizeof(OutFrame::bytes));
  wire::set_header(record, type);
  OutFrame& out = output_.emplace_back();
  wire::FrameWriter writer(out.bytes);
  writer.add(record);
  out.size = writer.finish(0, ingest_.clock_.monotonic_ns()).size();
}

bool Session::fail(IngestError error) {
  failure_ = error;
  return false;
}

void Session::greet_again() {
  greeting_again_ = true;
  send(wire::HelloAgain{}, wire::RecordType::kHelloAgain);
}

Session::Verdict Session::refuse(IngestError error) {
  ingest_.stats_.count(error);
  ++ingest_.stats_.refused_connections;
  ingest_.bad_frame_log_.log(
      ingest_.clock_.monotonic_ns(), LogLevel::kWarning,
      concat("closing the connection of ", peer_.origin, ", pid ", peer_.pid, ", uid ", peer_.uid,
             ": ", name(error),
             error == to_ingest_error(wire::DecodeError::kBadVersion)
                 ? " (plugin and agent speak different major versions of the protocol)"
                 : ""));
  wire::Refuse record{};
  record.reason = static_cast<std::uint16_t>(refuse_reason(error));
  record.major = wire::kMajorVersion;
  send(record, wire::RecordType::kRefuse);
  detach();
  return Verdict::kClose;
}

Session::Verdict Session::on_frame(std::span<const std::byte> packet) {
  if (closed_) return Verdict::kClose;
  now_ns_ = ingest_.clock_.monotonic_ns();
  IngestStats& stats = ingest_.stats_;
  stats.bytes_received += packet.size();
  failure_ = to_ingest_error(wire::DecodeError::kBadRecord);

  ingest_.list_.variables.clear();
  ingest_.list_.cut = ingest_.list_.ended = false;
  wire::FrameHeader header{};
  bool in_frame = false, ignored = false;
  std::uint64_t records = 0;
  const wire::DecodeError error = wire::read_frame(
      packet, header,
      [&](std::uint8_t type, std::span<const std::byte> record, std::uint64_t index) {
        ++records;
        if (ignored) return true;
        if (state_ == nullptr) {
          if (greeting_again_ && type != static_cast<std::uint8_t>(wire::RecordType::kHello)) {
            ignored = true;
            return true;
          }
          if (type != static_cast<std::uint8_t>(wire::RecordType::kHello)) {
            return fail(IngestError::kNoHello);
          }
          return on_hello(record, header.send_time_ns);
        }
        if (!in_frame) {
          in_frame = true;
          ingest_.sink_.frame_begin(*state_, header.send_time_ns);
        }
        return wire::is_indexed(type) ? on_indexed(type, record, index)
                                      : on_record(type, record, index);
      });
  if (in_frame && state_ != nullptr) ingest_.sink_.frame_end(*state_);
  stats.records += records;
  if (error == wire::DecodeError::kBadRecord) return refuse(failure_);
  if (error != wire::DecodeError::kNone) return refuse(to_ingest_error(error));
  ++stats.frames;
  if (state_ != nullptr) {
    state_->last_seen_ns = now_ns_;
    if (peer_.claimed) {
      // The sender's clock is not ours. The fastest frame seen bounds the difference best.
      const auto offset = static_cast<std::int64_t>(now_ns_ - header.send_time_ns);
      state_->clock_offset_ns = std::min(state_->clock_offset_ns, offset);
    }
  }
  return closed_ ? Verdict::kClose : Verdict::kContinue;
}

bool Session::on_hello(std::span<const std::byte> record, std::uint64_t send_time_ns) {
  HelloClaims claims;
  if (!wire::read_record(record, claims.hello)) {
    return fail(to_ingest_error(wire::DecodeError::kBadRecord));
  }
  if (!wire::read_strings(record, sizeof(wire::Hello), claims.hello.string_bytes,
                          [&](wire::StringKey key, std::string_view text) {
                            claims.strings.emplace_back(key, text);
                          })) {
    return fail(to_ingest_error(wire::DecodeError::kBadString));
  }
  const wire::Hello& hello = claims.hello;
  if (hello.session_id == 0) return fail(IngestError::kBadSession);
  if (hello.acknowledged_index > kMaxIndex || hello.next_index > kMaxIndex) {
    return fail(IngestError::kBadIndex);
  }
  IngestError error{};
  SessionState* state = ingest_.attach(*this, hello, error);
  if (state == nullptr) return fail(error);
  state->claims = std::move(claims);
  state->said_goodbye = false;
  state->clock_offset_ns = peer_.claimed ? static_cast<std::int64_t>(now_ns_ - send_time_ns) : 0;
  if (!ingest_.sink_.session_opened(*state)) {
    state->connection = nullptr;
    state->closed_at_ns = now_ns_;
    if (state->process == nullptr) {
      ingest_.erase(ingest_.states_.find({state->session_id, state->peer.principal}));
    }
    return fail(IngestError::kLimit);
  }
  state_ = state;
  greeting_again_ = false;
  last_ack_index_ = state->highest_index;
  last_ack_ns_ = now_ns_;
  wire::Welcome welcome{};
  welcome.agent_instance = ingest_.options_.agent_instance;
  welcome.highest_index = state->highest_index;
  welcome.capabilities = ingest_.options_.capabilities;
  send(welcome, wire::RecordType::kWelcome);
  return true;
}

bool Session::on_communicator_init(std::span<const std::byte> record) {
  wire::CommunicatorInit init{};
  if (!wire::read_record(record, init)) return fail(to_ingest_error(wire::DecodeError::kBadRecord));
  CommunicatorStrings strings;
  if (!wire::read_strings(record, sizeof init, init.string_bytes,
                          [&](wire::StringKey key, std::string_view text) {
                            if (key == wire::StringKey::kCommunicatorName) strings.name = text;
                            if (key == wire::StringKey::kGpuPciBusId) strings.pci_bus_id = text;
                            if (key == wire::StringKey::kGpuUuid) strings.gpu_uuid = text;
                          })) {
    return fail(to_ingest_error(wire::DecodeError::kBadString));
  }
  ingest_.sink_.communicator_init(*state_, init, strings);
  return true;
}

bool Session::on_environment(std::span<const std::byte> record) {
  wire::Environment head{};
  if (!wire::read_record(record, head)) return fail(to_ingest_error(wire::DecodeError::kBadRecord));
  Ingest::VariableList& list = ingest_.list_;
  if (list.ended) return true;
  list.cut = list.cut || (head.flags & wire::kEnvironmentCut) != 0;
  bool left_out = true;  // the variable that strings of kVariableMore continue
  const auto take = [&](wire::StringKey key, std::string_view text) {
    if (key == wire::StringKey::kVariable) {
      left_out = list.variables.size() == wire::kMaxVariables || !text.starts_with("NCCL_") ||
                 text.find('=') == std::string_view::npos;
      list.cut = list.cut || left_out;
      if (!left_out) list.variables.emplace_back(text);
    } else if (key == wire::StringKey::kVariableMore && !left_out) {
      const std::size_t room = wire::kMaxVariableBytes - list.variables.back().size();
      list.cut = list.cut || text.size() > room;
      list.variables.back() += text.substr(0, room);
    }
  };
  if (!wire::read_strings(record, sizeof head, head.string_bytes, take))
    return fail(to_ingest_error(wire::DecodeError::kBadString));
  if ((head.flags & wire::kEnvironmentEnd) == 0) return true;
  list.ended = true;
  ProcessEnvironment environment;
  environment.cut = list.cut;
  for (const std::string& variable : list.variables) {
    const std::size_t equals = variable.find('=');
    environment.variables.emplace_back(variable.substr(0, equals), variable.substr(equals + 1));
  }
  const std::string& principal = state_->peer.principal;
  state_->environment = ingest_.environments_.keep(principal, std::move(environment));
  if (state_->environment == nullptr) {
    ingest_.quotas_.exceeded(Quota::kEnvironments, principal, now_ns_,
                             concat("the variables of pid ", peer_.pid, " are not kept"));
  }
  return true;
}

bool Session::on_record(std::uint8_t type, std::span<const std::byte> record, std::uint64_t) {
  constexpr auto kTooShort = to_ingest_error(wire::DecodeError::kBadRecord);
  RecordSink& sink = ingest_.sink_;
  bool known = true;
  switch (static_cast<wire::RecordType>(type)) {
    case wire::RecordType::kHello: {
      // Said again in mid-connection: harmless if it is the same session.
      wire::Hello hello{};
      if (!wire::read_record(record, hello)) return fail(kTooShort);
      return hello.session_id == state_->session_id || fail(IngestError::kBadSession);
    }
    case wire::RecordType::kCommunicatorInit:
      return on_communicator_init(record);
    case wire::RecordType::kProgress: {
      wire::Progress progress{};
      if (!wire::read_record(record, progress)) return fail(kTooShort);
      known = sink.progress(*state_, progress);
      break;
    }
    case wire::RecordType::kBooks: {
      wire::Books books{};
      if (!wire::read_record(record, books)) return fail(kTooShort);
      sink.books(*state_, books);
      break;
    }
    case wire::RecordType::kNeighbours: {
      wire::Neighbours head{};
      if (!wire::read_record(record, head)) return fail(kTooShort);
      const std::span<const std::byte> peers = record.subspan(sizeof head);
      if (std::size_t{head.count} * sizeof(wire::Neighbour) > peers.size()) return fail(kTooShort);
      known = sink.neighbours(*state_, head, peers.first(head.count * sizeof(wire::Neighbour)));
      break;
    }
    case wire::RecordType::kEnvironment:
      return on_environment(record);
    case wire::RecordType::kGoodbye: {
      wire::Goodbye goodbye{};
      if (!wire::read_record(record, goodbye)) return fail(kTooShort);
      state_->said_goodbye = true;
      break;
    }
    case wire::RecordType::kWelcome:
    case wire::RecordType::kAck:
    case wire::RecordType::kSetDetail:
    case wire::RecordType::kRefuse:
      return fail(IngestError::kWrongDirection);
    default:
      ++ingest_.stats_.unknown_records;
      break;
  }
  if (!known) ingest_.stats_.count(IngestError::kUnknownCommunicator);
  return true;
}

bool Session::on_indexed(std::uint8_t type, std::span<const std::byte> record,
                         std::uint64_t index) {
  constexpr auto kTooShort = to_ingest_error(wire::DecodeError::kBadRecord);
  SessionState& state = *state_;
  if (index == 0 || index > kMaxIndex) return fail(IngestError::kBadIndex);
  if (index <= state.highest_index) {
    ++state.records_duplicate;
    return true;
  }
  RecordSink& sink = ingest_.sink_;
  // Read before it is booked: a record that is too short ends the session uncounted.
  const auto book = [&] {
    state.records_lost += index - state.highest_index - 1;
    state.highest_index = index;
    ++state.records_received;
  };
  bool known = true;
  switch (static_cast<wire::RecordType>(type)) {
    case wire::RecordType::kOperation: {
      wire::Operation operation;
      if (!wire::read_record(record, operation)) return fail(kTooShort);
      book();
      ++state.operations_received;
      known = sink.operation(state, operation, index);
      if (!known) ++state.operations_unknown;
      break;
    }
    case wire::RecordType::kNetworkPhases: {
      wire::NetworkPhases phases;
      if (!wire::read_record(record, phases)) return fail(kTooShort);
      book();
      known = sink.network(state, phases, index);
      break;
    }
    case wire::RecordType::kChannelDetail: {
      wire::ChannelDetail detail;
      if (!wire::read_record(record, detail)) return fail(kTooShort);
      book();
      known = sink.channel(state, detail, index);
      break;
    }
    case wire::RecordType::kCommunicatorFinalize: {
      wire::CommunicatorFinalize finalize;
      if (!wire::read_record(record, finalize)) return fail(kTooShort);
      book();
      known = sink.finalize(state, finalize, index);
      break;
    }
    default:
      book();
      ++ingest_.stats_.unknown_records;
      break;
  }
  if (!known) ingest_.stats_.count(IngestError::kUnknownCommunicator);
  return true;
}

void Session::acknowledge() {
  if (state_ == nullptr || state_->highest_index == last_ack_index_) return;
  last_ack_index_ = state_->highest_index;
  last_ack_ns_ = ingest_.clock_.monotonic_ns();
  // A newer Ack says all that an unsent older one does.
  if (!output_.empty() &&
      std::to_integer<std::uint8_t>(output_.back().bytes[sizeof(wire::FrameHeader)]) ==
          static_cast<std::uint8_t>(wire::RecordType::kAck)) {
    output_.pop_back();
  }
  wire::Ack ack{};
  ack.index = last_ack_index_;
  send(ack, wire::RecordType::kAck);
}

void Session::on_burst_end() {
  if (state_ == nullptr || state_->highest_index == last_ack_index_) return;
  if (ingest_.clock_.monotonic_ns() - last_ack_ns_ >= Ingest::kAckPeriodNs) acknowledge();
}

void Session::on_tick() {
  if (closed_) return;
  if (state_ == nullptr) {
    if (ingest_.clock_.monotonic_ns() - opened_at_ns_ >= ingest_.options_.hello_timeout_ns) {
      static_cast<void>(refuse(IngestError::kNoHello));
      carrier_.session_over();
    }
    return;
  }
  on_burst_end();
  if (has_output()) carrier_.output_ready();
}

void Session::set_detail(wire::DetailLevel level, bool network, std::uint32_t duration_ms) {
  if (state_ == nullptr) return;
  wire::SetDetail record{};
  record.level = static_cast<std::uint8_t>(level);
  record.network = network ? 1 : 0;
  record.duration_ms = duration_ms;
  send(record, wire::RecordType::kSetDetail);
  carrier_.output_ready();
}

void Session::take_output(std::vector<OutFrame>& out) {
  out.clear();
  out.swap(output_);
}

// ---- Ingest
// --------------------------------------------------------------------------------------

Ingest::Ingest(RecordSink& sink, const Clock& clock, Options options)
    : sink_(sink), clock_(clock), options_(options) {}

Ingest::~Ingest() {
  for (auto& [id, state] : states_) sink_.session_expired(*state);
}

std::unique_ptr<Session> Ingest::open(PeerIdentity peer, SessionCarrier& carrier) {
  return std::make_unique<Session>(*this, std::move(peer), carrier);
}

const SessionState* Ingest::find(std::uint64_t session_id) const {
  const auto it = states_.lower_bound({session_id, std::string()});
  return it == states_.end() || it->first.first != session_id ? nullptr : it->second.get();
}

std::size_t Ingest::sessions_of(const std::string& principal) const {
  const auto it = sessions_of_.find(principal);
  return it == sessions_of_.end() ? 0 : it->second;
}

void Ingest::erase(States::iterator it) {
  if (const auto count = sessions_of_.find(it->first.second);
      count != sessions_of_.end() && --count->second == 0) {
    sessions_of_.erase(count);
  }
  states_.erase(it);
}

void Ingest::forget(States::iterator it) {
  sink_.session_expired(*it->second);
  erase(it);
}

/// Forgets the session of `principal` that has been without a connection longest, and at least so
/// long. False if there is none.
bool Ingest::forget_longest_away(const std::string& principal, std::uint64_t away_ns) {
  const std::uint64_t now = clock_.monotonic_ns();
  auto oldest = states_.end();
  for (auto it = states_.begin(); it != states_.end(); ++it) {
    const SessionState& state = *it->second;
    if (state.connection != nullptr || it->first.second != principal) continue;
    if (!state.said_goodbye && now - state.closed_at_ns < away_ns) continue;
    if (oldest == states_.end() || state.closed_at_ns < oldest->second->closed_at_ns) oldest = it;
  }
  if (oldest == states_.end()) return false;
  forget(oldest);
  return true;
}

bool Ingest::make_room(const std::string& principal) {
  const std::size_t own = sessions_of(principal);
  if (own >= options_.sessions_per_principal) return forget_longest_away(principal, 0);
  if (states_.size() < options_.max_sessions) return true;
  // Whoever holds most gives way first, but only what is not in use, and never to one who holds as
  // much.
  std::vector<std::pair<std::size_t, std::string>> holders;
  for (const auto& [name, held] : sessions_of_) {
    if (name != principal && held > own) holders.emplace_back(held, name);
  }
  std::sort(holders.begin(), holders.end(), std::greater<>());
  for (const auto& [held, name] : holders) {
    if (forget_longest_away(name, options_.reconnect_ns)) return true;
  }
  if (forget_longest_away(principal, 0)) return true;
  return within_share(own, options_.max_sessions, sessions_of_.size() + (own == 0 ? 1 : 0));
}

SessionState* Ingest::attach(Session& session, const wire::Hello& hello, IngestError& error) {
  const std::string& principal = session.peer_.principal;
  auto it = states_.find({hello.session_id, principal});
  if (it != states_.end()) {
    SessionState& state = *it->second;
    const PeerIdentity& known = state.peer;
    const PeerIdentity& peer = session.peer_;
    if (known.uid != peer.uid || known.pid != peer.pid || known.claimed != peer.claimed ||
        (peer.claimed && known.origin != peer.origin)) {
      error = IngestError::kSessionConflict;
      return nullptr;
    }
    if (Session* old = state.connection; old != nullptr) {
      // The process has opened a new connection, so the old one is a leftover.
      old->detach();
      old->carrier_.session_over();
    }
    if (hello.acknowledged_index > state.highest_index &&
        hello.agent_instance != options_.agent_instance) {
      state.records_before += hello.acknowledged_index - state.highest_index;
      state.highest_index = hello.acknowledged_index;
    }
    state.connection = &session;
    return &state;
  }
  if (memory_full_ || !make_room(principal)) {
    quotas_.exceeded(memory_full_ ? Quota::kMemory : Quota::kSessions, principal,
                     clock_.monotonic_ns(),
                     concat("a new session of pid ", session.peer_.pid, " is refused (it has ",
                            sessions_of(principal), " of ", options_.sessions_per_principal,
                            ", all together ", states_.size(), " of ", options_.max_sessions, ")"));
    error = IngestError::kLimit;
    return nullptr;
  }
  auto state = std::make_unique<SessionState>();
  state->session_id = hello.session_id;
  state->peer = session.peer_;
  state->records_before = hello.acknowledged_index;
  state->highest_index = hello.acknowledged_index;
  state->connection = &session;
  state->last_seen_ns = clock_.monotonic_ns();
  ++sessions_of_[principal];
  return states_.emplace(SessionKey(hello.session_id, principal), std::move(state))
      .first->second.get();
}

void Ingest::tick() {
  // Handlers may close connections, which destroys sessions.
  const std::vector<Session*> sessions(sessions_.begin(), sessions_.end());
  for (Session* session : sessions) {
    if (sessions_.contains(session)) session->on_tick();
  }
  environments_.prune();
  const std::uint64_t now = clock_.monotonic_ns();
  for (auto it = states_.begin(); it != states_.end();) {
    const auto next = std::next(it);
    const SessionState& state = *it->second;
    if (state.connection == nullptr && now - state.closed_at_ns >= options_.grace_ns) forget(it);
    it = next;
  }
}

std::uint32_t Ingest::set_detail(const DetailRequest& request) {
  std::uint32_t told = 0;
  std::set<std::int64_t> pids;  // a process with several GPUs has several sessions
  const std::vector<Session*> sessions(sessions_.begin(), sessions_.end());
  for (Session* session : sessions) {
    if (!sessions_.contains(session) || session->state_ == nullptr) continue;
    const SessionState& state = *session->state_;
    if (!request.job_id.empty() && state.job_id != request.job_id) continue;
    if (request.uid >= 0 && state.peer.uid != request.uid) continue;
    if ((state.claims.hello.capabilities & wire::kCapabilitySetDetail) == 0) continue;
    if (state.peer.pid == 0 || pids.insert(state.peer.pid).second) ++told;
    session->set_detail(static_cast<wire::DetailLevel>(request.level), request.network_phases,
                        request.duration_ms);
  }
  return told;
}

void Ingest::acknowledge_all() {
  const std::vector<Session*> sessions(sessions_.begin(), sessions_.end());
  for (Session* session : sessions) {
    if (!sessions_.contains(session)) continue;
    session->acknowledge();
    if (session->has_output()) session->carrier_.output_ready();
  }
}

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// The protocol of one connection: frames in, answers out. Knows no sockets, so that tests feed it
// bytes and the Unix socket and gRPC share it. THE SENDER IS HOSTILE: nothing it sends may do more
// than end its own session.
//
//              first record Hello
//   kGreeting ---------------------> kOpen ---- Goodbye, end of stream ----> kClosed
//       |                              |
//       +-- anything else, time out ---+-- malformed frame, conflict, replaced ----> kClosed
//       (Refuse sent)
//   greet_again(): what comes before Hello is ignored instead.
//
//   Thread: reactor.   Memory: no allocation per record.   Times: CLOCK_MONOTONIC, ns.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/ingest/gateway.h"
#include "agent/ingest/ingest_stats.h"
#include "agent/ingest/quota.h"
#include "agent/ingest/record_sink.h"
#include "agent/ingest/session_state.h"

namespace ncclscope::agent {

class Ingest;

/// One frame to the plugin: header and one record.
struct OutFrame {
  std::array<std::byte, 64> bytes{};
  std::size_t size = 0;
  [[nodiscard]] std::span<const std::byte> view() const { return {bytes.data(), size}; }
};

/// Whoever carries a session's frames: a socket connection, a gRPC stream, a test.
class SessionCarrier {
 public:
  virtual ~SessionCarrier() = default;
  /// The session has something to send that is not the answer to a frame just fed.
  virtual void output_ready() = 0;
  /// The session is over: send what output is left, then close. The session may be destroyed only
  /// later.
  virtual void session_over() = 0;
};

class Session {
 public:
  Session(Ingest& ingest, PeerIdentity peer, SessionCarrier& carrier);
  ~Session();
  Session(const Session&) = delete;
  Session& operator=(const Session&) = delete;

  enum class Verdict : std::uint8_t { kContinue, kClose };
  /// Handles one packet. kClose: send the output, then close.
  [[nodiscard]] Verdict on_frame(std::span<const std::byte> packet);
  /// The packets that were ready have been fed: acknowledges if the last time is long enough ago.
  void on_burst_end();
  /// Called about every Ingest::kAckPeriodNs: acknowledges what is due, ends sessions that never
  /// said Hello.
  void on_tick();
  /// Acknowledges now, whatever the time.
  void acknowledge();
  /// The connection is older than this agent: what it was told is not known here. Asks for Hello
  /// and ignores what comes before it.
  void greet_again();
  void set_detail(wire::DetailLevel level, bool network, std::uint32_t duration_ms);

  /// Moves out what is to be sent. `out` is replaced (its memory is reused).
  void take_output(std::vector<OutFrame>& out);
  [[nodiscard]] bool has_output() const { return !output_.empty(); }
  [[nodiscard]] bool closed() const { return closed_; }
  [[nodiscard]] const PeerIdentity& peer() const { return peer_; }
  /// Null before Hello and after the end.
  [[nodiscard]] const SessionState* state() const { return state_; }

 private:
  friend class Ingest;
  bool on_hello(std::span<const std::byte> record, std::uint64_t send_time_ns);
  bool on_record(std::uint8_t type, std::span<const std::byte> record, std::uint64_t index);
  bool on_indexed(std::uint8_t type, std::span<const std::byte> record, std::uint64_t index);
  bool on_communicator_init(std::span<const std::byte> record);
  bool on_environment(std::span<const std::byte> record);
  bool fail(IngestError error);  // remembers the reason; always false
  Verdict refuse(IngestError error);
  void detach();
  template <typename Record>
  void send(Record record, wire::RecordType type);

  Ingest& ingest_;
  PeerIdentity peer_;
  SessionCarrier& carrier_;
  SessionState* state_ = nullptr;
  std::vector<OutFrame> output_;
  std::uint64_t opened_at_ns_;
  std::uint64_t now_ns_ = 0;  // of the frame being handled
  std::uint64_t last_ack_ns_ = 0;
  std::uint64_t last_ack_index_ = 0;
  IngestError failure_{};
  bool closed_ = false;
  bool greeting_again_ = false;
};

/// All sessions of the agent, connected or remembered.
class Ingest {
 public:
  static constexpr std::uint64_t kAckPeriodNs = 250'000'000;

  struct Options {
    std::uint64_t agent_instance = 1;  // random, not 0
    std::size_t max_sessions = 8192;   // remembered ones included
    std::size_t sessions_per_principal = 2048;
    std::uint64_t hello_timeout_ns = 5'000'000'000;
    std::uint64_t grace_ns =
        300'000'000'000;  // how long a session without a connection is remembered
    std::uint64_t capabilities = wire::kCapabilityNetworkPhases | wire::kCapabilityChannelDetail |
                                 wire::kCapabilitySetDetail;
    /// How long a session may be without a connection before other principals may take its place.
    std::uint64_t reconnect_ns = 10'000'000'000;
  };
  Ingest(RecordSink& sink, const Clock& clock, Options options);
  ~Ingest();

  [[nodiscard]] std::unique_ptr<Session> open(PeerIdentity peer, SessionCarrier& carrier);
  /// Every kAckPeriodNs.
  void tick();
  void set_grace_ns(std::uint64_t grace_ns) { options_.grace_ns = grace_ns; }
  /// Tells the matching connected sessions; returns how many.
  std::uint32_t set_detail(const DetailRequest& request);
  /// Acknowledges everything at once (before leaving).
  void acknowledge_all();

  /// While set, no new session is taken; those that are remembered go on.
  void set_memory_full(bool full) { memory_full_ = full; }

  [[nodiscard]] IngestStats& stats() { return stats_; }
  [[nodiscard]] const IngestStats& stats() const { return stats_; }
  [[nodiscard]] QuotaCounter& quotas() { return quotas_; }
  [[nodiscard]] const QuotaCounter& quotas() const { return quotas_; }
  [[nodiscard]] const Clock& clock() const { return clock_; }
  [[nodiscard]] const Options& options() const { return options_; }
  [[nodiscard]] std::size_t remembered_sessions() const { return states_.size(); }
  /// Null if not remembered. Several principals may use one id: then that of any of them.
  [[nodiscard]] const SessionState* find(std::uint64_t session_id) const;

 private:
  friend class Session;
  /// An id means nothing across principals, so that nobody can take or block another's session.
  using SessionKey = std::pair<std::uint64_t, std::string>;
  using States = std::map<SessionKey, std::unique_ptr<SessionState>>;
  /// The state for this Hello, new or resumed; null with `error` set when it is refused.
  SessionState* attach(Session& session, const wire::Hello& hello, IngestError& error);
  void forget(States::iterator it);
  void erase(States::iterator it);
  /// Makes room for one more session of `principal`.
  bool make_room(const std::string& principal);
  bool forget_longest_away(const std::string& principal, std::uint64_t away_ns);
  [[nodiscard]] std::size_t sessions_of(const std::string& principal) const;

  RecordSink& sink_;
  const Clock& clock_;
  Options options_;
  IngestStats stats_;
  QuotaCounter quotas_;
  EnvironmentStore environments_;
  /// Variables that came in the frame being handled. A frame has one list of them at most.
  struct VariableList {
    std::vector<std::string> variables;  // "NAME=value"
    bool cut = false, ended = false;
  };
  VariableList list_;
  States states_;
  std::unordered_map<std::string, std::size_t> sessions_of_;  // of states_, by principal
  std::unordered_set<Session*> sessions_;
  bool memory_full_ = false;
  LogLimiter bad_frame_log_;
};

}  // namespace ncclscope::agent

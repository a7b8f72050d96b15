// SPDX-License-Identifier: Apache-2.0
//
// An agent's inside without sockets and without time: sessions fed with bytes, a clock that tests
// move.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "agent/aggregate/aggregator.h"
#include "agent/ingest/session.h"
#include "tests/unit/agent/plugin_frames.h"

namespace ncclscope::agent::testing {

/// One connection of a plugin.
class Wire final : public SessionCarrier {
 public:
  Wire(Ingest& ingest, std::int64_t pid, std::int64_t uid, bool claimed = false)
      : session_(ingest.open(PeerIdentity{pid, uid, claimed, "test",
                                          (claimed ? "claimed:" : "uid:") + std::to_string(uid)},
                             *this)) {}

  Wire(Ingest& ingest, PeerIdentity peer) : session_(ingest.open(std::move(peer), *this)) {}

  /// Feeds a packet. True while the session goes on.
  bool feed(const Packet& packet) {
    const bool open = session_->on_frame(packet) == Session::Verdict::kContinue;
    if (!open) over_ = true;
    collect();
    return open;
  }
  void burst_end() {
    session_->on_burst_end();
    collect();
  }
  void output_ready() override { collect(); }
  void session_over() override {
    over_ = true;
    collect();
  }
  void disconnect() { session_.reset(); }

  [[nodiscard]] bool over() const { return over_; }
  [[nodiscard]] Session& session() { return *session_; }
  /// Answers since the last call.
  std::vector<Packet> answers() { return std::exchange(answers_, {}); }
  /// The last answer of that type, zeros if there was none; forgets all.
  template <typename Record>
  Record last(wire::RecordType type) {
    Record found{};
    for (const Packet& p : answers()) {
      if (reply_type(p) == type) found = reply<Record>(p);
    }
    return found;
  }

 private:
  void collect() {
    if (!session_) return;
    std::vector<OutFrame> out;
    session_->take_output(out);
    for (const OutFrame& f : out) answers_.emplace_back(f.view().begin(), f.view().end());
  }
  std::vector<Packet> answers_;
  bool over_ = false;
  std::unique_ptr<Session> session_;
};

struct Rig {
  static constexpr std::uint64_t kInstance = 77;

  explicit Rig(Aggregator::Options aggregator_options = {}, Ingest::Options ingest_options = {},
               std::size_t tail_records = 1000)
      : tail(tail_records),
        aggregator(clock, resolver, gpus, tail, with_instance(std::move(aggregator_options))),
        ingest(aggregator, clock, with_instance(ingest_options)) {}

  std::unique_ptr<Wire> connect(std::int64_t pid = 100, std::int64_t uid = 1000,
                                bool claimed = false) {
    return std::make_unique<Wire>(ingest, pid, uid, claimed);
  }
  /// A connection that has said Hello as a process of SLURM job `job`.
  std::unique_ptr<Wire> open(std::uint64_t session, std::string_view job = "7",
                             std::int64_t pid = 100, std::uint64_t acknowledged = 0) {
    auto wire = connect(pid);
    wire->feed(PacketBuilder()
                   .hello(make_hello(session, acknowledged), {{wire::StringKey::kSlurmJobId, job}})
                   .finish());
    return wire;
  }
  void tick() {
    ingest.tick();
    aggregator.tick();
  }
  SnapshotPtr snapshot() {
    aggregator.flush_all();
    return aggregator.build(ingest.stats(), ingest.quotas().counts());
  }

  FakeClock clock;
  ClaimsResolver resolver{""};
  GpuTable gpus{"/nonexistent"};
  OperationTail tail;
  Aggregator aggregator;
  Ingest ingest;

 private:
  template <typename Options>
  static Options with_instance(Options options) {
    options.agent_instance = kInstance;
    return options;
  }
};

}  // namespace ncclscope::agent::testing

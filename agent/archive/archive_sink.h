// SPDX-License-Identifier: Apache-2.0
//
// Stands between the sessions and the aggregator: everything goes on to the aggregator, and what it
// takes is copied into chunks for the archive's writer.
//   Thread: reactor.   Cost: a look-up and a copy of 56 bytes per record; never waits, never
//   writes. Bounded: a chunk that the queue does not take is dropped and its operations are
//   counted.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <unordered_map>

#include "agent/aggregate/aggregator.h"
#include "agent/archive/archive_stats.h"
#include "agent/archive/chunk.h"
#include "agent/base/clock.h"
#include "agent/ingest/record_sink.h"

namespace ncclscope::agent {

class ArchiveSink final : public RecordSink {
 public:
  struct Options {
    std::string node;
    std::string producer;
    /// Progress and books of processes are kept as often as that.
    std::uint64_t state_ns = 5'000'000'000;
    /// That are remembered, of all sessions (some 500 bytes each). Operations of more are not
    /// kept, and counted as dropped_queue.
    std::size_t max_communicators = 65'536;
  };
  ArchiveSink(Aggregator& next, ArchiveQueue& queue, ArchiveStats& stats, const Clock& clock,
              Options options);
  ~ArchiveSink() override;

  /// Hands over what has been gathered. About every 250 ms.
  void tick();
  /// Takes the newest state of everybody and hands all over (before the end).
  void flush();

  bool session_opened(SessionState& session) override;
  void session_closed(SessionState& session) override;
  void session_expired(SessionState& session) override;
  void communicator_init(SessionState& session, const wire::CommunicatorInit& init,
                         const CommunicatorStrings& strings) override;
  void books(SessionState& session, const wire::Books& books) override;
  bool progress(SessionState& session, const wire::Progress& progress) override;
  bool neighbours(SessionState& session, const wire::Neighbours& head,
                  std::span<const std::byte> peers) override;
  bool operation(SessionState& session, const wire::Operation& operation,
                 std::uint64_t index) override;
  bool network(SessionState& session, const wire::NetworkPhases& phases,
               std::uint64_t index) override;
  bool channel(SessionState& session, const wire::ChannelDetail& detail,
               std::uint64_t index) override;
  bool finalize(SessionState& session, const wire::CommunicatorFinalize& finalize,
                std::uint64_t index) override;
  void frame_begin(SessionState& session, std::uint64_t send_time_ns) override;
  void frame_end(SessionState& session) override;

 private:
  struct Kept;
  struct KeptCommunicator;

  Kept& kept(const SessionState& session);
  KeptCommunicator* communicator(Kept& kept, const SessionState& session, std::uint16_t id);
  void describe(Kept& kept, const SessionState& session);
  void describe(const Kept& kept, const SessionState& session, KeptCommunicator& communicator);
  std::uint32_t place(KeptCommunicator& communicator);
  template <typename Record>
  void push(const SessionState& session, std::uint16_t communicator, wire::RecordType type,
            const Record& record, std::uint64_t index);
  void push_state(Kept& kept);
  void hand_over();

  Aggregator& next_;
  ArchiveQueue& queue_;
  ArchiveStats& stats_;
  const Clock& clock_;
  Options options_;
  std::unordered_map<const SessionState*, std::unique_ptr<Kept>> sessions_;
  const SessionState* current_session_ = nullptr;  // what current_ is of
  Kept* current_ = nullptr;
  std::uint64_t send_time_ns_ = 0;
  std::unique_ptr<ArchiveChunk> chunk_;
  std::uint64_t serial_ = 0;       // of chunks and descriptions
  std::size_t communicators_ = 0;  // of all sessions
  std::uint64_t state_at_ns_ = 0, described_at_ns_ = 0;
};

}  // namespace ncclscope::agent

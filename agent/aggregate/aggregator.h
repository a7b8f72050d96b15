// SPDX-License-Identifier: Apache-2.0
//
// Turns records into sums: the owner of all live tables.
//   Thread: reactor only; readers get snapshots.   Cost: O(1) per record, no allocation in steady
//   state. Bounds: Options. Series beyond a job's budget are folded step by step (fold.cc) and
//           counted, never dropped silently; a session beyond the limit of jobs is refused.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "agent/aggregate/all_to_all.h"
#include "agent/aggregate/operation_tail.h"
#include "agent/aggregate/snapshot.h"
#include "agent/aggregate/tables.h"
#include "agent/aggregate/throughput.h"
#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/identity/gpu_table.h"
#include "agent/identity/job_resolver.h"
#include "agent/ingest/ingest_stats.h"
#include "agent/ingest/quota.h"
#include "agent/ingest/record_sink.h"

namespace ncclscope::agent {

class Aggregator final : public RecordSink {
 public:
  /// Communicators that one session may have at one time; further ones are not counted.
  static constexpr std::size_t kMaxCommunicatorsPerSession = 1024;

  struct Options {
    std::string node;
    std::string agent_version;
    std::uint64_t agent_instance = 1;
    std::uint64_t grace_ns = 300'000'000'000;  // how long what has ended is still shown
    /// Ranks that do not get on for so long are shown as stalled.
    std::uint64_t stalled_ns = 20'000'000'000;
    std::uint64_t vanish_ns =
        3'000'000'000;  // how long a process may be away before it counts as vanished
    std::uint64_t batch_age_ns = 500'000'000;  // after which a plan is taken as complete
    std::size_t max_jobs = 1024;
    std::size_t jobs_per_principal = 256;
    std::size_t max_communicators = 4096;  // all jobs together
    std::size_t communicators_per_principal = 2048;
    SeriesLimits series;
    std::size_t max_pending_items = 262'144;  // operations waiting for the rest of their plan
    std::uint64_t inspector_window_ns = 0;    // of /metrics/inspector; 0: nothing is kept for it
    std::uint64_t inspector_min_bytes = model::inspector::kMinBytes;  // of one rank
  };
  Aggregator(const Clock& clock, JobResolver& resolver, GpuTable& gpus, OperationTail& tail,
             Options options);
  ~Aggregator() override;

  /// False: no job of that user has this id.
  bool report_throughput(const ThroughputReport& report);

  // ---- RecordSink -------------------------------------------------------------------------------
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

  // ---- the reactor's timers ---------------------------------------------------------------------
  /// Flushes plans that are complete by age, marks vanished processes, frees what is past its grace
  /// time. About every 250 ms.
  void tick();
  /// Flushes all plans whatever their age (before the last snapshot).
  void flush_all();
  /// What the resolver has learned of jobs since they began: their labels are completed, never
  /// emptied. job_id stays.
  void refresh_jobs();
  /// Shown in the next snapshots.
  void set_rdma_ports(std::uint64_t ports) { rdma_ports_ = ports; }
  void set_node_findings(std::vector<NodeFindings> findings) {
    node_findings_ = std::move(findings);
  }
  void set_squeue_failures(std::uint64_t failures) { squeue_failures_ = failures; }

  /// The picture of now. `stats` and `quotas` are the way in's counters.
  [[nodiscard]] SnapshotPtr build(const IngestStats& stats, const QuotaCounts& quotas = {});

  void set_grace_ns(std::uint64_t grace_ns) { options_.grace_ns = grace_ns; }
  void set_stalled_ns(std::uint64_t stalled_ns) { options_.stalled_ns = stalled_ns; }
  /// While set, new communicators are folded into "other".
  void set_memory_full(bool full) { memory_full_ = full; }
  /// Rows, processes and communicators that were folded, all jobs and steps together.
  [[nodiscard]] std::uint64_t folded() const;
  [[nodiscard]] std::size_t communicators() const { return communicator_count_; }

  // ---- what is known of peers, for the archive (facts.cc) ---------------------------------------
  struct ProcessFacts {
    const JobIdentity* job;  // valid until the next call that changes something
    std::string_view global_rank, local_rank, plugin_version;
  };
  /// Nothing before session_opened() and after session_expired().
  [[nodiscard]] std::optional<ProcessFacts> facts(const SessionState& session) const;
  struct CommunicatorFacts {
    std::string comm;
    bool hash_known = false;
    std::string name, dimension;
    std::uint32_t nranks = 0, nnodes = 0;
    std::int32_t rank = -1;
    std::int32_t gpu = -1;
    std::string gpu_uuid, pci_bus_id;
  };
  /// Nothing for a communicator that is not known, or folded.
  [[nodiscard]] std::optional<CommunicatorFacts> facts(const SessionState& session,
                                                       std::uint16_t communicator) const;
  /// Shown in the next snapshots.
  void set_archive(const ArchiveCounts& counts) { archive_ = counts; }

 private:
  static CommRank* slot(const SessionState& session, std::uint16_t communicator);
  Job* find_or_make_job(const ProcessIdentity& identity, const SessionState& session);
  [[nodiscard]] bool job_id_taken(const std::string& id) const;
  [[nodiscard]] std::string free_job_id(const std::string& id, const Job& job) const;
  void rename(Job& job, std::string id);
  /// Frees the place of a job that has ended. False if no one can be asked to give way.
  bool make_room_for_job(const Tenant& tenant);
  /// Room for one more job of `tenant`; false is counted.
  bool make_room(Tenant& tenant, const SessionState& session);
  /// The same for the series of one more job, among those of the tenant.
  bool make_room_for_series(const Tenant& tenant);
  bool end_oldest_job(const Tenant& tenant);
  void erase_job(Job& job);
  Tenant& tenant_of(const std::string& principal);
  void forget_if_idle(Tenant& tenant);
  /// Null at a limit, which is then counted against `tenant`.
  Communicator* find_or_make_communicator(Job& job, Tenant& tenant, const std::string& comm);
  void erase_communicator(Communicator& communicator);
  CommRank* make_rank(SessionState& session, const wire::CommunicatorInit& init,
                      const CommunicatorStrings& strings);
  CommRank* folded_rank(SinkProcess& process);
  Communicator& other_communicator(Job& job);
  /// Puts `rank` into `communicator`, taking over a rank of the same number that has ended.
  /// False when that rank is alive: then nothing was done.
  bool enter(Communicator& communicator, std::unique_ptr<CommRank>& rank);
  void describe(SessionState& session, CommRank& rank, const wire::CommunicatorInit& init,
                const CommunicatorStrings& strings);
  void rekey(SessionState& session, CommRank& rank, const wire::CommunicatorInit& init);
  std::string local_name(SinkProcess& process, const SessionState& session);
  void end_rank(CommRank& rank, RankState state);
  void end_process(SinkProcess& process);
  /// Once per session.
  void count_mismatch(SinkProcess& process);
  void leave(CommRank& rank);
  void flush(CommRank& rank);
  /// Also what waits for a plan that may still come.
  void flush_all_of(CommRank& rank);
  /// Counts transfers of a rank to itself that came before `before_ns` and belong to nothing.
  void flush_own(CommRank& rank, std::uint64_t before_ns);
  void observe_time(const SessionState& session, const SlotTable::Entry& slot,
                    const wire::Operation& operation, std::uint64_t duration_ns);
  void make_room(const SinkProcess& process, CommRank& rank, std::uint16_t plan);
  void hold_transfer(SinkProcess& process, CommRank& rank, std::uint16_t plan,
                     const PendingTransfer& transfer);
  /// Counts Sends and Receives of one plan, or the all-to-all that they are.
  void settle_transfers(CommRank& rank, std::uint16_t plan,
                        const std::vector<PendingTransfer>& transfers, PlanBatch& batch);
  void settle_all_to_all(CommRank& rank, std::uint16_t plan, const AllToAll& found,
                         const std::vector<PendingTransfer>& transfers, PlanBatch& batch);
  void settle_plan(CommRank& rank, std::uint16_t plan);
  void flush_collectives(CommRank& rank);
  /// Counts an operation by its key and timing.
  void count(CommRank& rank, const TimedItem& item, std::uint64_t bytes, std::size_t timing,
             std::size_t reason);
  void apply(CommRank& rank, const AttributedItem& item);
  static void add_to_gpu(Job& job, GpuRef gpu, model::Function function, double seconds);
  /// Which of the process's GPUs it is, + 1; 0 = none. Makes it if it is new.
  std::uint16_t gpu_slot(SinkProcess& process, GpuRef gpu);
  GpuActivity* activity_for(Job& job, const SinkProcess& process, GpuRef gpu);
  GpuRef gpu_of(const SinkProcess& process, const wire::CommunicatorInit& init,
                std::string_view pci_bus_id);
  void take_steps(SinkProcess& process);
  /// Into the open window of Inspector's labels.
  void add_to_window(Job& job, const CommRank& rank, const TimedItem& item, std::uint32_t nranks,
                     std::uint64_t rank_bytes);
  void end_windows(std::uint64_t now);
  void infer_dimensions(Job& job);
  /// The time of day can be set while a process runs: records that come from now on are shown in
  /// that of its newest books.
  void follow_clock(SessionState& session, std::int64_t offset_ns);
  void renew_source(SessionState& session, CommRank& rank);
  void retire(OperationTail::SourceId& source);
  /// Counts what is missing of operations that the session knows to be over.
  static void settle_indexes(const SessionState& session);
  void push_tail(OperationTail::SourceId source, wire::RecordType type, const void* record,
                 std::uint64_t index);
  void expire(std::uint64_t now);
  template <typename Visit>
  void for_each_rank(Visit&& visit);
  void count_folds(Job& job, FoldStep step, std::size_t count);
  /// Counts the series of the job and folds until they are within its allowance. `out` is the job
  /// as it then is. Ranks and communicators of the job may be gone after this.
  void settle(Job& job, JobSnapshot& out, std::uint64_t now);
  void settle_if_over(Job& job);
  bool fold_further(Job& job, const JobSnapshot& shown, std::uint64_t excess);
  bool fold_newest(Job& job, const JobSnapshot& shown, std::uint64_t excess);
  void fold_away(Communicator& communicator);
  void fold_counters(Job& job);
  void fold_processes(Job& job);
  void fill(const Job& job, JobSnapshot& out, std::uint64_t now) const;
  void fill_gpus(const Job& job, JobSnapshot& out) const;
  void fill_gpu_sums(const Job& job, JobSnapshot& out) const;
  void fill(const Communicator& communicator, CommunicatorSnapshot& out, std::uint64_t now) const;

  const Clock& clock_;
  JobResolver& resolver_;
  GpuTable& gpus_;
  OperationTail& tail_;
  Options options_;
  std::map<std::string, std::unique_ptr<Job>> jobs_;  // by key
  std::map<std::string, Tenant> tenants_;             // by principal
  QuotaCounter quotas_;
  bool memory_full_ = false;
  std::size_t communicator_count_ = 0;
  SeriesBudget budget_;
  std::array<std::uint64_t, kFoldSteps> folds_{};
  LogLimiter fold_log_;
  std::uint64_t communicators_made_ = 0;
  std::uint64_t jobs_refused_ = 0;
  std::uint64_t identity_mismatches_ = 0;
  std::uint64_t squeue_failures_ = 0;
  std::uint64_t rdma_ports_ = 0;
  std::vector<NodeFindings> node_findings_;
  std::optional<ArchiveCounts> archive_;
  std::uint64_t generation_ = 0;
  std::uint64_t inspector_end_ns_ = 0;  // of the open window; 0: none yet
  std::size_t inspector_rows_ = 0;      // in it, all jobs together
  std::uint64_t inspector_left_out_ = 0;
  std::uint64_t now_ns_ = 0;        // of the frame being handled
  std::uint64_t send_time_ns_ = 0;  // of the frame being handled, on the sender's clock
  std::vector<OperationTail::Entry> tail_entries_;  // of the frame being handled
  AllToAllRecogniser recogniser_;
};

}  // namespace ncclscope::agent

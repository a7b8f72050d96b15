// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/export/snapshot_fixture.h"

#include <string>
#include <utility>

namespace ncclscope::agent {
namespace {

using model::Algorithm;
using model::Function;
using model::Protocol;

RankSnapshot rank(std::int32_t number, std::int32_t gpu, std::int64_t pid) {
  RankSnapshot r;
  r.rank = number;
  r.global_rank = std::to_string(number);
  r.local_rank = std::to_string(gpu);
  r.gpu = gpu;
  r.gpu_uuid = "GPU-00000000-0000-0000-0000-00000000000" + std::to_string(gpu);
  r.pci_bus_id = "0000:" + std::to_string(10 + gpu) + ":00.0";
  r.pid = pid;
  r.session_id = static_cast<std::uint64_t>(pid) * 1000;
  r.collectives_enqueued = 120;
  r.collectives_started = 119;
  r.collectives_completed = 118;
  r.seen = 120;
  r.recorded = 118;
  r.oldest_index = 118;
  r.oldest_signature = 0xFEDCBA987654u;
  r.inflight_seconds = 0.25;
  r.queue_seconds = 1.5;
  r.queue_operations = 117;
  return r;
}

OperationSumsRow sums(Function f, std::uint8_t size, Algorithm a, Protocol p,
                      std::uint64_t operations, std::uint64_t bytes, double bus_bytes,
                      double seconds) {
  OperationSumsRow row;
  row.function = f;
  row.size_class = size;
  row.algorithm = a;
  row.protocol = p;
  row.operations_by_timing[1] = operations;
  row.bytes_by_timing[1] = bytes;
  row.timed_operations = operations;
  row.bus_bytes = bus_bytes;
  row.busy_seconds = seconds;
  return row;
}

ProcessSnapshot process(std::int64_t pid, std::uint64_t seen) {
  ProcessSnapshot p;
  p.pid = pid;
  p.session_id = static_cast<std::uint64_t>(pid) * 1000;
  p.plugin_version = "0.1.0";
  p.rdma_devices = 8;
  p.nccl_version = 22809;
  p.interface_version = 5;
  p.connected = true;
  p.start_time_ns = 1'000'000'000;
  p.books_seen = true;
  p.books_age_seconds = 0.5;
  p.books.mask = 0x17;
  p.books.time_ns = 101'000'000'000;
  p.books.seen = seen;
  p.books.open = 2;
  p.books.dropped[0] = 1;
  p.books.dropped[3] = 3;
  p.books.recorded = seen - 3;
  p.books.untimed[2] = 4;
  p.books.records_written = seen + 7;
  p.books.records_overwritten = 3;
  p.books.callbacks = 40 * seen;
  p.books.callback_ns = 50'000'000;
  p.books.sender_cpu_ns = 7'000'000;
  p.books.connects = 1;
  p.books.detail = 1;
  p.books.detail_asked = 2;
  p.books.governor = 2;
  p.books.kernel_slice = 16;
  p.books.governor_changes = 3;
  p.books.governor_since_ns = 100'000'000'000;
  p.books.governor_trigger_ratio = 0.004;
  p.books.recent_ratio = 0.0005;
  p.books.budget_ratio = 0.001;
  p.books.nccl_cost_ratio = 0.03125;
  p.books.nccl_cost_error = 0.0078125;
  p.books.nccl_cost_blocks = 40;
  p.books.file_lines = 1'000;
  p.books.file_lines_late = 20;
  p.books.file_lines_failed = 3;
  p.records_received = seen + 4;
  p.records_lost = 3;
  p.operations_received = seen - 6;
  p.highest_index = seen + 7;
  return p;
}

JobSnapshot slurm_job() {
  JobSnapshot job;
  job.identity = {"4711", "alps", "anna", "gpu", "proj7",  "train \"llama\"\\7b",
                  "3",    1,      "",     "",    "cgroup", 1001};

  CommunicatorSnapshot world;
  world.comm = "00c0ffee12345678";
  world.name = "default_pg";
  world.nranks = 16;
  world.nnodes = 2;
  world.ranks = {rank(0, 0, 5001), rank(1, 1, 5002)};
  world.ranks[1].state = RankState::kVanished;
  world.ranks[1].inflight_seconds = 61.5;
  world.ranks[0].stalled = world.ranks[1].stalled = true;
  world.ranks[0].neighbours = {{15, 0, 2, 0}};
  world.ranks[1].neighbours = {{2, 1, 2, 0}, {6, 1, 1, 0}};
  world.ranks[1].dropped = 3;
  world.untimed_share = 0.25;
  world.sums = {
      sums(Function::kAllReduce, 4, Algorithm::kRing, Protocol::kSimple, 200, 52'428'800'000,
           98'304'000'000.0, 0.5),
      sums(Function::kAllReduce, 0, Algorithm::kTree, Protocol::kLl, 36, 36'864, 69'120.0, 0.0009),
      sums(Function::kBroadcast, 0, Algorithm::kUnknown, Protocol::kUnknown, 0, 0, 0, 0)};
  world.sums[1].operations_by_timing[2] = 2;
  world.sums[1].bytes_by_timing[2] = 2'048;
  world.sums[2].operations_by_timing[0] = 4;
  world.sums[2].bytes_by_timing[0] = 4'096;
  world.rank_sums = {{0, 0, Function::kAllReduce, 115, 0.26, 49'152'000'000.0},
                     {1, 1, Function::kAllReduce, 115, 0.24, 49'152'000'000.0}};

  CommunicatorSnapshot pipeline;
  pipeline.comm = "local-5001-1";
  pipeline.hash_known = false;
  pipeline.name = "pp\n\xFF";
  pipeline.ranks = {rank(0, 0, 5001), rank(1, 1, 5002)};
  for (RankSnapshot& r : pipeline.ranks) {
    r.rank = -1;
    r.progress_flags = wire::kProgressOldestIsP2p;
    r.collectives_enqueued = r.collectives_started = r.collectives_completed = 0;
  }
  pipeline.ranks[1].gpu = 0;  // equal labels where the rank is unknown
  pipeline.sums = {sums(Function::kSend, 3, Algorithm::kUnknown, Protocol::kUnknown, 64,
                        671'088'640, 671'088'640.0, 0.03125)};
  pipeline.rank_sums = {{-1, 0, Function::kSend, 61, 0.03, 639'631'360.0}};

  CommunicatorSnapshot other;
  other.comm = "other";
  other.sums = {sums(Function::kAllGather, 255, Algorithm::kUnknown, Protocol::kUnknown, 5, 5'000,
                     4'000.0, 0.001)};

  job.communicators = {std::move(world), std::move(pipeline), std::move(other)};
  job.durations = {{Function::kAllReduce, 4, {0, 0, 0, 10, 180, 10, 0, 0, 0, 0, 0, 0, 0}, 0.5},
                   {Function::kSend, 3, {0, 0, 64, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}, 0.03125}};
  job.network = {{0, true, {0.5, 0.25, 1.75}, 1'048'576, 4},
                 {0, false, {0.125, 0.0, 0.0625}, 1'048'576, 4},
                 {-1, true, {0.5, 0.5, 0.5}, 1'000, 1},
                 {-1, true, {0.25, 0.25, 0.25}, 24, 1}};
  job.steps.emplace();
  job.steps->counts[6] = 40;
  job.steps->counts[7] = 2;
  job.steps->sum_seconds = 17.5;
  job.gpus = {{-1, 0.125, std::nullopt}, {0, 6.5, 0.375}, {1, 7.25, 0.4375}};
  job.gpu_sums = {{0, 5.5, 5.75}, {1, 6.5, 6.625}};
  job.processes = {process(5001, 180), process(5002, 120), process(5002, 60)};
  job.throughput = {91'000, std::nullopt, 0.5, std::nullopt};
  job.processes[2].connected = false;
  job.processes[2].said_goodbye = true;
  job.processes[2].session_id = 1;
  job.unobserved[1] = 4;
  job.unobserved[12] = 1;
  job.lost_operations = 2;
  return job;
}

JobSnapshot kubernetes_job() {
  JobSnapshot job;
  job.identity.job_id = "ml-team/bert";
  job.identity.kubernetes_namespace = "ml-team";
  job.identity.pod = "bert-0";
  job.identity.identity_source = "claimed";
  CommunicatorSnapshot c;
  c.comm = "1111222233334444";
  c.nranks = 1;
  c.nnodes = 1;
  c.ranks = {rank(0, 2, 6001)};
  c.ranks[0].state = RankState::kFinalized;
  c.ranks[0].gpu = -1;
  c.ranks[0].gpu_uuid.clear();
  c.ranks[0].pci_bus_id.clear();
  c.ranks[0].seen = c.ranks[0].recorded = 0;
  c.ranks[0].inflight_seconds = 0;
  c.ranks[0].oldest_signature = 0;
  job.communicators = {std::move(c)};
  job.processes = {process(6001, 10)};
  job.processes[0].books_seen = false;
  job.processes[0].nccl_version = 0;
  job.processes[0].claimed = true;
  return job;
}

}  // namespace

Snapshot golden_snapshot() {
  Snapshot s;
  s.node = "nid001";
  s.agent_version = "0.1.0";
  s.agent_instance = 42;
  s.realtime_ns = 1'764'000'000'000'000'000;
  s.generation = 9;
  s.jobs = {slurm_job(), kubernetes_job()};
  s.agent.connections_accepted = 5;
  s.agent.connections_open = 2;
  s.agent.frames = 1'000;
  s.agent.bytes_received = 18'446'744'073'709'551'615u;
  s.agent.records = 25'000;
  s.agent.quota_exceeded = {1, 2, 3, 4, 5, 6};
  s.agent.archive = ArchiveCounts{100'000, 812'345, 7, 9, 700'000, 1u << 30, 12, {1, 2, 3}};
  s.agent.node_findings = {{"gpu-nic", {7, 0, 0, 1}}, {"pcie-link", {0, 1, 0, 0}}};
  s.agent.decode_errors = {{"no_hello", 1}, {"bad_magic", 2}};
  s.agent.series_per_job = 4'000;
  s.agent.series_per_principal = 25'000;
  s.agent.series_limit = 50'000;
  return s;
}

SelfStats golden_self() {
  SelfStats self;
  self.now_ns = 1'764'000'000'250'000'000;
  self.start_time_seconds = 1'763'999'000.125;
  self.scrapes = 7;
  self.scrape_cpu_seconds = 0.0078125;
  self.cpu_seconds = 1.25;
  self.resident_bytes = 20'971'520;
  return self;
}

Snapshot large_snapshot(std::size_t series) {
  constexpr std::size_t kGpus = 8;
  constexpr std::size_t kCommunicators =
      14;  // TP2 x PP2 x DP2 on one node: what 8 ranks with 6 each share
  Snapshot s;
  s.node = "node-with-a-name-of-usual-length-0001.cluster.example.org";
  s.agent_version = "0.1.0";
  s.realtime_ns = 1'764'000'000'000'000'000;
  constexpr Function kFunctions[] = {Function::kAllReduce,     Function::kAllGather,
                                     Function::kReduceScatter, Function::kBroadcast,
                                     Function::kSend,          Function::kRecv};
  class CountingSink final : public MetricSink {
   public:
    void begin_family(const MetricDefinition&) override {}
    void sample(std::span<const std::string_view>, std::uint64_t) override {}
    void sample(std::span<const std::string_view>, double) override {}
    void histogram(std::span<const std::string_view>, std::span<const std::uint64_t>,
                   double) override {}
  };
  std::uint64_t noise = 88172645463325252u;
  const auto random = [&noise] {
    noise ^= noise << 13;
    noise ^= noise >> 7;
    noise ^= noise << 17;
    return noise;
  };
  CountingSink sink;
  std::size_t have = 0;
  while (have < series) {
    JobSnapshot job;
    const std::string id = std::to_string(4'700'000 + s.jobs.size());
    job.identity = {id,
                    "cluster-one",
                    "user_with_name",
                    "partition-gpu",
                    "account-7",
                    "pretrain-70b-run-12",
                    "",
                    0,
                    "",
                    "",
                    "cgroup",
                    1001};
    for (std::size_t c = 0; c < kCommunicators; ++c) {
      CommunicatorSnapshot communicator;
      communicator.comm =
          std::to_string(1'000'000'000'000'000u + random() % 1'000'000'000'000'000u);
      communicator.name = "group_" + std::to_string(c);
      communicator.nranks = 8;
      communicator.nnodes = 1;
      const std::size_t ranks = c == 0 ? kGpus : kGpus / 2;
      for (std::size_t r = 0; r < ranks; ++r) {
        const auto gpu = static_cast<std::int32_t>((r + c) % kGpus);
        communicator.ranks.push_back(rank(static_cast<std::int32_t>(r), gpu, 40'000 + gpu));
        communicator.ranks.back().collectives_enqueued = random() % 100'000'000;
        communicator.ranks.back().queue_seconds =
            static_cast<double>(random() % 1'000'000'007) * 1e-6;
        communicator.rank_sums.push_back({static_cast<std::int32_t>(r), gpu, kFunctions[c % 4],
                                          random() % 100'000'000,
                                          static_cast<double>(random() % 1'000'000'007) * 1e-6,
                                          static_cast<double>(random() % 1'000'000'000'000'007)});
      }
      for (std::size_t i = 0; i < 4; ++i)
        communicator.sums.push_back(
            sums(kFunctions[(c + i) % 6], static_cast<std::uint8_t>((c + i) % 7), Algorithm::kRing,
                 Protocol::kSimple, random() % 100'000'000, random() % 1'000'000'000'000'007,
                 static_cast<double>(random() % 1'000'000'000'000'007),
                 static_cast<double>(random() % 1'000'000'007) * 1e-6));
      job.communicators.push_back(std::move(communicator));
    }
    for (std::uint8_t i = 0; i < 5; ++i) {
      DurationRow row;
      row.function = kFunctions[i];
      row.size_class = i;
      for (std::uint64_t& count : row.counts) count = random() % 10'000'000;
      row.sum_seconds = static_cast<double>(random() % 1'000'000'007) * 1e-6;
      job.durations.push_back(row);
    }
    for (std::int32_t gpu = 0; gpu < 8; ++gpu)
      job.processes.push_back(process(40'000 + gpu, random() % 100'000'000));
    s.jobs.push_back(std::move(job));
    if (have == 0) {
      have = visit_metrics(s, SelfStats{}, sink).job_series;
    } else {
      have += have / (s.jobs.size() - 1);  // every job has as many
    }
  }
  return s;
}

}  // namespace ncclscope::agent

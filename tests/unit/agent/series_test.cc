// SPDX-License-Identifier: Apache-2.0
//
// Bounded cardinality: what is counted is what is rendered, folding keeps sums right and hurts
// nobody else, limits hold whatever comes in, and series go away in time.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <optional>
#include <random>
#include <set>

#include "tests/unit/agent/series_rig.h"

namespace ncclscope::agent {
namespace {

using model::Function;
using testing::exposed;
using testing::label_of;
using testing::make_init;
using testing::name_of;
using testing::of_job;
using testing::OperationSpec;
using testing::PacketBuilder;
using testing::Rig;
using testing::Samples;
using wire::RecordType;

Aggregator::Options with_limits(std::uint64_t job, std::uint64_t principal, std::uint64_t agent) {
  Aggregator::Options options;
  options.series = {job, principal, agent};
  return options;
}
constexpr std::uint64_t kUnlimited = 100'000'000;

bool is_counter(const std::string& series) {
  const std::string name = name_of(series);
  return name.ends_with("_total") || name.ends_with("_bucket") || name.ends_with("_sum") ||
         name.ends_with("_count");
}

bool depends_on_batches(const std::string& metric) {
  return metric.find("_seconds") != std::string::npos || metric.starts_with("ncclscope_rank_");
}

/// Sums of all counters of a job, by metric and bucket.
std::map<std::string, double> totals_of(const Samples& all, std::string_view job) {
  std::map<std::string, double> out;
  for (const auto& [series, value] : of_job(all, job)) {
    // An index is not a sum: the ranks that are folded have none.
    if (!is_counter(series) || name_of(series) == "ncclscope_communicator_operations_total") {
      continue;
    }
    out[name_of(series) + " " + label_of(series, "le")] += value;
  }
  return out;
}

/// A job that does everything at random: the same bytes for every agent that listens.
class RandomJob {
 public:
  /// With plans, operations come in batches: how their time is shared among them is known less
  /// well once a communicator is folded, so sums of times cannot be compared.
  RandomJob(std::uint32_t seed, std::string job, std::uint64_t first_session, bool plans)
      : random_(seed), job_(std::move(job)), first_session_(first_session), plans_(plans) {}

  void attach(Rig& rig) {
    rigs_.push_back(&rig);
    wires_.emplace_back();
  }
  /// One packet of one process, to all.
  void step() {
    if (processes_.empty() || (processes_.size() < 6 && below(40) == 0)) start_process();
    Process& process = processes_[below(processes_.size())];
    PacketBuilder packet;
    std::uint64_t records = 0;
    if (process.communicators.empty() || below(8) == 0) init(process, packet);
    for (std::uint64_t n = below(30); n > 0; --n, ++records) {
      packet.operation(random_operation(process));
    }
    if (below(4) == 0) {
      wire::NetworkPhases phases{};
      phases.communicator = static_cast<std::uint16_t>(below(process.next_id));
      phases.is_send = static_cast<std::uint8_t>(below(2));
      phases.bytes = below(1'000'000);
      phases.phase_ns[below(3)] = below(1'000'000);
      packet.add(phases, RecordType::kNetworkPhases);
      ++records;
    }
    if (below(5) == 0) {
      process.books.time_ns += 1'000'000;
      process.books.seen += below(100);
      process.books.dropped[below(wire::kDropReasonCount)] += below(3);
      process.books.callbacks += below(1000);
      packet.add(process.books, RecordType::kBooks);
    }
    if (below(5) == 0) {
      packet.progress(static_cast<std::uint16_t>(below(process.next_id)), ++progress_time_ns_);
    }
    const auto bytes = packet.finish(process.next_index);
    process.next_index += records;
    for (auto& of_rig : wires_) EXPECT_TRUE(of_rig[process.number]->feed(bytes));
  }
  std::uint64_t below(std::uint64_t bound) { return random_() % bound; }

 private:
  struct Process {
    std::size_t number = 0;
    std::uint64_t next_index = 1;
    std::uint16_t next_id = 0;
    std::vector<std::uint32_t> communicators;  // size of each, by id
    wire::Books books{};
  };

  void start_process() {
    Process& made = processes_.emplace_back();
    made.number = processes_.size() - 1;
    for (std::size_t r = 0; r < rigs_.size(); ++r) {
      wires_[r].push_back(rigs_[r]->open(first_session_ + made.number, job_,
                                         static_cast<std::int64_t>(100 + made.number)));
    }
  }
  /// Some communicators are shared by the processes of the job, some are one's own.
  void init(Process& process, PacketBuilder& packet) {
    const bool shared = below(3) != 0;
    const std::uint64_t hash =
        shared ? first_session_ * 1000 + process.next_id + 1 : random_() | 1u;
    const auto nranks = static_cast<std::uint32_t>(2u << hash % 4);
    packet.init(
        make_init(process.next_id++, hash, static_cast<std::int32_t>(process.number), nranks));
    process.communicators.push_back(nranks);
  }
  OperationSpec random_operation(const Process& process) {
    OperationSpec spec;
    spec.communicator = static_cast<std::uint16_t>(below(process.next_id));
    spec.function = static_cast<Function>(below(model::kFunctionCount));
    spec.algorithm = static_cast<model::Algorithm>(below(model::kAlgorithmCount));
    spec.protocol = static_cast<model::Protocol>(below(model::kProtocolCount));
    spec.count = std::uint64_t{1} << below(32);
    spec.duration_ns = 1 + (std::uint64_t{1} << below(32));
    spec.gpu_start_ns = 1'000'000 + below(1'000'000'000);
    if (plans_ && below(4) == 0) spec.plan = static_cast<std::uint16_t>(1 + below(3));
    if (below(10) == 0) {
      spec.timing = wire::TimingSource::kNone;
      spec.untimed = wire::UntimedReason::kCounterDrift;
    }
    return spec;
  }

  std::mt19937 random_;
  std::string job_;
  std::uint64_t first_session_;
  bool plans_;
  std::uint64_t progress_time_ns_ = 1;
  std::vector<Rig*> rigs_;
  std::vector<std::vector<std::unique_ptr<testing::Wire>>> wires_;  // by rig, by process
  std::vector<Process> processes_;
};

/// Time of GPUs: what is folded belongs to none.
bool leaves_out_folded(std::string_view metric) {
  return metric.starts_with("ncclscope_gpu_collective_seconds_total") ||
         metric.starts_with("ncclscope_gpu_blocking_seconds_total");
}

class Folding : public ::testing::TestWithParam<std::uint32_t> {};

TEST_P(Folding, KeepsSumsRightAndCountersGoingUpAndLeavesOtherJobsAlone) {
  const std::uint32_t seed = GetParam();
  const bool plans = seed % 2 == 0;
  std::array<std::optional<Rig>, 3> rigs;  // outlive the connections of the jobs
  RandomJob load(seed, "load", 1000, plans);
  RandomJob neighbour(seed + 1, "neighbour", 2000, true);
  // From hardly ever folded to folded at once.
  const std::uint64_t limit = kLeastSeriesOfAJob + load.below(std::uint64_t{50} << seed % 9);
  Rig& limited = rigs[0].emplace(with_limits(limit, kUnlimited, kUnlimited));
  Rig& free = rigs[1].emplace(with_limits(kUnlimited, kUnlimited, kUnlimited));
  Rig& neighbour_alone = rigs[2].emplace(with_limits(limit, kUnlimited, kUnlimited));
  load.attach(limited);
  load.attach(free);
  neighbour.attach(limited);
  neighbour.attach(neighbour_alone);

  Samples before;
  FoldStep step = FoldStep::kNothing;
  for (int round = 0; round < 36; ++round) {
    for (std::uint64_t n = load.below(10); n > 0; --n) load.step();
    if (round % 4 == 0) neighbour.step();
    if (round % 3 != 2) continue;
    const SnapshotPtr snapshot = limited.snapshot();
    const Samples now = exposed(*snapshot);
    for (const JobSnapshot& job : snapshot->jobs) {
      ASSERT_LE(count_series(job).total(), limit) << kFoldStepNames[static_cast<int>(job.fold)];
    }
    for (const auto& [series, value] : now) {
      const auto it = before.find(series);
      if (it != before.end() && is_counter(series)) {
        ASSERT_GE(value, it->second * (1 - 1e-12)) << series << " went down";
      }
    }
    for (const JobSnapshot& job : snapshot->jobs) {
      if (job.identity.job_id != "load") continue;
      ASSERT_GE(job.fold, step) << "a step was taken back";
      step = job.fold;
    }
    const Samples all = exposed(*free.snapshot());
    const auto expected = totals_of(all, "load");
    const auto actual = totals_of(now, "load");
    for (const auto& [metric, sum] : expected) {
      if (sum == 0 && !actual.contains(metric)) continue;
      if (plans && step >= FoldStep::kRank && depends_on_batches(metric)) continue;
      if (step >= FoldStep::kRank && leaves_out_folded(metric)) continue;
      ASSERT_TRUE(actual.contains(metric)) << metric;
      ASSERT_NEAR(actual.at(metric), sum, std::abs(sum) * 1e-9) << metric;
    }
    // A communicator has the series of all of its ranks, or of none.
    std::map<std::string, int> ranks, ranks_of_all;
    for (const auto& [series, value] : now) {
      if (name_of(series) == "ncclscope_rank_info") ++ranks[label_of(series, "comm")];
    }
    for (const auto& [series, value] : all) {
      if (name_of(series) == "ncclscope_rank_info") ++ranks_of_all[label_of(series, "comm")];
    }
    for (const auto& [comm, count] : ranks) {
      if (!ranks_of_all.contains(comm)) continue;  // the neighbour's
      ASSERT_EQ(count, ranks_of_all[comm]) << comm;
    }
    ASSERT_EQ(of_job(now, "neighbour"), of_job(exposed(*neighbour_alone.snapshot()), "neighbour"));
    before = now;
  }
}
INSTANTIATE_TEST_SUITE_P(RandomLoads, Folding, ::testing::Range(1u, 19u));

TEST(Series, AreFoldedInOrderAlgorithmThenSizeThenCommunicator) {
  Rig rig(with_limits(400, kUnlimited, kUnlimited));
  auto plugin = rig.open(9);
  plugin->feed(
      PacketBuilder().init(make_init(0, 0xa, 0, 2)).init(make_init(1, 0xb, 0, 2)).finish());
  std::uint64_t index = 1;
  const auto seen = [&] {
    std::map<std::string, std::set<std::string>> values;
    for (const auto& [series, value] : exposed(*rig.snapshot())) {
      if (name_of(series) != "ncclscope_collective_operations_total") continue;
      for (const char* label : {"comm", "size", "algorithm", "protocol"}) {
        values[label].insert(label_of(series, label));
      }
    }
    return values;
  };
  std::vector<FoldStep> steps;
  OperationSpec spec;
  for (int i = 0; i < 400; ++i) {
    spec.communicator = static_cast<std::uint16_t>(i % 2);
    spec.algorithm = static_cast<model::Algorithm>(1 + i % 8);
    spec.count = std::uint64_t{1} << i % 31;
    spec.function = static_cast<Function>(1 + i / 20 % 4);
    plugin->feed(PacketBuilder().operation(spec).finish(index++));
    const FoldStep step = rig.snapshot()->jobs.at(0).fold;
    if (steps.empty() || steps.back() != step) {
      steps.push_back(step);
      auto values = seen();
      const std::set<std::string> other = {"other"};
      EXPECT_EQ(values["algorithm"] == other, step >= FoldStep::kAlgorithm);
      EXPECT_EQ(values["protocol"] == other, step >= FoldStep::kAlgorithm);
      EXPECT_EQ(values["size"] == other, step >= FoldStep::kSize);
      EXPECT_EQ(values["comm"] == other, step >= FoldStep::kCommunicator);
    }
  }
  ASSERT_GE(steps.size(), 3u);
  EXPECT_TRUE(std::is_sorted(steps.begin(), steps.end()));
  EXPECT_EQ(exposed(*rig.snapshot()).at("ncclscope_agent_series_folded"),
            static_cast<double>(rig.aggregator.folded()));
  // Its ranks are still all there.
  EXPECT_EQ(rig.snapshot()->jobs[0].communicators.at(0).ranks.size(), 1u);
}

TEST(Series, OfRanksGoLastAndTheNewestCommunicatorsFirst) {
  Rig rig(with_limits(500, kUnlimited, kUnlimited));
  auto plugin = rig.open(9);
  for (std::uint16_t id = 0; id < 200; ++id) {
    plugin->feed(PacketBuilder()
                     .init(make_init(id, 0x1000u - id, 0, 2))
                     .operation({.communicator = id, .function = Function::kAllGather})
                     .finish(1 + id));
  }
  const SnapshotPtr snapshot = rig.snapshot();
  const JobSnapshot& job = snapshot->jobs.at(0);
  EXPECT_EQ(job.fold, FoldStep::kRank);
  EXPECT_LE(count_series(job).total(), 500u);
  EXPECT_GT(count_series(job).total(), 400u) << "what may be shown is shown";
  std::set<std::string> shown;
  for (const CommunicatorSnapshot& c : job.communicators) shown.insert(c.comm);
  EXPECT_TRUE(shown.contains("0000000000001000")) << "the oldest stays";
  EXPECT_FALSE(shown.contains("0000000000000f39")) << "the newest has gone";
  EXPECT_TRUE(shown.contains("other"));
  const std::map<std::string, double> totals = totals_of(exposed(*snapshot), "7");
  EXPECT_EQ(totals.at("ncclscope_collective_operations_total "), 200);
  EXPECT_EQ(totals.at("ncclscope_rank_collective_operations_total "), 200);
  // Communicators that are folded know how many ranks they have: AllGather's bytes depend on it.
  EXPECT_EQ(totals.at("ncclscope_collective_bytes_total "), 200 * 2 * 4096);
  EXPECT_LT(rig.aggregator.communicators(), 60u) << "what is folded takes no memory";
}

TEST(Series, OfProcessesThatComeAndGoAreBounded) {
  Rig rig(with_limits(200, kUnlimited, kUnlimited));
  double seen = 0;
  for (std::uint64_t i = 0; i < 200; ++i) {
    auto plugin = rig.open(100 + i, "7", static_cast<std::int64_t>(1000 + i));
    wire::Books books{};
    books.time_ns = 1;
    books.seen = 10;
    plugin->feed(PacketBuilder().add(books, RecordType::kBooks).goodbye().finish());
    plugin->disconnect();
    rig.clock.advance_ms(20'000);
    rig.tick();
    const Samples now = exposed(*rig.snapshot());
    ASSERT_LE(now.at("ncclscope_agent_series"), 200);
    const auto folded =
        now.find("ncclscope_plugin_events_seen_total{cluster=\"\",job_id=\"7\",pid=\"other\"}");
    if (folded == now.end()) {
      EXPECT_EQ(seen, 0) << "once folded, it stays folded";
      continue;
    }
    EXPECT_GE(folded->second, seen) << "processes that are forgotten stay in the sum";
    seen = folded->second;
  }
  EXPECT_GT(seen, 1'800);
}

TEST(Series, StayWithinTheLimitsOfPrincipalAndAgentAndWhoGrowsMeetsThem) {
  Rig rig(with_limits(2'000, 3'000, 30'000));
  const auto start = [&](std::uint64_t session, std::string_view job, std::int64_t uid) {
    auto wire = rig.connect(static_cast<std::int64_t>(session), uid);
    wire->feed(PacketBuilder()
                   .hello(testing::make_hello(session), {{wire::StringKey::kSlurmJobId, job}})
                   .finish());
    return wire;
  };
  const auto grow = [&](testing::Wire& wire, std::uint16_t communicators) {
    for (std::uint16_t id = 0; id < communicators; ++id) {
      wire.feed(PacketBuilder()
                    .init(make_init(id, 0x100u + id, 0, 2))
                    .operation({.communicator = id})
                    .finish(1 + id));
    }
  };
  const auto series = [&](std::string_view job) {
    return of_job(exposed(*rig.snapshot()), job).size();
  };
  auto first = start(1, "first", 1000);
  grow(*first, 20);
  const std::size_t had = series("first");
  EXPECT_GT(had, 300u);
  auto second = start(2, "second", 1000);
  grow(*second, 1000);
  EXPECT_LE(series("second"), 2'000u);
  EXPECT_GT(series("second"), 1'000u);
  auto third = start(3, "third", 1000);
  grow(*third, 1000);
  EXPECT_LE(series("first") + series("second") + series("third"), 3'000u) << "one user";
  auto fourth = start(4, "fourth", 2000);
  grow(*fourth, 1000);
  EXPECT_GT(series("fourth"), 1'400u) << "another user's limit is his own";
  EXPECT_EQ(series("first"), had) << "nobody gives up what he has because others grow";
  std::uint64_t refused = 0;
  std::vector<std::unique_ptr<testing::Wire>> more;
  for (std::uint64_t i = 0; i < 150; ++i) {
    more.push_back(start(10 + i, "more" + std::to_string(i), 3000 + static_cast<std::int64_t>(i)));
    if (more.back()->over()) {
      ++refused;
    } else {
      grow(*more.back(), 1000);
    }
  }
  EXPECT_GT(refused, 0u);
  EXPECT_EQ(rig.snapshot()->agent.jobs_refused, refused);
  EXPECT_GT(more.size() - refused, 70u) << "those who come late find room too";
  EXPECT_LE(exposed(*rig.snapshot()).at("ncclscope_agent_series"), 30'000);
  EXPECT_EQ(series("first"), had);
}

TEST(Series, OfAJobThatDoesTheWorstFitIntoTheLeastBudget) {
  Rig rig(with_limits(kLeastSeriesOfAJob, kUnlimited, kUnlimited));
  std::mt19937 random(7);
  std::vector<std::unique_ptr<testing::Wire>> wires;
  for (std::uint64_t p = 0; p < 8; ++p) {
    auto& plugin = *wires.emplace_back(rig.open(50 + p, "7", static_cast<std::int64_t>(50 + p)));
    PacketBuilder packet;
    wire::Books books{};
    books.time_ns = 1;
    books.dropped[wire::kDropReasonCount - 1] = 1;
    packet.add(books, RecordType::kBooks);
    std::uint64_t records = 0;
    for (std::uint16_t id = 0; id < 20; ++id) {
      packet.init(make_init(id, random(), static_cast<std::int32_t>(p), 8));
      packet.progress(id, 1);
      for (std::size_t f = 0; f < model::kFunctionCount; ++f, ++records) {
        OperationSpec spec{.communicator = id, .function = static_cast<Function>(f)};
        spec.timing = static_cast<wire::TimingSource>(random() % 3);
        spec.untimed = static_cast<wire::UntimedReason>(random() % 16);
        packet.operation(spec);
      }
      wire::NetworkPhases phases{};
      phases.communicator = id;
      phases.is_send = id % 2;
      packet.add(phases, RecordType::kNetworkPhases);
      ++records;
    }
    ASSERT_TRUE(plugin.feed(packet.finish(1)));
  }
  const SnapshotPtr snapshot = rig.snapshot();
  EXPECT_EQ(snapshot->jobs.at(0).fold, FoldStep::kOperation);
  // Steps are not known of so short a job; they would add a histogram.
  EXPECT_LE(exposed(*snapshot).at("ncclscope_agent_series") + kSeriesPerStepHistogram,
            kLeastSeriesOfAJob);
}

TEST(Series, OfThroughputAreThereAsLongAsWhatAJobSaidIsValid) {
  Rig rig;
  const auto plugin = rig.connect(100, 1000);
  testing::PacketBuilder packet;
  packet.hello(testing::make_hello(1), {{wire::StringKey::kSlurmJobId, "4711"}});
  ASSERT_TRUE(plugin->feed(packet.finish(0)));
  ThroughputReport report{"4711", 1000, ThroughputUnit::kTokens, 91'000, 10'000'000'000};
  EXPECT_TRUE(rig.aggregator.report_throughput(report));
  report.unit = ThroughputUnit::kSteps;
  report.per_second = 0.5;
  report.uid = -1;
  EXPECT_TRUE(rig.aggregator.report_throughput(report));
  report.uid = 1001;
  EXPECT_FALSE(rig.aggregator.report_throughput(report)) << "another user's job";
  report.uid = -1;
  report.job_id = "4712";
  EXPECT_FALSE(rig.aggregator.report_throughput(report)) << "a job that is not there";
  SnapshotPtr snapshot = rig.snapshot();
  const JobSnapshot& job = snapshot->jobs.at(0);
  EXPECT_EQ(job.throughput[0], 91'000);
  EXPECT_EQ(job.throughput[1], std::nullopt);
  EXPECT_EQ(job.throughput[2], 0.5);
  const std::uint64_t with = count_series(job).total();
  rig.clock.advance_ns(10'000'000'000);
  snapshot = rig.snapshot();
  EXPECT_EQ(snapshot->jobs.at(0).throughput[0], std::nullopt);
  EXPECT_EQ(count_series(snapshot->jobs.at(0)).total(), with - 2);
}

/// Eight GPUs of a job with tensor, pipeline and data parallelism of two each. Every rank is in six
/// communicators: world, tensor, pipeline, data, model parallel, tensor-data.
TEST(Series, OfEightGpusInTp2Pp2Dp2FitWithNothingFolded) {
  Rig rig;
  std::vector<std::unique_ptr<testing::Wire>> wires;
  for (std::uint32_t g = 0; g < 8; ++g) {
    const std::uint32_t tp = g & 1u, dp = g >> 1 & 1u, pp = g >> 2;
    auto& plugin = *wires.emplace_back(rig.connect(static_cast<std::int64_t>(100 + g)));
    wire::Hello hello = testing::make_hello(10 + g);
    hello.start_time_ns = 1;
    plugin.feed(PacketBuilder().hello(hello, {{wire::StringKey::kSlurmJobId, "7"}}).finish());
    struct Group {
      std::uint64_t hash;
      std::uint32_t rank, nranks;
    };
    const Group groups[] = {{0x100, g, 8},
                            {0x200 + (dp | pp << 1), tp, 2},
                            {0x300 + (tp | dp << 1), pp, 2},
                            {0x400 + (tp | pp << 1), dp, 2},
                            {0x500 + dp, tp | pp << 1, 4},
                            {0x600 + pp, tp | dp << 1, 4}};
    PacketBuilder packet;
    std::uint64_t records = 0;
    for (std::uint16_t id = 0; id < 6; ++id) {
      const Group& group = groups[id];
      wire::CommunicatorInit init =
          make_init(id, group.hash, static_cast<std::int32_t>(group.rank), group.nranks);
      init.cuda_device = static_cast<std::int32_t>(g);
      packet.init(init);
      wire::Progress progress{};
      progress.communicator = id;
      progress.time_ns = 1;
      progress.seen = 100;
      packet.add(progress, RecordType::kProgress);
      // Two kinds of operation in three sizes each; a fourth size and more kinds over all of them.
      const Function kinds[2] = {id == 2 ? Function::kSend : Function::kAllReduce,
                                 id == 2   ? Function::kRecv
                                 : id == 3 ? Function::kReduceScatter
                                 : id == 0 ? Function::kBroadcast
                                           : Function::kAllGather};
      for (const Function function : kinds) {
        for (const unsigned shift : {8u, 18u, id % 2 == 0 ? 22u : 13u}) {
          OperationSpec spec{.communicator = id, .function = function};
          spec.count = std::uint64_t{1} << shift;
          packet.operation(spec);
          spec.timing = wire::TimingSource::kNone;
          spec.untimed = wire::UntimedReason::kCounterDrift;
          packet.operation(spec);
          records += 2;
        }
      }
    }
    for (const std::uint8_t is_send : {std::uint8_t{0}, std::uint8_t{1}}) {
      wire::NetworkPhases phases{};
      phases.is_send = is_send;
      packet.add(phases, RecordType::kNetworkPhases);
      ++records;
    }
    wire::Books books{};
    books.time_ns = 1'000'000;
    packet.add(books, RecordType::kBooks);
    ASSERT_TRUE(plugin.feed(packet.finish(1)));
  }
  const SnapshotPtr snapshot = rig.snapshot();
  const JobSnapshot& job = snapshot->jobs.at(0);
  EXPECT_EQ(job.communicators.size(), 17u);
  EXPECT_EQ(job.fold, FoldStep::kNothing);
  EXPECT_EQ(exposed(*snapshot).at("ncclscope_agent_series_folded"), 0);
  const SeriesCount count = count_series(job);
  EXPECT_LE(count.total(), 4'000u);
  // The sum in ARCHITECTURE.md.
  EXPECT_EQ(count.ranks, 480u);
  EXPECT_EQ(count.rank_sums, 288u);
  EXPECT_EQ(count.counters, 612u);
  EXPECT_EQ(count.durations, 315u);
  EXPECT_EQ(count.communicators, 94u);
  EXPECT_EQ(count.gpus, 32u);
  EXPECT_EQ(count.stalled, 0u);
  EXPECT_EQ(count.not_stalled, 96u);
  EXPECT_EQ(count.network, 80u);
  EXPECT_EQ(count.plugin, 160u);
  EXPECT_EQ(count.job, 13u);
  EXPECT_EQ(count.steps, 8u);
  EXPECT_EQ(count.total(), 2'082u);
  EXPECT_EQ(count.most(), 2'178u);
  rig.clock.advance_ms(20'000);
  const SnapshotPtr later = rig.snapshot();
  EXPECT_EQ(count_series(later->jobs.at(0)).total(), count.most()) << "nobody gets on";
  EXPECT_EQ(later->jobs.at(0).fold, FoldStep::kNothing);
  exposed(*later);
}

TEST(Series, OfAGpuTellItsPlaceItsCommunicatorsAndItsTimeInThem) {
  Aggregator::Options options;
  options.node = "n0";
  options.grace_ns = 60'000'000'000;
  Rig rig(options, Ingest::Options{});
  auto plugin = rig.open(9, "7", 100);
  PacketBuilder packet;
  wire::CommunicatorInit pipeline = make_init(0, 0x1, 3, 4, 2);
  pipeline.cuda_device = 0;
  packet.init(pipeline, {{wire::StringKey::kCommunicatorName, "pp_group"}})
      .operation({.function = Function::kRecv, .duration_ns = 3'000'000'000})
      .operation({.function = Function::kSend, .duration_ns = 9'000'000'000});
  for (std::uint16_t id = 1; id < 10; ++id)
    packet.init(make_init(id, 0x10u + id, 0, 2)).operation({.communicator = id});
  packet.operation({.communicator = 1, .duration_ns = 1'000'000'000})
      .operation(
          {.communicator = 2, .function = Function::kBroadcast, .duration_ns = 2'000'000'000});
  plugin->feed(packet.finish(1));
  const auto gpu_seconds = [&](const char* what) {
    for (const auto& [series, value] : exposed(*rig.snapshot())) {
      if (name_of(series) == std::string("ncclscope_gpu_") + what + "_seconds_total") return value;
    }
    return 0.0;
  };
  const Samples all = exposed(*rig.snapshot());
  std::vector<std::string> members;
  for (const auto& [series, value] : all) {
    if (name_of(series) == "ncclscope_gpu_communicators") {
      EXPECT_EQ(label_of(series, "part"), std::to_string(members.size()));
      EXPECT_EQ(label_of(series, "node"), "n0");
      members.push_back(label_of(series, "members"));
    }
    if (name_of(series) == "ncclscope_gpu_info") {
      EXPECT_EQ(label_of(series, "stage"), "3");
      EXPECT_EQ(label_of(series, "expert"), "");
      EXPECT_EQ(label_of(series, "nnodes"), "2");
    }
  }
  ASSERT_EQ(members.size(), 2u) << "eight in the first, two in the second";
  EXPECT_TRUE(members[0].starts_with("0000000000000001:3: 0000000000000011:0: ")) << members[0];
  EXPECT_EQ(std::count(members[0].begin(), members[0].end(), ' '), 7);
  EXPECT_EQ(members[1], "0000000000000018:0: 0000000000000019:0:");
  EXPECT_NEAR(gpu_seconds("collective"), 1.0009, 1e-9);
  EXPECT_NEAR(gpu_seconds("blocking"), 6.0009, 1e-9);
  EXPECT_NEAR(all.at("ncclscope_communicator_collective_seconds_total{cluster=\"\",job_id=\"7\","
                     "comm=\"0000000000000011\",collective=\"AllReduce\"}"),
              1.0001, 1e-9);
  // A communicator that ends takes its series with it, but not the GPU's time.
  plugin->feed(PacketBuilder().finalize(1).finish(20));
  for (int second = 0; second < 62; ++second) {
    rig.clock.advance_ms(1'000);
    rig.tick();
  }
  EXPECT_NEAR(gpu_seconds("collective"), 1.0009, 1e-9);
}

TEST(Series, GoAwayAGraceTimeAfterTheLastProcessLeft) {
  Aggregator::Options options;
  options.grace_ns = 60'000'000'000;
  Ingest::Options ingest;
  ingest.grace_ns = options.grace_ns;
  Rig rig(options, ingest);
  auto a = rig.open(9, "7", 100);
  auto b = rig.open(10, "7", 101);
  a->feed(PacketBuilder()
              .init(make_init(0, 0xa, 0, 2))
              .init(make_init(1, 0xb, 0, 1))
              .operation()
              .operation({.communicator = 1})
              .finish(1));
  b->feed(PacketBuilder().init(make_init(0, 0xa, 1, 2)).operation().finish(1));
  const auto with = [&](const char* comm) {
    const Samples all = exposed(*rig.snapshot());
    return std::count_if(all.begin(), all.end(),
                         [&](const auto& s) { return label_of(s.first, "comm") == comm; });
  };
  const auto wait = [&](std::uint64_t seconds) {
    for (; seconds > 0; --seconds) {
      rig.clock.advance_ms(1'000);
      rig.tick();
    }
  };
  a->feed(PacketBuilder().finalize(1).finish(3));
  wait(59);
  EXPECT_GT(with("000000000000000b"), 0);
  wait(2);
  EXPECT_EQ(with("000000000000000b"), 0) << "one communicator that has ended goes alone";
  EXPECT_GT(with("000000000000000a"), 0);
  a->feed(PacketBuilder().goodbye().finish());
  a->disconnect();
  wait(62);
  EXPECT_GT(with("000000000000000a"), 0) << "a process is still there";
  EXPECT_EQ(rig.snapshot()->jobs.at(0).communicators.at(0).ranks.size(), 1u);
  b->feed(PacketBuilder().goodbye().finish());
  b->disconnect();
  wait(58);
  EXPECT_GT(of_job(exposed(*rig.snapshot()), "7").size(), 0u);
  wait(4);
  EXPECT_EQ(of_job(exposed(*rig.snapshot()), "7").size(), 0u);
  EXPECT_EQ(exposed(*rig.snapshot()).at("ncclscope_agent_series"), 0);
  EXPECT_EQ(rig.aggregator.communicators(), 0u);
}

}  // namespace
}  // namespace ncclscope::agent

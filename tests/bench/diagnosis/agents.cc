// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/diagnosis/agents.h"

#include <algorithm>
#include <cstdio>

#include "proto/model/bandwidth.h"

namespace ncclscope::bench {
namespace {

using agent::testing::PacketBuilder;
using agent::testing::Rig;
using agent::testing::Wire;
using model::Function;

constexpr std::size_t kOperationsPerPacket = 400;
constexpr double kEpochSeconds = 1000;

std::string hex(std::uint64_t hash) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(hash));
  return text;
}

std::uint16_t communicator_id(Dimension dimension) {
  return static_cast<std::uint16_t>(static_cast<unsigned>(dimension) + 1);
}

}  // namespace

verdict::Job job_of(const Scenario& scenario, const JobModel& model) {
  verdict::Job job;
  job.job_id = "7";
  for (int rank = 0; rank < scenario.ranks(); ++rank) {
    job.gpus.push_back({"n" + std::to_string(rank / scenario.gpus_per_node),
                        rank % scenario.gpus_per_node, std::to_string(rank)});
  }
  for (const Group& group : model.groups()) {
    const auto id = static_cast<std::uint32_t>(job.communicators.size());
    verdict::Communicator c;
    c.comm = hex(group.hash);
    c.name = kDimensionNames[static_cast<std::size_t>(group.dimension)];
    c.dimension = group.dimension == Dimension::kWorld ? "" : c.name;
    c.nranks = static_cast<std::uint32_t>(group.members.size());
    std::int32_t place = 0;
    for (const int m : group.members)
      job.members.push_back({id, static_cast<std::uint32_t>(m), place++});
    job.communicators.push_back(std::move(c));
  }
  return job;
}

Agents::Agents(const Scenario& scenario, const JobModel& model)
    : s_(scenario),
      model_(model),
      random_(scenario.seed ^ 0xA6E7),
      counters_(static_cast<std::size_t>(scenario.ranks())),
      job_(job_of(scenario, model)) {
  for (std::uint32_t c = 0; c < job_.communicators.size(); ++c)
    communicators_[job_.communicators[c].comm] = c;
  for (std::uint32_t m = 0; m < job_.members.size(); ++m) {
    const verdict::Member& member = job_.members[m];
    members_[{job_.communicators[member.communicator].comm, member.rank}] = m;
  }
  nodes_.resize(static_cast<std::size_t>(s_.nodes()));
  for (int node = 0; node < s_.nodes(); ++node) start(node);
}

std::uint64_t Agents::to_ns(double seconds) const {
  return static_cast<std::uint64_t>((seconds + kEpochSeconds) * 1e9);
}

void Agents::start(int node) {
  Node& n = nodes_[static_cast<std::size_t>(node)];
  n.wires.clear();
  agent::Aggregator::Options options;
  options.node = "n" + std::to_string(node);
  n.rig = std::make_unique<Rig>(options, agent::Ingest::Options{}, 1);
  const int first = node * s_.gpus_per_node;
  const int end = std::min(s_.ranks(), first + s_.gpus_per_node);
  n.wires.resize(static_cast<std::size_t>(end - first));
  for (int rank = first; rank < end; ++rank) connect(rank);
}

void Agents::connect(int rank) {
  Node& node = nodes_[static_cast<std::size_t>(rank / s_.gpus_per_node)];
  Counters& counters = counters_[static_cast<std::size_t>(rank)];
  const int local = rank % s_.gpus_per_node;
  counters.acknowledged = counters.index;
  auto& wire = node.wires[static_cast<std::size_t>(local)];
  wire = node.rig->connect(1000 + rank);
  PacketBuilder packet;
  const std::string global = std::to_string(rank), place = std::to_string(local);
  packet.hello(
      agent::testing::make_hello(static_cast<std::uint64_t>(rank) + 1, counters.acknowledged),
      {{wire::StringKey::kSlurmJobId, "7"},
       {wire::StringKey::kSlurmProcId, global},
       {wire::StringKey::kSlurmLocalId, place}});
  char bus[16];
  std::snprintf(bus, sizeof bus, "0000:%02x:00.0", 0x10 + local);
  for (int d = 0; d < kDimensions; ++d) {
    const auto dimension = static_cast<Dimension>(d);
    const Group* group = model_.group_of(rank, dimension);
    if (group == nullptr) continue;
    packet.init(agent::testing::make_init(communicator_id(dimension), group->hash,
                                          model_.rank_in(rank, dimension),
                                          static_cast<std::uint32_t>(group->members.size())),
                {{wire::StringKey::kCommunicatorName, kDimensionNames[d]},
                 {wire::StringKey::kGpuPciBusId, bus}});
  }
  wire->feed(packet.finish(0, to_ns(now_)));
}

void Agents::restart(int node) {
  start(node);
}

void Agents::take_step(const JobModel& model) {
  now_ = model.now();
  for (Node& node : nodes_)
    node.rig->clock.advance_ns(to_ns(now_) - node.rig->clock.monotonic_ns());
  for (int rank = 0; rank < s_.ranks(); ++rank)
    send(rank, model.operations()[static_cast<std::size_t>(rank)]);
  for (Node& node : nodes_) node.rig->tick();
}

void Agents::send(int rank, const std::vector<PlayedOperation>& operations) {
  Counters& counters = counters_[static_cast<std::size_t>(rank)];
  Wire& wire = *nodes_[static_cast<std::size_t>(rank / s_.gpus_per_node)]
                    .wires[static_cast<std::size_t>(rank % s_.gpus_per_node)];
  const bool loses = s_.telemetry_loss > 0 && rank / s_.gpus_per_node == 0;
  std::size_t at = 0;
  while (at < operations.size()) {
    PacketBuilder packet;
    std::size_t in_packet = 0;
    for (; at < operations.size() && in_packet < kOperationsPerPacket; ++at) {
      const PlayedOperation& o = operations[at];
      const auto d = static_cast<std::size_t>(o.dimension);
      const bool p2p = model::is_point_to_point(o.function);
      agent::testing::OperationSpec spec;
      spec.communicator = communicator_id(o.dimension);
      spec.function = o.function;
      spec.datatype = model::DataType::kBfloat16;
      spec.count = std::max<std::uint64_t>(1, o.bytes / 2);
      spec.plan = o.plan;
      spec.api_ns = to_ns(o.call);
      spec.gpu_start_ns = to_ns(o.start);
      spec.duration_ns = to_ns(o.stop) - to_ns(o.start);
      spec.flags |= wire::operation_flags::kApiSeen;
      const std::uint64_t index = p2p ? counters.p2p[d]++ : counters.collectives[d]++;
      spec.index = static_cast<std::uint32_t>(index);
      if (index < 3) spec.flags |= wire::operation_flags::kWarmup;
      ++counters.seen[d];
      if (loses && random_.chance(s_.telemetry_loss)) continue;
      ++counters.recorded[d];
      wire::Operation operation = agent::testing::make_operation(spec);
      operation.root_or_peer = o.peer;
      packet.add(operation, wire::RecordType::kOperation);
      ++in_packet;
    }
    const std::uint64_t first = counters.index + 1;
    counters.index += in_packet;
    records_ += in_packet;
    if (in_packet > 0) wire.feed(packet.finish(first, to_ns(now_)));
  }
  PacketBuilder packet;
  for (std::size_t d = 0; d < kDimensions; ++d) {
    if (counters.seen[d] == 0) continue;
    wire::Progress p{};
    p.communicator = communicator_id(static_cast<Dimension>(d));
    p.time_ns = to_ns(now_);
    p.collectives_enqueued = p.collectives_started = p.collectives_completed =
        counters.collectives[d];
    p.p2p_enqueued = p.p2p_started = p.p2p_completed = counters.p2p[d];
    p.seen = counters.seen[d];
    p.recorded = counters.recorded[d];
    p.dropped = p.seen - p.recorded;
    p.oldest_index = ~std::uint64_t{0};
    packet.add(p, wire::RecordType::kProgress);
  }
  wire.feed(packet.finish(0, to_ns(now_)));
  wire.burst_end();
  wire.answers();
}

Scrape Agents::scrape(double seconds) {
  Scrape scrape;
  scrape.seconds = seconds;
  const std::size_t gpus = job_.gpus.size();
  scrape.other_seconds.assign(gpus, 0);
  scrape.queue_seconds.assign(gpus, 0);
  scrape.queue_operations.assign(gpus, 0);
  scrape.calls.assign(gpus, 0);
  scrape.coverage.assign(job_.communicators.size(), 1);
  for (Node& node : nodes_) {
    const agent::SnapshotPtr snapshot = node.rig->snapshot();
    for (const auto& job : snapshot->jobs) {
      for (const auto& c : job.communicators) {
        const auto found = communicators_.find(c.comm);
        if (found == communicators_.end()) continue;
        for (const auto& r : c.ranks) {
          const auto member = members_.find({c.comm, r.rank});
          if (member == members_.end()) continue;
          const std::uint32_t gpu = job_.members[member->second].gpu;
          scrape.queue_seconds[gpu] += r.queue_seconds;
          scrape.queue_operations[gpu] += static_cast<double>(r.queue_operations);
          scrape.calls[gpu] += static_cast<double>(r.collectives_enqueued);
          if (r.seen > 0) {
            double& coverage = scrape.coverage[found->second];
            coverage =
                std::min(coverage, static_cast<double>(r.recorded) / static_cast<double>(r.seen));
          }
        }
        for (const auto& row : c.rank_sums) {
          const auto member = members_.find({c.comm, row.rank});
          if (member == members_.end()) continue;
          if (!verdict::synchronising(model::name(row.function)) &&
              row.function != Function::kSend) {
            const std::uint32_t gpu = job_.members[member->second].gpu;
            scrape.other_seconds[gpu] += row.seconds;
          }
          const auto collective = verdict::synchronising(model::name(row.function));
          if (!collective) continue;
          scrape.collectives[{member->second, *collective}] = {row.operations, row.seconds,
                                                               row.bus_bytes};
        }
      }
    }
  }
  return scrape;
}

verdict::Window Agents::window(const Scrape& before, const Scrape& after) const {
  verdict::Window window;
  window.seconds = after.seconds - before.seconds;
  const double per_second = 1 / window.seconds;
  const auto change = [&](double old_value, double new_value) {
    return (new_value < old_value ? new_value : new_value - old_value) * per_second;
  };
  for (const auto& [key, sums] : after.collectives) {
    Scrape::Sums old;
    if (const auto found = before.collectives.find(key); found != before.collectives.end())
      old = found->second;
    if (sums.operations < old.operations) old = {};
    verdict::CollectiveRates rates;
    rates.member = key.member;
    rates.collective = key.collective;
    rates.operations = static_cast<double>(sums.operations - old.operations) * per_second;
    rates.seconds = (sums.seconds - old.seconds) * per_second;
    rates.bus_bytes = (sums.bus_bytes - old.bus_bytes) * per_second;
    if (rates.operations > 0) window.collectives.push_back(rates);
  }
  for (std::size_t gpu = 0; gpu < job_.gpus.size(); ++gpu) {
    verdict::GpuRates rates;
    rates.other_seconds = change(before.other_seconds[gpu], after.other_seconds[gpu]);
    rates.queue_seconds = change(before.queue_seconds[gpu], after.queue_seconds[gpu]);
    rates.queue_operations = change(before.queue_operations[gpu], after.queue_operations[gpu]);
    rates.calls = change(before.calls[gpu], after.calls[gpu]);
    window.gpus.push_back(rates);
  }
  window.coverage = after.coverage;
  return window;
}

}  // namespace ncclscope::bench

// SPDX-License-Identifier: Apache-2.0
#include "agent/page/node_json.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "agent/aggregate/books.h"
#include "agent/aggregate/series.h"
#include "proto/model/operation.h"

namespace ncclscope::agent {
namespace {

using Json = nlohmann::ordered_json;

/// Three digits are more than a curve shows.
double rounded(double value) {
  if (value == 0 || !std::isfinite(value)) return 0;
  const double unit = std::pow(10.0, std::floor(std::log10(std::fabs(value))) - 2);
  return std::round(value / unit) * unit;
}

Json or_null(std::int32_t number) {
  return number < 0 ? Json() : Json(number);
}
Json or_null(const std::optional<double>& number) {
  return number ? Json(*number) : Json();
}
Json count_or_null(std::uint32_t number) {
  return number == 0 ? Json() : Json(number);
}

const char* name_of(RankState state) {
  switch (state) {
    case RankState::kRunning:
      return "running";
    case RankState::kFinalized:
      return "finalized";
    default:
      return "vanished";
  }
}

Json rank_json(const RankSnapshot& rank) {
  const bool p2p = (rank.progress_flags & wire::kProgressOldestIsP2p) != 0;
  return {{"rank", or_null(rank.rank)},
          {"global_rank", rank.global_rank},
          {"gpu", or_null(rank.gpu)},
          {"pid", rank.pid},
          {"state", name_of(rank.state)},
          {"enqueued", rank.collectives_enqueued},
          {"started", rank.collectives_started},
          {"completed", rank.collectives_completed},
          {"p2p_enqueued", rank.p2p_enqueued},
          {"p2p_completed", rank.p2p_completed},
          {"inflight_seconds", rank.inflight_seconds},
          {"oldest_is_p2p", p2p}};
}

Json bandwidth_json(model::Function function, const BandwidthSeries& series) {
  Json samples = Json::array();
  for (const float sample : series.samples) {
    if (std::isnan(sample)) {
      samples.push_back(nullptr);
    } else {
      samples.push_back(rounded(static_cast<double>(sample)));
    }
  }
  Json out = {{"collective", shown_name(function)},
              {"operations_per_second", rounded(series.operations_per_second)},
              {"now", nullptr},
              {"past", nullptr},
              {"low_for_seconds", nullptr}};
  if (const auto verdict = judge_bandwidth(series.samples)) {
    out["now"] = rounded(verdict->now);
    out["past"] = rounded(verdict->past);
    out["low_for_seconds"] = or_null(verdict->low_for_seconds);
  }
  out["samples"] = std::move(samples);
  if (series.last_rank >= 0) {
    out["last"] = {{"rank", series.last_rank},
                   {"intervals", series.last_intervals},
                   {"of_intervals", series.of_intervals},
                   {"others_waited_seconds", series.others_waited_seconds}};
  }
  return out;
}

using SeriesMap = std::map<BandwidthHistory::Key, BandwidthSeries>;

Json communicator_json(const JobSnapshot& job, const CommunicatorSnapshot& communicator,
                       const SeriesMap& past) {
  Json out = {{"comm", communicator.comm},
              {"name", communicator.name},
              {"dimension", communicator.dimension},
              {"nranks", count_or_null(communicator.nranks)},
              {"nnodes", count_or_null(communicator.nnodes)},
              {"coverage", or_null(coverage(communicator))},
              {"ranks", Json::array()},
              {"bandwidth", Json::array()}};
  for (const RankSnapshot& rank : communicator.ranks) out["ranks"].push_back(rank_json(rank));
  const auto begin =
      past.lower_bound({job.identity.job_id, communicator.comm, model::Function::kUnknown});
  for (auto it = begin; it != past.end() && std::get<0>(it->first) == job.identity.job_id &&
                        std::get<1>(it->first) == communicator.comm;
       ++it)
    out["bandwidth"].push_back(bandwidth_json(std::get<2>(it->first), it->second));
  return out;
}

Json process_json(const ProcessSnapshot& process) {
  const wire::Books& books = process.books;
  std::uint64_t dropped = 0;
  constexpr auto kOverwritten = static_cast<std::size_t>(wire::DropReason::kOverwritten);
  for (std::size_t i = 0; i < wire::kDropReasonCount; ++i)
    if (i != kOverwritten) dropped += books.dropped[i];
  const std::uint32_t release = process.nccl_version;
  const std::string nccl = release == 0 ? std::string()
                                        : std::to_string(release / 10'000) + "." +
                                              std::to_string(release / 100 % 100) + "." +
                                              std::to_string(release % 100);
  Json out = {{"pid", process.pid},
              {"plugin_version", process.plugin_version},
              {"nccl_version", nccl},
              {"connected", process.connected},
              {"goodbye", process.said_goodbye},
              {"claimed", process.claimed},
              {"seen", nullptr}};
  if (!process.books_seen) return out;
  out["seen"] = books.seen;
  out["recorded"] = books.recorded;
  out["dropped"] = dropped;
  out["open"] = books.open;
  out["written"] = books.records_written;
  out["received"] = process.records_received;
  out["earlier"] = process.records_before;
  out["lost"] = process.records_lost;
  out["balanced"] = check_books(process).balanced();
  out["recent_overhead_ratio"] = books.recent_ratio;
  out["overhead_budget_ratio"] = books.budget_ratio;
  out["governor_level"] = books.governor;
  return out;
}

Json steps_json(const JobSnapshot& job) {
  if (!job.steps) return {};
  std::uint64_t count = 0;
  for (const std::uint64_t n : job.steps->counts) count += n;
  if (count == 0) return {};
  return {{"count", count}, {"mean_seconds", job.steps->sum_seconds / static_cast<double>(count)}};
}

/// Whatever came in: what leaves is valid UTF-8.
std::string text_of(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

/// The members of an object without its closing brace, so that more can follow.
std::string open_object(const Json& json) {
  std::string text = text_of(json);
  text.pop_back();
  return text;
}

void write_job(const JobSnapshot& job, const SeriesMap& past, std::size_t& room_communicators,
               std::size_t& room_processes, ByteSink& sink) {
  const JobIdentity& who = job.identity;
  std::uint64_t unobserved = 0;
  for (const std::uint64_t n : job.unobserved) unobserved += n;
  Json gpus = Json::array();
  for (const GpuRow& gpu : job.gpus)
    gpus.push_back(
        {{"gpu", or_null(gpu.gpu)}, {"communication_ratio", or_null(gpu.communication_ratio)}});
  sink.write(open_object({{"job_id", who.job_id},
                          {"cluster", who.cluster},
                          {"user", who.user},
                          {"job_name", who.job_name},
                          {"partition", who.partition},
                          {"namespace", who.kubernetes_namespace},
                          {"pod", who.pod},
                          {"identity_source", who.identity_source},
                          {"fold_step", kFoldStepNames[static_cast<std::size_t>(job.fold)]},
                          {"unobserved_operations", unobserved},
                          {"lost_operations", job.lost_operations},
                          {"steps", steps_json(job)},
                          {"gpus", std::move(gpus)},
                          {"communicators_total", job.communicators.size()},
                          {"processes_total", job.processes.size()}}));
  sink.write(",\"communicators\":[");
  const char* separator = "";
  for (const CommunicatorSnapshot& communicator : job.communicators) {
    if (room_communicators == 0) break;
    --room_communicators;
    sink.write(separator + text_of(communicator_json(job, communicator, past)));
    separator = ",";
  }
  sink.write("],\"processes\":[");
  separator = "";
  for (const ProcessSnapshot& process : job.processes) {
    if (room_processes == 0) break;
    --room_processes;
    sink.write(separator + text_of(process_json(process)));
    separator = ",";
  }
  sink.write("]}");
}

Json agent_json(const Snapshot& snapshot, const SelfStats& self) {
  const AgentStats& stats = snapshot.agent;
  std::uint64_t decode_errors = 0, folds = 0, quotas = 0, series = 0;
  for (const auto& [reason, count] : stats.decode_errors) decode_errors += count;
  for (const std::uint64_t count : stats.folds) folds += count;
  for (const std::uint64_t count : stats.quota_exceeded) quotas += count;
  for (const JobSnapshot& job : snapshot.jobs) series += count_series(job).total();
  return {{"start_time_seconds", self.start_time_seconds},
          {"cpu_seconds", self.cpu_seconds},
          {"resident_bytes", self.resident_bytes},
          {"series", series},
          {"series_limit", stats.series_limit},
          {"folds", folds},
          {"connections", stats.connections_open},
          {"refused_connections", stats.refused_connections},
          {"refused_sessions", stats.jobs_refused},
          {"quota_exceeded", quotas},
          {"decode_errors", decode_errors},
          {"identity_mismatches", stats.identity_mismatches},
          {"records", stats.records}};
}

}  // namespace

void write_node_json(const Snapshot& snapshot, const BandwidthHistory& history,
                     const SelfStats& self, ByteSink& sink) {
  const SeriesMap past = history.series();
  sink.write(
      open_object({{"schema", 1},
                   {"node", snapshot.node},
                   {"version", snapshot.agent_version},
                   {"time_seconds", static_cast<double>(snapshot.realtime_ns) * 1e-9},
                   {"hung_after_seconds", kHungAfterSeconds},
                   {"history",
                    {{"interval_seconds", static_cast<double>(BandwidthHistory::kIntervalNs) / 1e9},
                     {"end_seconds", static_cast<double>(history.end_ns()) * 1e-9},
                     {"left_out", history.left_out()}}},
                   {"agent", agent_json(snapshot, self)}}));
  sink.write(",\"jobs\":[");
  std::size_t room_communicators = kMaxListedCommunicators;
  std::size_t room_processes = kMaxListedProcesses;
  const char* separator = "";
  for (const JobSnapshot& job : snapshot.jobs) {
    sink.write(separator);
    write_job(job, past, room_communicators, room_processes, sink);
    separator = ",";
  }
  sink.write("]}");
}

}  // namespace ncclscope::agent

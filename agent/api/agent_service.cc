// SPDX-License-Identifier: Apache-2.0
//
// Filters by caller and job, then converts.
#include "agent/api/agent_service.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <string>
#include <vector>

#include "agent/api/convert.h"

namespace ncclscope::agent {
namespace {

constexpr std::size_t kTailBatch = 256;
constexpr std::uint32_t kLongestDetailMs = 3'600'000;
constexpr std::uint32_t kLongestThroughputMs = 3'600'000;
constexpr std::uint32_t kUsualThroughputMs = 300'000;
constexpr std::chrono::milliseconds kTailWait{
    200};  // how soon a stream notices that its caller went away

/// f(job) for every job that the caller may see and that was asked for.
template <typename F>
void each_job(const Snapshot& snapshot, const Caller& caller, const std::string& job_id, F&& f) {
  for (const JobSnapshot& job : snapshot.jobs) {
    if (!job_id.empty() && job.identity.job_id != job_id) continue;
    if (caller.may_read(job.identity.uid)) f(job);
  }
}

template <typename Ranks>
void add_progress(const JobSnapshot& job, Ranks* out) {
  for (const CommunicatorSnapshot& communicator : job.communicators) {
    for (const RankSnapshot& rank : communicator.ranks) {
      v1::RankProgress* progress = out->Add();
      progress->set_job_id(job.identity.job_id);
      progress->set_comm(communicator.comm);
      to_message(rank, *progress);
    }
  }
}

bool to_unit(v1::ReportThroughputRequest::Unit unit, ThroughputUnit& out) {
  switch (unit) {
    case v1::ReportThroughputRequest::UNIT_TOKENS:
      out = ThroughputUnit::kTokens;
      return true;
    case v1::ReportThroughputRequest::UNIT_SAMPLES:
      out = ThroughputUnit::kSamples;
      return true;
    case v1::ReportThroughputRequest::UNIT_STEPS:
      out = ThroughputUnit::kSteps;
      return true;
    case v1::ReportThroughputRequest::UNIT_FLOPS:
      out = ThroughputUnit::kFlops;
      return true;
    default:
      return false;
  }
}

bool to_level(v1::SetDetailRequest::Level level, std::uint8_t& out) {
  switch (level) {
    case v1::SetDetailRequest::LEVEL_NORMAL:
      out = static_cast<std::uint8_t>(wire::DetailLevel::kNormal);
      return true;
    case v1::SetDetailRequest::LEVEL_LOW:
      out = static_cast<std::uint8_t>(wire::DetailLevel::kLow);
      return true;
    case v1::SetDetailRequest::LEVEL_FULL:
      out = static_cast<std::uint8_t>(wire::DetailLevel::kFull);
      return true;
    default:
      return false;
  }
}

}  // namespace

AgentServiceImpl::AgentServiceImpl(const SnapshotStore& snapshots, const OperationTail& tail,
                                   DetailControl* detail, ThroughputReports* throughput,
                                   const SettingsJudge* judge, const CallContext& calls,
                                   std::size_t max_tails)
    : snapshots_(snapshots),
      tail_(tail),
      detail_(detail),
      throughput_(throughput),
      judge_(judge),
      calls_(calls),
      tails_(max_tails, std::max<std::size_t>(1, max_tails / 4)) {}

grpc::Status AgentServiceImpl::GetSnapshot(grpc::ServerContext* context,
                                           const v1::GetSnapshotRequest* request,
                                           v1::GetSnapshotResponse* response) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kRead, caller); !status.ok())
    return status;
  const SnapshotPtr snapshot = snapshots_.get();
  response->set_node(snapshot->node);
  response->set_agent_version(snapshot->agent_version);
  response->set_time_ns(snapshot->realtime_ns);
  each_job(*snapshot, caller, request->job_id(), [&](const JobSnapshot& job) {
    v1::JobSnapshot* out = response->add_jobs();
    to_message(job, *out);
    if (request->with_progress()) add_progress(job, out->mutable_progress());
    if (request->with_environments()) add_environments(job, judge_, *out);
  });
  return grpc::Status::OK;
}

grpc::Status AgentServiceImpl::TailOperations(
    grpc::ServerContext* context, const v1::TailOperationsRequest* request,
    grpc::ServerWriter<v1::TailOperationsResponse>* writer) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kRead, caller); !status.ok())
    return status;
  const StreamLimit::Permit permit = tails_.acquire(caller);
  if (!permit.granted())
    return {grpc::StatusCode::RESOURCE_EXHAUSTED,
            "the agent serves " + tails_.text("tails") + "; end one of the others"};

  const std::uint64_t held_end = tail_.end();
  std::uint64_t at = request->include_held() ? tail_.begin() : held_end;
  std::uint64_t skipped = 0;
  std::vector<TailRecord> records;
  v1::TailOperationsResponse response;
  while (!calls_.stopping && !context->IsCancelled()) {
    if (!request->follow() && at >= held_end) break;
    const std::uint64_t wanted =
        request->follow() ? kTailBatch : std::min<std::uint64_t>(kTailBatch, held_end - at);
    records.clear();
    const OperationTail::ReadResult result = tail_.read(at, wanted, records);
    at = result.next;
    // How much others send is nobody's business: who may not read all learns only that there was a
    // gap.
    skipped += caller.reads_all() ? result.skipped : std::min<std::uint64_t>(result.skipped, 1);
    for (const TailRecord& record : records) {
      if (!caller.may_read(record.source->uid)) continue;
      if (!request->job_id().empty() && record.source->job_id != request->job_id()) continue;
      response.Clear();
      response.set_skipped(skipped);
      if (to_message(record, response) && !writer->Write(response))
        return grpc::Status::OK;  // the caller went away
    }
    if (!records.empty()) continue;
    if (tail_.closed() || !request->follow()) break;
    (void)tail_.wait(at, kTailWait);
  }
  return grpc::Status::OK;
}

grpc::Status AgentServiceImpl::GetProgress(grpc::ServerContext* context,
                                           const v1::GetProgressRequest* request,
                                           v1::GetProgressResponse* response) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kRead, caller); !status.ok())
    return status;
  const SnapshotPtr snapshot = snapshots_.get();
  response->set_node(snapshot->node);
  response->set_time_ns(snapshot->realtime_ns);
  each_job(*snapshot, caller, request->job_id(),
           [&](const JobSnapshot& job) { add_progress(job, response->mutable_ranks()); });
  return grpc::Status::OK;
}

grpc::Status AgentServiceImpl::GetBooks(grpc::ServerContext* context,
                                        const v1::GetBooksRequest* request,
                                        v1::GetBooksResponse* response) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kRead, caller); !status.ok())
    return status;
  const SnapshotPtr snapshot = snapshots_.get();
  response->set_node(snapshot->node);
  response->set_time_ns(snapshot->realtime_ns);
  each_job(*snapshot, caller, request->job_id(), [&](const JobSnapshot& job) {
    for (const ProcessSnapshot& process : job.processes) {
      v1::ProcessBooks* books = response->add_processes();
      books->set_job_id(job.identity.job_id);
      to_message(process, *books);
    }
    for (const CommunicatorSnapshot& communicator : job.communicators) {
      for (const RankSnapshot& rank : communicator.ranks) {
        v1::RankBooks* books = response->add_ranks();
        books->set_job_id(job.identity.job_id);
        to_message(communicator, rank, *books);
      }
    }
  });
  return grpc::Status::OK;
}

grpc::Status AgentServiceImpl::SetDetail(grpc::ServerContext* context,
                                         const v1::SetDetailRequest* request,
                                         v1::SetDetailResponse* response) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kControl, caller);
      !status.ok())
    return status;
  if (detail_ == nullptr)
    return {grpc::StatusCode::UNIMPLEMENTED, "this agent has no detail control"};
  DetailRequest detail;
  if (!to_level(request->level(), detail.level))
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "level must be LEVEL_NORMAL, LEVEL_LOW or LEVEL_FULL"};
  // Nobody shall forget it: only a return to normal may be for good.
  const bool for_good = request->duration_ms() == 0 &&
                        request->level() == v1::SetDetailRequest::LEVEL_NORMAL &&
                        !request->network_phases();
  if (!for_good && (request->duration_ms() == 0 || request->duration_ms() > kLongestDetailMs))
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "duration_ms is " + std::to_string(request->duration_ms()) + ": wanted 1 to " +
                std::to_string(kLongestDetailMs) + " (an hour)"};
  if (request->network_phases() && request->level() == v1::SetDetailRequest::LEVEL_LOW)
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "network phases are not part of LEVEL_LOW; ask for LEVEL_NORMAL or LEVEL_FULL"};
  if (!request->job_id().empty()) {
    if (grpc::Status status = may_control(request->job_id(), caller); !status.ok()) return status;
  }
  detail.job_id = request->job_id();
  detail.uid = caller.controls_all() ? -1 : caller.uid;  // users reach their own processes only
  detail.network_phases = request->network_phases();
  detail.duration_ms = request->duration_ms();
  response->set_node(snapshots_.get()->node);
  response->set_processes(detail_->set_detail(detail));
  return grpc::Status::OK;
}

grpc::Status AgentServiceImpl::ReportThroughput(grpc::ServerContext* context,
                                                const v1::ReportThroughputRequest* request,
                                                v1::ReportThroughputResponse* response) {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(*context, Permission::kControl, caller);
      !status.ok())
    return status;
  if (throughput_ == nullptr)
    return {grpc::StatusCode::UNIMPLEMENTED, "this agent takes no reports of throughput"};
  ThroughputReport report;
  if (!to_unit(request->unit(), report.unit))
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "unit must be UNIT_TOKENS, UNIT_SAMPLES, UNIT_STEPS or UNIT_FLOPS"};
  if (!std::isfinite(request->per_second()) || request->per_second() < 0)
    return {grpc::StatusCode::INVALID_ARGUMENT, "per_second is " +
                                                    std::to_string(request->per_second()) +
                                                    ": wanted a finite number of at least 0"};
  if (request->valid_ms() > kLongestThroughputMs)
    return {grpc::StatusCode::INVALID_ARGUMENT,
            "valid_ms is " + std::to_string(request->valid_ms()) + ": wanted at most " +
                std::to_string(kLongestThroughputMs) + " (an hour)"};
  if (grpc::Status status = may_control(request->job_id(), caller); !status.ok()) return status;
  report.job_id = request->job_id();
  report.uid = caller.controls_all() ? -1 : caller.uid;
  report.per_second = request->per_second();
  const std::uint32_t valid_ms =
      request->valid_ms() == 0 ? kUsualThroughputMs : request->valid_ms();
  report.valid_ns = std::uint64_t{valid_ms} * 1'000'000;
  if (!throughput_->report(report))
    return {grpc::StatusCode::UNAVAILABLE, "the job has just ended, or the agent is stopping"};
  response->set_node(snapshots_.get()->node);
  return grpc::Status::OK;
}

grpc::Status AgentServiceImpl::may_control(const std::string& job_id, const Caller& caller) const {
  const SnapshotPtr snapshot = snapshots_.get();
  bool known = false;
  each_job(*snapshot, caller, job_id, [&known](const JobSnapshot&) { known = true; });
  // The same answer for other users' jobs: that they exist is not the caller's business.
  if (known && !job_id.empty()) return grpc::Status::OK;
  return {grpc::StatusCode::NOT_FOUND,
          "no job \"" + job_id + "\" that the caller may control on node " + snapshot->node};
}

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// Field by field. Strings from peers were sanitised when they came in; protobuf wants valid UTF-8
// all the same.
#include "agent/api/convert.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <string>
#include <string_view>

#include "agent/aggregate/books.h"
#include "agent/aggregate/series.h"
#include "agent/export/catalogue.h"
#include "agent/export/label_text.h"
#include "agent/identity/label_value.h"
#include "proto/model/bandwidth.h"
#include "proto/model/operation.h"
#include "proto/wire/names.h"

namespace ncclscope::agent {
namespace {

std::string text(std::string_view value) {
  return valid_utf8(value);
}

/// Empty = unknown, in API messages.
std::string known_name(std::string_view spelled) {
  return spelled == "Unknown" ? std::string() : std::string(spelled);
}

const char* state_name(const ProcessSnapshot& process) {
  return process.connected ? "connected" : process.said_goodbye ? "gone" : "disconnected";
}

template <std::size_t Size>
std::uint64_t total(const std::array<std::uint64_t, Size>& values) {
  return std::accumulate(values.begin(), values.end(), std::uint64_t{0});
}

template <typename Repeated>
void add_count(Repeated* counts, std::string_view reason, std::uint64_t value) {
  if (value == 0) return;
  v1::Count* count = counts->Add();
  count->set_reason(std::string(reason));
  count->set_value(value);
}

void to_message(const OperationShort& operation, v1::OperationBrief& out) {
  out.set_collective(std::string(name(operation.function)));
  out.set_bytes(operation.bytes);
  out.set_count(operation.count);
  out.set_datatype(known_name(name(operation.datatype)));
  out.set_root(operation.root_or_peer);
  out.set_index(operation.index);
  out.set_age_seconds(operation.age_seconds);
}

void to_message(const CommunicatorSnapshot& c, v1::JobSnapshot& job) {
  v1::Communicator* out = job.add_communicators();
  out->set_comm(text(c.comm));
  out->set_hash_known(c.hash_known);
  out->set_name(text(c.name));
  out->set_nranks(c.nranks);
  out->set_nnodes(c.nnodes);
  out->set_dimension(text(c.dimension));
  if (const std::optional<double> ratio = coverage(c)) out->set_coverage(*ratio);
  if (c.untimed_share) out->set_untimed_share(*c.untimed_share);
  for (const RankSnapshot& r : c.ranks) {
    v1::Rank* rank = out->add_ranks();
    rank->set_rank(r.rank);
    rank->set_global_rank(text(r.global_rank));
    rank->set_local_rank(text(r.local_rank));
    rank->set_gpu_known(r.gpu >= 0);
    rank->set_gpu(r.gpu >= 0 ? static_cast<std::uint32_t>(r.gpu) : 0);
    rank->set_gpu_uuid(text(r.gpu_uuid));
    rank->set_pci_bus_id(text(r.pci_bus_id));
    rank->set_pid(r.pid);
    rank->set_state(name(r.state));
  }
  for (const OperationSumsRow& row : c.sums) {
    v1::OperationSums* sums = job.add_sums();
    sums->set_comm(out->comm());
    sums->set_collective(std::string(shown_name(row.function)));
    sums->set_size(size_class_name(row.size_class));
    sums->set_algorithm(known_name(shown_name(row.algorithm)));
    sums->set_protocol(known_name(shown_name(row.protocol)));
    sums->set_operations(total(row.operations_by_timing));
    sums->set_bytes(total(row.bytes_by_timing));
    sums->set_bus_bytes(row.bus_bytes);
    sums->set_busy_seconds(row.busy_seconds);
    sums->set_timed_operations(row.timed_operations);
  }
  for (const RankSumsRow& row : c.rank_sums) {
    v1::RankSums* sums = job.add_rank_sums();
    sums->set_comm(out->comm());
    sums->set_rank(row.rank);
    sums->set_collective(std::string(shown_name(row.function)));
    sums->set_timed_operations(row.operations);
    sums->set_seconds(row.seconds);
    sums->set_bus_bytes(row.bus_bytes);
  }
}

}  // namespace

void to_message(const JobSnapshot& job, v1::JobSnapshot& out) {
  const JobIdentity& identity = job.identity;
  v1::Job* who = out.mutable_job();
  who->set_job_id(text(identity.job_id));
  who->set_cluster(text(identity.cluster));
  who->set_user(text(identity.user));
  who->set_job_name(text(identity.job_name));
  who->set_partition(text(identity.partition));
  who->set_account(text(identity.account));
  who->set_array_task(text(identity.array_task));
  who->set_run(identity.run);
  who->set_namespace_(text(identity.kubernetes_namespace));
  who->set_pod(text(identity.pod));
  who->set_identity_source(text(identity.identity_source));

  for (const CommunicatorSnapshot& c : job.communicators) to_message(c, out);

  const std::span<const double> bounds = duration_bounds();
  for (const DurationRow& row : job.durations) {
    v1::DurationHistogram* h = out.add_durations();
    h->set_collective(std::string(shown_name(row.function)));
    h->set_size(size_class_name(row.size_class));
    h->mutable_bounds()->Add(bounds.begin(), bounds.end());
    std::uint64_t cumulative = 0;
    for (const std::uint64_t count : row.counts) h->add_counts(cumulative += count);
    h->set_sum_seconds(row.sum_seconds);
  }
  for (std::size_t i = 1; i < job.unobserved.size(); ++i)
    add_count(out.mutable_unobserved(), name(static_cast<wire::UntimedReason>(i)),
              job.unobserved[i]);
  add_count(out.mutable_unobserved(), "lost_in_transit", job.lost_operations);
  for (const NetworkRow& row : job.network) {
    v1::NetworkSums* sums = out.add_network();
    sums->set_gpu(row.gpu);
    sums->set_is_send(row.is_send);
    for (const double seconds : row.phase_seconds) sums->add_phase_seconds(seconds);
    sums->set_bytes(row.bytes);
    sums->set_operations(row.operations);
  }
  if (job.steps) {
    v1::StepSums* steps = out.mutable_steps();
    steps->set_steps(total(job.steps->counts));
    steps->set_seconds(job.steps->sum_seconds);
  }
  for (const GpuRow& row : job.gpus) {
    v1::GpuActivity* gpu = out.add_gpus();
    gpu->set_gpu(row.gpu);
    gpu->set_communication_seconds(row.communication_seconds);
    if (row.communication_ratio) gpu->set_communication_ratio(*row.communication_ratio);
  }
}

void to_message(const ProcessSnapshot& process, v1::ProcessBooks& out) {
  const wire::Books& books = process.books;
  out.set_pid(process.pid);
  out.set_session_id(process.session_id);
  out.set_state(state_name(process));
  out.set_plugin_version(text(process.plugin_version));
  out.set_nccl_version(process.nccl_version);
  out.set_interface_version(process.interface_version);
  out.set_mask(books.mask);
  out.set_seen(books.seen);
  out.set_recorded(books.recorded);
  out.set_open(books.open);
  for (std::size_t i = 0; i < wire::kDropReasonCount; ++i)
    add_count(out.mutable_dropped(), name(static_cast<wire::DropReason>(i)), books.dropped[i]);
  for (std::size_t i = 1; i < wire::kUntimedReasonCount; ++i)
    add_count(out.mutable_untimed(), name(static_cast<wire::UntimedReason>(i)), books.untimed[i]);
  out.set_records_written(books.records_written);
  out.set_records_overwritten(books.records_overwritten);
  out.set_records_received(process.records_received);
  out.set_operations_received(process.operations_received);
  out.set_records_before(process.records_before);
  out.set_records_lost(process.records_lost);
  out.set_records_duplicate(process.records_duplicate);
  out.set_highest_index(process.highest_index);
  out.set_balanced(check_books(process).balanced());
  out.set_callbacks(books.callbacks);
  out.set_callback_seconds(static_cast<double>(books.callback_ns) * 1e-9);
  out.set_stops_unmatched(books.stops_unmatched);
  out.set_children_dropped(books.children_dropped);
  out.set_connects(books.connects);
  out.set_age_seconds(process.books_age_seconds);
  out.set_final(process.said_goodbye);
  // Records are lost, of whatever type: this is an upper bound.
  out.set_operations_lost(process.records_lost);
}

namespace {

void to_message(const ProcessEnvironment& environment, const SettingsJudge* judge,
                v1::ProcessEnvironment& out) {
  out.set_known(true);
  out.set_cut(environment.cut);
  for (const auto& [name, value] : environment.variables) {
    v1::Variable* variable = out.add_variables();
    variable->set_name(label_value(name));
    variable->set_value(label_value(value, wire::kMaxVariableBytes));
  }
  const auto findings = judge == nullptr ? std::nullopt : judge->judge(environment);
  out.set_judged(findings.has_value());
  if (!findings) return;
  for (const topology::Finding& from : *findings) {
    v1::SettingFinding* finding = out.add_findings();
    finding->set_level(std::string(topology::level_name(from.level)));
    finding->set_variable(text(from.subject));
    finding->set_reason(text(from.reason));
    finding->set_evidence(text(from.evidence));
    finding->set_fix(text(from.fix));
  }
}

}  // namespace

void add_environments(const JobSnapshot& job, const SettingsJudge* judge, v1::JobSnapshot& out) {
  // Equal ones were kept once.
  std::map<const ProcessEnvironment*, v1::ProcessEnvironment*> known;
  for (const ProcessSnapshot& process : job.processes) {
    v1::ProcessEnvironment*& environment = known[process.environment.get()];
    if (environment == nullptr) {
      environment = out.add_environments();
      if (process.environment != nullptr) to_message(*process.environment, judge, *environment);
    }
    v1::Process* to = environment->add_processes();
    to->set_pid(process.pid);
    to->set_session_id(process.session_id);
    to->set_state(state_name(process));
    to->set_global_rank(text(process.global_rank));
    to->set_local_rank(text(process.local_rank));
    to->set_plugin_version(text(process.plugin_version));
    to->set_nccl_version(process.nccl_version);
    to->set_interface_version(process.interface_version);
    if (process.rdma_devices) to->set_rdma_devices(*process.rdma_devices);
  }
}

void to_message(const CommunicatorSnapshot& communicator, const RankSnapshot& rank,
                v1::RankBooks& out) {
  out.set_comm(communicator.comm);
  out.set_rank(rank.rank);
  out.set_pid(rank.pid);
  out.set_seen(rank.seen);
  out.set_recorded(rank.recorded);
  out.set_dropped(rank.dropped);
  out.set_missing(missing_operations(rank));
  out.set_coverage(coverage(communicator).value_or(1));
}

void to_message(const RankSnapshot& rank, v1::RankProgress& out) {
  out.set_rank(rank.rank);
  out.set_pid(rank.pid);
  out.set_state(name(rank.state));
  out.set_collectives_enqueued(rank.collectives_enqueued);
  out.set_collectives_started(rank.collectives_started);
  out.set_collectives_completed(rank.collectives_completed);
  out.set_p2p_enqueued(rank.p2p_enqueued);
  out.set_p2p_started(rank.p2p_started);
  out.set_p2p_completed(rank.p2p_completed);
  out.set_inflight_seconds(rank.inflight_seconds);
  out.set_oldest_index(rank.oldest_index);
  out.set_oldest_started((rank.progress_flags & wire::kProgressOldestStarted) != 0);
  out.set_oldest_on_network((rank.progress_flags & wire::kProgressOldestOnNetwork) != 0);
  out.set_oldest_is_p2p((rank.progress_flags & wire::kProgressOldestIsP2p) != 0);
  out.set_oldest_signature(rank.oldest_signature);
  out.set_sample_age_seconds(rank.sample_age_seconds);
  for (const wire::Neighbour& n : rank.neighbours) {
    v1::Neighbour* neighbour = out.add_neighbours();
    neighbour->set_peer(n.peer);
    neighbour->set_is_send(n.is_send != 0);
    neighbour->set_channels(n.channels);
  }
  out.set_communicator_id(rank.communicator_id);
  out.set_session_id(rank.session_id);
  out.set_idle_seconds(rank.still_seconds);
  out.set_queue_seconds(rank.queue_seconds);
  out.set_queue_operations(rank.queue_operations);
  out.set_collective_ends_unknown(rank.collective_ends_unknown);
  out.set_p2p_ends_unknown(rank.p2p_ends_unknown);
  out.set_last_waits_for_all(rank.last_waits_for_all);
  out.set_calls_signature(rank.calls_signature);
  if (rank.last) to_message(*rank.last, *out.mutable_last());
  if (rank.oldest) to_message(*rank.oldest, *out.mutable_oldest());
}

namespace {

/// A CLOCK_MONOTONIC time of the sender as time since the epoch; 0 stays 0. Wraps rather than
/// overflows.
std::int64_t since_epoch(const TailSource& source, std::uint64_t monotonic_ns) {
  if (monotonic_ns == 0) return 0;
  return static_cast<std::int64_t>(monotonic_ns +
                                   static_cast<std::uint64_t>(source.realtime_offset_ns));
}

template <typename Message>
void set_source(const TailRecord& record, Message& out) {
  const TailSource& source = *record.source;
  out.set_job_id(text(source.job_id));
  out.set_comm(text(source.comm));
  out.set_rank(source.rank);
  out.set_pid(source.pid);
  out.set_session_id(source.session_id);
  out.set_record_index(record.record_index);
  out.set_communicator_id(source.communicator_id);
}

void to_message(const TailRecord& record, const wire::Operation& o, v1::Operation& out) {
  namespace flags = wire::operation_flags;
  const TailSource& source = *record.source;
  set_source(record, out);
  const auto function = static_cast<model::Function>(o.function);
  const auto datatype = static_cast<model::DataType>(o.datatype);
  const auto is = [&o](std::uint16_t flag) { return (o.flags & flag) != 0; };
  out.set_collective(std::string(name(function)));
  out.set_datatype(known_name(name(datatype)));
  out.set_count(wire::count_of(o));
  const std::uint64_t bytes =
      model::message_bytes(function, wire::count_of(o), datatype, source.nranks);
  out.set_bytes(bytes);
  out.set_bytes_complete(source.nranks != 0 || !model::size_needs_ranks(function));
  out.set_bytes_ambiguous(is(flags::kBytesAmbiguous));
  const bool p2p = model::is_point_to_point(function);
  out.set_root(p2p ? -1 : o.root_or_peer);
  out.set_peer(p2p ? o.root_or_peer : -1);
  if (is(flags::kTaskSeen)) {
    out.set_algorithm(known_name(name(static_cast<model::Algorithm>(o.algorithm_protocol & 0x0F))));
    out.set_protocol(known_name(name(static_cast<model::Protocol>(o.algorithm_protocol >> 4))));
  }
  out.set_channels(o.channels);
  out.set_channels_seen(o.channels_seen);
  // Only a launch says how many channels there are.
  out.set_channels_known(is(flags::kTaskSeen) && !is(flags::kCopyEngine) &&
                         !is(flags::kChannelsUnknown));
  out.set_index(o.index);
  out.set_sequence(o.sequence);
  out.set_sequence_known(is(flags::kSequenceKnown));
  out.set_plan(wire::plan_of(o));
  const wire::TimingSource timing = wire::timing_of(o);
  out.set_timing(std::string(name(timing)));
  out.set_untimed_reason(std::string(name(static_cast<wire::UntimedReason>(o.untimed_reason))));
  out.set_complete(is(flags::kComplete));
  out.set_graph(is(flags::kGraph));
  out.set_api_seen(is(flags::kApiSeen));
  out.set_task_seen(is(flags::kTaskSeen));
  out.set_copy_engine(is(flags::kCopyEngine));
  out.set_warmup(is(flags::kWarmup));
  out.set_api_time_ns(since_epoch(source, o.api_time_ns));
  out.set_enqueue_time_ns(since_epoch(source, wire::enqueue_time_ns_of(o)));
  const std::uint64_t duration_ns = wire::duration_ns_of(o);
  if (timing == wire::TimingSource::kNone || duration_ns == 0) return;
  out.set_gpu_start_ns(o.gpu_start_ns);
  out.set_duration_ns(duration_ns);
  if (timing != wire::TimingSource::kGpu) return;
  if (out.bytes_complete())
    out.set_algbw(static_cast<double>(bytes) / (static_cast<double>(duration_ns) * 1e-9));
  out.set_busbw(model::bus_bandwidth(function, bytes, source.nranks, duration_ns));
}

void to_message(const TailRecord& record, const wire::NetworkPhases& n, v1::NetworkPhases& out) {
  set_source(record, out);
  out.set_index(n.index);
  out.set_is_send(n.is_send != 0);
  out.set_is_p2p(n.is_p2p != 0);
  out.set_peer(n.peer);
  out.set_bytes(n.bytes);
  out.set_steps(n.steps);
  out.set_steps_incomplete(n.steps_incomplete);
  for (const std::uint64_t ns : n.phase_ns) out.add_phase_ns(ns);
}

void to_message(const TailRecord& record, const wire::ChannelDetail& c, v1::ChannelDetail& out) {
  set_source(record, out);
  out.set_index(c.index);
  out.set_is_p2p(c.is_p2p != 0);
  out.set_channel(c.channel);
  out.set_gpu_start_ns(c.gpu_start_ns);
  out.set_gpu_stop_ns(c.gpu_stop_ns);
  out.set_host_start_ns(since_epoch(*record.source, c.host_start_ns));
  out.set_host_stop_ns(since_epoch(*record.source, c.host_stop_ns));
  out.set_rejected((c.flags & 1) != 0);
}

}  // namespace

bool to_message(const TailRecord& record, v1::TailOperationsResponse& out) {
  switch (record.type) {
    case wire::RecordType::kOperation:
      to_message(record, record.operation(), *out.mutable_operation());
      return true;
    case wire::RecordType::kNetworkPhases:
      to_message(record, record.network(), *out.mutable_network());
      return true;
    case wire::RecordType::kChannelDetail:
      to_message(record, record.channel(), *out.mutable_channel());
      return true;
    default:
      return false;
  }
}

}  // namespace ncclscope::agent

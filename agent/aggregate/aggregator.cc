// SPDX-License-Identifier: Apache-2.0
//
// Records into sums. The hot path is operation(): slot -> row of the sums -> plan batch; the rest
// is bookkeeping that happens when communicators and processes come and go. Snapshots are built in
// snapshot_builder.cc.
#include "agent/aggregate/aggregator.h"

#include <algorithm>
#include <charconv>
#include <cstring>
#include <functional>
#include <optional>
#include <utility>

#include "agent/base/log.h"
#include "agent/base/result.h"
#include "agent/identity/label_value.h"
#include "proto/model/bandwidth.h"

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kClockStepNs = 100'000'000;      // less is no step
constexpr std::uint64_t kClockFollowNs = 1'000'000'000;  // a peer is followed once in so long
constexpr std::uint64_t kNever = ~std::uint64_t{0};

/// A count that a process tells of itself; none where it is no number below 10,000.
std::optional<std::uint64_t> told_count(std::string_view text) {
  constexpr std::uint64_t kMost = 9'999;
  std::uint64_t value = 0;
  const char* end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, value);
  if (text.empty() || error != std::errc() || stop != end || value > kMost) return std::nullopt;
  return value;
}

constexpr std::uint64_t kMaxGpuTimeNs = std::uint64_t{1}
                                        << 63;  // start + duration cannot overflow below it
constexpr std::uint32_t kMaxRanks = 1u << 24;   // more is nonsense
constexpr std::size_t kMaxClocks = 64;
constexpr std::size_t kMaxNeighbours = 64;  // plugins tell of a few
// Beyond these a record is nonsense. Sums of what is below stay finite and exact enough for any
// number of records.
constexpr double kMaxMessageBytes = 1125899906842624.0;  // 1 PiB
// Series that a rank and a communicator bring with them, at least.
constexpr std::uint64_t kSeriesPerRank = 12;
constexpr std::uint64_t kSeriesPerNetworkRow = 5;
constexpr std::uint64_t kSeriesPerGpu = 2;
constexpr std::uint64_t kSeriesOfSteps = kStepBounds + 3;
constexpr std::size_t kMaxActivities = 64;
constexpr std::size_t kTimingSources = 3;
// So far the host may be ahead of the GPU: own transfers wait so long for the rest of their plan.
constexpr std::uint64_t kOwnTransferNs = 30'000'000'000;
constexpr std::uint64_t kDimensionIntervalNs = 5'000'000'000;

/// Collectives that no rank leaves before all have come: whoever is in one may be waiting.
bool synchronises(model::Function f) {
  return f == model::Function::kAllReduce || f == model::Function::kAllGather ||
         f == model::Function::kReduceScatter || f == model::Function::kAllToAll;
}

std::string hex16(std::uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = kDigits[value >> (4 * i) & 0xFu];
  return text;
}

template <typename Enum>
Enum known_or_unknown(unsigned value, std::size_t count) {
  return value < count ? static_cast<Enum>(value) : Enum{};
}

bool is_proved(const JobIdentity& job) {
  return job.identity_source != "claimed" && job.identity_source != "unknown";
}

bool hash_known(const wire::CommunicatorInit& init) {
  return (init.flags & wire::kCommHashKnown) != 0 && init.hash != 0;
}

}  // namespace

Aggregator::Aggregator(const Clock& clock, JobResolver& resolver, GpuTable& gpus,
                       OperationTail& tail, Options options)
    : clock_(clock),
      resolver_(resolver),
      gpus_(gpus),
      tail_(tail),
      options_(std::move(options)),
      budget_(options_.series) {
  tail_entries_.reserve(wire::kMaxFrameBytes / sizeof(wire::Operation));
}

Aggregator::~Aggregator() = default;

template <typename Visit>
void Aggregator::for_each_rank(Visit&& visit) {
  for (auto& [key, job] : jobs_) {
    for (auto& [comm, communicator] : job->communicators) {
      for (auto& rank : communicator->ranks) visit(*rank);
    }
    for (auto& process : job->processes) {
      if (process->folded) visit(*process->folded);
    }
  }
}

// ---- tenants
// -------------------------------------------------------------------------------------

Tenant& Aggregator::tenant_of(const std::string& principal) {
  Tenant& tenant = tenants_[principal];
  tenant.principal = principal;
  return tenant;
}

void Aggregator::forget_if_idle(Tenant& tenant) {
  if (!tenant.in_use && tenant.processes + tenant.jobs + tenant.communicators == 0) {
    tenants_.erase(std::string(tenant.principal));
  }
}

/// Forgets the job of `tenant` whose last process left longest ago. False if none has ended.
bool Aggregator::end_oldest_job(const Tenant& tenant) {
  Job* oldest = nullptr;
  std::uint64_t oldest_ns = 0;
  for (auto& [key, job] : jobs_) {
    if (job->tenant != &tenant) continue;
    std::uint64_t ended_ns = 0;
    bool ended = true;
    for (const auto& process : job->processes) {
      ended = ended && process->gone;
      ended_ns = std::max(ended_ns, process->session->closed_at_ns);
    }
    if (!ended || (oldest != nullptr && ended_ns >= oldest_ns)) continue;
    oldest = job.get();
    oldest_ns = ended_ns;
  }
  if (oldest == nullptr) return false;
  while (!oldest->processes.empty()) session_expired(*oldest->processes.back()->session);
  erase_job(*oldest);
  return true;
}

bool Aggregator::make_room_for_job(const Tenant& tenant) {
  if (tenant.jobs >= options_.jobs_per_principal) return end_oldest_job(tenant);
  if (jobs_.size() < options_.max_jobs) return true;
  // Whoever holds most gives way first, but only what has ended, and never to one who holds as
  // much.
  std::vector<std::pair<std::size_t, const Tenant*>> holders;
  for (const auto& [name, other] : tenants_) {
    if (other.jobs > tenant.jobs) holders.emplace_back(other.jobs, &other);
  }
  std::sort(holders.begin(), holders.end(), std::greater<>());
  for (const auto& [held, other] : holders) {
    if (end_oldest_job(*other)) return true;
  }
  return end_oldest_job(tenant) || within_share(tenant.jobs, options_.max_jobs, tenants_.size());
}

bool Aggregator::make_room_for_series(const Tenant& tenant) {
  while (!budget_.admits(tenant.principal)) {
    if (!end_oldest_job(tenant)) return false;
  }
  return true;
}

bool Aggregator::make_room(Tenant& tenant, const SessionState& session) {
  tenant.in_use = true;  // what gives way may be all it has
  const bool for_job = make_room_for_job(tenant);
  const bool for_series = for_job && make_room_for_series(tenant);
  tenant.in_use = false;
  if (!for_job) {
    quotas_.exceeded(Quota::kJobs, tenant.principal, now_ns_,
                     concat("a session of pid ", session.peer.pid, " is refused (it has ",
                            tenant.jobs, " of ", options_.jobs_per_principal, ", all together ",
                            jobs_.size(), " of ", options_.max_jobs, ")"));
  } else if (!for_series) {
    quotas_.exceeded(Quota::kJobs, tenant.principal, now_ns_,
                     concat("a session of pid ", session.peer.pid,
                            " is refused: there is no room for the series of one more job"));
  }
  return for_series;
}

void Aggregator::erase_job(Job& job) {
  while (!job.communicators.empty()) {
    Communicator& communicator = *job.communicators.begin()->second;
    for (auto& rank : communicator.ranks) leave(*rank);
    erase_communicator(communicator);
  }
  budget_.close(job.account);
  Tenant& tenant = *job.tenant;
  --tenant.jobs;
  jobs_.erase(std::string(job.key));
  forget_if_idle(tenant);
}

// ---- sessions and jobs
// ---------------------------------------------------------------------------

bool Aggregator::job_id_taken(const std::string& id) const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [&](const auto& other) { return other.second->identity.job_id == id; });
}

/// `id` with what tells this job from the one that has the name.
std::string Aggregator::free_job_id(const std::string& id, const Job& job) const {
  const std::string base =
      concat(std::string_view(id).substr(0, kMaxLabelBytes - 24), "~",
             job.through_api ? std::string("claimed") : std::to_string(job.identity.uid));
  std::string free = base;
  for (int n = 2; job_id_taken(free); ++n) free = concat(base, "~", n);
  return free;
}

void Aggregator::rename(Job& job, std::string id) {
  log_warning(concat("job ", job.identity.job_id, " of uid ", job.identity.uid,
                     " was only claimed and is now called ", id));
  job.identity.job_id = std::move(id);
  for (auto& process : job.processes) {
    SessionState& session = *process->session;
    session.job_id = job.identity.job_id;
    process->slots.for_each([&](CommRank& rank) { renew_source(session, rank); });
    retire(process->source);
  }
}

Job* Aggregator::find_or_make_job(const ProcessIdentity& identity, const SessionState& session) {
  const JobIdentity& who = identity.job;
  // What different people claim is kept apart, and so is what came through the API. So is a SLURM
  // job inside Kubernetes from the same id on the node or in another namespace.
  const std::string& place =
      who.kubernetes_namespace.empty() ? session.peer.proof.pod_uid : who.kubernetes_namespace;
  std::string key = concat(who.job_id, "\n", who.identity_source, "\n",
                           session.peer.claimed ? "api" : "socket", "\n", who.uid, "\n", place);
  if (const auto it = jobs_.find(key); it != jobs_.end()) {
    JobIdentity& known = it->second->identity;
    known.run = std::max(known.run, who.run);
    return it->second.get();
  }
  Tenant& tenant = tenant_of(session.peer.principal);
  if (!make_room(tenant, session)) {
    forget_if_idle(tenant);
    return nullptr;
  }
  // A claim does not keep its name from the job that the kernel says it is.
  if (is_proved(who)) {
    for (auto& [other_key, other] : jobs_) {
      if (other->identity.job_id == who.job_id && !is_proved(other->identity)) {
        rename(*other, free_job_id(other->claimed_id, *other));
      }
    }
  }
  auto job = std::make_unique<Job>();
  job->key = key;
  job->tenant = &tenant;
  ++tenant.jobs;
  job->identity = who;
  job->account = budget_.open(session.peer.principal);
  job->allowance = budget_.allowance(job->account);
  job->claimed_id = who.job_id;
  job->through_api = session.peer.claimed;
  if (job_id_taken(who.job_id)) job->identity.job_id = free_job_id(who.job_id, *job);
  return jobs_.emplace(std::move(key), std::move(job)).first->second.get();
}

bool Aggregator::report_throughput(const ThroughputReport& report) {
  const std::uint64_t until = clock_.monotonic_ns() + report.valid_ns;
  bool known = false;
  for (auto& [key, job] : jobs_) {
    const JobIdentity& identity = job->identity;
    if (identity.job_id != report.job_id) continue;
    if (report.uid >= 0 && identity.uid != report.uid) continue;
    job->throughput[static_cast<std::size_t>(report.unit)] = {report.per_second, until};
    known = true;
  }
  return known;
}

void Aggregator::refresh_jobs() {
  const auto learn = [](std::string& label, std::string& now) {
    if (!now.empty()) label = std::move(now);
  };
  for (auto& [key, job] : jobs_) {
    for (const auto& process : job->processes) {
      const SessionState* session = process->session;
      if (session == nullptr || process->gone) continue;
      JobIdentity now = resolver_.resolve(session->peer, session->claims).job;
      JobIdentity& known = job->identity;
      learn(known.user, now.user);
      learn(known.partition, now.partition);
      learn(known.account, now.account);
      learn(known.job_name, now.job_name);
      known.run = std::max(known.run, now.run);
      break;  // all of them are of that job
    }
  }
}

bool Aggregator::session_opened(SessionState& session) {
  now_ns_ = clock_.monotonic_ns();
  if (session.process == nullptr) {
    const ProcessIdentity identity = resolver_.resolve(session.peer, session.claims);
    Job* job = find_or_make_job(identity, session);
    if (job == nullptr) {
      ++jobs_refused_;
      return false;
    }
    auto process = std::make_unique<SinkProcess>();
    process->session = &session;
    process->job = job;
    process->tenant = &tenant_of(session.peer.principal);
    ++process->tenant->processes;
    process->global_rank = identity.global_rank;
    process->local_rank = identity.local_rank;
    process->local_index = identity.local_index;
    if (identity.mismatch) count_mismatch(*process);
    session.process = process.get();
    session.job_id = job->identity.job_id;
    job->processes.push_back(std::move(process));
  }
  SinkProcess& process = *session.process;
  process.plugin_version = label_value(session.claims.get(wire::StringKey::kPluginVersion));
  process.rdma_devices = told_count(session.claims.get(wire::StringKey::kRdmaDevices));
  if (process.gone) {
    process.gone = false;
    process.slots.for_each([](CommRank& rank) { rank.state = RankState::kRunning; });
  }
  return true;
}

void Aggregator::count_mismatch(SinkProcess& process) {
  if (!std::exchange(process.mismatched, true)) ++identity_mismatches_;
}

void Aggregator::session_closed(SessionState& session) {
  now_ns_ = clock_.monotonic_ns();
  SinkProcess* process = session.process;
  if (process == nullptr) return;
  process->slots.for_each([&](CommRank& rank) { flush_all_of(rank); });
  // Without a Goodbye it may only be reconnecting; tick() decides.
  if (session.said_goodbye) end_process(*process);
}

void Aggregator::end_process(SinkProcess& process) {
  process.gone = true;
  process.steps.finish();
  take_steps(process);
  process.steps = {};  // its tables; should the process come back, it starts anew
  const RankState state =
      process.session->said_goodbye ? RankState::kFinalized : RankState::kVanished;
  process.slots.for_each([&](CommRank& rank) {
    if (&rank != process.folded.get()) end_rank(rank, state);
  });
}

void Aggregator::session_expired(SessionState& session) {
  SinkProcess* process = std::exchange(session.process, nullptr);
  if (process == nullptr) return;
  if (!process->gone) end_process(*process);
  Job& job = *process->job;
  job.lost_records += session.records_lost;
  if (job.fold >= FoldStep::kProcess && process->books_seen) {
    if (!job.forgotten) job.forgotten.emplace();
    job.forgotten->add(process_sums(process->books, session));
  }
  process->slots.for_each([&](CommRank& rank) { retire(rank.source); });
  for (auto& [comm, communicator] : job.communicators) {
    for (auto& rank : communicator->ranks) {  // finalized ones too, which are in no slot
      if (rank->process == process) {
        rank->process = nullptr;
        rank->clock = nullptr;
      }
    }
  }
  if (process->folded) {
    flush(*process->folded);
    retire(process->folded->source);
  }
  std::erase_if(job.activities, [&](const std::unique_ptr<GpuActivity>& activity) {
    if (activity->session_id != session.session_id) return false;
    job.ended_busy_ns += activity->busy.busy_ns();
    return true;
  });
  retire(process->source);
  Tenant& tenant = *process->tenant;
  std::erase_if(job.processes, [&](const auto& p) { return p.get() == process; });
  --tenant.processes;
  forget_if_idle(tenant);
}

// ---- communicators
// -------------------------------------------------------------------------------

CommRank* Aggregator::slot(const SessionState& session, std::uint16_t communicator) {
  return session.process->slots.find(communicator);
}

Communicator* Aggregator::find_or_make_communicator(Job& job, Tenant& tenant,
                                                    const std::string& comm) {
  if (const auto it = job.communicators.find(comm); it != job.communicators.end()) {
    return it->second.get();
  }
  const bool crowded =
      communicator_count_ >= options_.max_communicators &&
      !within_share(tenant.communicators, options_.max_communicators, tenants_.size());
  if (memory_full_ || crowded || tenant.communicators >= options_.communicators_per_principal) {
    quotas_.exceeded(memory_full_ ? Quota::kMemory : Quota::kCommunicators, tenant.principal,
                     now_ns_,
                     concat("further communicators of job ", job.identity.job_id,
                            " are folded into one (it has ", tenant.communicators, " of ",
                            options_.communicators_per_principal, ", all together ",
                            communicator_count_, " of ", options_.max_communicators, ")"));
    job.closed = true;
  }
  if (job.closed) return nullptr;
  auto made = std::make_unique<Communicator>();
  made->job = &job;
  made->tenant = &tenant;
  ++tenant.communicators;
  made->serial = ++communicators_made_;
  if (job.fold >= FoldStep::kCommunicator) {
    made->counters = job.other->counters;
  } else {
    made->own_counters = std::make_unique<OperationSums>();
    made->own_counters->fold(job.fold);
    made->counters = made->own_counters.get();
  }
  ++communicator_count_;
  ++job.growth;
  const auto& [key, known] = *job.communicators.emplace(comm, std::move(made)).first;
  known->comm = key;
  return known.get();
}

void Aggregator::erase_communicator(Communicator& communicator) {
  --communicator_count_;
  Tenant& tenant = *communicator.tenant;
  --tenant.communicators;
  communicator.job->communicators.erase(std::string(communicator.comm));
  forget_if_idle(tenant);
}

Communicator& Aggregator::other_communicator(Job& job) {
  if (job.other == nullptr) {
    auto made = std::make_unique<Communicator>();
    made->job = &job;
    made->tenant = job.tenant;
    ++made->tenant->communicators;
    made->comm = kOtherCommunicator;
    made->folded = std::make_unique<FoldedRanks>();
    made->own_counters = std::make_unique<OperationSums>();
    made->own_counters->fold(job.fold);
    made->counters = made->own_counters.get();
    job.other = made.get();
    ++communicator_count_;
    job.communicators.emplace(made->comm, std::move(made));
  }
  return *job.other;
}

std::string Aggregator::local_name(SinkProcess& process, const SessionState& session) {
  return concat("local-", hex16(session.session_id), "-", process.communicators_made++);
}

GpuActivity* Aggregator::activity_for(Job& job, const SinkProcess& process, GpuRef gpu) {
  const std::uint64_t session_id = gpu == GpuRef{} ? process.session->session_id : 0;
  for (const auto& activity : job.activities) {
    if (activity->gpu == gpu && activity->session_id == session_id) return activity.get();
  }
  if (job.activities.size() >= kMaxActivities) return nullptr;
  GpuActivity& made = *job.activities.emplace_back(std::make_unique<GpuActivity>());
  made.gpu = gpu;
  made.session_id = session_id;
  job.growth += kSeriesPerGpu;
  return &made;
}

std::uint16_t Aggregator::gpu_slot(SinkProcess& process, GpuRef gpu) {
  for (std::size_t i = 0; i < process.gpus.size(); ++i) {
    if (process.gpus[i].gpu == gpu) return static_cast<std::uint16_t>(i + 1);
  }
  if (process.gpus.size() >= kMaxClocks) return 0;
  SinkProcess::Gpu& made = process.gpus.emplace_back();
  made.gpu = gpu;
  made.clock = std::make_unique<GpuClock>();
  made.activity = activity_for(*process.job, process, gpu);
  return static_cast<std::uint16_t>(process.gpus.size());
}

GpuRef Aggregator::gpu_of(const SinkProcess& process, const wire::CommunicatorInit& init,
                          std::string_view pci_bus_id) {
  return gpus_.find(pci_bus_id, process.local_index, init.cuda_device, process.tenant->principal);
}

void Aggregator::retire(OperationTail::SourceId& source) {
  if (source != CommRank::kNoSource) {
    // Records of the frame at hand may still refer to it: the tail must count them first.
    tail_.append(tail_entries_);
    tail_entries_.clear();
    tail_.retire_source(source);
  }
  source = CommRank::kNoSource;
}

void Aggregator::renew_source(SessionState& session, CommRank& rank) {
  retire(rank.source);
  const Communicator& communicator = *rank.communicator;
  const Job& job = *communicator.job;
  TailSource source;
  source.job_id = job.identity.job_id;
  source.cluster = job.identity.cluster;
  source.uid = job.identity.uid;
  source.comm = communicator.comm;
  source.hash_known = communicator.hash_known;
  source.nranks = communicator.nranks;
  source.rank = rank.rank;
  source.gpu = gpus_.index(rank.gpu);
  source.pid = rank.pid;
  source.session_id = session.session_id;
  source.communicator_id = rank.id;
  source.realtime_offset_ns = session.claims.hello.realtime_offset_ns;
  rank.source = tail_.add_source(std::move(source));
}

CommRank* Aggregator::folded_rank(SinkProcess& process) {
  count_folds(*process.job, FoldStep::kRank, 1);
  if (!process.folded) {
    SessionState& session = *process.session;
    process.folded = std::make_unique<CommRank>();
    CommRank& rank = *process.folded;
    rank.communicator = &other_communicator(*process.job);
    rank.process = &process;
    rank.session_id = session.session_id;
    rank.pid = session.peer.pid;
    renew_source(session, rank);
  }
  return process.folded.get();
}

bool Aggregator::enter(Communicator& communicator, std::unique_ptr<CommRank>& rank) {
  if (rank->rank >= 0) {
    for (auto it = communicator.ranks.begin(); it != communicator.ranks.end(); ++it) {
      CommRank& known = **it;
      if (known.rank != rank->rank) continue;
      const bool alive = known.state == RankState::kRunning && known.process != nullptr &&
                         known.process->session->connection != nullptr;
      if (alive) return false;
      leave(known);
      rank->sums.add(known.sums);
      rank->queue_seconds += known.queue_seconds;
      rank->queue_operations += known.queue_operations;
      rank->missing_before = known.missing();
      communicator.ranks.erase(it);
      break;
    }
  }
  rank->communicator = &communicator;
  communicator.ranks.push_back(std::move(rank));
  communicator.job->growth += kSeriesPerRank;
  return true;
}

/// Lets go of everything that points at the rank. It may be destroyed after this.
void Aggregator::leave(CommRank& rank) {
  flush_all_of(rank);
  retire(rank.source);
  if (rank.process != nullptr && rank.process->slots.find(rank.id) == &rank) {
    rank.process->slots.erase(rank.id);
  }
}

void Aggregator::end_rank(CommRank& rank, RankState state) {
  flush_all_of(rank);
  if (rank.state != RankState::kRunning) return;
  rank.state = state;
  rank.ended_ns = clock_.monotonic_ns();
}

void Aggregator::describe(SessionState& session, CommRank& rank, const wire::CommunicatorInit& init,
                          const CommunicatorStrings& strings) {
  SinkProcess& process = *session.process;
  Communicator& communicator = *rank.communicator;
  if ((init.flags & wire::kCommRanksKnown) != 0 && init.nranks > 0 && init.nranks <= kMaxRanks) {
    communicator.nranks = init.nranks;
    communicator.nnodes = init.nnodes;
  }
  if (!strings.name.empty()) communicator.name = label_value(strings.name);
  RankPlace place = rank.place == nullptr
                        ? RankPlace{{}, {}, process.global_rank, process.local_rank}
                        : *rank.place;
  if (!strings.gpu_uuid.empty()) place.gpu_uuid = label_value(strings.gpu_uuid);
  if (!strings.pci_bus_id.empty()) place.pci_bus_id = label_value(strings.pci_bus_id);
  rank.gpu = gpu_of(process, init, place.pci_bus_id);
  const std::uint16_t slot = gpu_slot(process, rank.gpu);
  SinkProcess::Gpu* gpu = slot != 0 ? &process.gpus[slot - 1u] : nullptr;
  rank.clock = gpu != nullptr ? gpu->clock.get() : nullptr;
  if (gpu == nullptr) {
    rank.place = std::make_shared<const RankPlace>(std::move(place));
  } else {
    if (gpu->place == nullptr || *gpu->place != place)
      gpu->place = std::make_shared<const RankPlace>(std::move(place));
    rank.place = gpu->place;
  }
  if (process.gpu == GpuRef{}) {
    process.gpu = rank.gpu;
  } else if (process.gpu != rank.gpu && rank.gpu != GpuRef{}) {
    process.several_gpus = true;
  }
  if (init.init_time_ns != 0) rank.init_time_ns = init.init_time_ns;
  renew_source(session, rank);
}

CommRank* Aggregator::make_rank(SessionState& session, const wire::CommunicatorInit& init,
                                const CommunicatorStrings& strings) {
  SinkProcess& process = *session.process;
  auto rank = std::make_unique<CommRank>();
  rank->process = &process;
  rank->id = init.communicator;
  rank->session_id = session.session_id;
  rank->pid = session.peer.pid != 0 ? session.peer.pid : session.claims.hello.pid;
  rank->rank = (init.flags & wire::kCommRankKnown) != 0 ? std::max(init.rank, -1) : -1;
  CommRank* made = rank.get();
  if (session.records_before > 0 && session.records_received + session.records_lost == 0) {
    rank->collectives.begin_at_next();
    rank->p2p.begin_at_next();
  }
  const bool known = hash_known(init);
  Communicator* communicator = find_or_make_communicator(
      *process.job, *process.tenant, known ? hex16(init.hash) : local_name(process, session));
  if (communicator == nullptr) return folded_rank(process);
  if (enter(*communicator, rank)) {
    communicator->hash_known = known;
    communicator->hash = init.hash;
  } else {
    // Another living process says it is this very rank. It is not for us to say who lies: kept
    // apart.
    count_mismatch(process);
    communicator =
        find_or_make_communicator(*process.job, *process.tenant, local_name(process, session));
    if (communicator == nullptr || !enter(*communicator, rank)) return folded_rank(process);
  }
  describe(session, *made, init, strings);
  return made;
}

void Aggregator::rekey(SessionState& session, CommRank& rank, const wire::CommunicatorInit& init) {
  Communicator& old = *rank.communicator;
  Job& job = *old.job;
  Communicator* target = find_or_make_communicator(job, *session.process->tenant, hex16(init.hash));
  if (target == nullptr) return;  // at the limit: stays under its local name
  flush_all_of(rank);
  const auto it = std::find_if(old.ranks.begin(), old.ranks.end(),
                               [&](const auto& r) { return r.get() == &rank; });
  std::unique_ptr<CommRank> moving = std::move(*it);
  old.ranks.erase(it);
  if (!enter(*target, moving)) {
    count_mismatch(*session.process);
    old.ranks.push_back(std::move(moving));
    return;
  }
  target->hash_known = true;
  target->hash = init.hash;
  if (target->nranks == 0) {
    target->nranks = old.nranks;
    target->nnodes = old.nnodes;
  }
  if (target->name.empty()) target->name = old.name;
  if (old.own_counters != nullptr) target->counters->merge(*old.own_counters);
  // A local name is used by one rank only, so nothing is left behind.
  erase_communicator(old);
}

void Aggregator::communicator_init(SessionState& session, const wire::CommunicatorInit& init,
                                   const CommunicatorStrings& strings) {
  SinkProcess& process = *session.process;
  settle_if_over(*process.job);
  CommRank* rank = process.slots.find(init.communicator);
  if (init.communicator == wire::kNoCommunicator ||
      (rank == nullptr && process.slots.size() >= kMaxCommunicatorsPerSession)) {
    count_folds(*process.job, FoldStep::kRank, 1);
    return;
  }
  const bool ranks_known = (init.flags & wire::kCommRanksKnown) != 0 && init.nranks <= kMaxRanks;
  const std::uint32_t nranks = ranks_known ? init.nranks : 0;
  if (rank != nullptr && rank == process.folded.get()) return;
  if (rank != nullptr) {
    const bool other_hash =
        hash_known(init) && rank->communicator->hash_known && rank->communicator->hash != init.hash;
    const bool other_time = init.init_time_ns != 0 && rank->init_time_ns != 0 &&
                            init.init_time_ns != rank->init_time_ns;
    if (other_hash || other_time) {
      // The id is used again and the finalize in between was lost.
      end_rank(*rank, RankState::kFinalized);
      leave(*rank);
      rank = nullptr;
    }
  }
  if (rank == nullptr) {
    rank = make_rank(session, init, strings);
    const GpuRef gpu = rank == process.folded.get()
                           ? gpu_of(process, init, label_value(strings.pci_bus_id))
                           : rank->gpu;
    process.slots.set(init.communicator, rank, nranks, gpu_slot(process, gpu));
    return;
  }
  if (rank->rank < 0 && (init.flags & wire::kCommRankKnown) != 0 && init.rank >= 0) {
    const auto& ranks = rank->communicator->ranks;
    const bool taken = std::any_of(ranks.begin(), ranks.end(),
                                   [&](const auto& r) { return r->rank == init.rank; });
    if (!taken) rank->rank = init.rank;
  }
  if (hash_known(init) && !rank->communicator->hash_known) rekey(session, *rank, init);
  describe(session, *rank, init, strings);
  process.slots.set(init.communicator, rank, nranks, gpu_slot(process, rank->gpu));
}

bool Aggregator::finalize(SessionState& session, const wire::CommunicatorFinalize& finalize,
                          std::uint64_t) {
  CommRank* rank = slot(session, finalize.communicator);
  if (rank == nullptr) return false;
  SinkProcess& process = *session.process;
  if (rank == process.folded.get()) {
    flush(*rank);
    process.slots.erase(finalize.communicator);
    return true;
  }
  wire::Progress& p = rank->progress;
  rank->has_progress = true;
  rank->moved_ns = now_ns_;
  p.time_ns = finalize.time_ns;
  p.collectives_enqueued = finalize.collectives_enqueued;
  p.collectives_completed = finalize.collectives_completed;
  p.collectives_started = std::max(p.collectives_started, p.collectives_completed);
  p.p2p_enqueued = finalize.p2p_enqueued;
  p.p2p_completed = finalize.p2p_completed;
  p.p2p_started = std::max(p.p2p_started, p.p2p_completed);
  p.seen = finalize.seen;
  p.oldest_index = kNever;
  p.oldest_time_ns = 0;
  p.oldest_signature = 0;
  p.flags |= wire::kProgressFinalized;
  // Records come in the order of their indexes, and this is the communicator's last one.
  rank->collectives.settle(finalize.collectives_enqueued);
  rank->p2p.settle(finalize.p2p_enqueued);
  end_rank(*rank, RankState::kFinalized);
  leave(*rank);
  return true;
}

// ---- state
// ---------------------------------------------------------------------------------------

void Aggregator::books(SessionState& session, const wire::Books& books) {
  SinkProcess& process = *session.process;
  if (process.books_seen && books.time_ns < process.books.time_ns) return;
  process.books_seen = true;
  process.books = books;
  process.books_at_ns = now_ns_;
  process.books_came = true;
  follow_clock(session, books.realtime_offset_ns);
}

void Aggregator::follow_clock(SessionState& session, std::int64_t offset_ns) {
  SinkProcess& process = *session.process;
  std::int64_t& known_ns = session.claims.hello.realtime_offset_ns;
  // Unsigned: both come from peers.
  const std::uint64_t apart =
      static_cast<std::uint64_t>(offset_ns) - static_cast<std::uint64_t>(known_ns);
  const bool near = apart + kClockStepNs <= 2 * kClockStepNs;
  if (near || offset_ns == 0 || now_ns_ - process.clock_followed_ns < kClockFollowNs) return;
  process.clock_followed_ns = now_ns_;
  known_ns = offset_ns;
  process.slots.for_each([&](CommRank& rank) { renew_source(session, rank); });
  retire(process.source);
}

void Aggregator::settle_indexes(const SessionState& session) {
  SinkProcess& process = *session.process;
  // Everything that had been written when the books were closed must have come.
  if (process.books.records_written > session.highest_index) return;
  process.slots.for_each([&](CommRank& rank) {
    if (&rank == process.folded.get() || !rank.has_progress ||
        rank.progress.time_ns > process.books.time_ns) {
      return;
    }
    rank.collectives.settle(rank.progress.collectives_completed);
    rank.p2p.settle(rank.progress.p2p_completed);
  });
}

bool Aggregator::progress(SessionState& session, const wire::Progress& progress) {
  CommRank* rank = slot(session, progress.communicator);
  if (rank == nullptr) return false;
  if (rank == session.process->folded.get()) return true;
  if (rank->has_progress && progress.time_ns < rank->progress.time_ns) return true;
  const auto counts = [](const wire::Progress& p) {
    return std::tuple(p.collectives_enqueued, p.collectives_started, p.collectives_completed,
                      p.p2p_enqueued, p.p2p_started, p.p2p_completed);
  };
  const bool first = !rank->has_progress;
  const wire::Progress& before = rank->progress;
  if (first || counts(progress) != counts(before)) rank->moved_ns = now_ns_;
  const bool collective = first || progress.collectives_enqueued != before.collectives_enqueued;
  const bool p2p = first || progress.p2p_enqueued != before.p2p_enqueued;
  if (collective) rank->collective_called_ns = now_ns_;
  if (p2p) rank->p2p_called_ns = now_ns_;
  if (collective || p2p) session.process->called_ns = now_ns_;
  rank->has_progress = true;
  rank->progress = progress;
  return true;
}

bool Aggregator::neighbours(SessionState& session, const wire::Neighbours& head,
                            std::span<const std::byte> peers) {
  CommRank* rank = slot(session, head.communicator);
  if (rank == nullptr) return false;
  if (rank == session.process->folded.get()) return true;
  for (; !peers.empty(); peers = peers.subspan(sizeof(wire::Neighbour))) {
    wire::Neighbour neighbour{};
    std::memcpy(&neighbour, peers.data(), sizeof neighbour);
    const auto same = [&](const wire::Neighbour& n) {
      return n.peer == neighbour.peer && n.is_send == neighbour.is_send;
    };
    const auto it = std::find_if(rank->neighbours.begin(), rank->neighbours.end(), same);
    if (it != rank->neighbours.end()) {
      *it = neighbour;
    } else if (rank->neighbours.size() < kMaxNeighbours) {
      rank->neighbours.push_back(neighbour);
    }
  }
  return true;
}

// ---- operations
// ----------------------------------------------------------------------------------

void Aggregator::frame_begin(SessionState&, std::uint64_t send_time_ns) {
  now_ns_ = clock_.monotonic_ns();
  send_time_ns_ = send_time_ns;
}

void Aggregator::frame_end(SessionState& session) {
  if (session.process != nullptr && std::exchange(session.process->books_came, false)) {
    settle_indexes(session);
  }
  if (session.process != nullptr) take_steps(*session.process);
  tail_.append(tail_entries_);
  tail_entries_.clear();
}

void Aggregator::push_tail(OperationTail::SourceId source, wire::RecordType type,
                           const void* record, std::uint64_t index) {
  OperationTail::Entry& entry = tail_entries_.emplace_back();
  entry.source = source;
  entry.type = type;
  entry.record_index = index;
  std::memcpy(entry.bytes, record, sizeof entry.bytes);
}

bool Aggregator::operation(SessionState& session, const wire::Operation& operation,
                           std::uint64_t index) {
  Job& job = *session.process->job;
  settle_if_over(job);
  const SlotTable::Entry slot = session.process->slots.entry(operation.communicator);
  CommRank* const rank = slot.rank;
  if (rank == nullptr) return false;
  push_tail(rank->source, wire::RecordType::kOperation, &operation, index);

  Communicator& communicator = *rank->communicator;
  const std::uint32_t nranks = communicator.nranks != 0 ? communicator.nranks : slot.nranks;
  const auto function =
      known_or_unknown<model::Function>(operation.function, model::kFunctionCount);
  const bool point_to_point = model::is_point_to_point(function);
  (point_to_point ? rank->p2p : rank->collectives).add(operation.index);
  const auto datatype =
      known_or_unknown<model::DataType>(operation.datatype, model::kDataTypeCount);
  const auto algorithm = known_or_unknown<model::Algorithm>(operation.algorithm_protocol & 0xFu,
                                                            model::kAlgorithmCount);
  const auto protocol =
      known_or_unknown<model::Protocol>(operation.algorithm_protocol >> 4u, model::kProtocolCount);
  const std::uint64_t count = wire::count_of(operation);
  const bool absurd =
      static_cast<double>(count) * model::element_bytes(datatype) * std::max(nranks, 1u) >
      kMaxMessageBytes;
  if (!point_to_point)
    rank->calls.add(operation.index, function, datatype, count, operation.root_or_peer);
  const std::uint64_t bytes = absurd ? 0 : model::message_bytes(function, count, datatype, nranks);
  const std::uint8_t size_class = size_class_of(bytes);
  if (operation.untimed_reason != static_cast<std::uint8_t>(wire::UntimedReason::kUnfinished)) {
    rank->recent.add({count, operation.root_or_peer, function, datatype}, operation.index, now_ns_);
  }
  TimedItem item;
  item.bus_bytes = static_cast<double>(bytes) * model::bus_factor(function, nranks);
  item.function = function;
  item.size_class = size_class;
  item.algorithm = algorithm;
  item.protocol = protocol;
  item.warmup = (operation.flags & wire::operation_flags::kWarmup) != 0;

  std::size_t timing = operation.flags & wire::operation_flags::kTimingMask;
  std::size_t reason = 0;
  if (timing >= kTimingSources) timing = 0;
  const std::uint64_t duration = wire::duration_ns_of(operation);
  if (timing != static_cast<std::size_t>(wire::TimingSource::kGpu)) {
    reason = operation.untimed_reason;
    if (reason == 0) reason = static_cast<std::size_t>(wire::UntimedReason::kNotCarried);
  } else if (absurd || duration == 0 || duration >= wire::kMaxDurationNs ||
             operation.gpu_start_ns >= kMaxGpuTimeNs) {
    reason = static_cast<std::size_t>(wire::UntimedReason::kTimingRejected);
  } else {
    item.start_ns = operation.gpu_start_ns;
    item.duration_ns = duration;
    observe_time(session, slot, operation, duration);
    if (options_.inspector_window_ns != 0) {
      add_to_window(job, *rank, item, nranks, model::inspector::rank_bytes(count, datatype));
    }
  }
  StepOperation step;
  step.call_ns = operation.api_time_ns;
  step.gpu_start_ns = item.start_ns;
  step.bytes = bytes;
  step.signature = step_signature(operation.communicator, function, datatype, count);
  step.communicator = operation.communicator;
  step.function = function;
  session.process->steps.add(step);

  const std::uint16_t plan = wire::plan_of(operation);
  if (point_to_point && plan != 0 && !communicator.folded && nranks > 1) {
    hold_transfer(
        *session.process, *rank, plan,
        PendingTransfer{item, bytes, operation.root_or_peer, static_cast<std::uint8_t>(timing),
                        static_cast<std::uint8_t>(reason)});
    return true;
  }
  if (point_to_point && !communicator.folded) {
    rank->peers.add_peer(rank->rank, nranks, operation.root_or_peer,
                         function == model::Function::kSend);
    rank->peers.add(true, true);  // which of them belong together is not known
  }
  this->count(*rank, item, bytes, timing, reason);
  if (item.duration_ns == 0) return true;
  if (plan == 0) {
    apply(*rank, AttributedItem{item, static_cast<double>(duration), false, true,
                                static_cast<double>(duration)});
    return true;
  }
  make_room(*session.process, *rank, plan);
  rank->pending.add(plan, item, now_ns_);
  ++session.process->tenant->pending_items;
  return true;
}

void Aggregator::add_to_window(Job& job, const CommRank& rank, const TimedItem& item,
                               std::uint32_t nranks, std::uint64_t rank_bytes) {
  if (rank_bytes < options_.inspector_min_bytes) return;
  const Communicator& communicator = *rank.communicator;
  InspectorWindows::Key key;
  key.communicator = communicator.serial;
  key.nranks = nranks;
  key.gpu = rank.gpu;
  key.function = item.function;
  if (!model::is_point_to_point(item.function)) {
    key.algorithm = item.algorithm;
    key.protocol = item.protocol;
  }
  key.size = model::inspector::size_range(rank_bytes);
  // A row is two series, and this page has the limits of the other one.
  const auto left = [](std::size_t rows, std::uint64_t series) {
    return rows < series / 2 ? static_cast<std::size_t>(series / 2) - rows : 0;
  };
  std::size_t room = std::min({left(job.inspector_rows, options_.series.job),
                               left(job.tenant->inspector_rows, options_.series.principal),
                               left(inspector_rows_, options_.series.agent)});
  const std::size_t before = room;
  if (!job.inspector.add(key, communicator.name, communicator.nnodes, item.duration_ns,
                         item.bus_bytes, room)) {
    ++inspector_left_out_;
  }
  job.inspector_rows += before - room;
  job.tenant->inspector_rows += before - room;
  inspector_rows_ += before - room;
}

void Aggregator::end_windows(std::uint64_t now) {
  if (options_.inspector_window_ns == 0 || now < inspector_end_ns_) return;
  inspector_end_ns_ = now + options_.inspector_window_ns;
  for (auto& [key, job] : jobs_) {
    job->inspector.rotate(gpus_);
    job->inspector_rows = 0;
  }
  for (auto& [principal, tenant] : tenants_) tenant.inspector_rows = 0;
  inspector_rows_ = 0;
}

void Aggregator::observe_time(const SessionState& session, const SlotTable::Entry& slot,
                              const wire::Operation& operation, std::uint64_t duration_ns) {
  CommRank& rank = *slot.rank;
  const std::uint64_t start_ns = operation.gpu_start_ns;
  if (slot.gpu != 0) {
    if (GpuActivity* activity = session.process->gpus[slot.gpu - 1u].activity) {
      activity->busy.add(start_ns, start_ns + duration_ns);
    }
  }
  if (rank.clock == nullptr || (operation.flags & wire::operation_flags::kGraph) != 0) return;
  // Without an API event, api_time_ns may lie behind the launch and bounds nothing.
  const bool api_seen = (operation.flags & wire::operation_flags::kApiSeen) != 0;
  rank.clock->observe(api_seen ? operation.api_time_ns : 0, start_ns, start_ns + duration_ns,
                      send_time_ns_);
  std::int64_t queue = 0;
  if (rank.clock->queue_ns(wire::enqueue_time_ns_of(operation), start_ns, queue)) {
    rank.queue_seconds += static_cast<double>(queue) * 1e-9;
    ++rank.queue_operations;
  }
}

/// Ends the plan of collectives at hand where `plan` is another, and all where there is no room.
void Aggregator::make_room(const SinkProcess& process, CommRank& rank, std::uint16_t plan) {
  // Each tenant has its share of the room, so that nobody else's plans are cut short.
  constexpr std::size_t kLeastShares = 4;
  const std::size_t share = options_.max_pending_items / std::max(tenants_.size(), kLeastShares);
  const std::size_t size = rank.pending.size() + rank.transfers.plan_size();
  if (size > 0 && (size >= PlanBatch::kMaxItems || process.tenant->pending_items >= share)) {
    flush(rank);
  } else if (!rank.pending.empty() && rank.pending.plan() != plan) {
    flush_collectives(rank);
  }
}

void Aggregator::hold_transfer(SinkProcess& process, CommRank& rank, std::uint16_t plan,
                               const PendingTransfer& transfer) {
  if (transfer.item.duration_ns == 0 && transfer.peer == rank.rank) {
    if (rank.transfers.own_is_full()) flush_all_of(rank);
    rank.transfers.add_own(plan, transfer, now_ns_);
  } else {
    make_room(process, rank, plan);
    if (!rank.transfers.has_room_for(plan)) settle_plan(rank, rank.transfers.oldest_plan());
    rank.transfers.add(plan, transfer, now_ns_);
  }
  ++process.tenant->pending_items;
}

void Aggregator::count(CommRank& rank, const TimedItem& item, std::uint64_t bytes,
                       std::size_t timing, std::size_t reason) {
  Communicator& communicator = *rank.communicator;
  Job& job = *communicator.job;
  OperationSumsRow& row = communicator.counters->find(item.function, item.size_class,
                                                      item.algorithm, item.protocol, job.growth);
  ++row.operations_by_timing[timing];
  communicator.untimed.add(timing == static_cast<std::size_t>(wire::TimingSource::kNone));
  row.bytes_by_timing[timing] += bytes;
  if (reason != 0) ++job.unobserved[std::min(reason, wire::kUntimedReasonCount - 1)];
}

void Aggregator::settle_transfers(CommRank& rank, std::uint16_t plan,
                                  const std::vector<PendingTransfer>& transfers, PlanBatch& batch) {
  const std::uint32_t nranks = rank.communicator->nranks;
  std::vector<Transfer> group;
  group.reserve(transfers.size());
  bool sends = false;
  bool receives = false;
  for (const PendingTransfer& t : transfers) {
    const bool is_send = t.item.function == model::Function::kSend;
    group.push_back({t.peer, is_send, t.bytes});
    (is_send ? sends : receives) = true;
  }
  if (const auto found = recogniser_.recognise(group, rank.rank, nranks)) {
    settle_all_to_all(rank, plan, *found, transfers, batch);
    return;
  }
  rank.peers.add(sends, receives);
  for (const PendingTransfer& t : transfers) {
    rank.peers.add_peer(rank.rank, nranks, t.peer, t.item.function == model::Function::kSend);
    count(rank, t.item, t.bytes, t.timing, t.reason);
    if (t.item.duration_ns > 0) batch.add(plan, t.item, now_ns_);
  }
}

void Aggregator::settle_all_to_all(CommRank& rank, std::uint16_t plan, const AllToAll& found,
                                   const std::vector<PendingTransfer>& transfers,
                                   PlanBatch& batch) {
  ++rank.all_to_alls;
  if (!found.even) ++rank.uneven_all_to_alls;
  TimedItem item = transfers.front().item;
  item.start_ns = kNever;
  item.function = model::Function::kAllToAll;
  item.size_class = size_class_of(found.bytes);
  item.bus_bytes = static_cast<double>(found.bus_bytes);
  item.warmup = false;
  std::uint64_t stop_ns = 0;
  std::size_t reason = 0;
  for (const PendingTransfer& t : transfers) {
    item.warmup |= t.item.warmup;
    if (t.item.duration_ns > 0) {
      item.start_ns = std::min(item.start_ns, t.item.start_ns);
      stop_ns = std::max(stop_ns, t.item.start_ns + t.item.duration_ns);
    } else if (t.peer != rank.rank) {
      reason = t.reason;
    }
  }
  // Its time is known if that of each of its transfers with others is.
  const bool timed = reason == 0 && stop_ns > item.start_ns;
  item.duration_ns = timed ? stop_ns - item.start_ns : 0;
  if (!timed) item.start_ns = 0;
  if (!timed && reason == 0) reason = static_cast<std::size_t>(wire::UntimedReason::kNotCarried);
  count(rank, item, found.bytes,
        static_cast<std::size_t>(timed ? wire::TimingSource::kGpu : wire::TimingSource::kNone),
        reason);
  if (timed) batch.add(plan, item, now_ns_);
}

/// Counts the Sends and Receives of a plan.
void Aggregator::settle_plan(CommRank& rank, std::uint16_t plan) {
  if (!rank.pending.empty() && rank.pending.plan() == plan) {
    flush_collectives(rank);
    return;
  }
  const std::vector<PendingTransfer> transfers = rank.transfers.take(plan);
  rank.process->tenant->pending_items -= transfers.size();
  PlanBatch batch;
  settle_transfers(rank, plan, transfers, batch);
  batch.flush([&](const AttributedItem& item) { apply(rank, item); });
}

/// Ends the plan of collectives at hand, with the Sends and Receives that ran together with them.
void Aggregator::flush_collectives(CommRank& rank) {
  std::size_t settled = rank.pending.size();
  if (rank.transfers.holds(rank.pending.plan())) {
    const std::uint16_t plan = rank.pending.plan();
    const std::vector<PendingTransfer> transfers = rank.transfers.take(plan);
    settled += transfers.size();
    settle_transfers(rank, plan, transfers, rank.pending);
  }
  rank.process->tenant->pending_items -= settled;
  rank.pending.flush([&](const AttributedItem& item) { apply(rank, item); });
}

void Aggregator::flush(CommRank& rank) {
  if (!rank.pending.empty()) flush_collectives(rank);
  while (!rank.transfers.empty()) settle_plan(rank, rank.transfers.oldest_plan());
}

void Aggregator::flush_all_of(CommRank& rank) {
  flush(rank);
  flush_own(rank, kNever);
}

void Aggregator::flush_own(CommRank& rank, std::uint64_t before_ns) {
  const std::vector<PendingTransfer> own = rank.transfers.take_own_before(before_ns);
  if (own.empty()) return;
  rank.process->tenant->pending_items -= own.size();
  rank.peers.other = true;
  for (const PendingTransfer& t : own) count(rank, t.item, t.bytes, t.timing, t.reason);
}

// ---- signals
// -------------------------------------------------------------------------------------

void Aggregator::take_steps(SinkProcess& process) {
  const std::span<const Step> steps = process.steps.steps();
  if (steps.empty()) return;
  Job& job = *process.job;
  if (!job.steps) {
    job.steps.emplace();
    job.growth += kSeriesOfSteps;
  }
  for (const Step& step : steps) {
    const std::uint64_t length_ns = step.stop_ns - step.start_ns;
    ++job.steps->counts[step_bucket(length_ns)];
    job.steps->sum_seconds += static_cast<double>(length_ns) * 1e-9;
  }
  if (!process.several_gpus && !process.gpus.empty() && process.gpus.front().activity != nullptr) {
    process.gpus.front().activity->add_steps(steps);
  }
  process.steps.clear_steps();
}

void Aggregator::infer_dimensions(Job& job) {
  for (const auto& process : job.processes) {
    const double periods = process->steps.periods();
    if (process->gone || periods < kMinSteps) continue;
    std::vector<CommRank*> ranks;
    std::vector<CommunicatorUse> uses;
    process->slots.for_each([&](CommRank& rank) {
      if (rank.communicator->folded) return;
      CommunicatorUse use;
      use.nranks = rank.communicator->nranks;
      use.nnodes = rank.communicator->nnodes;
      use.all_to_alls = rank.all_to_alls;
      use.uneven_all_to_alls = rank.uneven_all_to_alls;
      use.peers = rank.peers;
      uses.push_back(std::move(use));
      ranks.push_back(&rank);
    });
    process->steps.for_each_signature([&](const StepPeriod::SignatureCount& s) {
      for (std::size_t i = 0; i < ranks.size(); ++i) {
        if (ranks[i]->id == s.communicator) add_collectives(uses[i], s.function, s.bytes, s.count);
      }
    });
    const auto found = ncclscope::agent::infer_dimensions(uses, periods);
    for (std::size_t i = 0; i < ranks.size(); ++i) {
      std::string_view& known = ranks[i]->communicator->inferred_dimension;
      if (known.empty()) known = found[i];
    }
  }
}

void Aggregator::apply(CommRank& rank, const AttributedItem& attributed) {
  const TimedItem& item = attributed.item;
  const double seconds = attributed.duration_ns * 1e-9;
  Communicator& communicator = *rank.communicator;
  Job& job = *communicator.job;
  if (item.bus_bytes > 0) {
    OperationSumsRow& row = communicator.counters->find(item.function, item.size_class,
                                                        item.algorithm, item.protocol, job.growth);
    ++row.timed_operations;
    row.bus_bytes += item.bus_bytes;
    row.busy_seconds += seconds;
  }
  job.durations.observe(item.function, item.size_class,
                        static_cast<std::uint64_t>(attributed.duration_ns), job.growth);
  if (attributed.rank_sums && !item.warmup) {
    auto& of_rank = communicator.folded ? communicator.folded->sums : rank.sums;
    RankSums& sums = of_rank.of(item.function);
    ++sums.operations;
    sums.seconds += attributed.rank_duration_ns * 1e-9;
    sums.bus_bytes += item.bus_bytes;
    if (!communicator.folded)
      add_to_gpu(job, rank.gpu, item.function, attributed.rank_duration_ns * 1e-9);
  }
}

void Aggregator::add_to_gpu(Job& job, GpuRef gpu, model::Function function, double seconds) {
  if (gpu == GpuRef{} || function == model::Function::kSend) return;
  auto it = std::find_if(job.gpu_sums.begin(), job.gpu_sums.end(),
                         [&](const GpuSums& sums) { return sums.gpu == gpu; });
  if (it == job.gpu_sums.end()) {
    it = job.gpu_sums.insert(job.gpu_sums.end(), GpuSums{gpu, 0, 0});
    job.growth += kSeriesPerGpuSums;
  }
  it->blocking_seconds += seconds;
  if (synchronises(function)) it->collective_seconds += seconds;
}

bool Aggregator::network(SessionState& session, const wire::NetworkPhases& phases,
                         std::uint64_t index) {
  SinkProcess& process = *session.process;
  settle_if_over(*process.job);
  const bool foreign = phases.communicator == wire::kNoCommunicator;
  CommRank* rank = foreign ? nullptr : slot(session, phases.communicator);
  if (!foreign && rank == nullptr) return false;
  if (foreign && process.source == CommRank::kNoSource) {
    TailSource source;
    source.job_id = process.job->identity.job_id;
    source.cluster = process.job->identity.cluster;
    source.uid = process.job->identity.uid;
    source.pid = session.peer.pid;
    source.session_id = session.session_id;
    source.communicator_id = wire::kNoCommunicator;
    source.realtime_offset_ns = session.claims.hello.realtime_offset_ns;
    process.source = tail_.add_source(std::move(source));
  }
  push_tail(foreign ? process.source : rank->source, wire::RecordType::kNetworkPhases, &phases,
            index);
  GpuRef gpu;
  if (rank != nullptr) {
    gpu = rank->gpu;
  } else if (!process.several_gpus) {
    gpu = process.gpu;
  }
  if (static_cast<double>(phases.bytes) > kMaxMessageBytes ||
      std::any_of(std::begin(phases.phase_ns), std::end(phases.phase_ns),
                  [](std::uint64_t ns) { return ns >= wire::kMaxDurationNs; })) {
    ++process.job->unobserved[static_cast<std::size_t>(wire::UntimedReason::kTimingRejected)];
    return true;
  }
  const bool is_send = phases.is_send != 0;
  if (process.job->fold >= FoldStep::kProcess) gpu = GpuRef{};
  std::vector<NetworkSums>& rows = process.job->network;
  auto it = std::find_if(rows.begin(), rows.end(), [&](const NetworkSums& r) {
    return r.gpu == gpu && r.is_send == is_send;
  });
  if (it == rows.end()) {
    NetworkSums made;
    made.gpu = gpu;
    made.is_send = is_send;
    it = rows.insert(rows.end(), made);
    process.job->growth += kSeriesPerNetworkRow;
  }
  for (std::size_t i = 0; i < it->phase_seconds.size(); ++i) {
    it->phase_seconds[i] += static_cast<double>(phases.phase_ns[i]) * 1e-9;
  }
  it->bytes += phases.bytes;
  ++it->operations;
  return true;
}

bool Aggregator::channel(SessionState& session, const wire::ChannelDetail& detail,
                         std::uint64_t index) {
  const CommRank* rank = slot(session, detail.communicator);
  if (rank == nullptr) return false;
  push_tail(rank->source, wire::RecordType::kChannelDetail, &detail, index);
  return true;
}

// ---- time
// ----------------------------------------------------------------------------------------

void Aggregator::tick() {
  const std::uint64_t now = clock_.monotonic_ns();
  now_ns_ = now;
  const bool pending = std::any_of(tenants_.begin(), tenants_.end(), [](const auto& tenant) {
    return tenant.second.pending_items > 0;
  });
  if (pending) {
    for_each_rank([&](CommRank& rank) {
      const bool old =
          (!rank.pending.empty() && now - rank.pending.since_ns() >= options_.batch_age_ns) ||
          (!rank.transfers.empty() && now - rank.transfers.since_ns() >= options_.batch_age_ns);
      if (old) flush(rank);
      if (now > kOwnTransferNs) flush_own(rank, now - kOwnTransferNs);
    });
  }
  for (auto& [key, job] : jobs_) {
    if (now >= job->dimensions_at_ns) {
      infer_dimensions(*job);
      job->dimensions_at_ns = now + kDimensionIntervalNs;
    }
    for (auto& process : job->processes) {
      const SessionState& session = *process->session;
      if (!process->gone && session.connection == nullptr &&
          now - session.closed_at_ns >= options_.vanish_ns) {
        end_process(*process);
      }
    }
  }
  end_windows(now);
  expire(now);
}

void Aggregator::flush_all() {
  for_each_rank([&](CommRank& rank) { flush_all_of(rank); });
}

void Aggregator::expire(std::uint64_t now) {
  for (auto job = jobs_.begin(); job != jobs_.end();) {
    auto& communicators = job->second->communicators;
    for (auto it = communicators.begin(); it != communicators.end();) {
      auto& ranks = it->second->ranks;
      std::erase_if(ranks, [&](const std::unique_ptr<CommRank>& rank) {
        // Added, not subtracted: the rank may have ended a moment after `now` was read.
        if (rank->state == RankState::kRunning || now < rank->ended_ns + options_.grace_ns) {
          return false;
        }
        leave(*rank);
        return true;
      });
      Communicator& communicator = *it++->second;
      if (ranks.empty() && !communicator.folded) erase_communicator(communicator);
    }
    const bool only_folded = communicators.empty() ||
                             (communicators.size() == 1 && communicators.begin()->second->folded);
    Job& ended = *job++->second;
    if (ended.processes.empty() && only_folded) erase_job(ended);
  }
}

}  // namespace ncclscope::agent

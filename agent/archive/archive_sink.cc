// SPDX-License-Identifier: Apache-2.0
#include "agent/archive/archive_sink.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "agent/base/result.h"
#include "agent/identity/label_value.h"

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kDescribeAgainNs = 30'000'000'000;  // labels that were learned later
constexpr std::uint64_t kSayAgainNs = 30'000'000'000;       // that nothing has moved
constexpr std::uint64_t kBooksNs = 60'000'000'000;          // books of a process that goes on
constexpr std::size_t kMostCommunicators = Aggregator::kMaxCommunicatorsPerSession;

std::string hex16(std::uint64_t value) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = kDigits[value >> (4 * i) & 0xFu];
  return text;
}

archive::Job to_archive(const JobIdentity& from, const ArchiveSink::Options& options) {
  archive::Job to;
  to.job_id = from.job_id;
  to.cluster = from.cluster;
  to.user = from.user;
  to.partition = from.partition;
  to.account = from.account;
  to.job_name = from.job_name;
  to.array_task = from.array_task;
  to.run = from.run;
  to.kubernetes_namespace = from.kubernetes_namespace;
  to.pod = from.pod;
  to.identity_source = from.identity_source;
  to.uid = from.uid;
  to.node = options.node;
  to.producer = options.producer;
  return to;
}

archive::Process to_archive(const SessionState& session, const Aggregator::ProcessFacts& facts) {
  const HelloClaims& claims = session.claims;
  archive::Process to;
  to.session_id = session.session_id;
  to.pid = session.peer.pid != 0 ? session.peer.pid : claims.hello.pid;
  to.uid = session.peer.uid;
  to.claimed = session.peer.claimed;
  to.hostname = label_value(claims.get(wire::StringKey::kHostname));
  to.program = label_value(claims.get(wire::StringKey::kExecutable));
  to.global_rank = facts.global_rank;
  to.local_rank = facts.local_rank;
  to.step = session.peer.proof.in_slurm() ? session.peer.proof.slurm_step
                                          : label_value(claims.get(wire::StringKey::kSlurmStepId));
  to.plugin_version = facts.plugin_version;
  to.nccl_version = claims.hello.nccl_version;
  to.interface_version = claims.hello.interface_version;
  to.start_time_ns = claims.hello.start_time_ns;
  to.realtime_offset_ns = claims.hello.realtime_offset_ns;
  return to;
}

}  // namespace

struct ArchiveSink::KeptCommunicator {
  wire::CommunicatorInit init{};
  std::string name, pci_bus_id, gpu_uuid;  // as the process says, safe
  std::shared_ptr<const ArchivedSource> source;
  std::uint64_t chunk = 0;  // serial of the chunk in which it has `place`
  std::uint32_t place = 0;
  wire::Progress progress{};
  bool has_progress = false;  // that has not been kept yet
};

/// What is remembered of a session.
struct ArchiveSink::Kept {
  std::shared_ptr<const ArchivedProcess> process;
  std::unordered_map<std::uint16_t, KeptCommunicator> communicators;
  wire::Books books{};
  bool has_books = false;  // that have not been kept yet
  std::uint64_t books_kept_ns = 0;
};

ArchiveSink::ArchiveSink(Aggregator& next, ArchiveQueue& queue, ArchiveStats& stats,
                         const Clock& clock, Options options)
    : next_(next), queue_(queue), stats_(stats), clock_(clock), options_(std::move(options)) {}
ArchiveSink::~ArchiveSink() = default;

// ---- who
// -----------------------------------------------------------------------------------------

ArchiveSink::Kept& ArchiveSink::kept(const SessionState& session) {
  if (current_session_ != &session) {
    std::unique_ptr<Kept>& found = sessions_[&session];
    if (!found) found = std::make_unique<Kept>();
    current_ = found.get();
    current_session_ = &session;
  }
  return *current_;
}

/// Describes the process, and then all of its communicators, anew if something has changed.
void ArchiveSink::describe(Kept& kept, const SessionState& session) {
  const auto facts = next_.facts(session);
  if (!facts) return;
  archive::Job job = to_archive(*facts->job, options_);
  archive::Process process = to_archive(session, *facts);
  const bool same_job = kept.process != nullptr && *kept.process->job == job;
  if (!same_job || kept.process->process != process) {
    auto made = std::make_shared<ArchivedProcess>();
    made->serial = ++serial_;
    made->job = same_job ? kept.process->job : std::make_shared<const archive::Job>(std::move(job));
    made->process = std::move(process);
    kept.process = std::move(made);
  }
  for (auto& [id, communicator] : kept.communicators) {
    if (communicator.source) describe(kept, session, communicator);
  }
}

void ArchiveSink::describe(const Kept& kept, const SessionState& session,
                           KeptCommunicator& communicator) {
  const wire::CommunicatorInit& init = communicator.init;
  archive::Communicator about;
  about.id = init.communicator;
  if (auto facts = next_.facts(session, init.communicator)) {
    about.comm = std::move(facts->comm);
    about.hash_known = facts->hash_known;
    about.name = std::move(facts->name);
    about.dimension = std::move(facts->dimension);
    about.nranks = facts->nranks;
    about.nnodes = facts->nnodes;
    about.rank = facts->rank;
    about.gpu = facts->gpu;
    about.gpu_uuid = std::move(facts->gpu_uuid);
    about.pci_bus_id = std::move(facts->pci_bus_id);
  } else if (communicator.source) {
    about = communicator.source->communicator;  // its rank has ended
  } else if (init.communicator != wire::kNoCommunicator) {
    // Folded: it has no series, but its operations are kept like all others.
    about.hash_known = (init.flags & wire::kCommHashKnown) != 0 && init.hash != 0;
    about.comm = about.hash_known
                     ? hex16(init.hash)
                     : concat("local-", hex16(session.session_id), "-id", init.communicator);
    about.name = communicator.name;
    if ((init.flags & wire::kCommRanksKnown) != 0) {
      about.nranks = init.nranks;
      about.nnodes = init.nnodes;
    }
    about.rank = (init.flags & wire::kCommRankKnown) != 0 ? std::max(init.rank, -1) : -1;
    about.gpu_uuid = communicator.gpu_uuid;
    about.pci_bus_id = communicator.pci_bus_id;
  }
  about.cuda_device = init.communicator == wire::kNoCommunicator ? -1 : init.cuda_device;
  about.init_time_ns = init.init_time_ns;
  if (communicator.source && communicator.source->process == kept.process &&
      communicator.source->communicator == about) {
    return;
  }
  auto made = std::make_shared<ArchivedSource>();
  made->serial = ++serial_;
  made->process = kept.process;
  made->communicator = std::move(about);
  communicator.source = std::move(made);
  communicator.chunk = 0;
}

ArchiveSink::KeptCommunicator* ArchiveSink::communicator(Kept& kept, const SessionState& session,
                                                         std::uint16_t id) {
  auto it = kept.communicators.find(id);
  if (it == kept.communicators.end()) {
    if (id != wire::kNoCommunicator || communicators_ >= options_.max_communicators) return nullptr;
    // What the process does for others, and what it says of itself.
    it = kept.communicators.emplace(id, KeptCommunicator{}).first;
    ++communicators_;
    it->second.init.communicator = id;
  }
  if (!kept.process) describe(kept, session);
  if (!kept.process) return nullptr;
  if (!it->second.source) describe(kept, session, it->second);
  return &it->second;
}

bool ArchiveSink::session_opened(SessionState& session) {
  if (!next_.session_opened(session)) return false;
  describe(kept(session), session);
  return true;
}

void ArchiveSink::session_closed(SessionState& session) {
  next_.session_closed(session);
  const auto it = sessions_.find(&session);
  if (it == sessions_.end()) return;
  describe(*it->second, session);  // what was inferred meanwhile
  it->second->books_kept_ns = 0;
  push_state(*it->second);
}

void ArchiveSink::session_expired(SessionState& session) {
  next_.session_expired(session);
  if (const auto it = sessions_.find(&session); it != sessions_.end()) {
    communicators_ -= it->second->communicators.size();
    sessions_.erase(it);
  }
  current_session_ = nullptr;
  current_ = nullptr;
}

void ArchiveSink::communicator_init(SessionState& session, const wire::CommunicatorInit& init,
                                    const CommunicatorStrings& strings) {
  next_.communicator_init(session, init, strings);
  Kept& of = kept(session);
  auto it = of.communicators.find(init.communicator);
  if (it == of.communicators.end()) {
    if (init.communicator == wire::kNoCommunicator ||
        of.communicators.size() > kMostCommunicators ||
        communicators_ >= options_.max_communicators) {
      return;
    }
    it = of.communicators.emplace(init.communicator, KeptCommunicator{}).first;
    ++communicators_;
  } else if (init.init_time_ns != 0 && it->second.init.init_time_ns != 0 &&
             init.init_time_ns != it->second.init.init_time_ns) {
    it->second = KeptCommunicator{};  // the id is used again
  }
  KeptCommunicator& communicator = it->second;
  communicator.init = init;
  if (!strings.name.empty()) communicator.name = label_value(strings.name);
  if (!strings.pci_bus_id.empty()) communicator.pci_bus_id = label_value(strings.pci_bus_id);
  if (!strings.gpu_uuid.empty()) communicator.gpu_uuid = label_value(strings.gpu_uuid);
  if (communicator.source) describe(of, session, communicator);
}

// ---- what
// ----------------------------------------------------------------------------------------

/// Place of the communicator in the chunk at hand.
std::uint32_t ArchiveSink::place(KeptCommunicator& communicator) {
  if (!chunk_) {
    chunk_ = queue_.make();
    chunk_->serial = ++serial_;
    chunk_->records.reserve(ArchiveChunk::kRecords);
  }
  if (chunk_->empty()) chunk_->begun_ns = clock_.monotonic_ns();
  if (communicator.chunk != chunk_->serial) {
    communicator.chunk = chunk_->serial;
    communicator.place = static_cast<std::uint32_t>(chunk_->sources.size());
    chunk_->sources.push_back(communicator.source);
  }
  return communicator.place;
}

template <typename Record>
void ArchiveSink::push(const SessionState& session, std::uint16_t id, wire::RecordType type,
                       const Record& record, std::uint64_t index) {
  static_assert(sizeof(Record) == sizeof ArchiveChunk::Record::bytes);
  KeptCommunicator* of = communicator(kept(session), session, id);
  if (of == nullptr) {
    if (type == wire::RecordType::kOperation) ++stats_.dropped_queue;
    return;
  }
  const std::uint32_t at = place(*of);
  ArchiveChunk::Record& out = chunk_->records.emplace_back();
  out.source = at;
  out.type = type;
  out.index = index;
  out.sent_ns = send_time_ns_;
  std::memcpy(out.bytes, &record, sizeof record);
  if (chunk_->records.size() >= ArchiveChunk::kRecords) hand_over();
}

void ArchiveSink::push_state(Kept& of) {
  for (auto& [id, communicator] : of.communicators) {
    if (!communicator.has_progress || !communicator.source) continue;
    communicator.has_progress = false;
    const std::uint32_t at = place(communicator);
    chunk_->progress.emplace_back(at, communicator.progress);
    if (chunk_->progress.size() >= ArchiveChunk::kRecords) hand_over();
  }
  const std::uint64_t now = clock_.monotonic_ns();
  if (!of.has_books || (of.books_kept_ns != 0 && now - of.books_kept_ns < kBooksNs)) return;
  const auto it = of.communicators.find(wire::kNoCommunicator);
  if (it == of.communicators.end() || !it->second.source) return;
  of.has_books = false;
  of.books_kept_ns = now;
  const std::uint32_t at = place(it->second);
  chunk_->books.emplace_back(at, of.books);
  if (chunk_->books.size() >= ArchiveChunk::kRecords / 8) hand_over();
}

void ArchiveSink::hand_over() {
  if (!chunk_ || chunk_->empty()) return;
  if (queue_.push(chunk_)) return;
  stats_.dropped_queue += chunk_->operations();
  chunk_->clear();
  chunk_->serial = ++serial_;
}

void ArchiveSink::tick() {
  const std::uint64_t now = clock_.monotonic_ns();
  if (now - described_at_ns_ >= kDescribeAgainNs) {
    described_at_ns_ = now;
    for (auto& [session, of] : sessions_) {
      if (session->connection != nullptr) describe(*of, *session);
    }
  }
  if (now - state_at_ns_ >= options_.state_ns) {
    state_at_ns_ = now;
    for (auto& [session, of] : sessions_) push_state(*of);
  }
  hand_over();
}

void ArchiveSink::flush() {
  for (auto& [session, of] : sessions_) {
    describe(*of, *session);
    of->books_kept_ns = 0;
    push_state(*of);
  }
  hand_over();
}

void ArchiveSink::books(SessionState& session, const wire::Books& books) {
  const std::int64_t offset_ns = session.claims.hello.realtime_offset_ns;
  next_.books(session, books);
  Kept& of = kept(session);
  // The time of day was set.
  if (session.claims.hello.realtime_offset_ns != offset_ns) describe(of, session);
  if (communicator(of, session, wire::kNoCommunicator) == nullptr) return;
  of.books = books;
  of.has_books = true;
}

bool ArchiveSink::progress(SessionState& session, const wire::Progress& progress) {
  if (!next_.progress(session, progress)) return false;
  Kept& of = kept(session);
  KeptCommunicator* at = communicator(of, session, progress.communicator);
  if (at == nullptr) return true;
  // A sample that says what the last one said is not news, unless somebody hangs and it is a while
  // ago.
  wire::Progress moved = progress;
  moved.time_ns = at->progress.time_ns;
  const bool still = std::memcmp(&moved, &at->progress, sizeof moved) == 0;
  const bool hangs = progress.oldest_index != ~std::uint64_t{0} &&
                     progress.time_ns - at->progress.time_ns >= kSayAgainNs;
  if (still && !hangs) return true;
  at->progress = progress;
  at->has_progress = true;
  return true;
}

bool ArchiveSink::neighbours(SessionState& session, const wire::Neighbours& head,
                             std::span<const std::byte> peers) {
  return next_.neighbours(session, head, peers);
}

bool ArchiveSink::operation(SessionState& session, const wire::Operation& operation,
                            std::uint64_t index) {
  if (!next_.operation(session, operation, index)) return false;
  push(session, operation.communicator, wire::RecordType::kOperation, operation, index);
  return true;
}

bool ArchiveSink::network(SessionState& session, const wire::NetworkPhases& phases,
                          std::uint64_t index) {
  if (!next_.network(session, phases, index)) return false;
  push(session, phases.communicator, wire::RecordType::kNetworkPhases, phases, index);
  return true;
}

bool ArchiveSink::channel(SessionState& session, const wire::ChannelDetail& detail,
                          std::uint64_t index) {
  if (!next_.channel(session, detail, index)) return false;
  push(session, detail.communicator, wire::RecordType::kChannelDetail, detail, index);
  return true;
}

bool ArchiveSink::finalize(SessionState& session, const wire::CommunicatorFinalize& finalize,
                           std::uint64_t index) {
  Kept& of = kept(session);
  // Afterwards nothing is known of it.
  KeptCommunicator* at = communicator(of, session, finalize.communicator);
  if (at != nullptr) describe(of, session, *at);
  if (!next_.finalize(session, finalize, index)) return false;
  push(session, finalize.communicator, wire::RecordType::kCommunicatorFinalize, finalize, index);
  communicators_ -= of.communicators.erase(finalize.communicator);
  return true;
}

void ArchiveSink::frame_begin(SessionState& session, std::uint64_t send_time_ns) {
  next_.frame_begin(session, send_time_ns);
  send_time_ns_ = send_time_ns;
}

void ArchiveSink::frame_end(SessionState& session) {
  next_.frame_end(session);
}

}  // namespace ncclscope::agent

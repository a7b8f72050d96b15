// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/session.h"

#include <algorithm>
#include <charconv>
#include <random>

namespace ncclscope::cli {
namespace {

/// As often as the plugin sends.
constexpr std::uint64_t kFrameNs = 100'000'000;

std::vector<std::byte> copy_of(std::span<const std::byte> bytes) {
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> init_record(const archive::Communicator& c) {
  wire::CommunicatorInit init{};
  init.communicator = c.id;
  std::uint64_t hash = 0;
  const char* end = c.comm.data() + c.comm.size();
  const bool hash_known =
      c.hash_known && std::from_chars(c.comm.data(), end, hash, 16).ptr == end && hash != 0;
  if (hash_known) {
    init.flags |= wire::kCommHashKnown;
    init.hash = hash;
  }
  if (c.nranks != 0) init.flags |= wire::kCommRanksKnown;
  if (c.rank >= 0) init.flags |= wire::kCommRankKnown;
  init.nranks = c.nranks;
  init.nnodes = c.nnodes;
  init.rank = c.rank;
  init.cuda_device = c.cuda_device;
  init.init_time_ns = c.init_time_ns;
  wire::StringRecordWriter<wire::CommunicatorInit> record(init,
                                                          wire::RecordType::kCommunicatorInit);
  if (!c.name.empty()) record.add(wire::StringKey::kCommunicatorName, c.name);
  if (!c.pci_bus_id.empty()) record.add(wire::StringKey::kGpuPciBusId, c.pci_bus_id);
  if (!c.gpu_uuid.empty()) record.add(wire::StringKey::kGpuUuid, c.gpu_uuid);
  return copy_of(record.finish());
}

}  // namespace

std::uint64_t random_id() {
  std::random_device random;
  std::uint64_t id = 0;
  while (id == 0) id = std::uint64_t{random()} << 32 | random();
  return id;
}

void make_hello(const archive::Job& job, const archive::Process& process, std::string_view job_id,
                ReplayedSession& session) {
  wire::Hello hello{};
  hello.interface_version = static_cast<std::uint16_t>(process.interface_version);
  hello.nccl_version = process.nccl_version;
  hello.session_id = session.id;
  hello.acknowledged_index = session.before;
  hello.next_index = session.before + 1;
  hello.agent_instance = session.before == 0 ? 0 : 1;
  hello.start_time_ns = process.start_time_ns;
  hello.realtime_offset_ns = process.realtime_offset_ns;
  hello.pid = static_cast<std::uint32_t>(process.pid);
  hello.uid = static_cast<std::uint32_t>(process.uid);
  wire::StringRecordWriter<wire::Hello> record(hello, wire::RecordType::kHello);
  const auto say = [&record](wire::StringKey key, std::string_view text) {
    if (!text.empty()) record.add(key, text);
  };
  say(wire::StringKey::kSlurmJobId, job_id);
  say(wire::StringKey::kSlurmStepId, process.step);
  say(wire::StringKey::kSlurmClusterName, job.cluster);
  say(wire::StringKey::kSlurmJobName, job.job_name);
  say(wire::StringKey::kSlurmJobPartition, job.partition);
  say(wire::StringKey::kSlurmJobAccount, job.account);
  if (job.run != 0) say(wire::StringKey::kSlurmRestartCount, std::to_string(job.run));
  say(wire::StringKey::kRank, process.global_rank);
  say(wire::StringKey::kLocalRank, process.local_rank);
  say(wire::StringKey::kPluginVersion, process.plugin_version);
  say(wire::StringKey::kHostname, process.hostname);
  say(wire::StringKey::kExecutable, process.program);
  session.realtime_offset_ns = process.realtime_offset_ns;
  session.hello = copy_of(record.finish());
}

FrameMaker::FrameMaker(ReplayedSession& session, std::vector<ReplayedFrame>& out)
    : session_(session), out_(out), buffer_(wire::kMaxFrameBytes), writer_(buffer_) {}

void FrameMaker::begin(std::uint64_t first_index, std::uint64_t time_ns) {
  if (first_index_ == 0) first_index_ = next_index_ = first_index;
  if (begun_ns_ == 0) begun_ns_ = time_ns;
}

/// Says who the communicator is, unless the agent knows that already.
void FrameMaker::announce(const archive::Communicator& c) {
  if (c.id == wire::kNoCommunicator) return;
  const auto known = session_.communicators.find(c.id);
  if (known != session_.communicators.end() && known->second == c) return;
  session_.communicators[c.id] = c;
  const std::vector<std::byte> record = init_record(c);
  if (!writer_.add_bytes(record)) {
    finish();
    writer_.add_bytes(record);
  }
}

void FrameMaker::add(const archive::Communicator& communicator, std::uint64_t index,
                     std::span<const std::byte> record, std::uint64_t time_ns) {
  if (index <= session_.last) return;  // an agent would not count it again
  const bool late = time_ns > begun_ns_ && time_ns - begun_ns_ > kFrameNs;
  const bool gap = first_index_ != 0 && index != next_index_;
  if (!writer_.empty() && (late || gap || writer_.room() < record.size())) finish();
  announce(communicator);
  if (writer_.room() < record.size()) finish();
  begin(index, time_ns);
  writer_.add_bytes(record);
  ++next_index_;
  time_ns_ = std::max(time_ns_, time_ns);
  session_.last = index;
  ++session_.records;
  const auto type = static_cast<wire::RecordType>(record[0]);
  if (type == wire::RecordType::kOperation) {
    ++operations_;
    ++session_.operations;
  }
  if (type == wire::RecordType::kCommunicatorFinalize)
    session_.communicators.erase(communicator.id);
}

void FrameMaker::add_state(const archive::Communicator* communicator,
                           std::span<const std::byte> record, std::uint64_t time_ns) {
  if (communicator != nullptr) announce(*communicator);
  if (writer_.room() < record.size()) finish();
  begin(0, time_ns);
  writer_.add_bytes(record);
  time_ns_ = std::max(time_ns_, time_ns);
}

void FrameMaker::finish() {
  if (writer_.empty()) return;
  // Clocks that go back would make ages wrong.
  session_.last_time_ns = std::max(session_.last_time_ns, time_ns_);
  const std::span<const std::byte> packet = writer_.finish(first_index_, session_.last_time_ns);
  ReplayedFrame& frame = out_.emplace_back();
  frame.session = &session_;
  frame.due_ns = static_cast<std::int64_t>(session_.last_time_ns +
                                           static_cast<std::uint64_t>(session_.realtime_offset_ns));
  frame.packet = copy_of(packet);
  frame.operations = operations_;
  first_index_ = next_index_ = 0;
  operations_ = 0;
  begun_ns_ = 0;
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
//
// The frames behind tests/data/frames/v1. Values are arbitrary but all different, so that a field
// that moves is noticed. Never change what a released version wrote: add files.
#pragma once

#include <cstddef>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "proto/model/operation.h"
#include "proto/wire/encode.h"

namespace ncclscope::wire::golden {

using Bytes = std::vector<std::byte>;

inline Bytes frame(std::uint64_t first_index, const std::function<void(FrameWriter&)>& fill) {
  Bytes buffer(kMaxFrameBytes);
  FrameWriter writer(buffer);
  fill(writer);
  const auto packet = writer.finish(first_index, 0x1122334455667788u);
  return {packet.begin(), packet.end()};
}

template <typename Record>
void add(FrameWriter& writer, Record record, RecordType type) {
  set_header(record, type);
  writer.add(record);
}

inline Hello hello() {
  Hello h{};
  h.interface_version = 5;
  h.nccl_version = 22809;
  h.capabilities = kCapabilityNetworkPhases | kCapabilityChannelDetail | kCapabilitySetDetail;
  h.session_id = 0x0102030405060708u;
  h.next_index = 1001;
  h.acknowledged_index = 900;
  h.agent_instance = 0xA1A2A3A4A5A6A7A8u;
  h.start_time_ns = 111;
  h.realtime_offset_ns = -222;
  h.pid = 4711;
  h.uid = 1000;
  return h;
}
inline CommunicatorInit communicator_init() {
  CommunicatorInit c{};
  c.communicator = 3;
  c.flags = kCommHashKnown | kCommRanksKnown | kCommRankKnown;
  c.hash = 0xDEADBEEFCAFEF00Du;
  c.nranks = 16;
  c.nnodes = 2;
  c.rank = 9;
  c.cuda_device = 1;
  c.init_time_ns = 333;
  return c;
}
inline Operation operation() {
  Operation o{};
  o.communicator = 3;
  o.function = static_cast<std::uint8_t>(model::Function::kReduceScatter);
  o.datatype = static_cast<std::uint8_t>(model::DataType::kBfloat16);
  o.algorithm_protocol =
      static_cast<std::uint8_t>(model::Algorithm::kRing) |
      static_cast<std::uint8_t>(static_cast<unsigned>(model::Protocol::kLl128) << 4);
  o.untimed_reason = static_cast<std::uint8_t>(UntimedReason::kNone);
  o.channels = 16;
  o.channels_seen = 15;
  o.flags = static_cast<std::uint16_t>(static_cast<std::uint16_t>(TimingSource::kGpu) |
                                       operation_flags::kApiSeen | operation_flags::kTaskSeen);
  o.root_or_peer = -1;
  o.index = 77;
  o.sequence = 78;
  o.count_plan = pack_count_plan(123'456'789, 42);
  o.api_time_ns = 444;
  o.gpu_start_ns = 555;
  o.duration_enqueue = pack_duration_enqueue(6'000'000'000, 17);
  return o;
}
inline Progress progress() {
  Progress p{};
  p.communicator = 3;
  p.flags = kProgressOldestStarted | kProgressOldestOnNetwork;
  p.time_ns = 1;
  p.collectives_enqueued = 2;
  p.collectives_started = 3;
  p.collectives_completed = 4;
  p.p2p_enqueued = 5;
  p.p2p_started = 6;
  p.p2p_completed = 7;
  p.seen = 8;
  p.recorded = 9;
  p.dropped = 10;
  p.oldest_index = 11;
  p.oldest_time_ns = 12;
  p.oldest_signature = 13;
  return p;
}
inline Books books() {
  Books b{};
  b.mask = 0x46;
  b.time_ns = 1;
  b.realtime_offset_ns = -2;
  b.seen = 3;
  b.recorded = 4;
  b.open = 5;
  b.records_written = 6;
  b.records_overwritten = 7;
  for (std::size_t i = 0; i < kDropReasonCount; ++i) b.dropped[i] = 100 + i;
  for (std::size_t i = 0; i < kUntimedReasonCount; ++i) b.untimed[i] = 200 + i;
  for (std::size_t i = 0; i < 16; ++i) b.events[i] = 300 + i;
  b.stops_unmatched = 8;
  b.children_dropped = 9;
  b.callback_ns = 10;
  b.callbacks = 11;
  b.sender_cpu_ns = 12;
  b.frames_sent = 13;
  b.connects = 14;
  b.detail = 2;
  b.governor = 1;
  b.communicators = 15;
  return b;
}
/// With what came after its first 448 bytes.
inline Books books_with_governor() {
  Books b = books();
  b.detail_asked = 2;
  b.network = 1;
  b.kernel_slice = 16;
  b.governor_changes = 17;
  b.governor_since_ns = 18;
  b.governor_trigger_ratio = 0.5;
  b.recent_ratio = 0.25;
  b.budget_ratio = 0.001;
  b.nccl_cost_ratio = 0.03125;
  b.nccl_cost_error = 0.0078125;
  b.nccl_cost_blocks = 19;
  return b;
}
/// With what came after its first 512 bytes.
inline Books books_with_files() {
  Books b = books_with_governor();
  b.file_lines = 20;
  b.file_lines_late = 21;
  b.file_lines_failed = 22;
  b.file_records_missed = 23;
  return b;
}
inline NetworkPhases network_phases() {
  NetworkPhases n{};
  n.communicator = 3;
  n.index = 77;
  n.is_send = 1;
  n.channels = 8;
  n.peer = 4;
  n.bytes = 5;
  n.steps = 6;
  n.steps_incomplete = 7;
  n.phase_ns[0] = 8;
  n.phase_ns[1] = 9;
  n.phase_ns[2] = 10;
  return n;
}
inline ChannelDetail channel_detail() {
  ChannelDetail c{};
  c.communicator = 3;
  c.index = 77;
  c.channel = 4;
  c.flags = 1;
  c.function = 2;
  c.gpu_start_ns = 5;
  c.gpu_stop_ns = 6;
  c.host_start_ns = 7;
  c.host_stop_ns = 8;
  return c;
}
inline CommunicatorFinalize communicator_finalize() {
  CommunicatorFinalize f{};
  f.communicator = 3;
  f.unfinished = 1;
  f.time_ns = 2;
  f.collectives_enqueued = 3;
  f.collectives_completed = 4;
  f.p2p_enqueued = 5;
  f.p2p_completed = 6;
  f.seen = 7;
  return f;
}

/// An operation as a later minor version may write it: 8 bytes longer.
struct LongerOperation {
  Operation known;
  std::uint64_t later;
};

/// Name of the file, and its frame.
inline std::vector<std::pair<std::string, Bytes>> all() {
  std::vector<std::pair<std::string, Bytes>> out;
  out.emplace_back("hello", frame(0, [](FrameWriter& w) {
                     StringRecordWriter<Hello> record(hello(), RecordType::kHello);
                     record.add(StringKey::kPluginVersion, "0.1.0");
                     record.add(StringKey::kSlurmJobId, "1234");
                     record.add(StringKey::kRank, "9");
                     w.add_bytes(record.finish());
                   }));
  out.emplace_back("communicator_init", frame(0, [](FrameWriter& w) {
                     StringRecordWriter<CommunicatorInit> record(communicator_init(),
                                                                 RecordType::kCommunicatorInit);
                     record.add(StringKey::kCommunicatorName, "dp");
                     record.add(StringKey::kGpuPciBusId, "0000:3b:00.0");
                     record.add(StringKey::kGpuUuid, "GPU-0b5ed2a4");
                     w.add_bytes(record.finish());
                   }));
  out.emplace_back("state", frame(0, [](FrameWriter& w) {
                     add(w, progress(), RecordType::kProgress);
                     // As long as it was at first.
                     Books first = books();
                     set_header(first, RecordType::kBooks, kBooksFirstBytes);
                     w.add_bytes(std::as_bytes(std::span(&first, 1)).first(kBooksFirstBytes));
                     struct {
                       Neighbours head;
                       Neighbour peers[2];
                     } neighbours{};
                     neighbours.head.communicator = 3;
                     neighbours.head.count = 2;
                     neighbours.peers[0] = {8, 1, 2, 0};
                     neighbours.peers[1] = {10, 0, 4, 0};
                     set_header(neighbours.head, RecordType::kNeighbours, sizeof neighbours);
                     w.add(neighbours);
                     add(w, Goodbye{}, RecordType::kGoodbye);
                   }));
  out.emplace_back("books_with_governor", frame(0, [](FrameWriter& w) {
                     // As long as it was then.
                     Books second = books_with_governor();
                     set_header(second, RecordType::kBooks, kBooksSecondBytes);
                     w.add_bytes(std::as_bytes(std::span(&second, 1)).first(kBooksSecondBytes));
                   }));
  out.emplace_back("books_with_files", frame(0, [](FrameWriter& w) {
                     add(w, books_with_files(), RecordType::kBooks);
                   }));
  out.emplace_back("indexed", frame(1001, [](FrameWriter& w) {
                     add(w, operation(), RecordType::kOperation);
                     add(w, network_phases(), RecordType::kNetworkPhases);
                     add(w, channel_detail(), RecordType::kChannelDetail);
                     add(w, communicator_finalize(), RecordType::kCommunicatorFinalize);
                   }));
  out.emplace_back("agent", frame(0, [](FrameWriter& w) {
                     Welcome welcome{};
                     welcome.agent_instance = 1;
                     welcome.highest_index = 2;
                     welcome.capabilities = 3;
                     add(w, welcome, RecordType::kWelcome);
                     Ack ack{};
                     ack.index = 4;
                     add(w, ack, RecordType::kAck);
                     SetDetail detail{};
                     detail.level = 2;
                     detail.network = 1;
                     detail.duration_ms = 5000;
                     add(w, detail, RecordType::kSetDetail);
                     Refuse refuse{};
                     refuse.reason = static_cast<std::uint16_t>(RefuseReason::kVersion);
                     refuse.major = 1;
                     add(w, refuse, RecordType::kRefuse);
                   }));
  out.emplace_back("agent_restarted",
                   frame(0, [](FrameWriter& w) { add(w, HelloAgain{}, RecordType::kHelloAgain); }));
  out.emplace_back("environment", frame(0, [](FrameWriter& w) {
                     StringRecordWriter<Hello> hello_record(hello(), RecordType::kHello);
                     w.add_bytes(hello_record.finish());
                     Environment head{};
                     StringRecordWriter<Environment> first(head, RecordType::kEnvironment);
                     first.add(StringKey::kVariable, "NCCL_DEBUG=WARN");
                     first.add(StringKey::kVariable, "NCCL_IB_HCA=mlx5_0,");
                     first.add(StringKey::kVariableMore, "mlx5_1");
                     w.add_bytes(first.finish());
                     head.flags = kEnvironmentEnd | kEnvironmentCut;
                     StringRecordWriter<Environment> last(head, RecordType::kEnvironment);
                     last.add(StringKey::kVariable, "NCCL_ALGO=");
                     w.add_bytes(last.finish());
                   }));
  // What a later minor version may send: unknown types (one of them indexed), longer bodies, a
  // longer header.
  Bytes future = frame(500, [](FrameWriter& w) {
    add(w, Goodbye{}, static_cast<RecordType>(99));
    LongerOperation longer{operation(), 0xFFFFFFFFFFFFFFFFu};
    set_header(longer.known, RecordType::kOperation, sizeof longer);
    w.add(longer);
    add(w, NetworkPhases{}, static_cast<RecordType>(40));
    add(w, operation(), RecordType::kOperation);
  });
  future.insert(future.begin() + sizeof(FrameHeader), 8, std::byte{0xEE});
  FrameHeader header;
  std::memcpy(&header, future.data(), sizeof header);
  header.header_bytes = 40;
  header.flags = 0x8000;
  header.frame_bytes = static_cast<std::uint32_t>(future.size());
  std::memcpy(future.data(), &header, sizeof header);
  out.emplace_back("future", std::move(future));
  return out;
}

}  // namespace ncclscope::wire::golden

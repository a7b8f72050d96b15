// SPDX-License-Identifier: Apache-2.0
//
// A plugin's side of the wire for tests and benchmarks: builds frames record by record and counts
// indexes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "proto/model/operation.h"
#include "proto/wire/decode.h"
#include "proto/wire/encode.h"

namespace ncclscope::agent::testing {

using Strings = std::vector<std::pair<wire::StringKey, std::string_view>>;
using Packet = std::vector<std::byte>;

inline wire::Hello make_hello(std::uint64_t session_id, std::uint64_t acknowledged = 0) {
  wire::Hello hello{};
  hello.interface_version = 5;
  hello.nccl_version = 22809;
  hello.capabilities = wire::kCapabilityNetworkPhases | wire::kCapabilitySetDetail;
  hello.session_id = session_id;
  hello.next_index = acknowledged + 1;
  hello.acknowledged_index = acknowledged;
  hello.pid = 4242;
  return hello;
}

inline wire::CommunicatorInit make_init(std::uint16_t id, std::uint64_t hash, std::int32_t rank,
                                        std::uint32_t nranks, std::uint32_t nnodes = 1) {
  wire::CommunicatorInit init{};
  init.communicator = id;
  init.flags = wire::kCommRankKnown | wire::kCommRanksKnown;
  if (hash != 0) init.flags |= wire::kCommHashKnown;
  init.hash = hash;
  init.rank = rank;
  init.nranks = nranks;
  init.nnodes = nnodes;
  init.cuda_device = rank;
  init.init_time_ns = 1000;
  return init;
}

struct OperationSpec {
  std::uint16_t communicator = 0;
  model::Function function = model::Function::kAllReduce;
  model::DataType datatype = model::DataType::kFloat32;
  model::Algorithm algorithm = model::Algorithm::kRing;
  model::Protocol protocol = model::Protocol::kSimple;
  std::uint64_t count = 1024;
  std::uint16_t plan = 0;
  std::uint64_t api_ns = 0;
  std::uint64_t gpu_start_ns = 1'000'000;
  std::uint64_t duration_ns = 100'000;
  wire::TimingSource timing = wire::TimingSource::kGpu;
  wire::UntimedReason untimed = wire::UntimedReason::kNone;
  std::uint16_t flags = wire::operation_flags::kComplete | wire::operation_flags::kTaskSeen;
  std::uint32_t index = 0;
};

inline wire::Operation make_operation(const OperationSpec& s) {
  wire::Operation o{};
  wire::set_header(o, wire::RecordType::kOperation);
  o.communicator = s.communicator;
  o.function = static_cast<std::uint8_t>(s.function);
  o.datatype = static_cast<std::uint8_t>(s.datatype);
  o.algorithm_protocol = static_cast<std::uint8_t>(static_cast<unsigned>(s.algorithm) |
                                                   static_cast<unsigned>(s.protocol) << 4);
  o.untimed_reason = static_cast<std::uint8_t>(s.untimed);
  o.channels = o.channels_seen = 8;
  o.flags = static_cast<std::uint16_t>(s.flags | static_cast<std::uint16_t>(s.timing));
  o.root_or_peer = -1;
  o.index = s.index;
  o.count_plan = wire::pack_count_plan(s.count, s.plan);
  o.api_time_ns = s.api_ns;
  o.gpu_start_ns = s.gpu_start_ns;
  o.duration_enqueue = wire::pack_duration_enqueue(s.duration_ns, 0);
  return o;
}

/// Collects records into one packet.
class PacketBuilder {
 public:
  PacketBuilder() : buffer_(wire::kMaxFrameBytes), writer_(buffer_) {}

  PacketBuilder& hello(const wire::Hello& hello, const Strings& strings = {}) {
    wire::StringRecordWriter<wire::Hello> record(hello, wire::RecordType::kHello);
    for (const auto& [key, text] : strings) record.add(key, text);
    writer_.add_bytes(record.finish());
    return *this;
  }
  PacketBuilder& init(const wire::CommunicatorInit& init, const Strings& strings = {}) {
    wire::StringRecordWriter<wire::CommunicatorInit> record(init,
                                                            wire::RecordType::kCommunicatorInit);
    for (const auto& [key, text] : strings) record.add(key, text);
    writer_.add_bytes(record.finish());
    return *this;
  }
  /// One record of the environment, a variable a string.
  PacketBuilder& environment(const std::vector<std::string_view>& variables,
                             std::uint16_t flags = wire::kEnvironmentEnd) {
    wire::Environment head{};
    head.flags = flags;
    wire::StringRecordWriter<wire::Environment> record(head, wire::RecordType::kEnvironment);
    for (const std::string_view variable : variables)
      record.add(wire::StringKey::kVariable, variable);
    writer_.add_bytes(record.finish());
    return *this;
  }
  template <typename Record>
  PacketBuilder& add(Record record, wire::RecordType type) {
    wire::set_header(record, type);
    writer_.add(record);
    return *this;
  }
  PacketBuilder& operation(const OperationSpec& spec = {}) {
    writer_.add(make_operation(spec));
    return *this;
  }
  PacketBuilder& operations(int count, OperationSpec spec = {}) {
    for (int i = 0; i < count; ++i) operation(spec);
    return *this;
  }
  PacketBuilder& finalize(std::uint16_t communicator) {
    wire::CommunicatorFinalize f{};
    f.communicator = communicator;
    return add(f, wire::RecordType::kCommunicatorFinalize);
  }
  PacketBuilder& progress(std::uint16_t communicator, std::uint64_t time_ns,
                          std::uint64_t oldest_index = ~std::uint64_t{0},
                          std::uint64_t oldest_time_ns = 0) {
    wire::Progress p{};
    p.communicator = communicator;
    p.time_ns = time_ns;
    p.oldest_index = oldest_index;
    p.oldest_time_ns = oldest_time_ns;
    return add(p, wire::RecordType::kProgress);
  }
  PacketBuilder& goodbye() { return add(wire::Goodbye{}, wire::RecordType::kGoodbye); }

  Packet finish(std::uint64_t first_index = 0, std::uint64_t send_time_ns = 1'000'000'000'000) {
    const auto packet = writer_.finish(first_index, send_time_ns);
    return {packet.begin(), packet.end()};
  }

 private:
  std::vector<std::byte> buffer_;
  wire::FrameWriter writer_;
};

/// The only record of a frame that the agent sent.
template <typename Record>
Record reply(std::span<const std::byte> frame) {
  Record record{};
  if (frame.size() >= sizeof(wire::FrameHeader) + sizeof(Record)) {
    std::memcpy(&record, frame.data() + sizeof(wire::FrameHeader), sizeof record);
  }
  return record;
}
inline wire::RecordType reply_type(std::span<const std::byte> frame) {
  return frame.size() > sizeof(wire::FrameHeader)
             ? static_cast<wire::RecordType>(frame[sizeof(wire::FrameHeader)])
             : wire::RecordType{};
}

}  // namespace ncclscope::agent::testing

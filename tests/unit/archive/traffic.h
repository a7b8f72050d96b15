// SPDX-License-Identifier: Apache-2.0
//
// Records for tests of the archive: a process that does steps of a training job, with the noise
// that times have.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <vector>

#include "archive/context.h"
#include "proto/model/operation.h"
#include "proto/wire/encode.h"
#include "proto/wire/frame.h"

namespace ncclscope::archive::testing {

inline Job make_job() {
  Job job;
  job.job_id = "4711";
  job.cluster = "testcluster";
  job.user = "ada";
  job.job_name = "train";
  job.run = 2;
  job.identity_source = "cgroup";
  job.uid = 1000;
  job.node = "node0";
  job.producer = "test 1.0";
  return job;
}

inline Process make_process(std::int64_t pid) {
  Process process;
  process.session_id = 0x1234'5678'9ABC'DEF0u + static_cast<std::uint64_t>(pid);
  process.pid = pid;
  process.uid = 1000;
  process.hostname = "node0";
  process.program = "python3";
  process.global_rank = "3";
  process.nccl_version = 22809;
  process.interface_version = 5;
  process.start_time_ns = 5'000'000'000;
  process.realtime_offset_ns = 1'700'000'000'000'000'000;
  return process;
}

inline Communicator make_communicator(std::uint16_t id, std::int32_t rank) {
  Communicator c;
  c.id = id;
  c.comm = "00000000deadbeef";
  c.hash_known = true;
  c.name = "DP \"group\"";
  c.dimension = "dp";
  c.nranks = 8;
  c.nnodes = 2;
  c.rank = rank;
  c.cuda_device = 0;
  c.gpu = rank;
  c.gpu_uuid = "GPU-1";
  c.init_time_ns = 5'000'000'001;
  return c;
}

/// One process's operations: `buckets` collectives a step, on `communicators` in turn.
class Traffic {
 public:
  explicit Traffic(std::uint64_t seed, std::uint16_t communicators = 2, unsigned buckets = 24)
      : random_(seed),
        communicators_(communicators),
        buckets_(buckets),
        index_(communicators),
        sequence_(communicators) {}

  wire::Operation next() {
    const unsigned place = step_place_++;
    if (step_place_ == buckets_) {
      step_place_ = 0;
      call_ns_ += 20'000'000 + noise(200'000);
    }
    const auto id = static_cast<std::uint16_t>(place % communicators_);
    call_ns_ += 180'000 + noise(20'000);
    wire::Operation o{};
    wire::set_header(o, wire::RecordType::kOperation);
    o.communicator = id;
    constexpr model::Function kMix[] = {model::Function::kAllReduce, model::Function::kAllGather,
                                        model::Function::kReduceScatter};
    o.function = static_cast<std::uint8_t>(kMix[place % 3]);
    o.datatype = static_cast<std::uint8_t>(model::DataType::kBfloat16);
    o.algorithm_protocol =
        static_cast<std::uint8_t>(static_cast<unsigned>(model::Algorithm::kRing) |
                                  static_cast<unsigned>(model::Protocol::kSimple) << 4);
    o.channels = o.channels_seen = 16;
    o.flags = static_cast<std::uint16_t>(
        static_cast<unsigned>(wire::TimingSource::kGpu) | wire::operation_flags::kComplete |
        wire::operation_flags::kApiSeen | wire::operation_flags::kTaskSeen |
        wire::operation_flags::kSequenceKnown);
    o.root_or_peer = -1;
    o.index = index_[id]++;
    o.sequence = sequence_[id]++;
    o.count_plan = wire::pack_count_plan(std::uint64_t{1} << (12 + place % 8), ++plan_);
    o.api_time_ns = call_ns_;
    gpu_free_ns_ = std::max(gpu_free_ns_ + 3'000 + noise(2'000), call_ns_ + 12'000);
    o.gpu_start_ns = kGpuClock + gpu_free_ns_;
    const std::uint64_t duration = 100'000 + place % 8 * 40'000 + noise(8'000);
    gpu_free_ns_ += duration;
    o.duration_enqueue = wire::pack_duration_enqueue(duration, 4 + noise(3));
    return o;
  }
  [[nodiscard]] std::uint64_t now_ns() const { return std::max(call_ns_, gpu_free_ns_) + 50'000; }

  static constexpr std::uint64_t kGpuClock = 1'700'000'123'000'000'000;  // GPU - host

 private:
  std::uint64_t noise(std::uint64_t most) { return random_() % (most + 1); }

  std::mt19937_64 random_;
  std::uint16_t communicators_;
  unsigned buckets_, step_place_ = 0;
  std::vector<std::uint32_t> index_, sequence_;
  std::uint16_t plan_ = 0;
  std::uint64_t call_ns_ = 7'000'000'000, gpu_free_ns_ = 0;
};

}  // namespace ncclscope::archive::testing

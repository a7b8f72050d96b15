// SPDX-License-Identifier: Apache-2.0
//
// Whose records they are: job, process, communicator. Plain values that a reader needs to give
// every operation its full row, without the agent that wrote them.
//   Strings are as the agent shows them (sanitised); empty = unknown. Times: nanoseconds.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace ncclscope::archive {

/// The job of a segment, on one node.
struct Job {
  std::string job_id, cluster;
  std::string user, partition, account, job_name, array_task;
  std::uint32_t run = 0;  // how often it was started again
  std::string kubernetes_namespace, pod;
  std::string identity_source;  // "cgroup", "claimed", "unknown"
  std::int64_t uid = -1;        // owner as the kernel says, -1 = unknown
  std::string node;             // where it was written
  std::string producer;         // "ncclscope-agent 0.1.0", ...

  bool operator==(const Job&) const = default;
};

/// One load of the plugin in one process.
struct Process {
  std::uint64_t session_id = 0;
  std::int64_t pid = 0;   // as the node's agent sees it
  std::int64_t uid = -1;  // likewise
  bool claimed = false;   // nothing about it is proved: it came through the API
  std::string hostname;   // as the process sees it
  std::string program;
  std::string global_rank, local_rank;  // as the launcher numbers them
  std::string step;                     // SLURM's
  std::string plugin_version;
  std::uint32_t nccl_version = 0;       // 22809 = 2.28.9, 0 = unknown
  std::uint32_t interface_version = 0;  // N of ncclProfiler_vN
  std::uint64_t start_time_ns = 0;      // CLOCK_MONOTONIC, the plugin's first init
  std::int64_t realtime_offset_ns = 0;  // time since the epoch - CLOCK_MONOTONIC

  bool operator==(const Process&) const = default;
};

/// One rank of one communicator.
struct Communicator {
  std::uint16_t id = 0xFFFF;  // in the process's records; 65535 = work for other processes
  std::string comm;           // 16 hex digits, or a local name where the hash is unknown
  bool hash_known = false;
  std::string name;                      // as the application calls it
  std::string dimension;                 // tp, pp, dp, ep, cp, mp; empty = unknown
  std::uint32_t nranks = 0, nnodes = 0;  // 0 = unknown
  std::int32_t rank = -1;                // -1 = unknown
  std::int32_t cuda_device = -1;         // ordinal in the process
  std::int32_t gpu = -1;                 // index on the node in PCI bus order
  std::string gpu_uuid, pci_bus_id;
  std::uint64_t init_time_ns = 0;  // CLOCK_MONOTONIC

  bool operator==(const Communicator&) const = default;
};

/// A description as a context block holds it. The same id again replaces what was known.
enum class ContextKind : std::uint8_t { kJob = 1, kProcess = 2, kCommunicator = 3 };

void encode(const Job& job, std::vector<std::byte>& out);
void encode(std::uint32_t id, const Process& process, std::vector<std::byte>& out);
/// @param process  id of the process it belongs to
void encode(std::uint32_t id, std::uint32_t process, const Communicator& communicator,
            std::vector<std::byte>& out);

/// Takes what a context block tells, in its order. Ids are whatever the file says.
class ContextSink {
 public:
  virtual ~ContextSink() = default;
  virtual bool job(Job job) = 0;
  virtual bool process(std::uint32_t id, Process process) = 0;
  virtual bool communicator(std::uint32_t id, std::uint32_t process, Communicator communicator) = 0;
};

/// Walks a context block's payload. False: malformed, or the sink returned false.
[[nodiscard]] bool decode_contexts(std::span<const std::byte> payload, ContextSink& sink);

}  // namespace ncclscope::archive

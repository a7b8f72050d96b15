// SPDX-License-Identifier: Apache-2.0
// One emulated process that uses NCCL: communicators, collectives, groups, streams, graphs. Calls
// come from the application's threads (actors of the world's time) and make NCCL's calls into the
// profiler plugin, from the threads and in the order of the chosen release. Not thread-safe for one
// communicator, as NCCL is not; different communicators may be used from different threads.
// Times in nanoseconds. Misuse throws std::logic_error.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "sim/planner.h"
#include "sim/plugin_loader.h"
#include "sim/release.h"
#include "sim/world.h"

namespace ncclscope::sim {

/// Bandwidths, latencies and noise of the emulated machines.
struct HardwareModel {
  double intra_node_gbytes_per_s = 300;  ///< per GPU, NVLink
  double inter_node_gbytes_per_s = 45;   ///< per GPU, its share of the NICs
  std::int64_t intra_hop_ns = 1200;
  std::int64_t inter_hop_ns = 6000;
  std::int64_t kernel_base_ns = 5000;
  std::int64_t launch_ns = 4000;  ///< host time of one kernel launch
  std::int64_t launch_to_start_ns = 3000;
  std::int64_t fixed_kernel_ns = 0;     ///< > 0: every kernel takes this long, whatever its size
  double noise = 0.02;                  ///< relative standard deviation of a transfer's time
  std::int64_t first_operation_ns = 0;  ///< lazy connects of a communicator's first operation
  std::uint64_t seed = 1;
};

/// The GPU's global timer against the host's clock.
struct GpuClock {
  std::int64_t offset_ns = 0;
  double drift_ppm = 0;
  std::int64_t step_ns = 32;
};

/// NCCL's hazards, off unless switched on. Counts say "every n-th", 0 is never.
struct Hazards {
  int stale_kernel_stop_every = 0;  ///< record 22 and stop with an old handle, start never comes
  int repeat_peer_wait = 0;         ///< additional times that state 20 is recorded per send
  int repeat_step_start = 0;        ///< additional times that a receive step is started
  std::int64_t proxy_delay_ns = 0;  ///< proxy thread sleeps this long per pass: 64-slot overwrite
  bool pxn = false;                 ///< additional ProxyOps of another process, foreign pointers
  bool net_plugin = false;          ///< NetPlugin events (NCCL built with network profiling)
  bool allgatherv = true;           ///< NCCL_ALLGATHERV_ENABLE where the release has it
  bool fail_init = false;           ///< unused by the host itself: for plugins under test
};

class Comm;

/// What is wrong with this process' GPU and links right now; the simulation changes it between
/// steps.
struct Conditions {
  std::int64_t kernel_extra_ns = 0;  ///< every communication kernel of this GPU takes longer
  double link_factor = 1;  ///< what it sends over the network takes this many times longer
  /// What it sends to a rank of a communicator takes this many times longer, since that one's NIC
  /// is slow; by rank. Empty: none is.
  std::map<const Comm*, std::vector<double>> receiver_factors;
  bool network_stuck = false;  ///< no network transfer of this GPU ends
};

struct HostOptions {
  std::shared_ptr<World> world;
  int owner = 0;  ///< actors' owner: the emulated process
  ProfilerOptions profiler;
  Tuning tuning;
  HardwareModel hardware;
  Hazards hazards;
  std::vector<GpuClock> gpu_clocks = {GpuClock{}};
  int launch_queue_depth = 1024;
  /// Order in which the communicators of one group launch. NCCL's follows addresses: either
  /// happens.
  bool group_latest_first = true;
};

class Host;
class Comm;
class Stream;
class Graph;

struct CommConfig {
  std::uint64_t hash = 0;
  std::optional<std::string> name;
  CommShape shape;
  int gpu = 0;
  bool blocking = true;
};

struct Call {
  Func func = Func::kAllReduce;
  std::size_t count = 0;
  nccl::Datatype datatype = nccl::kFloat32;
  int root = 0;
  int peer = 0;
  const void* send_buffer = nullptr;
  void* recv_buffer = nullptr;
  bool symmetric = false;
  bool copy_engine = false;
  std::uint64_t user_tag = 0;
};

/// Outcome of a wait.
enum class Wait { kDone, kTimedOut, kAborted };

class Host {
 public:
  explicit Host(HostOptions options);
  ~Host();
  Host(const Host&) = delete;
  Host& operator=(const Host&) = delete;

  /// ncclCommInitRank; inside a group it runs at the end of the group. The pointer stays valid
  /// until the host is gone. Null when not all ranks came within `timeout_ns`.
  Comm* comm_init_rank(const CommConfig& config, std::int64_t timeout_ns = kNever);
  /// ncclCommSplit / ncclCommShrink: a child with its own hash. `share`: resources of the parent.
  Comm* comm_split(Comm* parent, const CommConfig& config, bool share,
                   std::int64_t timeout_ns = kNever);
  /// Waits until a non-blocking communicator has done what was asked.
  void comm_wait_ready(Comm* comm);
  /// ncclCommDestroy. False: did not return within `timeout_ns` (proxy work that never drains).
  bool comm_destroy(Comm* comm, std::int64_t timeout_ns = kNever);
  void comm_abort(Comm* comm);

  void group_start();
  void group_end();
  void call(Comm* comm, Stream* stream, const Call& call);
  /// ncclAlltoAll, ncclGather, ncclScatter (2.28+): by name on copy engines, else sends and
  /// receives.
  void call_composite(Comm* comm, Stream* stream, const Call& call);

  Stream* stream_create(int gpu = 0);
  /// A kernel of the application.
  void compute(Stream* stream, std::int64_t duration_ns);
  Wait stream_synchronize(Stream* stream, std::int64_t timeout_ns = kNever);
  /// What was enqueued on `target` later waits for what is on `source` now.
  void stream_wait(Stream* target, Stream* source);
  std::size_t stream_pending(const Stream* stream) const;

  void graph_begin_capture(Stream* stream);
  Graph* graph_end_capture(Stream* stream);
  void graph_launch(Graph* graph, Stream* stream);

  /// Process end without destroying anything: threads stop where they are, no finalize.
  void exit_process();

  Profiler& profiler();
  World& world();
  Conditions& conditions();
  std::int64_t gpu_time(int gpu, std::int64_t host_ns) const;
  const HostOptions& options() const;

  struct Impl;

 private:
  std::unique_ptr<Impl> impl_;
};

/// Callbacks that a mask lets through, ancestors included, in `release`.
bool mask_emits(nccl::EventType type, int mask, Release release);

}  // namespace ncclscope::sim

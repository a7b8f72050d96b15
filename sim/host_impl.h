// SPDX-License-Identifier: Apache-2.0
// Inner structures of an emulated process, shared by host.cc (API and launch path), gpu.cc
// (streams, kernels, counters) and proxy.cc (proxy and profiler threads).
#pragma once

#include <array>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "sim/host.h"

namespace ncclscope::sim {

inline constexpr int kCounterSlots = 64;

/// The GPU's work counter of one channel and its ring of stamps in host memory.
struct ChannelCounters {
  struct Stamp {
    std::atomic<std::uint64_t> counter{0};
    std::atomic<std::uint64_t> time{0};
  };
  std::array<Stamp, kCounterSlots> start;
  std::array<Stamp, kCounterSlots> stop;
  std::uint64_t gpu = 0;   // written by the kernel only
  std::uint64_t host = 0;  // written under Comm::counter_mutex
};

/// When data of one task flows: written by the kernel, read by the proxy thread.
struct WorkTiming {
  std::atomic<std::int64_t> own_start{0};  // 0: kernel has not begun it
  // Latest start among the ranks up to this distance upstream; 0: not known yet.
  std::vector<std::atomic<std::int64_t>> upstream;
  std::atomic<std::int64_t> duration{0};  // of the transfer once data flows
  std::atomic<std::int64_t> wire{0};      // part of it on this rank's own link
  std::int64_t consume = 0;               // its GPU takes so much longer to take all that arrives
  // Sends to these ranks take so many times as long as `wire`; empty: all take as long. Like
  // `consume` written before own_start.
  std::vector<double> wire_factors;
  std::atomic<std::int64_t> end{0};
  explicit WorkTiming(std::size_t n) : upstream(n) {}
};

struct Plan {
  Comm* comm = nullptr;
  std::vector<TaskPtr> colls;
  std::vector<TaskPtr> p2ps;
  std::vector<TaskPtr> gathered;  // AllGatherV: counted on the GPU only
  std::map<const Task*, std::shared_ptr<WorkTiming>> timing;
  Stream* stream = nullptr;
  void* group_api = nullptr;
  void* group_handle = nullptr;
  void* launch_handle = nullptr;
  int mask = 0;
  bool captured = false;
  bool has_proxy_ops = false;
  bool symmetric = false;
  std::atomic<bool> aborted{false};
};
using PlanPtr = std::shared_ptr<Plan>;

/// Something for the proxy (or profiler) thread.
struct ProxyWork {
  TaskPtr task;
  Comm* comm = nullptr;
  std::shared_ptr<WorkTiming> timing;
  bool kernel = false;
  // kernel: one channel of one task
  int channel = 0;
  std::uint64_t target = 0;
  // network: index into task->net_ops
  std::size_t net_op = 0;
  bool foreign = false;  // PXN: belongs to another process
  std::uint64_t plan = 0;
};

/// A proxy or profiler thread with its work.
class Progress {
 public:
  /// `owner`: whose context ProxyCtrl events carry.
  Progress(Host::Impl* host, Comm* owner, std::string name, bool kernels, bool network);
  ~Progress();
  void post(std::vector<ProxyWork> work);
  void wake();
  /// Ends after everything is drained; false: not within the deadline.
  bool drain_and_join(std::int64_t deadline);
  void abandon();           ///< leaves at once, nothing is stopped
  void forget(Comm* comm);  ///< drops what belongs to a communicator (profiler thread's purge)

 private:
  struct Kernel;
  struct Net;
  void run();
  void append(std::vector<ProxyWork> work);
  bool progress_kernels();
  std::int64_t progress_net(Net* net, bool* moved);
  void control(nccl::EventState state, int appended, bool begin, bool end, void** handle);

  Host::Impl* host_;
  std::string name_;
  bool kernels_;
  bool network_;
  std::uint32_t word_;
  std::mutex mutex_;
  std::vector<ProxyWork> inbox_;
  std::vector<Comm*> forgotten_;
  std::atomic<bool> abandoned_{false};
  std::atomic<bool> closing_{false};
  std::atomic<bool> done_{false};
  std::atomic<std::uint64_t> outstanding_{0};
  std::map<std::pair<Comm*, int>, std::deque<std::vector<Kernel>>> kernel_fifos_;
  std::map<std::tuple<Comm*, int, int, bool>, std::deque<std::unique_ptr<Net>>> net_fifos_;
  void* stale_kernel_handle_ = nullptr;
  std::uint64_t kernel_count_ = 0;
  Comm* const owner_comm_;
  SimThread thread_;
};

class Comm {
 public:
  CommConfig config;
  Host::Impl* host = nullptr;
  void* context = nullptr;
  std::unique_ptr<Meeting> meeting;
  std::shared_ptr<Progress> proxy;    // created with the first proxy operation
  std::shared_ptr<Progress> kernels;  // 2.31+: profiler thread
  Comm* resources_of = nullptr;       // shares proxy with this one
  std::array<std::uint64_t, 16> sequence{};
  std::uint64_t batch_index = 0;
  std::uint64_t ce_counter = 0;
  std::map<std::pair<int, bool>, std::uint64_t> pair_counts;  // (peer, send)
  std::mutex counter_mutex;
  std::array<ChannelCounters, nccl::kMaxChannels> counters;
  std::atomic<bool> aborted{false};
  std::atomic<bool> ready{true};
  std::uint32_t ready_word = 0;
  bool first_operation = true;
  bool destroyed = false;
  bool loaded = false;
  std::vector<SimThread> helpers;
  std::vector<PlanPtr> live_plans;

  bool stopping() const;
};

class Stream {
 public:
  struct Item {
    std::function<void()> run;
  };
  Stream(Host::Impl* host, int gpu);
  ~Stream();
  void enqueue(std::function<void()> run);
  bool wait_empty(std::int64_t deadline);
  std::size_t pending() const { return pending_.load(); }
  std::uint64_t enqueued() const { return enqueued_.load(); }
  bool wait_reached(std::uint64_t count, std::int64_t deadline);
  void begin_close();  ///< what waits on this stream goes on; it ends after its present item
  void close();

  int gpu() const { return gpu_; }
  Graph* capturing = nullptr;

 private:
  void run();
  Host::Impl* host_;
  int gpu_;
  std::uint32_t word_;
  std::mutex mutex_;
  std::deque<Item> items_;
  std::atomic<std::size_t> pending_{0};
  std::atomic<std::uint64_t> enqueued_{0};
  std::atomic<std::uint64_t> finished_{0};
  std::atomic<bool> closing_{false};
  SimThread thread_;
};

class Graph {
 public:
  struct Node {
    PlanPtr plan;  // null: compute
    std::int64_t compute_ns = 0;
  };
  std::vector<Node> nodes;
};

/// What NCCL keeps per thread of the application between API calls.
struct ApiState {
  const void* host = nullptr;
  int depth = 0;
  int user_depth = 0;
  bool implicit_only = true;
  void* group_api = nullptr;
  bool group_api_started = false;
  void* coll_api = nullptr;  // never cleared: NCCL does not either
  void* p2p_api = nullptr;
  std::vector<Comm*> comms;  // in order of launching
  std::map<Comm*, std::vector<std::pair<TaskPtr, Stream*>>> tasks;
  struct Init {
    Comm* comm;
    std::int64_t deadline;
    bool ok = false;
  };
  std::vector<Init> inits;
  struct Destroy {
    Comm* comm;
  };
};

struct Host::Impl {
  explicit Impl(HostOptions o);

  HostOptions options;
  World* world;
  Profiler profiler;
  Conditions conditions;
  std::atomic<bool> exiting{false};
  std::mutex mutex;  // comms, streams, graphs
  std::vector<std::unique_ptr<Comm>> comms;
  std::vector<std::unique_ptr<Stream>> streams;
  std::vector<std::unique_ptr<Graph>> graphs;
  std::vector<SimThread> finished_helpers;
  std::unique_ptr<Stream> callback_thread;  // runs host functions of streams
  std::uint64_t plan_counter = 0;
  std::map<std::uint64_t, std::vector<Comm*>> dying;  // deferred destruction of one process' ranks

  ApiState& api();
  std::int64_t gpu_time(int gpu, std::int64_t host_ns) const;
  void sleep(std::int64_t ns) { world->sleep_until(world->now() + ns); }
  int pid() const;

  // Launch path (host.cc)
  bool init_comm(Comm* comm, std::int64_t deadline, std::int64_t stagger = 0);
  void finalize_comm(Comm* comm);
  void append(Comm* comm, Stream* stream, TaskPtr task, bool dropped_self);
  void launch_all(ApiState* state);
  void launch_comm(Comm* comm, std::vector<std::pair<TaskPtr, Stream*>> tasks, void* group_api);
  void launch_copy_engine(Comm* comm, const TaskPtr& task);
  void launch_plan(const PlanPtr& plan);
  void submit(const PlanPtr& plan);
  void run_on_helper(Comm* comm, const char* name, const std::function<void()>& body);
  void start_task_event(const PlanPtr& plan, const TaskPtr& task);
  std::vector<ProxyWork> proxy_work(const PlanPtr& plan);

  // GPU (gpu.cc)
  /// `state`: the conditions when the kernel was launched.
  void run_kernel(const PlanPtr& plan, const Conditions& state);
  void wake_progress(Comm* comm);
  std::int64_t transfer_ns(const Comm& comm, const std::vector<TaskPtr>& tasks, std::uint64_t index,
                           std::int64_t* network_ns) const;
};

bool emits(nccl::EventType type, int mask, Release release);

}  // namespace ncclscope::sim

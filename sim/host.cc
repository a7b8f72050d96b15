// SPDX-License-Identifier: Apache-2.0
// API and launch path of an emulated process: see host.h and host_impl.h.
#include "sim/host.h"

#include <unistd.h>

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "sim/host_impl.h"
#include "sim/nccl_version.h"

namespace ncclscope::sim {
namespace {

constexpr std::uint32_t kAllButControl = 0xffffu & ~std::uint32_t{nccl::kProxyCtrl};
constexpr std::uint32_t kCopyEngineMask = nccl::kCeColl | nccl::kCeSync | nccl::kCeBatch;

thread_local ApiState tls_api;

Event task_event(const Comm& comm, const Task& task) {
  Event event;
  event.comm_name = comm.config.name ? comm.config.name->c_str() : nullptr;
  event.comm_hash = comm.config.hash;
  event.datatype_code = task.datatype;
  event.func_code = static_cast<std::uint8_t>(task.func);
  event.descr.rank = comm.config.shape.rank;
  return event;
}

bool moves_bytes(Func func) {
  return func == Func::kAllGather || func == Func::kBroadcast;
}

const char* datatype_name(nccl::Datatype datatype) {
  return nccl::kDatatypes[datatype].profiler_name;
}

const char* algo_name(Algo algo) {
  return nccl::kAlgoNames[static_cast<std::size_t>(algo)];
}
const char* proto_name(Proto proto) {
  return nccl::kProtoNames[static_cast<std::size_t>(proto)];
}

}  // namespace

bool mask_emits(nccl::EventType type, int activation_mask, Release release) {
  using namespace nccl;  // NOLINT(google-build-using-namespace): the bits, by NCCL's names
  auto mask = static_cast<std::uint32_t>(activation_mask);
  std::uint32_t closure = 0;
  switch (type) {
    case kGroupApi:
      closure = kAllButControl;
      if (!release.has_copy_engine_events()) closure &= ~kCopyEngineMask;
      if (!release.has_profiler_thread()) closure &= ~std::uint32_t{kKernelPhase};
      break;
    case kCollApi:
      closure = kCollApi | kColl | kProxyOp | kProxyStep | kKernelCh | kNetPlugin;
      if (release.has_copy_engine_events()) closure |= kCopyEngineMask;
      break;
    case kP2pApi:
      closure = kP2pApi | kP2p | kProxyOp | kProxyStep | kKernelCh | kNetPlugin;
      break;
    case kKernelLaunch:
      closure = kKernelLaunch;
      break;
    case kGroup:
      closure = kGroup | kColl | kP2p | kProxyOp | kProxyStep;
      if (release.at_least(26)) closure |= kKernelCh | kNetPlugin;
      break;
    case kColl:
      closure = kColl | kProxyOp | kProxyStep;
      if (release.at_least(26)) closure |= kKernelCh | kNetPlugin;
      break;
    case kP2p:
      closure = kP2p | kProxyOp | kProxyStep;
      if (release.at_least(26)) closure |= kKernelCh;
      if (release.at_least(28)) closure |= kNetPlugin;
      // Up to 2.25 the P2p bit alone is not enough.
      if (!release.at_least(26) && (mask & (kColl | kProxyOp | kProxyStep)) == 0) return false;
      break;
    case kProxyOp:
      closure = kProxyOp | kProxyStep | kNetPlugin;
      break;
    case kProxyStep:
      closure = kProxyStep | kNetPlugin;
      break;
    case kKernelCh:
      closure = release.has_kernel_channel() ? std::uint32_t{kKernelCh} : 0u;
      break;
    case kCeColl:
      closure = release.has_copy_engine_events() ? kCopyEngineMask : 0u;
      break;
    default:
      closure = type;
      break;
  }
  // Requesting phases switches channels on, and with them everything above.
  if (release.has_profiler_thread() && (mask & kKernelPhase) != 0) mask |= kKernelCh;
  return (mask & closure) != 0;
}

bool Comm::stopping() const {
  return aborted.load() || host->exiting.load() || host->world->stop_requested();
}

// ------------------------------------------------------------------------------------- Impl

Host::Impl::Impl(HostOptions o)
    : options(std::move(o)), world(options.world.get()), profiler(options.profiler) {}

int Host::Impl::pid() const {
  return static_cast<int>(::getpid());
}

ApiState& Host::Impl::api() {
  if (tls_api.host != this) {
    tls_api = ApiState{};
    tls_api.host = this;
  }
  return tls_api;
}

void Host::Impl::run_on_helper(Comm* comm, const char* name, const std::function<void()>& body) {
  SimThread helper(options.world, options.owner, name, body);
  helper.join();
  (void)comm;
}

bool Host::Impl::init_comm(Comm* comm, std::int64_t deadline, std::int64_t stagger) {
  profiler.load();
  comm->loaded = true;
  const CommIdentity identity{comm->config.name ? comm->config.name->c_str() : nullptr,
                              comm->config.hash, comm->config.shape.n_nodes,
                              comm->config.shape.n_ranks, comm->config.shape.rank};
  const Release release = options.profiler.release;
  if (release.init_early()) profiler.init(identity, &comm->context);
  if (!comm->meeting->join_all(deadline, [comm] { return comm->stopping(); })) {
    profiler.unload();
    comm->loaded = false;
    return false;
  }
  if (stagger > 0) sleep(stagger);
  if (!release.init_early()) profiler.init(identity, &comm->context);
  return true;
}

void Host::Impl::finalize_comm(Comm* comm) {
  profiler.finalize(comm->context);
  if (comm->loaded) profiler.unload();
  comm->loaded = false;
}

/// One task of an API call: the events of the call, then the task joins its group.
void Host::Impl::append(Comm* comm, Stream* stream, TaskPtr task, bool dropped_self) {
  ApiState& state = api();
  const Release release = options.profiler.release;
  task->stream = stream;
  task->captured = stream->capturing != nullptr;
  task->mask = profiler.mask();
  const bool p2p = task->func == Func::kSend || task->func == Func::kRecv;
  const bool invisible_ce = task->copy_engine && !release.has_copy_engine_events();
  if (release.has_api_events() && !invisible_ce) {
    if (!state.group_api_started && mask_emits(nccl::kGroupApi, task->mask, release)) {
      state.group_api_started = true;
      Event event;
      event.descr.type = nccl::kGroupApi;
      event.descr.group_api.graph_captured = task->captured;
      event.descr.group_api.group_depth = state.depth;
      profiler.start(comm->context, &state.group_api, event);
      profiler.record(state.group_api, nccl::kGroupStartApiStop, nullptr);
    }
    if (p2p) {
      if (mask_emits(nccl::kP2pApi, task->mask, release)) {
        Event event;
        event.descr.type = nccl::kP2pApi;
        event.descr.parent_obj = state.group_api;
        event.descr.p2p_api.func = func_name(task->func);
        event.descr.p2p_api.count = task->count;
        event.descr.p2p_api.datatype = datatype_name(task->datatype);
        event.descr.p2p_api.stream = stream;
        event.descr.p2p_api.graph_captured = task->captured;
        event.descr.p2p_api.user_tag = task->user_tag;
        profiler.start(comm->context, &state.p2p_api, event);
      }
      task->api_handle = state.p2p_api;
      profiler.stop(state.p2p_api);
      state.p2p_api = nullptr;
    } else {
      if (mask_emits(nccl::kCollApi, task->mask, release)) {
        Event event;
        event.descr.type = nccl::kCollApi;
        event.descr.parent_obj = state.group_api;
        event.descr.coll_api.func = func_name(task->func);
        event.descr.coll_api.count = task->count;
        event.descr.coll_api.datatype = datatype_name(task->datatype);
        event.descr.coll_api.root = task->root;
        event.descr.coll_api.stream = stream;
        event.descr.coll_api.graph_captured = task->captured;
        event.descr.coll_api.user_tag = task->user_tag;
        // Whatever the handle held from an earlier call stays if the plugin does not write it.
        profiler.start(comm->context, &state.coll_api, event);
      }
      task->api_handle = state.coll_api;
      profiler.stop(state.coll_api);
    }
  }
  if (dropped_self) return;
  if (std::find(state.comms.begin(), state.comms.end(), comm) == state.comms.end()) {
    state.comms.insert(options.group_latest_first ? state.comms.begin() : state.comms.end(), comm);
  }
  state.tasks[comm].emplace_back(std::move(task), stream);
}

void Host::Impl::start_task_event(const PlanPtr& plan, const TaskPtr& pointer) {
  Comm& comm = *plan->comm;
  Task& task = *pointer;
  const Release release = options.profiler.release;
  const bool needs_group = release.needs_group_handle() && plan->group_handle == nullptr;
  Event event = task_event(comm, task);
  event.descr.parent_obj = release.has_api_events() ? task.api_handle : plan->group_handle;
  if (task.is_p2p) {
    if (!mask_emits(nccl::kP2p, task.mask, release) || needs_group) return;
    event.descr.type = nccl::kP2p;
    event.descr.p2p.func = func_name(task.func);
    event.descr.p2p.buff =
        task.func == Func::kSend ? const_cast<void*>(task.send_buffer) : task.recv_buffer;
    event.descr.p2p.datatype = datatype_name(task.datatype);
    event.descr.p2p.count = task.count;
    event.descr.p2p.peer = task.peer;
    event.descr.p2p.n_channels = static_cast<std::uint8_t>(task.n_channels);
    event.descr.p2p.parent_group = plan->group_handle;
    event.descr.p2p.user_tag = task.user_tag;
    profiler.start(comm.context, &task.handle, event);
    return;
  }
  // Graph-captured plans advance the number only under KernelCh and a handle of theirs.
  const bool counts =
      !plan->captured || (mask_emits(nccl::kKernelCh, task.mask, release) &&
                          (plan->group_handle != nullptr || task.api_handle != nullptr));
  const bool wanted = mask_emits(nccl::kColl, task.mask, release) && !needs_group;
  auto& sequence = comm.sequence[static_cast<std::size_t>(task.func)];
  task.sequence = sequence;
  const bool counted_always = release.at_least(26);
  if (!plan->symmetric && (counted_always ? counts : wanted)) ++sequence;
  if (!wanted) return;
  event.descr.type = nccl::kColl;
  event.descr.coll.seq_number = task.sequence;
  event.descr.coll.func = func_name(task.func);
  event.descr.coll.send_buff = task.send_buffer;
  event.descr.coll.recv_buff = task.recv_buffer;
  event.descr.coll.count =
      moves_bytes(task.func) ? task.count * element_bytes(task.datatype) : task.count;
  event.descr.coll.root = task.root;
  event.descr.coll.datatype = moves_bytes(task.func) ? "ncclInt8" : datatype_name(task.datatype);
  event.descr.coll.n_channels = static_cast<std::uint8_t>(task.n_channels);
  event.descr.coll.n_warps = static_cast<std::uint8_t>(task.n_warps);
  event.descr.coll.algo = plan->symmetric ? "AGxLL_R" : algo_name(task.algo);
  event.descr.coll.proto = plan->symmetric ? "" : proto_name(task.proto);
  event.descr.coll.parent_group = plan->group_handle;
  event.descr.coll.kernel_variant = plan->symmetric ? "AGxLL_R" : nullptr;
  event.descr.coll.is_sym_coll = plan->symmetric;
  event.descr.coll.user_tag = task.user_tag;
  if (moves_bytes(task.func)) event.datatype_code = nccl::kInt8;
  event.traffic_bytes = task.traffic;
  event.n_max_channels = static_cast<std::uint8_t>(task.max_channels);
  profiler.start(comm.context, &task.handle, event);
}

std::vector<ProxyWork> Host::Impl::proxy_work(const PlanPtr& plan) {
  std::vector<ProxyWork> work;
  Comm& comm = *plan->comm;
  const Release release = options.profiler.release;
  const std::uint64_t id = ++plan_counter;
  const auto add = [&](const TaskPtr& task) {
    const bool network = mask_emits(nccl::kProxyOp, task->mask, release);
    const bool kernel =
        mask_emits(nccl::kKernelCh, task->mask, release) && !(plan->symmetric && plan->captured);
    ProxyWork item;
    item.task = task;
    item.comm = &comm;
    item.timing = plan->timing.at(task.get());
    item.plan = id;
    std::size_t next_net = 0;
    for (const int channel : task->channels) {
      for (; next_net < task->net_ops.size() && task->net_ops[next_net].channel == channel;
           ++next_net) {
        if (!network) continue;
        item.kernel = false;
        item.net_op = next_net;
        work.push_back(item);
        if (options.hazards.pxn && task->net_ops[next_net].send) {
          work.push_back(item);
          work.back().foreign = true;
        }
      }
      if (!task->counted_by_host) continue;
      // A fused send and receive count as one work item.
      std::uint64_t target = 0;
      {
        std::lock_guard guard(comm.counter_mutex);
        ChannelCounters& counters = comm.counters[static_cast<std::size_t>(channel)];
        bool shared = false;
        const std::shared_ptr<const Task> partner = task->partner.lock();
        if (task->is_p2p && task->func == Func::kRecv && partner != nullptr) {
          const auto& others = partner->channels;
          shared = partner->counted_by_host &&
                   std::find(others.begin(), others.end(), channel) != others.end();
        }
        target = shared ? counters.host : ++counters.host;
        if (shared) {
          for (auto& earlier : work) {
            if (earlier.kernel && earlier.task == partner && earlier.channel == channel) {
              target = earlier.target;
            }
          }
        }
      }
      if (!kernel) continue;
      item.kernel = true;
      item.channel = channel;
      item.target = target;
      work.push_back(item);
    }
  };
  for (const TaskPtr& task : plan->colls) add(task);
  // Of a fused pair the receive's work stands before the send's, channel by channel.
  std::vector<ProxyWork> colls;
  colls.swap(work);
  for (const TaskPtr& task : plan->p2ps) add(task);
  std::stable_sort(work.begin(), work.end(), [](const ProxyWork& a, const ProxyWork& b) {
    const auto channel = [](const ProxyWork& w) {
      return w.kernel ? w.channel : w.task->net_ops[w.net_op].channel;
    };
    if (channel(a) != channel(b)) return channel(a) < channel(b);
    if (a.kernel != b.kernel) return !a.kernel;
    const bool a_send = a.task->func == Func::kSend;
    const bool b_send = b.task->func == Func::kSend;
    return !a_send && b_send;
  });
  colls.insert(colls.end(), work.begin(), work.end());
  return colls;
}

/// What NCCL does for a plan after its kernel was launched, or in the host callback of a graph.
void Host::Impl::submit(const PlanPtr& plan) {
  Comm& comm = *plan->comm;
  const Release release = options.profiler.release;
  if (mask_emits(nccl::kGroup, plan->mask, release)) {
    Event event;
    event.descr.type = nccl::kGroup;
    profiler.start(comm.context, &plan->group_handle, event);
  }
  for (const TaskPtr& task : plan->colls) start_task_event(plan, task);
  for (const TaskPtr& task : plan->p2ps) start_task_event(plan, task);
  std::vector<ProxyWork> work = proxy_work(plan);
  if (!work.empty() && !comm.stopping()) {
    Comm* owner = comm.resources_of != nullptr ? comm.resources_of : &comm;
    std::vector<ProxyWork> kernels;
    if (release.has_profiler_thread()) {
      const auto split = std::stable_partition(work.begin(), work.end(),
                                               [](const ProxyWork& w) { return !w.kernel; });
      kernels.assign(split, work.end());
      work.erase(split, work.end());
    }
    std::shared_ptr<Progress> proxy;
    std::shared_ptr<Progress> profiler_thread;
    {
      std::lock_guard guard(mutex);
      const std::string local = std::to_string(comm.config.shape.max_local_ranks);
      if (!work.empty() && owner->proxy == nullptr) {
        owner->proxy = std::make_shared<Progress>(this, owner, "NCCL Progress " + local,
                                                  !release.has_profiler_thread(), true);
      }
      if (!kernels.empty() && owner->kernels == nullptr) {
        owner->kernels = std::make_shared<Progress>(this, owner, "NCCL Profiler", true, false);
      }
      proxy = owner->proxy;
      profiler_thread = owner->kernels;
    }
    if (!work.empty()) proxy->post(std::move(work));
    if (!kernels.empty()) profiler_thread->post(std::move(kernels));
  }
  const bool clear = release.clears_task_handles();
  for (const auto* tasks : {&plan->colls, &plan->p2ps}) {
    for (const TaskPtr& task : *tasks) {
      profiler.stop(task->handle);
      (void)clear;  // children still name the handle; a replay writes it anew before they come
    }
  }
  profiler.stop(plan->group_handle);
}

void Host::Impl::launch_plan(const PlanPtr& plan) {
  Comm& comm = *plan->comm;
  const Release release = options.profiler.release;
  const bool gathered = plan->colls.empty() && plan->p2ps.empty();
  for (const TaskPtr& task : plan->p2ps) {
    task->pair_index = comm.pair_counts[{task->peer, task->func == Func::kSend}]++;
  }
  const auto make_timing = [&](const std::vector<TaskPtr>& tasks) {
    for (const TaskPtr& task : tasks) {
      std::size_t reach = static_cast<std::size_t>(comm.config.shape.n_ranks);
      const int n = comm.config.shape.n_ranks;
      const int rank = comm.config.shape.rank;
      if (task->flow == Flow::kPair) reach = 2;
      if (task->flow == Flow::kChainFromRoot)
        reach = static_cast<std::size_t>((rank - task->root + n) % n) + 1;
      if (task->flow == Flow::kChainToRoot)
        reach = static_cast<std::size_t>((rank - task->root - 1 + n) % n) + 1;
      plan->timing[task.get()] = std::make_shared<WorkTiming>(reach);
    }
  };
  make_timing(plan->colls);
  make_timing(plan->p2ps);
  const bool events = !gathered && !(plan->symmetric && !release.has_symmetric_events());
  if (events && release.has_api_events() && mask_emits(nccl::kKernelLaunch, plan->mask, release)) {
    Event event;
    event.descr.type = nccl::kKernelLaunch;
    event.descr.parent_obj = plan->group_api;
    event.descr.kernel_launch.stream = plan->stream;
    profiler.start(comm.context, &plan->launch_handle, event);
  }
  sleep(options.hardware.launch_ns);
  const auto has_network = [](const std::vector<TaskPtr>& tasks) {
    return std::any_of(tasks.begin(), tasks.end(),
                       [](const TaskPtr& t) { return !t->net_ops.empty(); });
  };
  plan->has_proxy_ops = has_network(plan->colls) || has_network(plan->p2ps) ||
                        mask_emits(nccl::kKernelCh, plan->mask, release);
  if (plan->captured) {
    plan->stream->capturing->nodes.push_back({plan, 0});
    profiler.stop(plan->launch_handle);
    if (events && !plan->has_proxy_ops) submit(plan);
    return;
  }
  const std::int64_t earliest = world->now() + options.hardware.launch_to_start_ns;
  plan->stream->enqueue([this, plan, earliest, state = conditions] {
    world->sleep_until(earliest);
    run_kernel(plan, state);
  });
  profiler.stop(plan->launch_handle);
  if (events) submit(plan);
}

void Host::Impl::launch_copy_engine(Comm* comm, const TaskPtr& pointer) {
  Task& task = *pointer;
  const Release release = options.profiler.release;
  const CommShape& shape = comm->config.shape;
  const std::uint64_t sequence = comm->ce_counter;
  comm->ce_counter += 2;
  const int mask = profiler.mask();  // sampled at each of these events
  void* handle = nullptr;
  const auto child = [&](nccl::EventType type, bool complete) {
    if (handle == nullptr || !mask_emits(type, mask, release)) return;
    Event event;
    event.descr.type = type;
    event.descr.parent_obj = handle;
    event.descr.rank = shape.rank;
    const std::size_t bytes = task.count * element_bytes(task.datatype);
    if (type == nccl::kCeSync) {
      event.descr.ce_sync.is_complete = complete;
      event.descr.ce_sync.n_ranks = shape.n_ranks;
    } else {
      int ops = shape.n_ranks;
      if (task.func == Func::kGather) ops = 1;
      if (task.func == Func::kScatter && shape.rank != task.root) ops = 0;
      event.descr.ce_batch.num_ops = ops;
      event.descr.ce_batch.total_bytes = bytes * static_cast<std::size_t>(ops);
    }
    void* own = nullptr;
    profiler.start(comm->context, &own, event);
    profiler.stop(own);
  };
  if (mask_emits(nccl::kCeColl, mask, release)) {
    Event event = task_event(*comm, task);
    event.descr.type = nccl::kCeColl;
    event.descr.parent_obj = task.api_handle;
    event.descr.ce_coll.seq_number = sequence;
    event.descr.ce_coll.func = func_name(task.func);
    event.descr.ce_coll.send_buff = task.send_buffer;
    event.descr.ce_coll.recv_buff = task.recv_buffer;
    event.descr.ce_coll.count =
        moves_bytes(task.func) ? task.count * element_bytes(task.datatype) : task.count;
    event.descr.ce_coll.root = task.root;
    event.descr.ce_coll.datatype =
        moves_bytes(task.func) ? "ncclInt8" : datatype_name(task.datatype);
    event.descr.ce_coll.sync_strategy = "UC";
    event.descr.ce_coll.ce_seq_num = static_cast<std::uint32_t>(sequence);
    event.descr.ce_coll.stream = task.stream;
    event.descr.ce_coll.user_tag = task.user_tag;
    profiler.start(comm->context, &handle, event);
  }
  child(nccl::kCeSync, false);
  child(nccl::kCeBatch, false);
  child(nccl::kCeSync, true);
  // The copies wait for all ranks as a kernel does, and nobody counts them.
  auto plan = std::make_shared<Plan>();
  plan->comm = comm;
  auto copy = std::make_shared<Task>(task);
  copy->bytes = task.count * element_bytes(task.datatype);
  copy->channels.clear();
  plan->gathered.push_back(copy);
  auto* stream = static_cast<Stream*>(task.stream);
  stream->enqueue([this, plan, state = conditions] { run_kernel(plan, state); });
  profiler.stop(handle);
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): outlives the caller's list
void Host::Impl::launch_comm(Comm* comm, std::vector<std::pair<TaskPtr, Stream*>> tasks,
                             void* group_api) {
  const Release release = options.profiler.release;
  const CommShape& shape = comm->config.shape;
  std::vector<TaskPtr> colls;
  std::vector<TaskPtr> p2ps;
  std::vector<TaskPtr> gathered;
  std::vector<TaskPtr> symmetric;
  std::vector<int> roots;
  Stream* stream = nullptr;
  bool captured = false;
  for (auto& [task, on] : tasks) {
    if (stream == nullptr) stream = on;
    captured = captured || task->captured;
    if (task->func == Func::kBroadcast &&
        std::find(roots.begin(), roots.end(), task->root) == roots.end()) {
      roots.push_back(task->root);
    }
  }
  const bool rebuilt = release.has_allgatherv() && options.hazards.allgatherv;
  for (auto& [task, on] : tasks) {
    if (task->copy_engine) {
      launch_copy_engine(comm, task);
    } else if (task->symmetric && release.has_symmetric_kernels()) {
      symmetric.push_back(task);
    } else if (task->func == Func::kSend || task->func == Func::kRecv) {
      p2ps.push_back(task);
    } else if (task->func == Func::kBroadcast && rebuilt && roots.size() > 1) {
      gathered.push_back(task);
    } else {
      if (task->func == Func::kBroadcast && rebuilt)
        task->mask = 0;  // the rebuilt task has no mask
      colls.push_back(task);
    }
  }
  const auto make = [&] {
    auto plan = std::make_shared<Plan>();
    plan->comm = comm;
    plan->stream = stream;
    plan->group_api = group_api;
    plan->captured = captured;
    return plan;
  };
  const auto add_masks = [](Plan* plan) {
    for (const auto* list : {&plan->colls, &plan->p2ps}) {
      for (const TaskPtr& task : *list) plan->mask |= task->mask;
    }
  };
  if (!symmetric.empty()) {
    PlanPtr plan = make();
    plan->symmetric = true;
    plan->colls = plan_collectives(symmetric, shape, options.tuning);
    for (std::size_t i = 0; i < plan->colls.size(); ++i) {
      Task& task = *plan->colls[i];
      task.net_ops.clear();
      task.flow = Flow::kRing;
      task.batch = 0;
      // Only the head of a fused plan gets its number of channels.
      if (i > 0) {
        task.n_channels = 0;
        task.channels.clear();
      }
    }
    if (!release.has_symmetric_events()) {
      // Runs unseen and uncounted.
      for (const TaskPtr& task : plan->colls) task->channels.clear();
      plan->gathered.swap(plan->colls);
    }
    add_masks(plan.get());
    launch_plan(plan);
  }
  if (!gathered.empty()) {
    PlanPtr plan = make();
    plan->gathered = gathered;
    for (const TaskPtr& task : plan->gathered) {
      task->bytes = task->count * element_bytes(task->datatype);
      for (int c = 0; c < options.tuning.channels; ++c) task->channels.push_back(c);
    }
    launch_plan(plan);
  }
  if (!colls.empty() || !p2ps.empty()) {
    PlanPtr plan = make();
    plan->colls = plan_collectives(colls, shape, options.tuning);
    plan->p2ps = plan_p2p(p2ps, shape, options.tuning);
    add_masks(plan.get());
    launch_plan(plan);
  }
}

void Host::Impl::launch_all(ApiState* state) {
  auto members = std::move(state->comms);
  auto tasks = std::move(state->tasks);
  state->comms.clear();
  state->tasks.clear();
  for (Comm* comm : members) {
    auto& list = tasks[comm];
    if (list.empty()) continue;
    if (comm->config.blocking) {
      launch_comm(comm, std::move(list), state->group_api);
      continue;
    }
    comm->ready.store(false);
    comm->helpers.emplace_back(options.world, options.owner, "",
                               [this, comm, list = std::move(list), group_api = state->group_api] {
                                 // The caller usually returns before this thread gets going.
                                 sleep(50000);
                                 launch_comm(comm, list, group_api);
                                 comm->ready.store(true);
                                 world->notify(comm->ready_word);
                               });
  }
}

// ------------------------------------------------------------------------------------- Host

Host::Host(HostOptions options) : impl_(std::make_unique<Impl>(std::move(options))) {
  set_emulated_nccl_version(impl_->options.profiler.release.number());
}

Host::~Host() {
  exit_process();
}

Profiler& Host::profiler() {
  return impl_->profiler;
}
World& Host::world() {
  return *impl_->world;
}
Conditions& Host::conditions() {
  return impl_->conditions;
}
const HostOptions& Host::options() const {
  return impl_->options;
}
std::int64_t Host::gpu_time(int gpu, std::int64_t host_ns) const {
  return impl_->gpu_time(gpu, host_ns);
}

void Host::exit_process() {
  if (impl_->exiting.exchange(true)) return;
  for (auto& comm : impl_->comms) {
    comm->meeting->wake();
    impl_->world->notify(comm->ready_word);
    for (SimThread& helper : comm->helpers) helper.join();
  }
  for (auto& stream : impl_->streams) stream->begin_close();
  for (auto& stream : impl_->streams) stream->close();
  if (impl_->callback_thread != nullptr) impl_->callback_thread->close();
  for (auto& comm : impl_->comms) {
    if (comm->proxy != nullptr) comm->proxy->abandon();
    if (comm->kernels != nullptr) comm->kernels->abandon();
  }
}

Comm* Host::comm_init_rank(const CommConfig& config, std::int64_t timeout_ns) {
  const auto ranks = static_cast<std::size_t>(config.shape.n_ranks);
  if (config.shape.node_of_rank.size() != ranks) {
    throw std::logic_error("communicator of " + std::to_string(ranks) + " ranks got the nodes of " +
                           std::to_string(config.shape.node_of_rank.size()));
  }
  auto owned = std::make_unique<Comm>();
  Comm* comm = owned.get();
  comm->config = config;
  comm->host = impl_.get();
  comm->ready_word = impl_->world->new_word();
  comm->meeting = std::make_unique<Meeting>(impl_->options.world, config.hash, config.shape.n_ranks,
                                            config.shape.rank);
  {
    std::lock_guard guard(impl_->mutex);
    impl_->comms.push_back(std::move(owned));
  }
  const std::int64_t now = impl_->world->now();
  const std::int64_t deadline = timeout_ns == kNever ? kNever : now + timeout_ns;
  ApiState& state = impl_->api();
  if (state.depth > 0) {
    state.inits.push_back({comm, deadline, false});
    return comm;
  }
  bool ok = false;
  if (!config.blocking) {
    comm->ready.store(false);
    comm->helpers.emplace_back(impl_->options.world, impl_->options.owner, "",
                               [this, comm, deadline] {
                                 impl_->init_comm(comm, deadline);
                                 comm->ready.store(true);
                                 impl_->world->notify(comm->ready_word);
                               });
    return comm;
  }
  if (impl_->options.profiler.release.always_init_on_helper()) {
    impl_->run_on_helper(comm, "", [&] { ok = impl_->init_comm(comm, deadline); });
  } else {
    ok = impl_->init_comm(comm, deadline);
  }
  return ok ? comm : nullptr;
}

Comm* Host::comm_split(Comm* parent, const CommConfig& config, bool share,
                       std::int64_t timeout_ns) {
  Comm* child = comm_init_rank(config, timeout_ns);
  if (child != nullptr && share) {
    child->resources_of = parent->resources_of != nullptr ? parent->resources_of : parent;
  }
  return child;
}

void Host::comm_wait_ready(Comm* comm) {
  impl_->world->wait_for(comm->ready_word, kNever,
                         [&] { return comm->ready.load() || impl_->exiting.load(); });
  for (SimThread& helper : comm->helpers) helper.join();
  comm->helpers.clear();
}

bool Host::comm_destroy(Comm* comm, std::int64_t timeout_ns) {
  if (comm->destroyed) throw std::logic_error("communicator is destroyed twice");
  comm->destroyed = true;
  comm_wait_ready(comm);
  // The last local rank of a communicator destroys all of them.
  std::vector<Comm*> dying;
  {
    std::lock_guard guard(impl_->mutex);
    auto& list = impl_->dying[comm->config.hash];
    list.push_back(comm);
    std::size_t local = 0;
    for (const auto& other : impl_->comms) {
      if (other->config.hash == comm->config.hash && other->loaded) ++local;
    }
    if (list.size() < local) return true;
    dying.swap(list);
  }
  const std::int64_t deadline = timeout_ns == kNever ? kNever : impl_->world->now() + timeout_ns;
  bool in_time = true;
  const auto body = [&] {
    for (Comm* each : dying) {
      if (each->resources_of == nullptr) {
        if (each->kernels != nullptr) {
          each->kernels->forget(each);
          each->kernels->abandon();
        }
        if (each->proxy != nullptr && !each->proxy->drain_and_join(deadline)) {
          in_time = false;
          return;
        }
      } else if (each->resources_of->kernels != nullptr) {
        each->resources_of->kernels->forget(each);
      }
    }
    std::sort(dying.begin(), dying.end(), [](const Comm* a, const Comm* b) {
      return a->config.shape.rank < b->config.shape.rank;
    });
    for (Comm* each : dying) impl_->finalize_comm(each);
  };
  if (impl_->options.profiler.release.always_init_on_helper()) {
    impl_->run_on_helper(comm, "", body);
  } else {
    body();
  }
  return in_time;
}

void Host::comm_abort(Comm* comm) {
  if (comm->destroyed) return;
  comm->destroyed = true;
  comm->aborted.store(true);
  comm->meeting->wake();
  impl_->wake_progress(comm);
  const auto body = [&] {
    for (SimThread& helper : comm->helpers) helper.join();
    comm->helpers.clear();
    if (comm->resources_of == nullptr) {
      if (comm->kernels != nullptr) comm->kernels->abandon();
      if (comm->proxy != nullptr) comm->proxy->abandon();
    }
    impl_->finalize_comm(comm);
  };
  if (impl_->options.profiler.release.always_init_on_helper()) {
    impl_->run_on_helper(comm, "", body);
  } else {
    body();
  }
}

void Host::group_start() {
  ++impl_->api().depth;
}

void Host::group_end() {
  ApiState& state = impl_->api();
  if (state.depth == 0) throw std::logic_error("group_end without group_start");
  if (state.depth > 1) {
    --state.depth;
    return;
  }
  if (!state.inits.empty()) {
    // One short-lived thread per communicator.
    auto inits = std::move(state.inits);
    state.inits.clear();
    std::vector<SimThread> threads;
    threads.reserve(inits.size());
    for (auto& init : inits) {
      threads.emplace_back(
          impl_->options.world, impl_->options.owner, "",
          [this, &init, stagger = 2000 * static_cast<std::int64_t>(threads.size())] {
            init.ok = impl_->init_comm(init.comm, init.deadline, stagger);
          });
    }
    for (SimThread& thread : threads) thread.join();
  }
  if (state.group_api != nullptr) {
    impl_->profiler.record(state.group_api, nccl::kGroupEndApiStart, nullptr);
  }
  impl_->launch_all(&state);
  impl_->profiler.stop(state.group_api);
  state.group_api = nullptr;
  state.group_api_started = false;
  state.depth = 0;
}

void Host::call(Comm* comm, Stream* stream, const Call& call) {
  const bool p2p = call.func == Func::kSend || call.func == Func::kRecv;
  if (comm->config.shape.n_ranks == 1 && !p2p) return;  // a plain copy
  if (call.count == 0 && !p2p) return;
  ApiState& state = impl_->api();
  ++state.depth;
  auto task = std::make_shared<Task>();
  task->func = call.func;
  task->count = call.count;
  task->datatype = call.datatype;
  task->root = call.root;
  task->peer = call.peer;
  task->send_buffer = call.send_buffer;
  task->recv_buffer = call.recv_buffer;
  task->symmetric = call.symmetric;
  task->copy_engine = call.copy_engine;
  task->user_tag = call.user_tag;
  // In place, a send to oneself is nothing at all; buffers equal means in place here.
  const bool dropped = p2p && call.peer == comm->config.shape.rank && call.send_buffer != nullptr &&
                       call.send_buffer == call.recv_buffer;
  impl_->append(comm, stream, std::move(task), dropped);
  group_end();
}

void Host::call_composite(Comm* comm, Stream* stream, const Call& call) {
  if (!impl_->options.profiler.release.has_alltoall_api()) {
    throw std::logic_error(std::string("nccl") + func_name(call.func) + " does not exist in " +
                           impl_->options.profiler.release.text());
  }
  if (call.copy_engine) {
    this->call(comm, stream, call);
    return;
  }
  const int n = comm->config.shape.n_ranks;
  const int rank = comm->config.shape.rank;
  ApiState& state = impl_->api();
  ++state.depth;
  const auto part = [&](Func func, int peer) {
    auto task = std::make_shared<Task>();
    task->func = func;
    task->count = call.count;
    task->datatype = call.datatype;
    task->peer = peer;
    task->send_buffer = call.send_buffer;
    task->recv_buffer = call.recv_buffer;
    impl_->append(comm, stream, std::move(task), false);
  };
  if (call.func == Func::kAlltoAll) {
    for (int peer = 0; peer < n; ++peer) {
      part(Func::kSend, peer);
      part(Func::kRecv, peer);
    }
  } else if (call.func == Func::kGather) {
    part(Func::kSend, call.root);
    if (rank == call.root) {
      for (int peer = 0; peer < n; ++peer) part(Func::kRecv, peer);
    }
  } else if (call.func == Func::kScatter) {
    if (rank == call.root) {
      for (int peer = 0; peer < n; ++peer) part(Func::kSend, peer);
    }
    part(Func::kRecv, call.root);
  } else {
    throw std::logic_error(std::string(func_name(call.func)) +
                           " is not made of sends and receives");
  }
  group_end();
}

Stream* Host::stream_create(int gpu) {
  std::lock_guard guard(impl_->mutex);
  impl_->streams.push_back(std::make_unique<Stream>(impl_.get(), gpu));
  return impl_->streams.back().get();
}

void Host::compute(Stream* stream, std::int64_t duration_ns) {
  if (stream->capturing != nullptr) {
    stream->capturing->nodes.push_back({nullptr, duration_ns});
    return;
  }
  stream->enqueue([impl = impl_.get(), duration_ns] { impl->sleep(duration_ns); });
}

Wait Host::stream_synchronize(Stream* stream, std::int64_t timeout_ns) {
  const std::int64_t deadline = timeout_ns == kNever ? kNever : impl_->world->now() + timeout_ns;
  return stream->wait_empty(deadline) ? Wait::kDone : Wait::kTimedOut;
}

void Host::stream_wait(Stream* target, Stream* source) {
  const std::uint64_t count = source->enqueued();
  target->enqueue([source, count] { source->wait_reached(count, kNever); });
}

std::size_t Host::stream_pending(const Stream* stream) const {
  return stream->pending();
}

void Host::graph_begin_capture(Stream* stream) {
  if (stream->capturing != nullptr) throw std::logic_error("stream is being captured already");
  std::lock_guard guard(impl_->mutex);
  impl_->graphs.push_back(std::make_unique<Graph>());
  stream->capturing = impl_->graphs.back().get();
}

Graph* Host::graph_end_capture(Stream* stream) {
  if (stream->capturing == nullptr) throw std::logic_error("stream is not being captured");
  return std::exchange(stream->capturing, nullptr);
}

void Host::graph_launch(Graph* graph, Stream* stream) {
  Impl* impl = impl_.get();
  for (const Graph::Node& node : graph->nodes) {
    if (node.plan == nullptr) {
      compute(stream, node.compute_ns);
      continue;
    }
    PlanPtr plan = node.plan;
    if (plan->has_proxy_ops && !(plan->colls.empty() && plan->p2ps.empty())) {
      {
        std::lock_guard guard(impl->mutex);
        if (impl->callback_thread == nullptr) {
          impl->callback_thread = std::make_unique<Stream>(impl, -1);
        }
      }
      stream->enqueue([impl, plan] {
        // The host function runs on the driver's thread, and the stream waits for it.
        for (auto* tasks : {&plan->colls, &plan->p2ps}) {
          for (const TaskPtr& task : *tasks) {
            task->pair_index =
                task->is_p2p ? plan->comm->pair_counts[{task->peer, task->func == Func::kSend}]++
                             : 0;
            const std::size_t reach = plan->timing.at(task.get())->upstream.size();
            plan->timing[task.get()] = std::make_shared<WorkTiming>(reach);
          }
        }
        impl->callback_thread->enqueue([impl, plan] {
          if (impl->options.profiler.release.clears_task_handles()) {
            plan->group_handle = nullptr;
            for (auto* tasks : {&plan->colls, &plan->p2ps}) {
              for (const TaskPtr& task : *tasks) task->handle = nullptr;
            }
          }
          impl->submit(plan);
        });
        impl->callback_thread->wait_empty(kNever);
      });
    }
    stream->enqueue([impl, plan, state = impl->conditions] { impl->run_kernel(plan, state); });
  }
}

}  // namespace ncclscope::sim

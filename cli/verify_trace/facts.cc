// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/facts.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;

/// Delivery characters of a line that NCCL hands to the plugin. 'd' is one that a test leaves out:
/// it still counts, so that its absence is a difference.
bool is_carried(char delivery) {
  return delivery == '1' || delivery == 'N' || delivery == 'd';
}

/// Phase of a ProxyStep that begins with this state; -1 = none.
int phase_of(int state) {
  switch (state) {
    case nccl::kProxyStepSendGpuWait:
    case nccl::kProxyStepRecvWait:
      return 0;
    case nccl::kProxyStepSendPeerWait:
    case nccl::kProxyStepRecvFlushWait:
      return 1;
    case nccl::kProxyStepSendWait:
    case nccl::kProxyStepRecvGpuWait:
      return 2;
    default:
      return -1;
  }
}

bool carries_bytes(int state) {
  return state == nccl::kProxyStepSendWait || state == nccl::kProxyStepRecvFlushWait;
}

}  // namespace

TraceIndex::TraceIndex(const Trace& trace, const std::string& delivery)
    : trace_(trace), delivery_(delivery) {
  if (delivery.size() != trace.lines.size()) {
    throw std::runtime_error("the replay reports " + std::to_string(delivery.size()) +
                             " lines, the recording has " + std::to_string(trace.lines.size()));
  }
  for (std::size_t i = 0; i < trace.lines.size(); ++i) {
    const TraceLine& l = trace.lines[i];
    if (l.callback == Callback::kStart) {
      if (l.handle != kNoHandle) starts_[l.handle] = i;
      children_[l.parent].push_back(i);
    } else if (l.callback == Callback::kStop || l.callback == Callback::kRecord) {
      later_[l.handle].push_back(i);
    }
  }
}

bool TraceIndex::carried(std::size_t line) const {
  return is_carried(delivery_[line]);
}

void TraceIndex::add_channels(OperationFacts& f, std::int64_t handle) const {
  const auto children = children_.find(handle);
  if (handle == kNoHandle || children == children_.end()) return;
  for (const std::size_t i : children->second) {
    const TraceLine& l = trace_.lines[i];
    if (l.type != nccl::kKernelCh) continue;
    if (!carried(i)) {
      f.channels_masked = true;
      continue;
    }
    ChannelFacts c;
    c.host_start_ns = l.t_ns;
    c.channel = l.fields.value("channelId", 0);
    c.gpu_start_ns = l.fields.value("pTimer", std::uint64_t{0});
    if (const auto later = later_.find(l.handle); later != later_.end()) {
      for (const std::size_t k : later->second) {
        const TraceLine& e = trace_.lines[k];
        if (e.callback == Callback::kStop) {
          c.stopped = true;
          c.host_stop_ns = e.t_ns;
        } else if (e.state == nccl::kKernelChStop) {
          c.gpu_stop_ns = e.fields.at("args").value("pTimer", std::uint64_t{0});
        }
      }
    }
    f.channels.push_back(c);
  }
}

void TraceIndex::add_network(OperationFacts& f, std::int64_t handle) const {
  const auto children = children_.find(handle);
  if (handle == kNoHandle || children == children_.end()) return;
  for (const std::size_t i : children->second) {
    const TraceLine& op = trace_.lines[i];
    if (op.type != nccl::kProxyOp || !carried(i)) continue;
    NetworkFacts& n = f.network[op.fields.at("isSend").get<int>() != 0];
    const auto later = later_.find(op.handle);
    const bool stopped =
        later != later_.end() &&
        std::any_of(later->second.begin(), later->second.end(),
                    [this](std::size_t k) { return trace_.lines[k].callback == Callback::kStop; });
    if (!stopped) n.whole = false;
    const auto steps = children_.find(op.handle);
    if (steps == children_.end()) continue;
    for (const std::size_t s : steps->second) {
      const TraceLine& step = trace_.lines[s];
      if (step.type != nccl::kProxyStep || !carried(s)) continue;
      f.has_steps = true;
      if (delivery_[s] != 'N') n.answered = true;
      int phase = -1;
      std::int64_t since = 0;
      bool step_stopped = false;
      if (const auto events = later_.find(step.handle); events != later_.end()) {
        for (const std::size_t k : events->second) {
          const TraceLine& e = trace_.lines[k];
          const bool stop = e.callback == Callback::kStop;
          const int next = stop ? 3 : phase_of(e.state);
          if (next <= phase || next < 0) continue;  // a repeated state does not begin a phase anew
          if (phase >= 0) n.phase_ns[phase] += static_cast<std::uint64_t>(e.t_ns - since);
          phase = next;
          since = e.t_ns;
          if (!stop && carries_bytes(e.state))
            n.bytes += e.fields.at("args").value("transSize", std::uint64_t{0});
          if (stop) step_stopped = true;
        }
      }
      ++(step_stopped ? n.steps : n.steps_incomplete);
    }
  }
}

std::vector<OperationFacts> TraceIndex::operations(const json& communicator) const {
  const int ctx = communicator.at("ctx").get<int>();
  // Where expected.json names no API handle (recordings with NULL answers, sends to oneself in
  // place) the calls that no other operation claims are taken in order.
  std::set<std::int64_t> claimed;
  for (const json& o : communicator.at("ops")) {
    if (!o.at("api_h").is_null()) claimed.insert(o.at("api_h").get<std::int64_t>());
  }
  std::vector<std::size_t> api_lines;
  for (std::size_t i = 0; i < trace_.lines.size(); ++i) {
    const TraceLine& l = trace_.lines[i];
    const bool api = l.type == nccl::kCollApi || l.type == nccl::kP2pApi;
    if (l.callback == Callback::kStart && api && l.ctx == ctx && !claimed.contains(l.handle))
      api_lines.push_back(i);
  }
  std::size_t next_api = 0;
  std::vector<OperationFacts> all;
  for (const json& o : communicator.at("ops")) {
    OperationFacts f;
    f.expected = &o;
    const auto& func = o.at("func").get_ref<const std::string&>();
    f.point_to_point = func == "Send" || func == "Recv";
    std::optional<std::size_t> api;
    if (!o.at("api_h").is_null()) {
      api = starts_.at(o.at("api_h").get<std::int64_t>());
    } else if (next_api < api_lines.size()) {
      const json& fields = trace_.lines[api_lines[next_api]].fields;
      if (fields.at("func") == o.at("func") && fields.at("count") == o.at("count"))
        api = api_lines[next_api++];
    }
    if (api && carried(*api)) {
      f.api = &trace_.lines[*api];
      f.api_line = *api;
    }
    if (!o.at("h").is_null()) {
      const auto handle = o.at("h").get<std::int64_t>();
      const std::size_t line = starts_.at(handle);
      if (carried(line)) {
        const TraceLine& l = trace_.lines[line];
        f.task = &l;
        f.task_line = line;
        f.copy_engine = l.type == nccl::kCeColl;
        const std::int64_t plan = trace_.header.interface_version >= 5 ? l.parent_group : l.parent;
        if (const auto group = starts_.find(plan);
            !f.copy_engine && group != starts_.end() && carried(group->second)) {
          f.plan = plan;
          f.plan_t_ns = trace_.lines[group->second].t_ns;
        }
      }
      add_channels(f, handle);
      add_network(f, handle);
    }
    all.push_back(std::move(f));
  }
  for (const bool p2p : {false, true}) {
    std::vector<OperationFacts*> order;
    for (OperationFacts& f : all) {
      if (f.visible() && f.point_to_point == p2p) order.push_back(&f);
    }
    // NCCL's order of calls where it tells of calls, else of launches.
    std::stable_sort(order.begin(), order.end(),
                     [](const OperationFacts* a, const OperationFacts* b) {
                       return (a->api != nullptr ? a->api_line : a->task_line) <
                              (b->api != nullptr ? b->api_line : b->task_line);
                     });
    for (std::size_t i = 0; i < order.size(); ++i) order[i]->index = i;
  }
  return all;
}

std::optional<std::int64_t> TraceIndex::clock_bound(std::size_t before) const {
  std::optional<std::int64_t> bound;
  for (std::size_t i = 0; i < before && i < trace_.lines.size(); ++i) {
    const TraceLine& l = trace_.lines[i];
    if (l.callback != Callback::kRecord || l.state != nccl::kKernelChStop) continue;
    const std::int64_t offset =
        l.t_ns + trace_.header.t0_realtime_ns -
        static_cast<std::int64_t>(l.fields.at("args").value("pTimer", std::uint64_t{0}));
    if (!bound || offset < *bound) bound = offset;
  }
  return bound;
}

}  // namespace ncclscope::cli

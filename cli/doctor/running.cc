// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/running.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <tuple>
#include <vector>

#include "cli/doctor/installation.h"
#include "cli/text.h"
#include "topology/limits.h"

namespace ncclscope::cli {
namespace {

using topology::Findings;
using topology::Level;

// Sums are of one rank's view each; the thresholds are ours, and wide: what is told must be plain.
constexpr double kFarBelow = 0.3;                // of what the paths allow
constexpr std::uint64_t kEnoughOperations = 20;  // of one size, between the two moments
constexpr std::uint64_t kManySmall = 500;        // AllReduces between the two moments
constexpr double kSmallShare = 0.8;
constexpr std::uint64_t kMuchTraffic = std::uint64_t{64} << 20;  // bytes, that ports must show
constexpr double kShortSeconds = 20e-6;
constexpr std::uint32_t kRingIsLong = 64;  // ranks

bool large(const std::string& size) {
  return size == "<=256MiB" || size == "<=4GiB" || size == ">4GiB";
}
bool small(const std::string& size) {
  return size == "<=4KiB" || size == "<=64KiB";
}

std::string number(double value) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "%.3g", value);
  return text.data();
}

using Key = std::tuple<std::string, std::string, std::string, std::string, std::string>;
using Sums = std::map<Key, v1::OperationSums>;  // of one job

Sums sums_of(const v1::JobSnapshot& job) {
  Sums sums;
  for (const v1::OperationSums& s : job.sums())
    sums.emplace(Key{s.comm(), s.collective(), s.size(), s.algorithm(), s.protocol()}, s);
  return sums;
}

/// What was added since. A counter that fell has begun anew.
std::vector<v1::OperationSums> added(const v1::JobSnapshot* before, const v1::JobSnapshot& after) {
  const Sums old = before == nullptr ? Sums{} : sums_of(*before);
  std::vector<v1::OperationSums> result;
  for (const auto& [key, now] : sums_of(after)) {
    v1::OperationSums s = now;
    if (const auto then = old.find(key);
        then != old.end() && then->second.operations() <= now.operations()) {
      const v1::OperationSums& t = then->second;
      s.set_operations(now.operations() - t.operations());
      s.set_bytes(now.bytes() - std::min(now.bytes(), t.bytes()));
      s.set_bus_bytes(now.bus_bytes() - t.bus_bytes());
      s.set_busy_seconds(now.busy_seconds() - t.busy_seconds());
      s.set_timed_operations(now.timed_operations() -
                             std::min(now.timed_operations(), t.timed_operations()));
    }
    if (s.operations() > 0) result.push_back(std::move(s));
  }
  return result;
}

const v1::JobSnapshot* find_job(const v1::GetSnapshotResponse& snapshot, const v1::Job& job) {
  for (const v1::JobSnapshot& j : snapshot.jobs())
    if (j.job().job_id() == job.job_id() && j.job().cluster() == job.cluster() &&
        j.job().run() == job.run())
      return &j;
  return nullptr;
}

class RunCheck {
 public:
  RunCheck(const Moment& before, const Moment& after, const topology::Machine& machine,
           const topology::Paths& paths)
      : before_(before), after_(after), machine_(machine), paths_(paths) {}

  Findings run() {
    std::uint64_t moved = 0;
    for (const auto& [port, bytes] : after_.ports) {
      const auto then = before_.ports.find(port);
      if (then != before_.ports.end() && bytes > then->second) moved += bytes - then->second;
    }
    for (const v1::JobSnapshot& job : after_.snapshot.jobs()) {
      const std::vector<v1::OperationSums> sums = added(find_job(before_.snapshot, job.job()), job);
      if (sums.empty()) continue;
      name_ = "job " + job.job().job_id();
      communicators_.clear();
      for (const v1::Communicator& c : job.communicators()) communicators_[c.comm()] = &c;
      network(sums, moved);
      speed(sums);
      choices(sums);
      small_reductions(sums);
      if (findings_.empty() || findings_.back().subject != name_)
        add("run", Level::kOk, "nothing that stands out in its operations",
            std::to_string(sums.size()) + " kinds of operation in the interval", "");
    }
    return std::move(findings_);
  }

 private:
  void add(std::string_view check, Level level, std::string reason, std::string evidence,
           std::string fix) {
    findings_.push_back(
        {check, level, name_, std::move(reason), std::move(evidence), std::move(fix)});
  }
  [[nodiscard]] const v1::Communicator* communicator(const std::string& comm) const {
    const auto at = communicators_.find(comm);
    return at == communicators_.end() ? nullptr : at->second;
  }
  [[nodiscard]] bool crosses_nodes(const std::string& comm) const {
    const v1::Communicator* c = communicator(comm);
    return c != nullptr && c->nnodes() > 1;
  }

  void network(const std::vector<v1::OperationSums>& sums, std::uint64_t moved) {
    double bytes = 0;
    for (const v1::OperationSums& s : sums)
      if (crosses_nodes(s.comm())) bytes += s.bus_bytes();
    if (bytes < double{kMuchTraffic}) return;
    const std::string evidence =
        "operations between nodes: " + format_bytes(static_cast<std::uint64_t>(bytes)) +
        " on the bus; RDMA ports: " + format_bytes(moved);
    if (!machine_.has_rdma()) {
      add("network", Level::kWarning, "it goes over sockets: the node has no RDMA device", evidence,
          "use nodes with InfiniBand or RoCE, or the cloud's NCCL network plugin");
    } else if (after_.ports.empty()) {
      add("network", Level::kUnknown, "which network it uses is not known: no port shows counters",
          "/sys/class/infiniband/*/ports/*/counters", "look on the host");
    } else if (moved < kMuchTraffic / 8) {
      add("network", Level::kProblem,
          "it goes over sockets although there are RDMA devices: their ports hardly moved",
          evidence,
          "NCCL_DEBUG=INFO says why (NET/IB : No device found, NCCL_IB_DISABLE, device files not "
          "in "
          "the container)");
    } else {
      add("network", Level::kOk, "it uses the RDMA ports", evidence, "");
    }
  }

  /// GB/s that a rank can reach at best on the bus; 0 = not known.
  [[nodiscard]] double allowed(const v1::Communicator& c) const {
    std::vector<std::size_t> gpus;
    for (const v1::Rank& rank : c.ranks())
      if (rank.gpu_known() && rank.gpu() < machine_.gpus.size()) gpus.push_back(rank.gpu());
    return topology::ring_limit(machine_, paths_, gpus, c.nnodes()).gigabytes;
  }

  void speed(const std::vector<v1::OperationSums>& sums) {
    for (const v1::OperationSums& s : sums) {
      const v1::Communicator* c = communicator(s.comm());
      if (c == nullptr || s.collective() != "AllReduce" || !large(s.size()) ||
          s.timed_operations() < kEnoughOperations || s.busy_seconds() <= 0)
        continue;
      const double most = allowed(*c);
      const double is = s.bus_bytes() / s.busy_seconds() / 1e9;
      if (most <= 0 || is >= kFarBelow * most) continue;
      add("bandwidth", Level::kWarning,
          "AllReduces of " + s.size() + " reach " + number(is) +
              " GB/s on the bus, the paths allow " + number(most) +
              " (waiting for late ranks counts)",
          "communicator " + s.comm() + " " + c->name() + ", " + s.algorithm() + "/" + s.protocol(),
          "ncclscope diagnose tells late ranks from a slow network; then look at this node's and "
          "the "
          "others' findings");
      return;  // one is enough
    }
  }

  void choices(const std::vector<v1::OperationSums>& sums) {
    for (const v1::OperationSums& s : sums) {
      const v1::Communicator* c = communicator(s.comm());
      if (c == nullptr || s.operations() < kEnoughOperations) continue;
      const std::string evidence = "communicator " + s.comm() + " of " +
                                   std::to_string(c->nranks()) + " ranks: " + s.algorithm() + "/" +
                                   s.protocol() + ", " + s.size();
      if (s.protocol() == "LL" && large(s.size())) {
        add("algorithm", Level::kWarning,
            s.collective() +
                " of large messages by LL, which reaches a half of the bandwidth at most",
            evidence, "unset NCCL_PROTO and tuner plugins");
        return;
      }
      if (s.algorithm() == "RING" && s.collective() == "AllReduce" && small(s.size()) &&
          c->nranks() >= kRingIsLong && c->nnodes() > 1) {
        add("algorithm", Level::kWarning,
            "small AllReduces by ring over many ranks: its latency grows with the ranks, a tree's "
            "with their logarithm",
            evidence, "unset NCCL_ALGO; if NCCL chose so by itself, merge small AllReduces");
        return;
      }
    }
  }

  void small_reductions(const std::vector<v1::OperationSums>& sums) {
    std::uint64_t all = 0, few_bytes = 0;
    for (const v1::OperationSums& s : sums) {
      if (s.collective() != "AllReduce") continue;
      all += s.operations();
      if (small(s.size()) || s.size() == "<=1MiB") few_bytes += s.operations();
    }
    if (all < kManySmall || static_cast<double>(few_bytes) < kSmallShare * static_cast<double>(all))
      return;
    add("small-messages", Level::kWarning,
        "most AllReduces are small: each costs its latency, as data-parallel gradients do that are "
        "not put together",
        std::to_string(few_bytes) + " of " + std::to_string(all) +
            " AllReduces in the interval, all local ranks, are of 1 MiB or less",
        "larger buckets (DistributedDataParallel bucket_cap_mb, DeepSpeed reduce_bucket_size), "
        "gradient accumulation");
  }

  const Moment& before_;
  const Moment& after_;
  const topology::Machine& machine_;
  const topology::Paths& paths_;
  std::string name_;
  std::map<std::string, const v1::Communicator*> communicators_;
  Findings findings_;
};

}  // namespace

PortBytes read_port_bytes(const topology::Machine& machine, const topology::FileTree& sys) {
  PortBytes ports;
  for (const topology::Nic& nic : machine.nics) {
    if (!nic.rdma) continue;
    for (const topology::Port& port : nic.ports) {
      const std::string where = "/class/infiniband/" + nic.name + "/ports/" +
                                std::to_string(port.number) + "/counters/port_";
      std::uint64_t words = 0;  // the counters count 4 bytes
      bool known = false;
      for (const char* which : {"xmit_data", "rcv_data"}) {
        if (const auto text = sys.text(where + which)) {
          words += std::strtoull(text->c_str(), nullptr, 10);
          known = true;
        }
      }
      if (known) ports[nic.name + "/" + std::to_string(port.number)] = 4 * words;
    }
  }
  return ports;
}

Findings check_versions(const v1::GetSnapshotResponse& snapshot, const v1::GetBooksResponse& books,
                        const std::string& own_version) {
  Findings findings;
  const std::string& agent = snapshot.agent_version();
  if (agent != own_version)
    findings.push_back({"agent-version", Level::kWarning, "agent",
                        "the agent is of release " + agent + ", this program of " + own_version,
                        "GetSnapshot of the agent",
                        "install both from one release, and restart the agent"});
  else
    findings.push_back(
        {"agent-version", Level::kOk, "agent", "release " + agent, "GetSnapshot", ""});
  std::map<std::string, std::set<std::string>> nccl;  // releases of each job
  std::set<std::string> plugins;
  for (const v1::ProcessBooks& p : books.processes()) {
    if (p.state() != "connected") continue;
    if (p.nccl_version() > 0)
      nccl[p.job_id()].insert(nccl_release(static_cast<int>(p.nccl_version())));
    if (!p.plugin_version().empty()) plugins.insert(p.plugin_version());
  }
  for (const std::string& plugin : plugins)
    if (plugin != agent)
      findings.push_back(
          {"plugin-version", Level::kWarning, "plugin",
           "running jobs have the plugin of release " + plugin + ", the agent is of " + agent,
           "books of their processes",
           "install the plugin of the agent's release; running jobs go on as they "
           "are"});
  for (const auto& [job, releases] : nccl) {
    if (releases.size() < 2) continue;
    std::string list;
    for (const std::string& r : releases) list += (list.empty() ? "" : ", ") + r;
    findings.push_back({"nccl-versions", Level::kProblem, "job " + job,
                        "its processes use different releases of NCCL: " + list,
                        "books of its processes",
                        "one container image or environment for all ranks"});
  }
  for (const v1::JobSnapshot& job : snapshot.jobs())
    if (job.job().identity_source() == "claimed")
      findings.push_back(
          {"identity", Level::kWarning, "job " + job.job().job_id(),
           "whose it is is only claimed: the agent cannot see its processes (identity_source="
           "\"claimed\")",
           "the kernel gives the agent no process id, or the control group names no job",
           "Kubernetes: hostPID: true for the agent's pod; SLURM: ProctrackType=proctrack/cgroup"});
  return findings;
}

Findings check_run(const Moment& before, const Moment& after, const topology::Machine& machine,
                   const topology::Paths& paths) {
  return RunCheck(before, after, machine, paths).run();
}

void LaunchCount::add(const v1::Operation& operation) {
  ++operations;
  if (operation.graph()) ++graph;
  if (operation.duration_ns() > 0 &&
      static_cast<double>(operation.duration_ns()) < kShortSeconds * 1e9)
    ++timed_short;
}

Findings check_launches(const std::string& job, const LaunchCount& count) {
  if (count.operations < kManySmall || count.graph > 0 ||
      static_cast<double>(count.timed_short) < kSmallShare * static_cast<double>(count.operations))
    return {};
  return {{"launches", Level::kWarning, "job " + job,
           "most operations take less than 20 us: launching them costs more, and no CUDA graph is "
           "used",
           std::to_string(count.timed_short) + " of " + std::to_string(count.operations) +
               " operations that the agent holds",
           "capture the step in a CUDA graph, or put operations together"}};
}

}  // namespace ncclscope::cli

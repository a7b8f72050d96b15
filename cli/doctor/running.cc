// SPDX-License-Identifier: Apache-2.0
#include "cli/doctor/running.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <tuple>
#include <vector>

#include "cli/diagnose/configuration.h"
#include "cli/doctor/installation.h"
#include "cli/text.h"
#include "topology/limits.h"
#include "topology/settings.h"

namespace ncclscope::cli {
namespace {

using topology::Findings;
using topology::Level;

// Sums are of one rank's view each; the thresholds are ours, and wide: what is told must be plain.
constexpr double kFarBelow = 0.3;                // of what the paths allow
constexpr std::uint64_t kEnoughOperations = 20;  // of one size, between the two moments
constexpr std::uint64_t kManySmall = 100;        // AllReduces of a rank between the two moments
constexpr double kSmallShare = 0.8;              // of all AllReduces
constexpr double kReductionShare = 0.5;          // of all operations
constexpr std::uint64_t kManyHeld = 500;         // operations that the agent holds
constexpr std::uint64_t kMuchTraffic = std::uint64_t{64} << 20;  // bytes, that ports must show
/// Ports that carry operations move by at least so much of what all local ranks put on the bus: of
/// a ring that crosses nodes once it is the share of one rank.
constexpr double kLeastShare = 1.0 / 64;
constexpr double kShortSeconds = 20e-6;
constexpr std::uint64_t kLargeBytes = (std::uint64_t{16} << 20) + 1;
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
           const topology::Paths& paths, const HeldByJob& held)
      : before_(before), after_(after), machine_(machine), paths_(paths), held_(held) {}

  Findings run() {
    std::uint64_t moved = 0;
    for (const auto& [port, bytes] : after_.ports) {
      const auto then = before_.ports.find(port);
      if (then != before_.ports.end() && bytes > then->second) moved += bytes - then->second;
    }
    for (const v1::JobSnapshot& job : after_.snapshot.jobs()) {
      know(job);
      const double bytes = bytes_between_nodes(added(find_job(before_.snapshot, job.job()), job));
      bytes_of_all_ += bytes;
      if (bytes >= double{kMuchTraffic}) ++networked_;
    }
    for (const v1::JobSnapshot& job : after_.snapshot.jobs()) {
      const std::vector<v1::OperationSums> sums = added(find_job(before_.snapshot, job.job()), job);
      if (sums.empty()) continue;
      name_ = "job " + job.job().job_id();
      know(job);
      network(job, bytes_between_nodes(sums), moved);
      speed(job);
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

  void know(const v1::JobSnapshot& job) {
    communicators_.clear();
    for (const v1::Communicator& c : job.communicators()) communicators_[c.comm()] = &c;
  }
  [[nodiscard]] double bytes_between_nodes(const std::vector<v1::OperationSums>& sums) const {
    double bytes = 0;
    for (const v1::OperationSums& s : sums)
      if (crosses_nodes(s.comm())) bytes += s.bus_bytes();
    return bytes;
  }

  /// True where it is known that no process of the job has an RDMA device open: then none uses one.
  static bool opened_no_device(const v1::JobSnapshot& job) {
    bool any = false;
    for (const v1::ProcessEnvironment& environment : job.environments()) {
      for (const v1::Process& process : environment.processes()) {
        if (process.state() != "connected") continue;
        if (!process.has_rdma_devices() || process.rdma_devices() > 0) return false;
        any = true;
      }
    }
    return any;
  }

  void network(const v1::JobSnapshot& job, double bytes, std::uint64_t moved) {
    if (bytes < double{kMuchTraffic}) return;
    const auto size = [](double value) { return format_bytes(static_cast<std::uint64_t>(value)); };
    const bool closed = opened_no_device(job);
    const std::string evidence =
        "operations between nodes: " + size(bytes) + " on the bus" +
        (networked_ > 1 ? " of " + size(bytes_of_all_) + " of all jobs" : "") +
        "; RDMA ports: " + (after_.ports.empty() ? "not known" : format_bytes(moved)) +
        (closed ? "; its processes have no RDMA device open" : "");
    const std::string fix =
        "NCCL_DEBUG=INFO says why (NET/IB : No device found, NCCL_IB_DISABLE, device files not in "
        "the container)";
    const double least = std::max(double{kMuchTraffic} / 8, kLeastShare * bytes_of_all_);
    if (!machine_.has_rdma()) {
      add("network", Level::kWarning, "it goes over sockets: the node has no RDMA device", evidence,
          "use nodes with InfiniBand or RoCE, or the cloud's NCCL network plugin");
    } else if (closed) {
      add("network", Level::kProblem,
          "it goes over sockets although there are RDMA devices: none of its processes has one "
          "open",
          evidence, fix);
    } else if (after_.ports.empty()) {
      add("network", Level::kUnknown, "which network it uses is not known: no port shows counters",
          "/sys/class/infiniband/*/ports/*/counters", "look on the host");
    } else if (static_cast<double>(moved) >= least) {
      add("network", Level::kOk, "it uses the RDMA ports", evidence, "");
    } else if (networked_ > 1 && static_cast<double>(moved) >= kLeastShare * bytes) {
      add("network", Level::kUnknown,
          "some job goes over sockets although there are RDMA devices: their ports moved for one, "
          "not for all",
          evidence, fix);
    } else {
      add("network", Level::kProblem,
          "it goes over sockets although there are RDMA devices: their ports hardly moved",
          evidence, fix);
    }
  }

  /// GB/s that a rank can reach at best on the bus; 0 = not known.
  [[nodiscard]] double allowed(const v1::Communicator& c) const {
    std::vector<std::size_t> gpus;
    for (const v1::Rank& rank : c.ranks())
      if (rank.gpu_known() && rank.gpu() < machine_.gpus.size()) gpus.push_back(rank.gpu());
    return topology::ring_limit(machine_, paths_, gpus, c.nnodes()).gigabytes;
  }

  void speed(const v1::JobSnapshot& job) {
    const auto held = held_.find(job.job().job_id());
    if (held == held_.end()) return;
    for (const v1::Communicator& c : job.communicators()) {
      const HeldOperations::Speed speed = held->second.large_reductions(c.comm());
      if (speed.operations < kEnoughOperations) continue;
      const double most = allowed(c);
      const double is = speed.median / 1e9;
      if (most <= 0 || is >= kFarBelow * most) continue;
      add("bandwidth", Level::kWarning,
          "AllReduces above 16 MiB reach " + number(is) + " GB/s on the bus, the paths allow " +
              number(most),
          "communicator " + c.comm() + " " + c.name() + ", " + speed.choice + ", median of " +
              std::to_string(speed.operations) + ", each of the local rank that waited least",
          c.nnodes() > 1
              ? "ncclscope diagnose tells late ranks of other nodes from a slow network; then look "
                "at this node's and the others' findings"
              : "look at this node's other findings, and at ncclscope diagnose");
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
    std::uint64_t operations = 0, all = 0, few_bytes = 0;
    for (const v1::OperationSums& s : sums) {
      operations += s.operations();
      if (s.collective() != "AllReduce") continue;
      all += s.operations();
      if (small(s.size()) || s.size() == "<=1MiB") few_bytes += s.operations();
    }
    std::uint64_t local = 1;  // ranks
    for (const auto& [comm, c] : communicators_)
      local = std::max<std::uint64_t>(local, static_cast<std::uint64_t>(c->ranks_size()));
    const auto share = [few_bytes](std::uint64_t of) {
      return static_cast<double>(few_bytes) / static_cast<double>(of);
    };
    if (few_bytes < kManySmall * local || share(all) < kSmallShare ||
        share(operations) < kReductionShare)
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
  const HeldByJob& held_;
  std::string name_;
  std::map<std::string, const v1::Communicator*> communicators_;
  double bytes_of_all_ = 0;    // between nodes
  std::size_t networked_ = 0;  // jobs with much of it
  Findings findings_;
};

/// The agent's work, where it has not looked at its node.
void judge(v1::ProcessEnvironment& environment, const topology::Machine& machine) {
  topology::Settings settings;
  for (const v1::Variable& variable : environment.variables())
    settings.emplace(variable.name(), topology::Setting{variable.value(), "environment"});
  for (const topology::Finding& found :
       topology::check_settings(settings, machine, topology::Viewpoint::kOutside)) {
    if (found.level == Level::kOk) continue;
    v1::SettingFinding* finding = environment.add_findings();
    finding->set_level(std::string(topology::level_name(found.level)));
    finding->set_variable(found.subject);
    finding->set_reason(found.reason);
    finding->set_evidence(found.evidence);
    finding->set_fix(found.fix);
  }
  environment.set_judged(true);
}

Level level_of(const std::string& name) {
  for (const Level level : {Level::kOk, Level::kWarning, Level::kProblem})
    if (topology::level_name(level) == name) return level;
  return Level::kUnknown;
}

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

Findings check_job_settings(const v1::GetSnapshotResponse& snapshot,
                            const topology::Machine* here) {
  Findings findings;
  for (v1::JobSnapshot job : snapshot.jobs()) {
    bool judged = true;
    for (v1::ProcessEnvironment& environment : *job.mutable_environments()) {
      if (!environment.known()) continue;
      if (!environment.judged() && here != nullptr) judge(environment, *here);
      judged = judged && environment.judged();
    }
    ConfigurationCollector collector;
    collector.add(job, snapshot.node());
    Configuration configuration = collector.finish();
    const auto subject = [&](Holders holders) {
      holders.nodes.clear();  // there is one
      return "job " + job.job().job_id() + (holders.empty() ? "" : ", " + holders.text());
    };
    for (const SettingProblem& p : configuration.problems)
      findings.push_back({"job-env", level_of(p.level), subject(p.holders),
                          p.variable + ": " + p.reason, p.evidence, p.fix});
    for (SettingDifference& difference : configuration.differences) {
      if (difference.what.compare(0, 5, "NCCL_") != 0) continue;  // releases: check_versions()
      for (SettingDifference::Value& value : difference.values) value.holders.nodes.clear();
      findings.push_back({"job-env", Level::kWarning, subject({}),
                          difference.what + " differs between its ranks on this node",
                          difference_text(difference),
                          "set it alike for all, unless it is meant so"});
    }
    if (!configuration.untold.empty())
      findings.push_back({"job-env", Level::kUnknown, subject(configuration.untold),
                          "its NCCL_* variables are not told", "GetSnapshot of the agent",
                          "a plugin of this release, without NCCLSCOPE_ENVIRONMENT=0"});
    if (configuration.told.empty()) continue;
    if (!judged)
      findings.push_back({"job-env", Level::kUnknown, subject(configuration.told),
                          "its NCCL_* variables are not judged",
                          "the agent has not looked at its node",
                          "set doctor_interval_seconds of the agent, or run this on its node"});
    else if (configuration.problems.empty())
      findings.push_back({"job-env", Level::kOk, subject(configuration.told),
                          "none of its NCCL_* variables does harm here", "", ""});
  }
  return findings;
}

Findings check_run(const Moment& before, const Moment& after, const topology::Machine& machine,
                   const topology::Paths& paths, const HeldByJob& held) {
  return RunCheck(before, after, machine, paths, held).run();
}

void HeldOperations::add(const v1::Operation& operation) {
  graph_ = graph_ || operation.graph();
  const bool p2p = operation.peer() >= 0;
  std::uint64_t& shortest =
      shortest_ns_
          .try_emplace({operation.comm(), p2p ? operation.rank() : -1, operation.index()},
                       std::numeric_limits<std::uint64_t>::max())
          .first->second;
  if (operation.duration_ns() > 0) shortest = std::min(shortest, operation.duration_ns());
  if (operation.collective() != "AllReduce" || operation.bytes() < kLargeBytes ||
      operation.busbw() <= 0 || operation.warmup())
    return;
  Reductions& large = reductions_[operation.comm()];
  double& best = large.best[operation.index()];
  best = std::max(best, operation.busbw());
  large.choice = operation.algorithm() + "/" + operation.protocol();
}

std::uint64_t HeldOperations::short_ones() const {
  return static_cast<std::uint64_t>(std::count_if(
      shortest_ns_.begin(), shortest_ns_.end(),
      [](const auto& entry) { return static_cast<double>(entry.second) < kShortSeconds * 1e9; }));
}

HeldOperations::Speed HeldOperations::large_reductions(const std::string& comm) const {
  const auto at = reductions_.find(comm);
  if (at == reductions_.end()) return {};
  std::vector<double> values;
  for (const auto& [index, best] : at->second.best) values.push_back(best);
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return {*middle, values.size(), at->second.choice};
}

Findings check_launches(const std::string& job, const HeldOperations& held) {
  if (held.count() < kManyHeld || held.graph() ||
      static_cast<double>(held.short_ones()) < kSmallShare * static_cast<double>(held.count()))
    return {};
  return {{"launches", Level::kWarning, "job " + job,
           "most operations take less than 20 us: launching them costs more, and no CUDA graph is "
           "used",
           std::to_string(held.short_ones()) + " of " + std::to_string(held.count()) +
               " operations that the agent holds",
           "capture the step in a CUDA graph, or put operations together"}};
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/node_inspector.h"

#include <algorithm>
#include <utility>

#include "topology/checks.h"
#include "topology/finding.h"
#include "topology/machine.h"
#include "topology/paths.h"
#include "topology/prerequisites.h"

namespace ncclscope::agent {

static_assert(kFindingLevels[3] == topology::level_name(topology::Level::kProblem));
static_assert(kFindingLevels[1] == topology::level_name(topology::Level::kUnknown));

NodeLook inspect_node(const std::string& sysfs_root, const std::string& proc_root) {
  const topology::Roots roots{topology::FileTree(sysfs_root), topology::FileTree(proc_root)};
  NodeLook look;
  look.machine = std::make_shared<const topology::Machine>(topology::read_machine(roots));
  const topology::Machine& machine = *look.machine;
  if (machine.gpus.empty()) return look;
  const topology::Paths paths(machine);
  topology::Findings findings = topology::check_topology(machine, paths);
  topology::append(findings, topology::check_gpudirect(machine, roots));
  topology::append(findings, topology::check_access_control(machine, paths, roots));
  topology::append(findings, topology::check_iommu(machine, roots));
  std::vector<NodeFindings>& counts = look.findings;
  for (const topology::Finding& finding : findings) {
    auto at = std::find_if(counts.begin(), counts.end(),
                           [&](const NodeFindings& c) { return c.check == finding.check; });
    if (at == counts.end()) at = counts.insert(at, NodeFindings{finding.check, {}});
    ++at->by_level[static_cast<std::size_t>(finding.level)];
  }
  std::sort(counts.begin(), counts.end(),
            [](const NodeFindings& a, const NodeFindings& b) { return a.check < b.check; });
  return look;
}

NodeInspector::NodeInspector(std::string sysfs_root, std::string proc_root,
                             std::chrono::seconds interval, Handler handler)
    : sysfs_root_(std::move(sysfs_root)),
      proc_root_(std::move(proc_root)),
      interval_(interval),
      handler_(std::move(handler)),
      thread_([this] { run(); }) {}

NodeInspector::~NodeInspector() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  thread_.join();
}

void NodeInspector::run() {
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    lock.unlock();
    handler_(inspect_node(sysfs_root_, proc_root_));
    lock.lock();
    wake_.wait_for(lock, interval_, [this] { return stopping_; });
  }
}

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// Looks at the node as `ncclscope doctor` does (what needs no job and no root), now and then.
//   Thread: one of its own, since reading sysfs of a large node takes some milliseconds and a
//   device that is sick can hold a read up; what it saw is handed over through a callback, on that
//   thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/aggregate/node_findings.h"
#include "topology/machine.h"

namespace ncclscope::agent {

struct NodeLook {
  std::shared_ptr<const topology::Machine> machine;
  std::vector<NodeFindings> findings;  // empty without GPUs: there is nothing to judge
};
/// One look.
[[nodiscard]] NodeLook inspect_node(const std::string& sysfs_root, const std::string& proc_root);

class NodeInspector {
 public:
  using Handler = std::function<void(NodeLook)>;

  /// Looks at once and then every `interval`.
  NodeInspector(std::string sysfs_root, std::string proc_root, std::chrono::seconds interval,
                Handler handler);
  ~NodeInspector();
  NodeInspector(const NodeInspector&) = delete;
  NodeInspector& operator=(const NodeInspector&) = delete;

 private:
  void run();

  const std::string sysfs_root_, proc_root_;
  const std::chrono::seconds interval_;
  const Handler handler_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  std::thread thread_;
};

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// Looks at the node as `ncclscope doctor` does (what needs no job and no root), now and then.
//   Thread: one of its own, since reading sysfs of a large node takes some milliseconds and a
//   device that is sick can hold a read up; the counts are handed over through a callback, on that
//   thread.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/aggregate/node_findings.h"

namespace ncclscope::agent {

/// One look. Without GPUs there is nothing to judge, and the result is empty.
[[nodiscard]] std::vector<NodeFindings> inspect_node(const std::string& sysfs_root,
                                                     const std::string& proc_root);

class NodeInspector {
 public:
  using Handler = std::function<void(std::vector<NodeFindings>)>;

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

// SPDX-License-Identifier: Apache-2.0
//
// Judges the NCCL_* variables of jobs against this node, as `ncclscope doctor` judges those of its
// own environment.
//   Thread: any; what the node is like is replaced as a whole.
#pragma once

#include <memory>
#include <mutex>
#include <optional>
#include <utility>

#include "agent/aggregate/node_findings.h"
#include "agent/aggregate/snapshot.h"
#include "agent/ingest/process_environment.h"
#include "topology/finding.h"
#include "topology/machine.h"

namespace ncclscope::agent {

class SettingsJudge {
 public:
  using Machine = std::shared_ptr<const topology::Machine>;

  void set_machine(Machine machine) {
    const std::lock_guard lock(mutex_);
    machine_.swap(machine);
  }
  /// What is not ok, in text that is safe to show. None before the node was looked at.
  [[nodiscard]] std::optional<topology::Findings> judge(
      const ProcessEnvironment& environment) const;

  /// Findings of all jobs whose processes told their variables, each environment of a job counted
  /// once; "job-env". All zero: nobody told.
  [[nodiscard]] NodeFindings count(const Snapshot& snapshot) const;

 private:
  [[nodiscard]] Machine machine() const {
    const std::lock_guard lock(mutex_);
    return machine_;
  }
  mutable std::mutex mutex_;
  Machine machine_;  // guarded by mutex_
};

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// The same samples as a prometheus-cpp Collectable, for programs that already expose through that
// library. The agent's own endpoint writes text itself: several times faster, and OpenMetrics too.
//   Thread: Collect() may be called on any thread.
#pragma once

#include <prometheus/collectable.h>
#include <prometheus/metric_family.h>

#include <functional>
#include <vector>

#include "agent/aggregate/snapshot.h"
#include "agent/export/visit.h"

namespace ncclscope::agent {

class SnapshotCollectable final : public prometheus::Collectable {
 public:
  SnapshotCollectable(std::function<SnapshotPtr()> snapshot, std::function<SelfStats()> self);

  [[nodiscard]] std::vector<prometheus::MetricFamily> Collect() const override;

 private:
  std::function<SnapshotPtr()> snapshot_;
  std::function<SelfStats()> self_;
};

}  // namespace ncclscope::agent

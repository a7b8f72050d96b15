// SPDX-License-Identifier: Apache-2.0
//
// What a job says of its own work per second, and the door through which the API hands it to the
// reactor.
//   Thread: any; each report runs on the reactor and waits for it.   Whoever reports has checked
//   that the caller may speak for the job.
#pragma once

#include <cstdint>
#include <string>

#include "agent/aggregate/snapshot.h"
#include "agent/base/reactor.h"

namespace ncclscope::agent {

struct ThroughputReport {
  std::string job_id;
  std::int64_t uid = -1;  // only a job of this user; -1: of anybody
  ThroughputUnit unit{};
  double per_second = 0;
  std::uint64_t valid_ns = 0;  // shown for so long, unless it is reported again
};

class ThroughputReports {
 public:
  virtual ~ThroughputReports() = default;
  /// False: there is no such job, or the agent is stopping.
  virtual bool report(const ThroughputReport& report) = 0;
};

/// `sink` has report_throughput(const ThroughputReport&), to be called on the reactor. Both must
/// outlive it.
template <typename Sink>
class ReactorThroughputReports final : public ThroughputReports {
 public:
  ReactorThroughputReports(Reactor& reactor, Sink& sink) : reactor_(reactor), sink_(sink) {}

  bool report(const ThroughputReport& report) override {
    bool known = false;
    reactor_.call([&] { known = sink_.report_throughput(report); });
    return known;
  }

 private:
  Reactor& reactor_;
  Sink& sink_;
};

}  // namespace ncclscope::agent

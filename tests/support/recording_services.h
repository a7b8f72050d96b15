// SPDX-License-Identifier: Apache-2.0
//
// What the API asks of the agent, in place of the agent: takes every request and remembers the
// last. May be called from any thread.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "agent/aggregate/throughput.h"
#include "agent/ingest/gateway.h"

namespace ncclscope::tests {

template <typename Request>
class Last {
 public:
  void set(const Request& request) {
    const std::lock_guard lock(mutex_);
    request_ = request;
  }
  [[nodiscard]] Request get() const {
    const std::lock_guard lock(mutex_);
    return request_;
  }

 private:
  mutable std::mutex mutex_;
  Request request_;
};

class RecordingDetail final : public agent::DetailControl {
 public:
  /// `told` says how many processes a request reached.
  explicit RecordingDetail(std::function<std::uint32_t(const agent::DetailRequest&)> told)
      : told_(std::move(told)) {}
  std::uint32_t set_detail(const agent::DetailRequest& request) override {
    last_.set(request);
    return told_(request);
  }
  [[nodiscard]] agent::DetailRequest last() const { return last_.get(); }

 private:
  std::function<std::uint32_t(const agent::DetailRequest&)> told_;
  Last<agent::DetailRequest> last_;
};

class RecordingThroughput final : public agent::ThroughputReports {
 public:
  bool report(const agent::ThroughputReport& report) override {
    last_.set(report);
    return true;
  }
  [[nodiscard]] agent::ThroughputReport last() const { return last_.get(); }

 private:
  Last<agent::ThroughputReport> last_;
};

}  // namespace ncclscope::tests

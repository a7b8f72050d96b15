// SPDX-License-Identifier: Apache-2.0
//
// The gateway's implementation: each call becomes a closure on the reactor, and waits for it.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string_view>

#include "agent/base/reactor.h"
#include "agent/ingest/gateway.h"
#include "agent/ingest/session.h"

namespace ncclscope::agent {

/// Must outlive its channels; the reactor must not be destroyed before it.
class ReactorGateway final : public IngestGateway, public DetailControl {
 public:
  ReactorGateway(Reactor& reactor, Ingest& ingest, std::size_t max_channels)
      : reactor_(reactor), ingest_(ingest), max_channels_(max_channels) {}

  std::unique_ptr<IngestChannel> open(std::string_view origin, std::int64_t uid) override;
  std::uint32_t set_detail(const DetailRequest& request) override;
  /// Wakes everybody who waits; no channel is opened any more.
  void close() { closed_ = true; }

 private:
  class Channel;
  Reactor& reactor_;
  Ingest& ingest_;
  std::size_t max_channels_;
  std::atomic<std::size_t> channels_{0};
  std::atomic<bool> closed_{false};
  std::mutex after_the_end_;  // serialises channels that end after the reactor has stopped
};

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// The gateway's implementation: each call becomes a closure on the reactor, and waits for it. All
// channels of one principal share its bytes per second.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include "agent/base/reactor.h"
#include "agent/ingest/gateway.h"
#include "agent/ingest/quota.h"
#include "agent/ingest/session.h"

namespace ncclscope::agent {

/// Must outlive its channels; the reactor must not be destroyed before it.
class ReactorGateway final : public IngestGateway, public DetailControl {
 public:
  struct Options {
    std::size_t max_channels = 64;
    std::uint64_t bytes_per_second_per_principal = 0;  // 0 = no limit
  };
  ReactorGateway(Reactor& reactor, Ingest& ingest, const Options& options)
      : reactor_(reactor), ingest_(ingest), options_(options) {}

  std::unique_ptr<IngestChannel> open(std::string_view origin, std::int64_t uid) override;
  std::uint32_t set_detail(const DetailRequest& request) override;
  /// Wakes everybody who waits; no channel is opened any more.
  void close() { closed_ = true; }

 private:
  class Channel;
  struct Account {
    std::string principal;
    ByteBucket bytes;
    std::size_t channels = 0;
  };

  /// On the reactor: the account of one more channel.
  Account& open_account(const std::string& principal);

  Reactor& reactor_;
  Ingest& ingest_;
  const Options options_;
  std::map<std::string, std::unique_ptr<Account>> accounts_;  // the reactor's
  std::atomic<std::size_t> channels_{0};
  std::atomic<bool> closed_{false};
  std::mutex after_the_end_;  // serialises channels that end after the reactor has stopped
};

}  // namespace ncclscope::agent

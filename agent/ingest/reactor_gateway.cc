// SPDX-License-Identifier: Apache-2.0
//
// A channel's session lives on the reactor: it is made, used and destroyed there. What it wants to
// send is put into a queue that both submit() and take() empty.
#include "agent/ingest/reactor_gateway.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "agent/base/log.h"

namespace ncclscope::agent {
namespace {

/// Between the reactor and the channel's user; shared, because either may be gone first.
struct Mailbox {
  std::mutex mutex;
  std::condition_variable arrived;
  IngestChannel::Response waiting;

  IngestChannel::Response empty() {  // with the mutex held
    IngestChannel::Response out;
    out.closed = waiting.closed;
    out.frames.swap(waiting.frames);
    return out;
  }
};

/// Lives and dies on the reactor.
class Carrier final : public SessionCarrier {
 public:
  Carrier(Ingest& ingest, PeerIdentity peer, std::shared_ptr<Mailbox> mailbox)
      : mailbox_(std::move(mailbox)), session_(ingest, std::move(peer), *this) {}

  void feed(std::string_view frame) {
    if (!over_) {
      // std::string data has no alignment that records need: the decoder copies.
      const std::span<const char> chars(frame);
      if (session_.on_frame(std::as_bytes(chars)) == Session::Verdict::kClose) over_ = true;
      session_.acknowledge();
    }
    output_ready();
  }
  void output_ready() override {
    session_.take_output(sending_);
    const std::lock_guard lock(mailbox_->mutex);
    for (const OutFrame& frame : sending_) {
      if (mailbox_->waiting.frames.size() >= kMaxWaiting) break;  // nobody takes them
      mailbox_->waiting.frames.emplace_back(reinterpret_cast<const char*>(frame.bytes.data()),
                                            frame.size);
    }
    mailbox_->waiting.closed = over_;
    mailbox_->arrived.notify_all();
  }
  void session_over() override {
    over_ = true;
    output_ready();
  }

 private:
  static constexpr std::size_t kMaxWaiting = 256;
  std::shared_ptr<Mailbox> mailbox_;
  Session session_;
  std::vector<OutFrame> sending_;
  bool over_ = false;
};

}  // namespace

class ReactorGateway::Channel final : public IngestChannel {
 public:
  explicit Channel(ReactorGateway& gateway) : gateway_(gateway) { ++gateway_.channels_; }
  ~Channel() override {
    const auto end = [this] {
      carrier_.reset();
      if (account_ != nullptr) --account_->channels;
    };
    if (!gateway_.reactor_.call(end)) {
      // Nothing runs on the reactor any more, so the session may die here; but other channels do so
      // too.
      const std::lock_guard lock(gateway_.after_the_end_);
      end();
    }
    --gateway_.channels_;
  }

  bool start(PeerIdentity peer) {
    return gateway_.reactor_.call([&] {
      if (gateway_.closed_) return;
      account_ = &gateway_.open_account(peer.principal);
      carrier_ = std::make_unique<Carrier>(gateway_.ingest_, std::move(peer), mailbox_);
    }) && carrier_ != nullptr;
  }

  Response submit(std::string_view frame) override {
    frame = frame.substr(0, wire::kMaxFrameBytes + 1);
    Response out;
    const auto feed = [&] {
      out.retry_after = wait_for_bytes(frame.size());
      if (out.retry_after.count() == 0) carrier_->feed(frame);
    };
    if (gateway_.closed_ || !gateway_.reactor_.call(feed)) return over();
    if (out.retry_after.count() > 0) return out;
    const std::lock_guard lock(mailbox_->mutex);
    return mailbox_->empty();
  }
  Response take(std::chrono::milliseconds timeout) override {
    std::unique_lock lock(mailbox_->mutex);
    mailbox_->arrived.wait_for(lock, timeout, [&] {
      return !mailbox_->waiting.frames.empty() || mailbox_->waiting.closed || gateway_.closed_;
    });
    Response out = mailbox_->empty();
    out.closed = out.closed || gateway_.closed_;
    return out;
  }

 private:
  static Response over() {
    Response response;
    response.closed = true;
    return response;
  }
  /// On the reactor. 0: they have been paid for.
  std::chrono::milliseconds wait_for_bytes(std::size_t bytes) {
    Ingest& ingest = gateway_.ingest_;
    const std::uint64_t now = ingest.clock().monotonic_ns();
    if (account_->bytes.allows(now)) {
      account_->bytes.take(bytes);
      waits_ = false;
      return std::chrono::milliseconds(0);
    }
    if (!std::exchange(waits_, true)) {
      ingest.quotas().exceeded(
          Quota::kBytes, account_->principal, now,
          concat("its ", account_->channels, " streams are read at ",
                 gateway_.options_.bytes_per_second_per_principal, " bytes per second"));
    }
    const double ms = std::ceil(account_->bytes.wait_seconds() * 1e3);
    return std::chrono::milliseconds(static_cast<std::int64_t>(std::clamp(ms, 1.0, 1e6)));
  }

  ReactorGateway& gateway_;
  Account* account_ = nullptr;  // the reactor's, as what it points to
  bool waits_ = false;          // for its turn; the reactor's
  std::shared_ptr<Mailbox> mailbox_ = std::make_shared<Mailbox>();
  std::unique_ptr<Carrier> carrier_;
};

std::unique_ptr<IngestChannel> ReactorGateway::open(std::string_view origin, std::int64_t uid) {
  if (closed_ || channels_ >= options_.max_channels) return nullptr;
  PeerIdentity peer;
  peer.uid = uid;
  peer.claimed = true;
  // "uid:1000" pays as "claimed:1000".
  peer.principal = "claimed:" + (uid >= 0 ? std::to_string(uid) : std::string(origin));
  peer.origin = std::string(origin);
  auto channel = std::make_unique<Channel>(*this);
  if (!channel->start(std::move(peer))) return nullptr;
  return channel;
}

ReactorGateway::Account& ReactorGateway::open_account(const std::string& principal) {
  // Those that owe nothing are forgotten here, where they would otherwise accumulate. Who closes a
  // stream and opens another one has the same account.
  const std::uint64_t now = ingest_.clock().monotonic_ns();
  std::erase_if(accounts_, [&](const auto& known) {
    return known.second->channels == 0 && known.second->bytes.full(now);
  });
  std::unique_ptr<Account>& account = accounts_[principal];
  if (account == nullptr) {
    account = std::make_unique<Account>(
        Account{principal, ByteBucket(options_.bytes_per_second_per_principal), 0});
  }
  ++account->channels;
  return *account;
}

std::uint32_t ReactorGateway::set_detail(const DetailRequest& request) {
  std::uint32_t told = 0;
  reactor_.call([&] { told = ingest_.set_detail(request); });
  return told;
}

}  // namespace ncclscope::agent

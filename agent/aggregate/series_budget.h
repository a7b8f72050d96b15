// SPDX-License-Identifier: Apache-2.0
//
// How many series each job may have: limits for a job, for all jobs of one principal, and for the
// agent. A job is charged what it has, and at least what a wholly folded job can need, so that
// there is always room to fold into: the sums of all charges stay within the limits.
// Whoever grows meets the limit; nobody has to give up what it has because another one grows.
//   Thread: reactor.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "agent/aggregate/series.h"

namespace ncclscope::agent {

struct SeriesLimits {
  std::uint64_t job = 4'000;
  std::uint64_t principal = 20'000;
  std::uint64_t agent = 50'000;
};

class SeriesBudget {
 public:
  struct Share {
    std::uint64_t charged = 0;
    std::size_t jobs = 0;
  };
  struct Account {
    std::map<std::string, Share>::iterator share;
    std::uint64_t charged = 0;
  };

  explicit SeriesBudget(const SeriesLimits& limits) : limits_(limits) {}

  /// True when there is room for one more job of this principal.
  [[nodiscard]] bool admits(const std::string& principal) const {
    const auto it = shares_.find(principal);
    const std::uint64_t charged = it == shares_.end() ? 0 : it->second.charged;
    return charged + kLeastSeriesOfAJob <= limits_.principal &&
           charged_ + kLeastSeriesOfAJob <= limits_.agent;
  }
  [[nodiscard]] Account open(const std::string& principal) {
    Account account;
    account.share = shares_.try_emplace(principal).first;
    ++account.share->second.jobs;
    charge(account, 0);
    return account;
  }
  void charge(Account& account, std::uint64_t series) {
    const std::uint64_t charged = std::max(series, kLeastSeriesOfAJob);
    charged_ += charged - account.charged;
    account.share->second.charged += charged - account.charged;
    account.charged = charged;
  }
  void close(const Account& account) {
    charged_ -= account.charged;
    account.share->second.charged -= account.charged;
    if (--account.share->second.jobs == 0) shares_.erase(account.share);
  }
  /// The most series this job may have now, the others being as they are.
  [[nodiscard]] std::uint64_t allowance(const Account& account) const {
    const auto room = [&](std::uint64_t limit, std::uint64_t charged) {
      const std::uint64_t others = charged - account.charged;
      return limit > others ? limit - others : 0;
    };
    return std::min({limits_.job, room(limits_.principal, account.share->second.charged),
                     room(limits_.agent, charged_)});
  }
  [[nodiscard]] const SeriesLimits& limits() const { return limits_; }
  [[nodiscard]] std::uint64_t charged() const { return charged_; }

 private:
  SeriesLimits limits_;
  std::map<std::string, Share> shares_;  // by principal, of those that have jobs
  std::uint64_t charged_ = 0;
};

}  // namespace ncclscope::agent

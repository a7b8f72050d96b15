// SPDX-License-Identifier: Apache-2.0
//
// How many series each job may have: limits for a job, for all jobs of one principal, and for the
// agent. A job is charged what it has, and at least what a wholly folded job can need, so that
// there is always room to fold into: the sums of all charges stay within the limits.
// Whoever grows meets the limit; nobody has to give up what it has because another one grows. So
// that those who come first do not take everything, half of each limit is kept for the least that
// later jobs need, and of the agent's other half a job may take a sixth of what the others leave.
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
  std::uint64_t principal = 25'000;
  std::uint64_t agent = 50'000;
};

class SeriesBudget {
 public:
  struct Share {
    std::uint64_t charged = 0;
    std::uint64_t beyond_least = 0;  // of that
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
           all_.charged + kLeastSeriesOfAJob <= limits_.agent;
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
    for (Share* share : {&all_, &account.share->second}) {
      share->charged += charged - account.charged;
      share->beyond_least += beyond_least(charged) - beyond_least(account.charged);
    }
    account.charged = charged;
  }
  void close(const Account& account) {
    for (Share* share : {&all_, &account.share->second}) {
      share->charged -= account.charged;
      share->beyond_least -= beyond_least(account.charged);
    }
    if (--account.share->second.jobs == 0) shares_.erase(account.share);
  }
  /// The most series this job may have now, the others being as they are. What it has it may keep.
  [[nodiscard]] std::uint64_t allowance(const Account& account) const {
    const auto left = [&](std::uint64_t limit, const Share& share) {
      const std::uint64_t pool = limit / 2;
      const std::uint64_t others = share.beyond_least - beyond_least(account.charged);
      return pool > others ? pool - others : 0;
    };
    const std::uint64_t may_grow_to =
        kLeastSeriesOfAJob + std::min(left(limits_.principal, account.share->second),
                                      left(limits_.agent, all_) / kShareOfWhatIsLeft);
    return std::min(limits_.job, std::max(account.charged, may_grow_to));
  }
  [[nodiscard]] const SeriesLimits& limits() const { return limits_; }

 private:
  static constexpr std::uint64_t kShareOfWhatIsLeft = 6;
  static std::uint64_t beyond_least(std::uint64_t charged) {
    return charged > kLeastSeriesOfAJob ? charged - kLeastSeriesOfAJob : 0;
  }

  SeriesLimits limits_;
  std::map<std::string, Share> shares_;  // by principal, of those that have jobs
  Share all_;
};

}  // namespace ncclscope::agent

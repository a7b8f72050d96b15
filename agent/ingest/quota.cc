// SPDX-License-Identifier: Apache-2.0
#include "agent/ingest/quota.h"

#include "agent/base/log.h"

namespace ncclscope::agent {

void QuotaCounter::exceeded(Quota quota, std::string_view principal, std::uint64_t now_ns,
                            std::string_view consequence) {
  ++counts_[static_cast<std::size_t>(quota)];
  auto it = lines_.find({quota, std::string(principal)});
  if (it == lines_.end()) {
    if (lines_.size() >= kMaxLogged) {
      std::erase_if(lines_,
                    [&](const auto& line) { return now_ns - line.second.at_ns >= kLogPeriodNs; });
      if (lines_.size() >= kMaxLogged) return;
    }
    it = lines_.emplace(std::pair(quota, std::string(principal)), Line{}).first;
  } else if (now_ns - it->second.at_ns < kLogPeriodNs) {
    ++it->second.left_out;
    return;
  }
  Line& line = it->second;
  line.at_ns = now_ns;
  ++logged_;
  const std::uint64_t left_out = std::exchange(line.left_out, 0);
  log_warning(concat("the quota of ", name(quota), " of ",
                     principal.empty() ? std::string_view("an unknown principal") : principal,
                     " is used up: ", consequence,
                     left_out == 0 ? std::string() : concat(" (and ", left_out, " times since)")));
}

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
#include "plugin/governor.h"

#include <algorithm>

namespace ncclscope::plugin {

bool Governor::observe(std::uint64_t now_ns, std::uint64_t own_ns) noexcept {
  if (!started_ || now_ns < last_.start_ns || own_ns < last_.own_ns) {
    started_ = true;
    alarm_ = false;
    debt_ns_ = 0;
    calm_since_ns_ = now_ns;
    last_ = window_ = alarm_window_ = debt_window_ = {now_ns, own_ns};
    return false;
  }
  bool changed = false;
  double ratio = 0;
  if (over_budget(now_ns, own_ns, ratio) && step_ < options_.highest)
    changed = lower(now_ns, own_ns, ratio);
  last_ = {now_ns, own_ns};

  const std::uint64_t window_ns = std::min(kWindowNs, options_.calm_ns / 4);
  if (now_ns - window_.start_ns >= window_ns) {
    recent_ratio_ = window_.ratio(now_ns, own_ns);
    window_ = {now_ns, own_ns};
    if (recent_ratio_ > options_.budget * kCalmShare) {
      calm_since_ns_ = now_ns;
    } else if (!changed && step_ > 0 &&
               now_ns - calm_since_ns_ >= options_.calm_ns * std::max(1u, wait_[step_])) {
      changed = restore(now_ns);
    }
  }
  return changed;
}

bool Governor::over_budget(std::uint64_t now_ns, std::uint64_t own_ns, double& ratio) noexcept {
  if (alarm_) {
    if (now_ns - alarm_window_.start_ns < kAlarmNs) return false;
    ratio = alarm_window_.ratio(now_ns, own_ns);
    alarm_window_ = debt_window_ = {now_ns, own_ns};
    alarm_ = ratio > options_.budget;
    return alarm_;
  }
  const double allowed = options_.budget * static_cast<double>(now_ns - last_.start_ns);
  debt_ns_ += static_cast<double>(own_ns - last_.own_ns) - allowed;
  if (debt_ns_ <= 0) {
    debt_ns_ = 0;
    debt_window_ = {now_ns, own_ns};
  }
  ratio = debt_window_.ratio(now_ns, own_ns);
  return debt_ns_ > kDebtSeconds * 1e9 * options_.budget;
}

bool Governor::lower(std::uint64_t now_ns, std::uint64_t own_ns, double ratio) noexcept {
  ++step_;
  // Soon after it was given back: the attempt has failed.
  const bool failed =
      restored_at_ns_ != 0 && now_ns - restored_at_ns_ < kTrialCalms * options_.calm_ns;
  wait_[step_] = failed ? std::min(kLongestWait, std::max(1u, wait_[step_]) * 2) : 1;
  restored_at_ns_ = 0;
  alarm_ = true;
  debt_ns_ = 0;
  alarm_window_ = debt_window_ = {now_ns, own_ns};
  calm_since_ns_ = now_ns;
  trigger_ratio_ = ratio;
  changed_at_ns_ = now_ns;
  ++changes_;
  return true;
}

bool Governor::restore(std::uint64_t now_ns) noexcept {
  --step_;
  restored_at_ns_ = now_ns;
  calm_since_ns_ = now_ns;
  changed_at_ns_ = now_ns;
  ++changes_;
  return true;
}

}  // namespace ncclscope::plugin

// SPDX-License-Identifier: Apache-2.0
//
// Decides how much to give up so that the plugin's own time stays under its budget. Pure: told the
// time and the own time so far, it answers with a step; 0 gives nothing up.
//   Lowers when the own time that exceeds the budget adds up to 0.4 s worth of budget: a burst ten
//   times too large within a tick, a small excess slowly, noise never. What follows is decided on
//   the next 0.3 s alone, so that several steps are taken quickly. Restores one step when the time
//   since has been calm, waiting twice as long after each attempt that failed.
//   Thread: one. Times: ns of any monotonic clock.
#pragma once

#include <array>
#include <cstdint>

namespace ncclscope::plugin {

class Governor {
 public:
  static constexpr std::uint8_t kMaxSteps = 4;

  struct Options {
    double budget = 0.001;                   // own time / wall time
    std::uint64_t calm_ns = 10'000'000'000;  // this long below half of the budget: a step back
    std::uint8_t highest = kMaxSteps;        // steps there are
  };
  constexpr Governor() noexcept = default;
  explicit constexpr Governor(const Options& options) noexcept : options_(options) {}

  /// `own_ns`: own time since the beginning. True when the step has changed.
  bool observe(std::uint64_t now_ns, std::uint64_t own_ns) noexcept;

  [[nodiscard]] std::uint8_t step() const noexcept { return step_; }
  [[nodiscard]] std::uint64_t changes() const noexcept { return changes_; }
  /// When the step last changed; 0 = never.
  [[nodiscard]] std::uint64_t changed_at_ns() const noexcept { return changed_at_ns_; }
  /// Own time / wall time that made the last lowering; 0 = there was none.
  [[nodiscard]] double trigger_ratio() const noexcept { return trigger_ratio_; }
  /// Own time / wall time over the last second or so.
  [[nodiscard]] double recent_ratio() const noexcept { return recent_ratio_; }

 private:
  static constexpr double kDebtSeconds = 0.4;
  static constexpr std::uint64_t kAlarmNs = 300'000'000;
  static constexpr std::uint64_t kWindowNs = 1'000'000'000;
  static constexpr double kCalmShare = 0.5;
  static constexpr std::uint32_t kLongestWait = 64;  // times calm_ns
  static constexpr std::uint64_t kTrialCalms = 10;   // as long a restored step is on trial

  struct Window {
    std::uint64_t start_ns = 0;
    std::uint64_t own_ns = 0;
    [[nodiscard]] double ratio(std::uint64_t now, std::uint64_t own) const noexcept {
      return now > start_ns && own > own_ns
                 ? static_cast<double>(own - own_ns) / static_cast<double>(now - start_ns)
                 : 0.0;
    }
  };

  bool lower(std::uint64_t now_ns, std::uint64_t own_ns, double ratio) noexcept;
  bool restore(std::uint64_t now_ns) noexcept;
  [[nodiscard]] bool over_budget(std::uint64_t now_ns, std::uint64_t own_ns,
                                 double& ratio) noexcept;

  Options options_;
  bool started_ = false;
  std::uint8_t step_ = 0;
  bool alarm_ = false;
  Window last_, window_, alarm_window_, debt_window_;
  double debt_ns_ = 0;
  std::uint64_t calm_since_ns_ = 0;
  std::uint64_t restored_at_ns_ = 0;
  std::array<std::uint32_t, kMaxSteps + 1> wait_{};  // in calm_ns, before leaving this step; 0 = 1
  std::uint64_t changes_ = 0;
  std::uint64_t changed_at_ns_ = 0;
  double trigger_ratio_ = 0;
  double recent_ratio_ = 0;
};

}  // namespace ncclscope::plugin

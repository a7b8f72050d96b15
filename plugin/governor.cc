// SPDX-License-Identifier: Apache-2.0
#include "plugin/governor.h"

namespace ncclscope::plugin {

void Governor::tick(Process& p, std::uint64_t now_ns) noexcept {
  std::uint64_t own_ns = 0;
  for (auto& entry : p.lanes) {
    if (const Lane* lane = entry.load(kAcquire); lane != nullptr)
      own_ns += lane->sampled_ns.load(kRelaxed);
  }
  if (window_start_ns_ == 0 || now_ns < window_start_ns_) {
    window_start_ns_ = now_ns;
    own_ns_at_start_ = own_ns;
    return;
  }
  const std::uint64_t elapsed = now_ns - window_start_ns_;
  if (elapsed < kWindowNs) return;
  const double ratio =
      static_cast<double>(own_ns - own_ns_at_start_) / static_cast<double>(elapsed);
  window_start_ns_ = now_ns;
  own_ns_at_start_ = own_ns;
  if (ratio > p.settings.overhead_budget) {
    calm_windows_ = 0;
    if (step_ < kHighestStep) {
      ++step_;
      apply(p);
    }
  } else if (step_ > 0 && ratio < p.settings.overhead_budget / 4) {
    if (++calm_windows_ >= kCalmWindows) {
      calm_windows_ = 0;
      --step_;
      apply(p);
    }
  } else {
    calm_windows_ = 0;
  }
}

void Governor::apply(Process& p) noexcept {
  const bool own_slices = p.settings.mask_set
                              ? false
                              : default_mask(p.interface_version, p.nccl_version).kernel_slice > 1;
  p.governor.store(step_, kRelaxed);
  p.network_off.store(step_ >= 1, kRelaxed);
  if (!own_slices) {
    p.kernel_slice.store(step_ >= 2 ? 16 : 1, kRelaxed);
    p.kernel_sliced.store(step_ >= 2, kRelaxed);
  }
  apply_mask(p);
}

}  // namespace ncclscope::plugin

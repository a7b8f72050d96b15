// SPDX-License-Identifier: Apache-2.0
#include "plugin/process.h"

namespace ncclscope::plugin {

constinit Process the_process;

namespace {

constexpr std::uint32_t kNetworkEvents =
    std::uint32_t{nccl::kProxyOp} | nccl::kProxyStep | nccl::kProxyCtrl | nccl::kNetPlugin;
constexpr std::uint32_t kKernelEvents = std::uint32_t{nccl::kKernelCh} | nccl::kKernelPhase;
constexpr std::uint32_t kCopyEngineEvents =
    std::uint32_t{nccl::kCeColl} | nccl::kCeSync | nccl::kCeBatch;
constexpr std::uint32_t kSlice = 16;
constexpr std::uint32_t kFewSlices = 64;
constexpr int kMaskAttempts = 4;

bool has_kernel_reports(std::uint32_t base_mask) noexcept {
  return (base_mask & nccl::kKernelCh) != 0;
}
bool has_calls(std::uint32_t base_mask) noexcept {
  return (base_mask & nccl::kCollApi) != 0;
}

}  // namespace

Ladder ladder_for(std::uint32_t base_mask, std::uint32_t release_slice) noexcept {
  Ladder ladder;
  const auto add = [&ladder](Lowering l) { ladder.steps[++ladder.highest] = l; };
  add(Lowering::kNetwork);
  if (has_kernel_reports(base_mask)) {
    if (release_slice < kSlice) add(Lowering::kKernelSlices);
    if (release_slice < kFewSlices) add(Lowering::kFewerSlices);
  }
  if (has_kernel_reports(base_mask) || has_calls(base_mask)) add(Lowering::kCountersOnly);
  return ladder;
}

Recording choose_recording(DetailWish wish, Lowering lowering, std::uint32_t base_mask,
                           std::uint32_t release_slice) noexcept {
  using wire::DetailLevel;
  Recording r;
  r.detail = wish.level;
  if (wish.level == DetailLevel::kFull && lowering >= Lowering::kNetwork)
    r.detail = DetailLevel::kNormal;
  if (lowering >= Lowering::kKernelSlices) r.detail = DetailLevel::kLow;
  r.network_off = lowering >= Lowering::kNetwork || wish.level == DetailLevel::kLow;
  r.network_always = !r.network_off && (wish.network || r.detail == DetailLevel::kFull);
  r.channel_detail =
      r.detail == DetailLevel::kFull || (wish.channels && lowering < Lowering::kNetwork);
  // Full detail is worth what it costs: somebody asked for it, for a while.
  r.kernel_slice = r.detail == DetailLevel::kFull ? 1 : release_slice;
  if (r.detail == DetailLevel::kLow && r.kernel_slice < kSlice) r.kernel_slice = kSlice;
  if (lowering >= Lowering::kFewerSlices && r.kernel_slice < kFewSlices)
    r.kernel_slice = kFewSlices;
  if (lowering == Lowering::kCountersOnly) {
    r.kernel_slice = 0;
    r.calls_only = has_calls(base_mask);
  }
  return r;
}

void apply_recording(Process& p, const Recording& r) noexcept {
  p.kernel_slice.store(r.kernel_slice, kRelaxed);
  const bool probe = r.kernel_slice == 1 && !r.channel_detail && !p.settings.mask_set;
  p.kernel_probe.store(probe ? p.settings.cost_sample : 0, kRelaxed);
  p.network_always.store(r.network_always, kRelaxed);
  p.network_off.store(r.network_off, kRelaxed);
  p.channel_detail.store(r.channel_detail, kRelaxed);
  p.calls_only.store(r.calls_only, kRelaxed);
  apply_mask(p);
}

std::uint32_t wanted_mask(const Process& p) noexcept {
  std::uint32_t mask = p.base_mask.load(kRelaxed);
  if (p.network_off.load(kRelaxed)) {
    mask &= ~kNetworkEvents;
  } else if (p.network_always.load(kRelaxed) || p.network_blocks.load(kRelaxed) > 0) {
    mask |= nccl::kProxyStep;
  }
  const std::uint32_t slice = p.kernel_slice.load(kRelaxed);
  const std::int32_t blocks = p.kernel_blocks.load(kRelaxed);
  // A probe must not take the GPU times of other communicators, whose blocks lie elsewhere.
  const bool probe = p.kernel_probe.load(kRelaxed) != 0 && blocks > 0 &&
                     blocks >= p.live_communicators.load(kRelaxed);
  if (slice == 0 || (slice > 1 && blocks <= 0) || (slice == 1 && probe)) mask &= ~kKernelEvents;
  // Point-to-point tasks stay: only they tell the peer, and a send to oneself disturbs GPU times.
  if (p.calls_only.load(kRelaxed)) {
    mask &= ~(std::uint32_t{nccl::kColl} | kCopyEngineEvents | kKernelEvents | kNetworkEvents);
  }
  return mask;
}

void apply_mask(Process& p) noexcept {
  // Threads meet here: the last one to write sees what the others wanted, or they see its mask.
  for (int attempt = 0; attempt < kMaskAttempts; ++attempt) {
    const std::uint32_t mask = wanted_mask(p);
    int* target = p.nccl_mask.load(kAcquire);
    // At no time the plugin expects what NCCL was not asked for: an operation that waits for
    // reports that never come would look like a hang.
    p.mask.store(mask & p.mask.load(kRelaxed), kRelease);
    if (target != nullptr) __atomic_store_n(target, static_cast<int>(mask), __ATOMIC_RELEASE);
    // An exchange, not a store: what is read next must not be older than what others see of us.
    p.mask.exchange(mask, std::memory_order_seq_cst);
    if (wanted_mask(p) == mask && p.mask.load(kRelaxed) == mask &&
        (target == nullptr || __atomic_load_n(target, __ATOMIC_RELAXED) == static_cast<int>(mask)))
      return;
  }
}

MaskChoice default_mask(std::uint8_t interface_version, std::uint32_t nccl_version) noexcept {
  using namespace nccl;  // NOLINT(google-build-using-namespace): the bits read as NCCL's documents
                         // write them
  constexpr std::uint32_t kTasks = std::uint32_t{kColl} | kP2p;
  if (interface_version <= 2) return {kTasks, 1};
  // 2.26 and 2.27: KernelCh together with many Send/Recv or aggregated tasks can fail the job
  // ("Proxy append out of bounds", NVIDIA/nccl#2039), and the mask cannot tell them apart
  // beforehand.
  if (interface_version == 3) return {kTasks, 1};
  if (interface_version == 4 && (nccl_version == 0 || nccl_version < 22800)) return {kTasks, 1};
  std::uint32_t mask = kTasks | kKernelCh;
  if (interface_version >= 5) mask |= std::uint32_t{kCollApi} | kP2pApi;
  if (interface_version >= 6) mask |= kCeColl;
  // 2.31.2 stamps phases with every KernelCh: 4 to 13 % on medium AllReduces (NVIDIA/nccl#2355).
  const bool costly = nccl_version >= 23100 && nccl_version <= 23102;
  return {mask, costly ? 64u : 1u};
}

}  // namespace ncclscope::plugin

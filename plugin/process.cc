// SPDX-License-Identifier: Apache-2.0
#include "plugin/process.h"

namespace ncclscope::plugin {

constinit Process the_process;

void apply_mask(Process& p) noexcept {
  std::uint32_t mask = p.base_mask.load(kRelaxed);
  const bool network = p.network_always.load(kRelaxed) || p.network_blocks.load(kRelaxed) > 0;
  if (network && !p.network_off.load(kRelaxed) &&
      p.detail.load(kRelaxed) != wire::DetailLevel::kLow) {
    mask |= nccl::kProxyStep;
  }
  if (p.kernel_sliced.load(kRelaxed) && p.kernel_blocks.load(kRelaxed) <= 0)
    mask &= ~std::uint32_t{nccl::kKernelCh};
  if (p.detail.load(kRelaxed) == wire::DetailLevel::kLow) mask &= ~std::uint32_t{nccl::kKernelCh};
  p.mask.store(mask, kRelaxed);
  if (int* target = p.nccl_mask.load(kAcquire); target != nullptr) {
    __atomic_store_n(target, static_cast<int>(mask), __ATOMIC_RELAXED);
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

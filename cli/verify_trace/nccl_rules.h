// SPDX-License-Identifier: Apache-2.0
//
// Which callbacks NCCL makes under an activation mask, by release. Pure functions, any thread.
// The test is "any of these bits": a low event brings its ancestors.
#pragma once

#include <cstdint>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::cli {

inline constexpr std::uint32_t kNccl226 = 22600, kNccl228 = 22800, kNccl229 = 22900;

/// The interface version that a release uses without an adapter.
[[nodiscard]] constexpr int native_interface(std::uint32_t nccl_version) noexcept {
  if (nccl_version >= 23100) return 7;
  if (nccl_version >= kNccl229) return 6;
  if (nccl_version >= kNccl228) return 5;
  if (nccl_version >= 22700) return 4;
  if (nccl_version >= kNccl226) return 3;
  return nccl_version >= 22400 ? 2 : 1;
}

/// True when NCCL of that release emits events of `type` under `mask`.
[[nodiscard]] constexpr bool emits(std::uint32_t nccl_version, std::uint32_t type,
                                   std::uint32_t mask) noexcept {
  using namespace nccl;  // NOLINT(google-build-using-namespace)
  constexpr std::uint32_t kNet = std::uint32_t{kProxyStep} | kNetPlugin;
  constexpr std::uint32_t kBelowTask = std::uint32_t{kProxyOp} | kKernelCh | kNet;
  constexpr std::uint32_t kCe = std::uint32_t{kCeColl} | kCeSync | kCeBatch;
  switch (type) {
    case kGroupApi:
      return (mask & ~std::uint32_t{kProxyCtrl}) != 0;
    case kCollApi:
      return (mask & (kCollApi | kColl | kBelowTask | (nccl_version >= kNccl229 ? kCe : 0))) != 0;
    case kP2pApi:
      return (mask & (kP2pApi | kP2p | kBelowTask)) != 0;
    case kGroup:
      if (nccl_version < kNccl226) return (mask & (kColl | kP2p | kProxyOp | kProxyStep)) != 0;
      return (mask & (kGroup | kColl | kP2p | kBelowTask)) != 0;
    case kColl:
      return (mask & (kColl | kBelowTask)) != 0;
    case kP2p: {
      const std::uint32_t net_plugin = nccl_version >= kNccl228 ? std::uint32_t{kNetPlugin} : 0;
      return (mask & (kP2p | kProxyOp | kProxyStep | kKernelCh | net_plugin)) != 0;
    }
    case kProxyOp:
      return (mask & (kProxyOp | kNet)) != 0;
    case kProxyStep:
      return (mask & kNet) != 0;
    case kCeColl:
      return (mask & kCe) != 0;
    case kKernelCh:
      return (mask & (kKernelCh | (nccl_version >= 23100 ? std::uint32_t{kKernelPhase} : 0))) != 0;
    default:  // KernelLaunch, ProxyCtrl, NetPlugin, CeSync, CeBatch, KernelPhase: their own bit
              // only
      return (mask & type) != 0;
  }
}

/// Releases up to 2.27 make no Coll and P2p callbacks when the plugin answered NULL for the Group.
[[nodiscard]] constexpr bool needs_group_handle(std::uint32_t nccl_version) noexcept {
  return nccl_version < kNccl228;
}

}  // namespace ncclscope::cli

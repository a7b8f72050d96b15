// SPDX-License-Identifier: Apache-2.0
//
// What the environment says to the plugin (NCCLSCOPE_*, NCCL_INSPECTOR_*), and the claims about the
// job that go to the agent. Read once, in the first init, on the thread that calls it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "plugin/inspector/options.h"
#include "proto/nccl/profiler_common.h"
#include "proto/wire/frame.h"

namespace ncclscope::plugin {

struct Settings {
  bool disabled = false;  // NCCLSCOPE_DISABLE=1; where that is not set, NCCL_INSPECTOR_ENABLE=0
  char socket[108] = "/run/ncclscope/agent.sock";  // NCCLSCOPE_SOCKET
  bool mask_set = false;                           // NCCLSCOPE_MASK, decimal or 0x...
  std::uint32_t mask = 0;
  std::uint32_t network_sample = 64;  // NCCLSCOPE_NETWORK_SAMPLE: one block in so many; 0 = never
  std::uint32_t cost_sample = 256;    // NCCLSCOPE_COST_SAMPLE: one block in so many; 0 = never
  double overhead_budget = 0.001;     // NCCLSCOPE_OVERHEAD_BUDGET: share of wall time
  std::uint32_t calm_ms = 10'000;     // NCCLSCOPE_CALM_MS: before a step of detail is given back
  std::uint32_t interval_ms = 100;    // NCCLSCOPE_SENDER_INTERVAL_MS
  wire::DetailLevel detail = wire::DetailLevel::kNormal;  // NCCLSCOPE_DETAIL
  bool environment = true;       // NCCLSCOPE_ENVIRONMENT=0: NCCL_* variables stay in the process
  inspector::Options inspector;  // NCCL_INSPECTOR_*
};

/// Fills `settings`. Bad values are named through `log` (may be null) and their default stays.
void read_settings(Settings& settings, nccl::DebugLogger log) noexcept;

/// A string that Hello carries.
struct Claim {
  wire::StringKey key;
  char text[wire::kMaxStringBytes + 1];
};
inline constexpr std::size_t kMaxClaims = 40;

/// Copies the job's claims out of the environment; returns how many.
std::size_t read_claims(std::array<Claim, kMaxClaims>& claims) noexcept;

/// RDMA devices (verbs or Slingshot) that this process has open, which NCCL's network transports do
/// at init where they use them; -1 where it cannot be told. System calls: not for NCCL's threads.
int open_rdma_devices() noexcept;

}  // namespace ncclscope::plugin

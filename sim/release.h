// SPDX-License-Identifier: Apache-2.0
// What differs between NCCL releases 2.23-2.32 in how they treat profiler plugins: one value type
// with the release's number and questions to it. Pure functions; parse_release reports its error.
#pragma once

#include <compare>
#include <string>

namespace ncclscope::sim {

struct Release {
  int major = 2;
  int minor = 28;
  int patch = 9;

  auto operator<=>(const Release&) const = default;  // NOLINT(modernize-use-nullptr): its own code
  bool at_least(int wanted_minor, int wanted_patch = 0) const {
    return *this >= Release{2, wanted_minor, wanted_patch};
  }

  std::string text() const;
  /// As ncclGetVersion returns it: 2.28.9 is 22809.
  int number() const { return major * 10000 + minor * 100 + patch; }

  int native_interface() const;
  /// GroupApi, CollApi, P2pApi, KernelLaunch exist.
  bool has_api_events() const { return at_least(28); }
  bool has_kernel_channel() const { return at_least(26); }
  /// ProxyOp is reported with states 0-7 instead of 19.
  bool has_old_proxy_states() const { return !at_least(27); }
  /// Coll and P2p come only under a Group handle that is not null.
  bool needs_group_handle() const { return !at_least(28); }
  bool has_copy_engine_events() const { return at_least(29); }
  /// KernelCh come from a thread of their own instead of the proxy thread; start precedes stop.
  bool has_profiler_thread() const { return at_least(31); }
  bool clears_task_handles() const { return at_least(31); }
  /// init and finalize always run on a helper thread, even of blocking calls.
  bool always_init_on_helper() const { return !at_least(28); }
  /// init comes before the topology is known; the plugin gets no identity anyway.
  bool init_early() const { return !at_least(27); }
  /// Grouped Broadcasts run as one AllGatherV kernel and lone ones lose their mask.
  bool has_allgatherv() const { return at_least(29) && !at_least(31); }
  bool has_symmetric_events() const { return at_least(31); }
  bool has_symmetric_kernels() const { return at_least(27); }
  bool mask_per_plan() const { return !at_least(26); }
  bool has_alltoall_api() const { return at_least(28); }
};

/// Accepts "2.28.9" and "2.28" (the last patch of that line). Empty `error`: fine.
Release parse_release(const std::string& text, std::string* error);

}  // namespace ncclscope::sim

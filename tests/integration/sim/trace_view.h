// SPDX-License-Identifier: Apache-2.0
// Reads profiler traces (recordings and what the recorder plugin wrote) into a form in which two
// runs of the same program are equal: no times, no pointers, handles named by what they are. Throws
// std::runtime_error on files that are no traces.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace ncclscope::sim {

struct KernelTime {
  std::uint64_t start = 0;
  std::uint64_t stop = 0;
};

struct TraceView {
  int mask = 0;
  std::string interface;
  std::string nccl;
  bool null_handles = false;
  std::map<std::string, std::string> environment;

  /// Callbacks of application and helper threads, per thread in the order of first appearance
  /// within its class ("main 0", "app 0", ...).
  std::map<std::string, std::vector<std::string>> launch_threads;
  /// Callbacks on each event that the proxy or profiler thread started, by the event's name.
  std::map<std::string, std::vector<std::string>> proxy_events;
  /// Order of starts per connection or channel.
  std::map<std::string, std::vector<std::string>> proxy_orders;
  /// Fields that differ between runs for reasons outside NCCL are left out (buffers, streams, ids).
  std::map<std::string, KernelTime> kernels;  ///< by event name
};

/// `like`: what to take interface and release from where the file has no header.
TraceView read_trace(const std::string& path, const TraceView* like = nullptr);

/// First difference, or empty.
std::string difference(const TraceView& recorded, const TraceView& emulated);

}  // namespace ncclscope::sim

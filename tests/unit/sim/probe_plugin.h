// SPDX-License-Identifier: Apache-2.0
// A profiler plugin inside the test program (NCCL_PROFILER_PLUGIN=STATIC_PLUGIN), with a table for
// every interface version: it remembers all calls in one common form. One mutex; any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "proto/nccl/profiler.h"

namespace ncclscope::sim {

struct ProbeCall {
  std::string kind;  ///< init, start, stop, record, finalize
  int interface = 0;
  std::uint64_t type =
      0;  ///< of start; of the handle for stop and record; 0 if the handle is unknown
  void* context = nullptr;
  void* handle = nullptr;
  void* parent = nullptr;
  void* group = nullptr;
  int rank = 0;
  std::string func;
  std::string datatype;
  std::string algo;
  std::string comm_name;
  std::uint64_t comm_hash = 0;
  std::size_t count = 0;
  std::uint64_t sequence = 0;
  int channels = 0;
  int channel = 0;
  int pid = 0;
  int step = 0;
  std::uint64_t timer = 0;
  bool captured = false;
  bool symmetric = false;
  int state = -1;
  bool null_args = false;
  std::uint64_t raw_args = 0;
  std::string thread;  ///< name of the calling thread
  long thread_id = 0;
  std::int64_t clock = 0;  ///< what clock_gettime(CLOCK_MONOTONIC) said to the plugin
};

struct Probe {
  int mask = 0xffff;
  std::uint64_t null_types = 0;       ///< types answered with a NULL handle
  std::uint64_t unwritten_types = 0;  ///< types for which the handle is left as it is
  int fail_init = 0;                  ///< the k-th init fails
  std::function<void(const ProbeCall&)> hook;
};

/// One that asks for these events only, and answers some of them with a NULL handle.
inline Probe asking(int mask, std::uint64_t null_types = 0) {
  Probe probe;
  probe.mask = mask;
  probe.null_types = null_types;
  return probe;
}

/// Forgets all calls and starts with these answers.
void probe_reset(const Probe& probe);
void probe_mask(int mask);
std::vector<ProbeCall> probe_calls();
/// Calls of one kind and type.
std::vector<ProbeCall> probe_calls(const std::string& kind, std::uint64_t type);
std::size_t probe_count(const std::string& kind, std::uint64_t type);

}  // namespace ncclscope::sim

// SPDX-License-Identifier: Apache-2.0
//
// Calls a profiler plugin through its ncclProfiler_vN table with descriptors built from a
// recording's lines. What NCCL leaves undefined (padding, unused union members, fields marked as
// garbage) is filled with random bytes. One caller at a time: the replayer's baton.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <string>
#include <unordered_set>

#include "cli/verify_trace/trace.h"

namespace ncclscope::cli {

/// What the lines of one process share while they are turned into descriptors.
class DescriptorSource {
 public:
  /// @param recorded_pid  pid of the recorded process; replaced by ours where NCCL passes its own
  DescriptorSource(std::uint64_t seed, std::int64_t recorded_pid);

  void fill_random(void* bytes, std::size_t count);
  /// A C string with an address that stays valid and is equal for equal texts.
  const char* intern(const std::string& text);
  /// Fake address of a numbered buffer or stream; never dereferenced.
  static void* address(std::int64_t number);
  std::int32_t pid(std::int64_t recorded) const;

 private:
  std::mt19937_64 random_;
  std::int64_t recorded_pid_;
  std::unordered_set<std::string> strings_;
};

/// One version of the table. Handles and contexts are what the plugin returned.
class PluginTable {
 public:
  virtual ~PluginTable() = default;
  virtual int init(void** context, int* mask, const TraceLine& line) = 0;
  virtual void start(void* context, void** handle, const TraceLine& line, void* parent,
                     void* parent_group) = 0;
  virtual void stop(void* handle) = 0;
  virtual void record(void* handle, const TraceLine& line) = 0;
  virtual void finalize(void* context) = 0;
};

/// @param symbol  address of the plugin's ncclProfiler_v<version>
/// @param native  NCCL uses this version without an adapter, which zeroes descriptors
[[nodiscard]] std::unique_ptr<PluginTable> make_plugin_table(int version, void* symbol, bool native,
                                                             DescriptorSource& source);

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
// Loads a profiler plugin as a given NCCL release does (value of NCCL_PROFILER_PLUGIN, symbol
// order, reference count, failed init) and passes events to it natively or through NCCL's adapters
// for older interfaces. One Profiler per emulated process. start, stop and record are called from
// any thread without a lock, as NCCL does; load, init and unload are serialised here only where
// NCCL does so.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "proto/nccl/profiler.h"
#include "sim/release.h"

namespace ncclscope::sim {

/// What a release opens for a value of NCCL_PROFILER_PLUGIN, in order. An empty name is the main
/// program itself.
struct PluginCandidates {
  bool disabled = false;  ///< explicit "none"
  std::vector<std::string> names;
  bool try_net_library = false;  ///< afterwards the loaded network plugin is searched
};
PluginCandidates plugin_candidates(const std::optional<std::string>& value, Release release);

/// An event with all that any interface version can say about it.
struct Event {
  nccl::DescrV7 descr{};
  // What only older interfaces carry.
  const char* comm_name = nullptr;
  std::uint64_t comm_hash = 0;
  std::size_t traffic_bytes = 0;
  std::uint8_t n_max_channels = 0;
  std::uint8_t datatype_code = 0;
  std::uint8_t func_code = 0;
  std::uint32_t op = 0;
};

/// Arguments of a state with all that any interface version can carry.
struct StateArgs {
  std::size_t trans_size = 0;
  int steps = 0;
  int appended_proxy_ops = 0;
  void* data = nullptr;
  std::uint64_t p_timer = 0;
};

struct CommIdentity {
  const char* name = nullptr;
  std::uint64_t hash = 0;
  int n_nodes = 1;
  int n_ranks = 1;
  int rank = 0;
};

struct ProfilerOptions {
  Release release;
  std::optional<std::string> plugin;  ///< value of NCCL_PROFILER_PLUGIN; nullopt: unset
  std::string net_library;            ///< already loaded network plugin, searched from 2.28 on
  bool log_to_stderr = false;
  /// Dies with SIGSEGV where the release does (2.27 and older after a failed init). Off: only
  /// noted.
  bool crash_like_nccl = false;
};

class Profiler {
 public:
  explicit Profiler(ProfilerOptions options);
  ~Profiler();
  Profiler(const Profiler&) = delete;
  Profiler& operator=(const Profiler&) = delete;

  /// The load of one communicator's creation and the init that follows it later.
  void load();
  nccl::Result init(const CommIdentity& identity, void** context);
  void finalize(void* context);
  /// The unload of one communicator's destruction.
  void unload();

  /// A plugin is loaded and not cleared by a failed init.
  bool active() const { return table_.load(std::memory_order_acquire) != nullptr; }
  int mask() const { return active() ? mask_.load(std::memory_order_relaxed) : 0; }
  int raw_mask() const { return mask_.load(); }
  void set_mask(int mask) { mask_.store(mask); }  ///< as the RAS client can from 2.31 on
  int interface() const { return interface_; }
  bool native() const { return interface_ == options_.release.native_interface(); }
  const std::string& library() const { return library_; }
  int reference_count() const { return references_; }
  bool would_have_crashed() const { return would_have_crashed_; }
  const void* table() const { return table_.load(); }
  std::uint64_t calls() const { return calls_.load(std::memory_order_relaxed); }
  Release release() const { return options_.release; }

  void start(void* context, void** handle, const Event& event);
  void stop(void* handle);
  void record(void* handle, nccl::EventState state, const StateArgs* args);

  /// Log lines of load and unload, newest last.
  std::vector<std::string> log() const;

 private:
  void open_library();
  void close_library();
  bool search_symbols(void* library, const std::string& name);
  void note(std::string line);

  ProfilerOptions options_;
  mutable std::mutex mutex_;
  void* library_handle_ = nullptr;
  std::string library_;
  std::atomic<const void*> table_{nullptr};
  int interface_ = 0;
  enum class State { kReady, kLoaded, kFailed } state_ = State::kReady;
  int references_ = 0;
  std::atomic<int> mask_{0};
  std::atomic<bool> adapter_ready_{false};
  bool would_have_crashed_ = false;
  std::atomic<std::uint64_t> calls_{0};
  std::vector<std::string> log_;
};

}  // namespace ncclscope::sim

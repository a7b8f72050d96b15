// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/replayer.h"

#include <dlfcn.h>
#include <pthread.h>

#include <condition_variable>
#include <cstddef>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <thread>
#include <unordered_map>
#include <utility>

#include "cli/verify_trace/nccl_rules.h"
#include "cli/verify_trace/plugin_table.h"
#include "cli/verify_trace/recorded_clock.h"
#include "proto/nccl/profiler.h"

namespace ncclscope::cli {
namespace {

class Replayer {
 public:
  Replayer(const Trace& trace, const ReplayOptions& options)
      : trace_(trace), options_(options), source_(options.seed, trace.header.pid) {
    report_.delivery.assign(trace.lines.size(), static_cast<char>(Delivery::kNotCallback));
    for (std::size_t i = 0; i < trace.lines.size(); ++i) last_line_[trace.lines[i].thread] = i;
  }

  ReplayReport run() {
    std::vector<std::thread> threads;
    std::optional<int> main_number;
    for (const auto& [number, last] : last_line_) {
      batons_[number];
      const auto name = trace_.header.threads.find(number);
      if (!main_number && name != trace_.header.threads.end() && name->second == "main")
        main_number = number;
    }
    for (const auto& [number, last] : last_line_) {
      if (main_number == number) continue;
      threads.emplace_back([this, number = number] {
        if (const auto it = trace_.header.threads.find(number);
            it != trace_.header.threads.end() && it->second != "app") {
          pthread_setname_np(pthread_self(), it->second.substr(0, 15).c_str());
        }
        take_part(number);
      });
    }
    if (main_number) take_part(*main_number);
    for (std::thread& t : threads) t.join();
    if (!error_.empty()) throw std::runtime_error(error_);
    report_.final_mask = mask();
    return std::move(report_);
  }

 private:
  struct Handle {
    void* pointer = nullptr;
    std::uint32_t task_mask = 0;  // the mask NCCL copied when the operation was called
    bool delivered = false;
    bool null = false;  // the plugin answered NULL
    std::uint32_t type = 0;
    std::int64_t parent = kNoHandle;
  };

  // ---- the baton --------------------------------------------------------------------------------
  void take_part(int number) {
    follow_recorded_time();
    std::unique_lock lock(mutex_);
    const std::size_t count = trace_.lines.size();
    for (;;) {
      batons_[number].wait(lock, [&] {
        return next_ >= count || !error_.empty() || trace_.lines[next_].thread == number;
      });
      while (next_ < count && error_.empty() && trace_.lines[next_].thread == number) {
        // The line's thread is the only one that touches the replayer's state until next_ moves on.
        lock.unlock();
        std::string error;
        try {
          make(next_);
        } catch (const std::exception& e) {
          error = "line " + std::to_string(next_) + ": " + e.what();
        }
        lock.lock();
        if (!error.empty()) error_ = std::move(error);
        ++next_;
      }
      if (next_ >= count || !error_.empty()) {
        for (auto& [n, baton] : batons_) baton.notify_all();
        return;
      }
      batons_[trace_.lines[next_].thread].notify_one();
      if (last_line_.at(number) < next_) return;
    }
  }

  // ---- one line ---------------------------------------------------------------------------------
  void make(std::size_t index) {
    const TraceLine& l = trace_.lines[index];
    if (l.t_ns > options_.until_ns) {
      report_.delivery[index] = static_cast<char>(Delivery::kDropped);
      return;
    }
    set_recorded_time(l.t_ns);
    if (static_cast<std::int64_t>(index) == options_.drop_line) {
      report_.delivery[index] = static_cast<char>(Delivery::kDropped);
      return;
    }
    report_.delivery[index] = static_cast<char>(deliver(l));
  }

  Delivery deliver(const TraceLine& l) {
    switch (l.callback) {
      case Callback::kLoad:
        load();
        return Delivery::kNotCallback;
      case Callback::kUnload:
        if (l.fields.value("reason", "") == "dlclose") {
          unload();
          report_.ends_with_exit = false;
        } else {
          report_.ends_with_exit = true;
        }
        return Delivery::kNotCallback;
      case Callback::kInit:
        return init(l);
      case Callback::kStart:
        return start(l);
      case Callback::kStop:
      case Callback::kRecord:
        return stop_or_record(l);
      case Callback::kFinalize:
        if (const auto it = contexts_.find(l.ctx); it != contexts_.end() && it->second != nullptr) {
          ++report_.callbacks;
          table().finalize(it->second);
          return Delivery::kDelivered;
        }
        return Delivery::kNullHandle;
    }
    return Delivery::kNotCallback;
  }

  void load() {
    library_ = dlopen(options_.plugin.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library_ == nullptr) {
      const char* reason = dlerror();
      throw std::runtime_error("plugin " + options_.plugin +
                               " cannot be loaded: " + (reason != nullptr ? reason : "?"));
    }
    const int version = trace_.header.interface_version;
    const char* symbol = nccl::kProfilerSymbols[version - 1];
    void* address = dlsym(library_, symbol);
    if (address == nullptr)
      throw std::runtime_error("plugin " + options_.plugin + " does not export " + symbol);
    const bool native = native_interface(trace_.header.nccl_version) == version;
    table_ = make_plugin_table(version, address, native, source_);
  }

  void unload() {
    table_.reset();
    if (library_ != nullptr) dlclose(library_);
    library_ = nullptr;
  }

  PluginTable& table() {
    if (table_ == nullptr)
      throw std::runtime_error("a callback comes while the plugin is not loaded");
    return *table_;
  }

  Delivery init(const TraceLine& l) {
    void* context = nullptr;
    ++report_.callbacks;
    const int result = table().init(&context, &nccl_mask_, l);
    if (result != nccl::kSuccess)
      throw std::runtime_error("the plugin's init returned " + std::to_string(result));
    if (context == nullptr) throw std::runtime_error("the plugin's init left *context NULL");
    contexts_[l.ctx] = context;
    report_.masks.push_back(mask());
    return Delivery::kDelivered;
  }

  [[nodiscard]] std::uint32_t mask() const {
    return static_cast<std::uint32_t>(__atomic_load_n(&nccl_mask_, __ATOMIC_RELAXED));
  }

  /// The mask that decides about this event: that of its operation for tasks and their children,
  /// else the one now.
  [[nodiscard]] std::uint32_t deciding_mask(const TraceLine& l) const {
    constexpr std::uint32_t kNow = std::uint32_t{nccl::kGroupApi} | nccl::kCollApi | nccl::kP2pApi |
                                   nccl::kKernelLaunch | nccl::kGroup | nccl::kProxyCtrl |
                                   nccl::kCeColl | nccl::kCeSync | nccl::kCeBatch;
    if ((l.type & kNow) != 0) return mask();
    const auto parent = handles_.find(l.parent);
    return parent == handles_.end() ? mask() : parent->second.task_mask;
  }

  Delivery start(const TraceLine& l) {
    const std::uint32_t release = trace_.header.nccl_version;
    const auto parent = handles_.find(l.parent);
    Handle h;
    h.type = l.type;
    h.parent = l.parent;
    h.task_mask = deciding_mask(l);
    if (!emits(release, l.type, h.task_mask)) {
      if (l.handle != kNoHandle) handles_[l.handle] = h;
      return Delivery::kMask;
    }
    const bool task = l.type == nccl::kColl || l.type == nccl::kP2p;
    if (task && needs_group_handle(release) && parent != handles_.end() &&
        parent->second.pointer == nullptr) {
      handles_[l.handle] = h;
      return Delivery::kGroupHandle;
    }
    // Copy-engine children need their parent's handle, others are started with parent NULL.
    if ((l.type & (nccl::kCeSync | nccl::kCeBatch)) != 0 &&
        (parent == handles_.end() || parent->second.pointer == nullptr)) {
      handles_[l.handle] = h;
      return Delivery::kUndelivered;
    }
    void* context = nullptr;
    if (const auto it = contexts_.find(l.ctx); it != contexts_.end()) context = it->second;
    void* returned = nullptr;
    ++report_.callbacks;
    table().start(context, &returned, l, pointer_of(l.parent), pointer_of(l.parent_group));
    // The task's copy of the mask is taken inside the API call, behind the API event's start.
    if (l.type == nccl::kCollApi || l.type == nccl::kP2pApi) h.task_mask = mask();
    h.pointer = returned;
    h.delivered = true;
    h.null = returned == nullptr;
    if (h.null) ++report_.null_handles;
    if (l.handle != kNoHandle) handles_[l.handle] = h;
    return h.null ? Delivery::kAnsweredNull : Delivery::kDelivered;
  }

  [[nodiscard]] void* pointer_of(std::int64_t handle) const {
    if (handle == kForeignHandle) return reinterpret_cast<void*>(std::uintptr_t{0x7ff000000000});
    const auto it = handles_.find(handle);
    return it == handles_.end() ? nullptr : it->second.pointer;
  }

  Delivery stop_or_record(const TraceLine& l) {
    const auto it = handles_.find(l.handle);
    if (it == handles_.end() || !it->second.delivered) return Delivery::kUndelivered;
    const Handle& h = it->second;
    if (h.null) return Delivery::kNullHandle;
    if (l.callback == Callback::kRecord) {
      if (h.type == nccl::kProxyStep && pointer_of(h.parent) == nullptr)
        return Delivery::kNullHandle;
      ++report_.callbacks;
      table().record(h.pointer, l);
    } else {
      ++report_.callbacks;
      table().stop(h.pointer);
    }
    return Delivery::kDelivered;
  }

  const Trace& trace_;
  const ReplayOptions& options_;
  DescriptorSource source_;
  ReplayReport report_;
  std::map<int, std::size_t> last_line_;

  void* library_ = nullptr;
  std::unique_ptr<PluginTable> table_;
  int nccl_mask_ = 0;  // NCCL's one mask: the plugin may keep its address; survives a reload
  std::unordered_map<int, void*> contexts_;
  std::unordered_map<std::int64_t, Handle> handles_;

  std::mutex mutex_;
  std::map<int, std::condition_variable> batons_;
  std::size_t next_ = 0;
  std::string error_;
};

}  // namespace

ReplayReport replay(const Trace& trace, const ReplayOptions& options) {
  // Never destroyed: the plugin keeps the address of NCCL's mask for as long as the process lives.
  auto* replayer = new Replayer(trace, options);
  return replayer->run();
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/trace.h"

#include <zlib.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <memory>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;

std::string read_gzip(const std::filesystem::path& file) {
  const std::unique_ptr<gzFile_s, int (*)(gzFile)> in(gzopen(file.c_str(), "rb"), &gzclose);
  if (in == nullptr) throw std::runtime_error(file.string() + ": cannot be opened");
  std::string text;
  char buffer[1 << 16];
  for (;;) {
    const int n = gzread(in.get(), buffer, sizeof buffer);
    if (n < 0) throw std::runtime_error(file.string() + ": is no intact gzip file");
    if (n == 0) return text;
    text.append(buffer, static_cast<std::size_t>(n));
  }
}

Callback callback_of(const std::string& name) {
  static const std::map<std::string, Callback, std::less<>> kNames = {
      {"load", Callback::kLoad},        {"unload", Callback::kUnload},
      {"init", Callback::kInit},        {"start", Callback::kStart},
      {"stop", Callback::kStop},        {"record", Callback::kRecord},
      {"finalize", Callback::kFinalize}};
  const auto it = kNames.find(name);
  if (it == kNames.end()) {
    throw std::runtime_error("callback \"" + name +
                             "\" is not one of load, unload, init, start, stop, record, finalize");
  }
  return it->second;
}

std::int64_t handle_of(const json& line, const char* key) {
  const auto it = line.find(key);
  if (it == line.end() || it->is_null()) return kNoHandle;
  if (it->is_string()) return kForeignHandle;
  return it->get<std::int64_t>();
}

TraceHeader header_of(const json& j) {
  if (j.value("format", "") != "nccl-profiler-trace" || j.value("version", 0) != 1) {
    throw std::runtime_error("format is not \"nccl-profiler-trace\", version 1");
  }
  TraceHeader h;
  const auto interface = j.at("interface").get<std::string>();
  if (interface.size() != 2 || interface[0] != 'v' || interface[1] < '1' || interface[1] > '7') {
    throw std::runtime_error("interface \"" + interface + "\" is not one of v1 to v7");
  }
  h.interface_version = interface[1] - '0';
  h.nccl_version = parse_release(j.at("nccl").get<std::string>());
  if (h.nccl_version == 0) throw std::runtime_error("nccl is no release like \"2.28.9\"");
  h.pid = j.at("pid").get<std::int64_t>();
  h.process = j.at("process").get<int>();
  h.scenario = j.at("scenario").get<std::string>();
  h.mask = j.at("mask").get<std::uint32_t>();
  h.null_handle_types = j.value("null_handle_types", 0u);
  h.t0_monotonic_ns = j.at("t0_monotonic_ns").get<std::int64_t>();
  h.t0_realtime_ns = j.at("t0_realtime_ns").get<std::int64_t>();
  for (const auto& [number, name] : j.at("threads").items())
    h.threads[std::stoi(number)] = name.get<std::string>();
  return h;
}

TraceLine line_of(json&& j) {
  TraceLine l;
  l.t_ns = j.at("t").get<std::int64_t>();
  l.thread = j.at("thread").get<int>();
  l.callback = callback_of(j.at("cb").get_ref<const std::string&>());
  l.ctx = j.value("ctx", 0);
  l.handle = handle_of(j, "h");
  l.type = j.value("bit", 0u);
  l.parent = handle_of(j, "parent");
  l.parent_group = handle_of(j, "parentGroup");
  l.state = j.value("num", -1);
  l.fields = std::move(j);
  return l;
}

// ---- recordings with NULL handles -------------------------------------------------------------

/// Bytes of the caller's buffer: the same for an API event and for its task, whatever unit NCCL
/// counts in.
std::uint64_t own_bytes(const json& fields) {
  const auto& type = fields.at("datatype");
  std::uint64_t size = 1;
  if (type.is_string()) {
    for (const auto& d : nccl::kDatatypes) {
      if (type.get_ref<const std::string&>() == d.profiler_name) size = d.bytes;
    }
  }
  return fields.at("count").get<std::uint64_t>() * size;
}

class NullHandleRestorer {
 public:
  explicit NullHandleRestorer(Trace& trace) : trace_(trace) {}

  void run() {
    std::vector<TraceLine> in = std::move(trace_.lines);
    trace_.lines.clear();
    for (TraceLine& l : in) {
      ThreadState& s = threads_[l.thread];
      close_finished(l, s);
      const bool null_start = l.callback == Callback::kStart && l.handle == kNoHandle &&
                              (trace_.header.null_handle_types & l.type) != 0;
      if (null_start) l.handle = next_handle_--;
      if (l.callback == Callback::kStart) link(l, s);
      const TraceLine copy = l;
      trace_.lines.push_back(std::move(l));
      if (null_start) follow(copy, s);
    }
  }

 private:
  struct ThreadState {
    std::int64_t group_api = kNoHandle, group = kNoHandle;
    std::vector<std::int64_t> tasks;  // started under `group`, not stopped
  };
  struct Api {
    std::string func;
    std::uint64_t bytes;
    std::int64_t handle;
  };

  void add(const TraceLine& like, Callback callback, std::int64_t handle, int state = -1) {
    TraceLine l;
    l.t_ns = like.t_ns;
    l.thread = like.thread;
    l.callback = callback;
    l.handle = handle;
    l.state = state;
    l.restored = true;
    l.fields = json::object();
    if (state >= 0) l.fields["args"] = nullptr;
    trace_.lines.push_back(std::move(l));
  }

  /// Stops what NCCL would have stopped before `next` on this thread: the Group behind its last
  /// task, the GroupApi before the next one begins or the communicator ends.
  void close_finished(const TraceLine& next, ThreadState& s) {
    const bool task_start =
        next.callback == Callback::kStart && (next.type & (nccl::kColl | nccl::kP2p)) != 0;
    const auto task = std::find(s.tasks.begin(), s.tasks.end(), next.handle);
    const bool task_stop = next.callback == Callback::kStop && task != s.tasks.end();
    if (task_stop) s.tasks.erase(task);
    if (s.group != kNoHandle && !task_start && !task_stop) {
      add(next, Callback::kStop, s.group);
      s.group = kNoHandle;
      s.tasks.clear();
    }
    const bool group_api_ends =
        (next.callback == Callback::kStart && next.type == nccl::kGroupApi) ||
        next.callback == Callback::kFinalize || next.callback == Callback::kUnload;
    if (s.group_api != kNoHandle && group_api_ends) {
      add(next, Callback::kRecord, s.group_api, nccl::kGroupEndApiStart);
      add(next, Callback::kStop, s.group_api);
      s.group_api = kNoHandle;
    }
  }

  void link(TraceLine& l, ThreadState& s) {
    if (l.type == nccl::kCollApi || l.type == nccl::kP2pApi || l.type == nccl::kKernelLaunch) {
      if (l.parent == kNoHandle) l.parent = s.group_api;
    } else if (l.type == nccl::kColl || l.type == nccl::kP2p) {
      s.tasks.push_back(l.handle);
      if (trace_.header.interface_version < 5) {
        if (l.parent == kNoHandle) l.parent = s.group;
        return;
      }
      if (l.parent_group == kNoHandle) l.parent_group = s.group;
      if (l.parent != kNoHandle) return;
      auto& waiting = apis_[l.ctx];
      const auto& func = l.fields.at("func").get_ref<const std::string&>();
      const std::uint64_t bytes = own_bytes(l.fields);
      const auto api = std::find_if(waiting.begin(), waiting.end(), [&](const Api& a) {
        return a.func == func && a.bytes == bytes;
      });
      if (api == waiting.end()) return;
      l.parent = api->handle;
      waiting.erase(api);
    }
  }

  void follow(const TraceLine& l, ThreadState& s) {
    switch (l.type) {
      case nccl::kGroupApi:
        s.group_api = l.handle;
        add(l, Callback::kRecord, l.handle, nccl::kGroupStartApiStop);
        break;
      case nccl::kCollApi:
      case nccl::kP2pApi:
        apis_[l.ctx].push_back(
            {l.fields.at("func").get<std::string>(), own_bytes(l.fields), l.handle});
        add(l, Callback::kStop, l.handle);
        break;
      case nccl::kKernelLaunch:
        add(l, Callback::kStop, l.handle);
        break;
      case nccl::kGroup:
        s.group = l.handle;
        break;
      default:
        break;
    }
  }

  Trace& trace_;
  std::map<int, ThreadState> threads_;
  std::map<int, std::deque<Api>> apis_;
  std::int64_t next_handle_ = kForeignHandle - 1;
};

}  // namespace

std::uint32_t parse_release(const std::string& text) {
  unsigned major = 0;
  unsigned minor = 0;
  unsigned patch = 0;
  // NOLINTNEXTLINE(cert-err34-c): the count of fields read says whether it worked
  if (std::sscanf(text.c_str(), "%u.%u.%u", &major, &minor, &patch) != 3 || major > 99 ||
      minor > 99 || patch > 99) {
    return 0;
  }
  return major * 10000 + minor * 100 + patch;
}

Trace load_trace(const std::filesystem::path& file) {
  const std::string text = read_gzip(file);
  Trace trace;
  std::size_t number = 0;
  for (std::size_t at = 0; at < text.size();) {
    std::size_t end = text.find('\n', at);
    if (end == std::string::npos) end = text.size();
    const std::string_view line(text.data() + at, end - at);
    at = end + 1;
    ++number;
    if (line.empty()) continue;
    try {
      json j = json::parse(line);
      if (number == 1) {
        trace.header = header_of(j);
      } else {
        trace.lines.push_back(line_of(std::move(j)));
      }
    } catch (const std::exception& e) {
      throw std::runtime_error(file.string() + " line " + std::to_string(number) + ": " + e.what());
    }
  }
  if (trace.lines.empty()) throw std::runtime_error(file.string() + ": holds no callbacks");
  return trace;
}

std::vector<std::filesystem::path> trace_files(const std::filesystem::path& folder) {
  std::vector<std::pair<long, std::filesystem::path>> found;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("rank") && name.ends_with(".jsonl.gz")) {
      found.emplace_back(std::strtol(name.c_str() + 4, nullptr, 10), entry.path());
    }
  }
  std::sort(found.begin(), found.end());
  std::vector<std::filesystem::path> files;
  files.reserve(found.size());
  for (auto& f : found) files.push_back(std::move(f.second));
  return files;
}

void restore_null_handles(Trace& trace) {
  if (trace.header.null_handle_types != 0) NullHandleRestorer(trace).run();
}

}  // namespace ncclscope::cli

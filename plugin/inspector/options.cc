// SPDX-License-Identifier: Apache-2.0
#include "plugin/inspector/options.h"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ncclscope::plugin::inspector {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kPrometheusIntervalNs = 30 * kSecond;

[[gnu::format(printf, 3, 4)]] void say(nccl::DebugLogger log, nccl::LogLevel level,
                                       const char* format, ...) noexcept {
  if (log == nullptr) return;
  char text[512];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(text, sizeof text, format, arguments);
  va_end(arguments);
  log(level, nccl::kSubsysProfile, "ncclscope", 0, "ncclscope: %s", text);
}

const char* variable(const char* name) noexcept {
  const char* v = std::getenv(name);
  return v == nullptr || v[0] == '\0' ? nullptr : v;
}

/// As Inspector reads its switches: atoi, not 0.
bool flag(const char* name, bool otherwise) noexcept {
  const char* v = variable(name);
  return v == nullptr ? otherwise : std::strtol(v, nullptr, 10) != 0;
}

/// Base by prefix, as Inspector reads numbers. False: not set, or no number.
bool number(const char* name, long long& out, nccl::DebugLogger log) noexcept {
  const char* v = variable(name);
  if (v == nullptr) return false;
  char* end = nullptr;
  errno = 0;
  const long long value = std::strtoll(v, &end, 0);
  if (errno == 0 && end != v && *end == '\0') {
    out = value;
    return true;
  }
  say(log, nccl::kLogWarn, "%s=\"%.64s\" ignored: wanted a whole number", name, v);
  return false;
}

bool path(const char* name, char (&out)[kMaxPathBytes], nccl::DebugLogger log) noexcept {
  const char* v = variable(name);
  if (v == nullptr) return false;
  if (std::strlen(v) >= sizeof out) {
    say(log, nccl::kLogWarn, "%s ignored: wanted a directory of at most %zu bytes", name,
        sizeof out - 1);
    return false;
  }
  std::snprintf(out, sizeof out, "%s", v);
  return true;
}

template <std::size_t N, std::size_t M>
void first_of(const char* const (&names)[M], char (&out)[N]) noexcept {
  const char* found = model::inspector::kUnknown.data();
  for (const char* name : names) {
    if (const char* v = variable(name); v != nullptr) {
      found = v;
      break;
    }
  }
  std::snprintf(out, sizeof out, "%s", found);
}

void read_interval(Options& options, nccl::DebugLogger log) noexcept {
  constexpr const char* kName = "NCCL_INSPECTOR_DUMP_THREAD_INTERVAL_MICROSECONDS";
  long long microseconds = -1;
  (void)number(kName, microseconds, log);
  if (microseconds < 0) {
    // A textfile is there to be read while the process runs.
    options.interval_ns = options.prometheus ? kPrometheusIntervalNs : 0;
    return;
  }
  constexpr long long kMost = 86'400'000'000;
  if (microseconds < 1'000'000) {
    say(log, nccl::kLogInfo, "%s=%lld is raised to 1000000 (one second)", kName, microseconds);
    microseconds = 1'000'000;
  } else if (microseconds > kMost) {
    say(log, nccl::kLogInfo, "%s=%lld is lowered to %lld (a day)", kName, microseconds, kMost);
    microseconds = kMost;
  }
  options.interval_ns = static_cast<std::uint64_t>(microseconds) * 1000;
}

/// Variables that mean something to Inspector and nothing here: its memory grows with them, ours is
/// fixed; its other outputs have successors of their own.
void name_those_without_effect(nccl::DebugLogger log) noexcept {
  constexpr const char* kNames[] = {
      "NCCL_INSPECTOR_DUMP_COLL_RING_SIZE",  "NCCL_INSPECTOR_DUMP_P2P_RING_SIZE",
      "NCCL_INSPECTOR_COLL_POOL_SIZE",       "NCCL_INSPECTOR_P2P_POOL_SIZE",
      "NCCL_INSPECTOR_COMM_POOL_SIZE",       "NCCL_INSPECTOR_POOL_GROW",
      "NCCL_INSPECTOR_PROM_DUMP_STATS",      "NCCL_INSPECTOR_OTEL_EXPORT",
      "NCCL_INSPECTOR_OTEL_VERBOSE",         "NCCL_INSPECTOR_ENABLE_PROXY",
      "NCCL_INSPECTOR_DUMP_PROXY_RING_SIZE", "NCCL_INSPECTOR_PROXY_OUTPUT_MODE",
      "NCCL_INSPECTOR_DUMP_PROXY_STEPS",     "NCCL_INSPECTOR_DUMP_PROXY_EVENT_TRACE_SN",
      "NCCL_INSPECTOR_PROXY_OP_POOL_SIZE",   "NCCL_INSPECTOR_PROXY_STEP_POOL_SIZE"};
  char list[400] = {};
  std::size_t used = 0;
  for (const char* name : kNames) {
    if (variable(name) == nullptr) continue;
    const int n =
        std::snprintf(list + used, sizeof list - used, "%s%s", used == 0 ? "" : ", ", name);
    if (n < 0 || static_cast<std::size_t>(n) >= sizeof list - used) break;
    used += static_cast<std::size_t>(n);
  }
  if (used > 0) say(log, nccl::kLogInfo, "%s: accepted, without effect", list);
}

}  // namespace

bool switched_off() noexcept {
  const char* v = variable("NCCL_INSPECTOR_ENABLE");
  return v != nullptr && std::strtol(v, nullptr, 10) == 0;
}

void read_options(Options& options, nccl::DebugLogger log) noexcept {
  options = Options();
  name_those_without_effect(log);
  if (!path("NCCL_INSPECTOR_DUMP_DIR", options.directory, log)) return;
  if (!flag("NCCL_INSPECTOR_DUMP_THREAD_ENABLE", true)) {
    say(log, nccl::kLogInfo,
        "NCCL_INSPECTOR_DUMP_THREAD_ENABLE=0: no files are written to NCCL_INSPECTOR_DUMP_DIR");
    return;
  }
  options.enabled = true;
  options.prometheus = flag("NCCL_INSPECTOR_PROM_DUMP", false);
  options.p2p = flag("NCCL_INSPECTOR_ENABLE_P2P", true);
  options.verbose = flag("NCCL_INSPECTOR_DUMP_VERBOSE", false);
  options.gpu_times_only = flag("NCCL_INSPECTOR_REQUIRE_KERNEL_TIMING", true);
  (void)path("NCCLSCOPE_INSPECTOR_P2P_DIR", options.p2p_directory, log);
  read_interval(options, log);
  if (long long bytes = 0; number("NCCL_INSPECTOR_DUMP_MIN_SIZE_BYTES", bytes, log) && bytes >= 0)
    options.min_bytes = static_cast<std::uint64_t>(bytes);
  if (const char* v = variable("NCCLSCOPE_INSPECTOR_FORMAT"); v != nullptr) {
    if (std::strcmp(v, "v4.2") == 0) {
      options.format = Format::kV42;
    } else if (std::strcmp(v, "v4.0") != 0) {
      say(log, nccl::kLogWarn, "NCCLSCOPE_INSPECTOR_FORMAT=\"%.64s\" ignored: wanted v4.0 or v4.2",
          v);
    }
  }
  first_of({"NCCL_INSPECTOR_CLUSTER", "SLURM_CLUSTER_NAME"}, options.cluster);
  first_of({"SLURM_JOB_ID", "SLURM_JOBID", "PBS_JOBID", "LSB_JOBID"}, options.job_id);
  for (const char* name : {"LOCAL_RANK", "SLURM_LOCALID", "OMPI_COMM_WORLD_LOCAL_RANK"}) {
    if (const char* v = variable(name); v != nullptr) {
      const long rank = std::strtol(v, nullptr, 10);
      if (rank >= 0 && rank < 1024) options.local_rank = static_cast<std::int32_t>(rank);
      break;
    }
  }
  say(log, nccl::kLogInfo, "%s go to %s, %s",
      options.prometheus               ? "Inspector's textfiles"
      : options.format == Format::kV42 ? "Inspector's lines (v4.2)"
                                       : "Inspector's lines (v4.0)",
      options.directory,
      options.interval_ns == 0 ? "at the end of communicators" : "once per interval");
}

}  // namespace ncclscope::plugin::inspector

// SPDX-License-Identifier: Apache-2.0
#include "plugin/settings.h"

#include <dirent.h>
#include <strings.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace ncclscope::plugin {
namespace {

void complain(nccl::DebugLogger log, const char* name, const char* value,
              const char* wanted) noexcept {
  if (log == nullptr) return;
  log(nccl::kLogWarn, nccl::kSubsysEnv, "ncclscope", 0,
      "ncclscope: %s=\"%.64s\" ignored: wanted %s", name, value, wanted);
}

bool parse_unsigned(const char* text, std::uint64_t limit, std::uint64_t& out) noexcept {
  if (text[0] == '\0' || text[0] == '-' || text[0] == '+' || text[0] == ' ') return false;
  char* end = nullptr;
  errno = 0;
  const unsigned long long v = std::strtoull(text, &end, 0);
  if (errno != 0 || end == nullptr || *end != '\0' || v > limit) return false;
  out = v;
  return true;
}

void copy_text(char* to, std::size_t size, const char* from) noexcept {
  std::snprintf(to, size, "%s", from);
}

}  // namespace

void read_settings(Settings& settings, nccl::DebugLogger log) noexcept {
  std::uint64_t number = 0;
  if (const char* v = std::getenv("NCCLSCOPE_DISABLE"); v != nullptr && v[0] != '\0') {
    settings.disabled = std::strcmp(v, "0") != 0 && strcasecmp(v, "false") != 0;
  } else {
    settings.disabled = inspector::switched_off();
  }
  if (settings.disabled) return;
  inspector::read_options(settings.inspector, log);
  // Every operation has a line, so none goes without its time.
  if (settings.inspector.enabled && !settings.inspector.prometheus) settings.cost_sample = 0;
  if (const char* v = std::getenv("NCCLSCOPE_SOCKET"); v != nullptr && v[0] != '\0') {
    if (v[0] == '/' && std::strlen(v) < sizeof settings.socket) {
      copy_text(settings.socket, sizeof settings.socket, v);
    } else {
      complain(log, "NCCLSCOPE_SOCKET", v, "an absolute path of at most 107 bytes");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_MASK"); v != nullptr && v[0] != '\0') {
    if (parse_unsigned(v, 0xFFFF, number)) {
      settings.mask_set = true;
      settings.mask = static_cast<std::uint32_t>(number);
    } else {
      complain(log, "NCCLSCOPE_MASK", v, "a number up to 0xffff");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_NETWORK_SAMPLE"); v != nullptr && v[0] != '\0') {
    if (parse_unsigned(v, 1u << 20, number)) {
      settings.network_sample = static_cast<std::uint32_t>(number);
    } else {
      complain(log, "NCCLSCOPE_NETWORK_SAMPLE", v, "0 (never) or N for one operation in N");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_COST_SAMPLE"); v != nullptr && v[0] != '\0') {
    if (parse_unsigned(v, 1u << 20, number) && number != 1) {
      settings.cost_sample = static_cast<std::uint32_t>(number);
    } else {
      complain(log, "NCCLSCOPE_COST_SAMPLE", v, "0 (never) or N of at least 2 for one block in N");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_OVERHEAD_BUDGET"); v != nullptr && v[0] != '\0') {
    char* end = nullptr;
    const double ratio = std::strtod(v, &end);
    if (end != v && *end == '\0' && ratio > 0.0 && ratio <= 1.0) {
      settings.overhead_budget = ratio;
    } else {
      complain(log, "NCCLSCOPE_OVERHEAD_BUDGET", v,
               "a share of wall time above 0 and up to 1, such as 0.001");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_CALM_MS"); v != nullptr && v[0] != '\0') {
    if (parse_unsigned(v, 3'600'000, number) && number >= 100) {
      settings.calm_ms = static_cast<std::uint32_t>(number);
    } else {
      complain(log, "NCCLSCOPE_CALM_MS", v, "100 to 3600000 milliseconds");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_SENDER_INTERVAL_MS"); v != nullptr && v[0] != '\0') {
    if (parse_unsigned(v, 10'000, number) && number >= 1) {
      settings.interval_ms = static_cast<std::uint32_t>(number);
    } else {
      complain(log, "NCCLSCOPE_SENDER_INTERVAL_MS", v, "1 to 10000 milliseconds");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_ENVIRONMENT"); v != nullptr && v[0] != '\0') {
    if ((v[0] == '0' || v[0] == '1') && v[1] == '\0') {
      settings.environment = v[0] == '1';
    } else {
      complain(log, "NCCLSCOPE_ENVIRONMENT", v, "0 or 1");
    }
  }
  if (const char* v = std::getenv("NCCLSCOPE_DETAIL"); v != nullptr && v[0] != '\0') {
    if (std::strcmp(v, "normal") == 0) {
      settings.detail = wire::DetailLevel::kNormal;
    } else if (std::strcmp(v, "low") == 0) {
      settings.detail = wire::DetailLevel::kLow;
    } else if (std::strcmp(v, "full") == 0) {
      settings.detail = wire::DetailLevel::kFull;
    } else {
      complain(log, "NCCLSCOPE_DETAIL", v, "low, normal or full");
    }
  }
}

std::size_t read_claims(std::array<Claim, kMaxClaims>& claims) noexcept {
  using wire::StringKey;
  // The first variable of a key that is set wins.
  struct Source {
    StringKey key;
    const char* variable;
  };
  static constexpr Source kSources[] = {
      {StringKey::kSlurmJobId, "SLURM_JOB_ID"},
      {StringKey::kSlurmJobId, "SLURM_JOBID"},
      {StringKey::kSlurmStepId, "SLURM_STEP_ID"},
      {StringKey::kSlurmProcId, "SLURM_PROCID"},
      {StringKey::kSlurmLocalId, "SLURM_LOCALID"},
      {StringKey::kSlurmNodeId, "SLURM_NODEID"},
      {StringKey::kSlurmArrayJobId, "SLURM_ARRAY_JOB_ID"},
      {StringKey::kSlurmArrayTaskId, "SLURM_ARRAY_TASK_ID"},
      {StringKey::kSlurmHetJobId, "SLURM_HET_JOB_ID"},
      {StringKey::kSlurmHetJobOffset, "SLURM_HET_JOB_OFFSET"},
      {StringKey::kSlurmHetSize, "SLURM_HET_SIZE"},
      {StringKey::kSlurmHetSize, "SLURM_PACK_SIZE"},
      {StringKey::kSlurmJobName, "SLURM_JOB_NAME"},
      {StringKey::kSlurmJobUser, "SLURM_JOB_USER"},
      {StringKey::kSlurmJobPartition, "SLURM_JOB_PARTITION"},
      {StringKey::kSlurmJobAccount, "SLURM_JOB_ACCOUNT"},
      {StringKey::kSlurmClusterName, "SLURM_CLUSTER_NAME"},
      {StringKey::kSlurmdNodeName, "SLURMD_NODENAME"},
      {StringKey::kSlurmRestartCount, "SLURM_RESTART_COUNT"},
      {StringKey::kSlurmNumTasks, "SLURM_NTASKS"},
      {StringKey::kSlurmNumNodes, "SLURM_NNODES"},
      {StringKey::kRank, "RANK"},
      {StringKey::kRank, "OMPI_COMM_WORLD_RANK"},
      {StringKey::kRank, "PMI_RANK"},
      {StringKey::kLocalRank, "LOCAL_RANK"},
      {StringKey::kLocalRank, "OMPI_COMM_WORLD_LOCAL_RANK"},
      {StringKey::kWorldSize, "WORLD_SIZE"},
      {StringKey::kWorldSize, "OMPI_COMM_WORLD_SIZE"},
      {StringKey::kJobName, "NCCLSCOPE_JOB_NAME"},
      {StringKey::kPodName, "NCCLSCOPE_POD_NAME"},
      {StringKey::kPodNamespace, "NCCLSCOPE_POD_NAMESPACE"},
      {StringKey::kNodeName, "NCCLSCOPE_NODE_NAME"},
  };
  std::size_t n = 0;
  const auto have = [&](StringKey key) {
    for (std::size_t i = 0; i < n; ++i) {
      if (claims[i].key == key) return true;
    }
    return false;
  };
  const auto add = [&](StringKey key, const char* text) {
    if (n == kMaxClaims || text == nullptr || text[0] == '\0' || have(key)) return;
    claims[n].key = key;
    copy_text(claims[n].text, sizeof claims[n].text, text);
    ++n;
  };
  for (const Source& s : kSources) add(s.key, std::getenv(s.variable));
  if (std::getenv("KUBERNETES_SERVICE_HOST") != nullptr)
    add(StringKey::kPodName, std::getenv("HOSTNAME"));
  char host[65] = {};
  if (gethostname(host, sizeof host - 1) == 0) add(StringKey::kHostname, host);
  add(StringKey::kExecutable, program_invocation_short_name);
  return n;
}

int open_rdma_devices() noexcept {
  // A process with very many open files is not worth the time.
  constexpr int kMostFiles = 16'384;
  DIR* directory = opendir("/proc/self/fd");
  if (directory == nullptr) return -1;
  int devices = 0;
  int files = 0;
  while (const dirent* entry = readdir(directory)) {
    if (++files > kMostFiles) break;
    char target[64];
    const ssize_t length = readlinkat(dirfd(directory), entry->d_name, target, sizeof target - 1);
    if (length <= 0) continue;
    target[length] = '\0';
    if (std::strncmp(target, "/dev/infiniband/uverbs", 22) == 0 ||
        std::strncmp(target, "/dev/cxi", 8) == 0) {
      ++devices;
    }
  }
  closedir(directory);
  return devices == 0 && files > kMostFiles ? -1 : devices;
}

}  // namespace ncclscope::plugin

// SPDX-License-Identifier: Apache-2.0
//
// The agent's settings and where they come from: default < file (TOML) < environment
// (NCCLSCOPE_AGENT_<KEY>) < flag
// (--<key> with dashes). One table declares every key, so that all four sources and --print-config
// agree.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "agent/base/result.h"

namespace ncclscope::agent {

struct Config {
  std::string socket = "/run/ncclscope/agent.sock";
  std::string api_socket = "/run/ncclscope/api.sock";
  std::string listen = "127.0.0.1:9464";
  std::string web_config;  // empty: /metrics in plain text for everybody who can connect
  std::string api_listen;  // empty: no API over TCP
  std::string api_cert_file, api_key_file, api_client_ca_file, api_access_file;
  std::string node;     // empty: the host's name
  std::string cluster;  // empty: SLURM_CLUSTER_NAME of each job
  std::string log_level = "info";
  std::string ready_file;
  std::string user;  // empty: stay who we are
  std::string sysfs_root = "/sys";
  std::string proc_root = "/proc";
  std::string pods_log_root = "/var/log/pods";
  std::uint64_t grace_seconds = 300;
  std::uint64_t stalled_seconds = 20;
  std::uint64_t max_slurm_jobs = 4096;
  std::string squeue_command;  // empty: squeue is not asked
  std::uint64_t squeue_interval_seconds = 60;
  std::uint64_t squeue_timeout_seconds = 10;
  std::uint64_t doctor_interval_seconds = 300;
  std::uint64_t snapshot_interval_ms = 1000;
  std::uint64_t tail_records = 16'384;
  std::uint64_t max_connections = 4096;
  std::uint64_t max_sessions = 8192;
  std::uint64_t max_jobs = 1024;
  std::uint64_t max_communicators = 4096;
  std::uint64_t quota_connections = 512;
  std::uint64_t quota_sessions = 2048;
  std::uint64_t quota_jobs = 256;
  std::uint64_t quota_communicators = 2048;
  std::uint64_t quota_bytes_per_second = 32 * 1024 * 1024;
  std::uint64_t memory_limit_mb = 256;
  std::uint64_t series_per_job = 4'000;
  std::uint64_t series_per_principal = 25'000;
  std::uint64_t series_limit = 50'000;
  std::string archive_directory;  // empty: operations are not kept
  std::uint64_t archive_group_readable = 0;
  std::uint64_t archive_job_mb = 2'048;
  std::uint64_t archive_total_mb = 20'480;
  std::uint64_t archive_age_hours = 168;
  std::uint64_t archive_segment_seconds = 600;
  std::uint64_t archive_flush_seconds = 5;
  std::uint64_t archive_zstd_level = 3;
  std::uint64_t inspector_window_seconds = 0;  // 0: no /metrics/inspector
  std::uint64_t inspector_min_bytes = 8'192;

  bool operator==(const Config&) const = default;
};

struct ConfigKey {
  const char* name;  // in the file; in flags with dashes for underscores
  std::variant<std::string Config::*, std::uint64_t Config::*> member;
  std::uint64_t minimum, maximum;  // of numbers
  bool reloadable;                 // SIGHUP applies it without a restart
  const char* help;
};
[[nodiscard]] std::span<const ConfigKey> config_keys();

/// Where settings come from besides the defaults.
struct ConfigSources {
  std::map<std::string, std::string> flags;  // by key name
  std::string file;  // --config; empty: NCCLSCOPE_AGENT_CONFIG, else kDefaultFile if it exists
  std::function<std::optional<std::string>(const std::string&)>
      environment;  // empty: the process's own
};
inline constexpr const char* kDefaultConfigFile = "/etc/ncclscope/agent.toml";

/// Reads and checks everything. Errors name the key, its value and its source, for files with the
/// line.
[[nodiscard]] Result<Config> load_config(const ConfigSources& sources);

/// The settings as a TOML file.
[[nodiscard]] std::string to_toml(const Config& config);
/// Keys in which the two differ.
[[nodiscard]] std::vector<const ConfigKey*> differences(const Config& a, const Config& b);

struct HostPort {
  std::string host;
  std::uint16_t port = 0;
};
/// "127.0.0.1:9464", "[::]:9464".
[[nodiscard]] Result<HostPort> parse_host_port(std::string_view text);

}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// The table of settings, the TOML reader and the checks.
#include "agent/app/config.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstdlib>
#include <filesystem>
#include <limits>
#include <system_error>

#include <toml++/toml.h>

#include "agent/aggregate/series.h"
#include "agent/base/log.h"

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kNoLimit = std::uint64_t{1} << 32;

const std::array kKeys = {
    ConfigKey{"socket", &Config::socket, 0, 0, false, "Unix socket that NCCL plugins connect to"},
    ConfigKey{"api_socket", &Config::api_socket, 0, 0, false,
              "Unix socket of the gRPC API; empty: no API"},
    ConfigKey{"listen", &Config::listen, 0, 0, false,
              "address:port of /metrics; port 0: any free one; empty: no HTTP"},
    ConfigKey{
        "web_config", &Config::web_config, 0, 0, false,
        "file with TLS, passwords and tokens of /metrics (Prometheus' web.yml); read again on "
        "SIGHUP and when it changes"},
    ConfigKey{"api_listen", &Config::api_listen, 0, 0, false,
              "address:port of the gRPC API for other hosts, always TLS; empty: none"},
    ConfigKey{"api_cert_file", &Config::api_cert_file, 0, 0, false,
              "PEM certificate of api_listen; read again when it changes"},
    ConfigKey{"api_key_file", &Config::api_key_file, 0, 0, false,
              "PEM key of api_listen; read again when it changes"},
    ConfigKey{"api_client_ca_file", &Config::api_client_ca_file, 0, 0, false,
              "PEM authorities whose client certificates api_listen trusts; empty: tokens only"},
    ConfigKey{
        "api_access_file", &Config::api_access_file, 0, 0, false,
        "TOML file that gives certificates and tokens a role at api_listen; read again when it "
        "changes"},
    ConfigKey{"node", &Config::node, 0, 0, false, "name of this node; empty: the host's name"},
    ConfigKey{"cluster", &Config::cluster, 0, 0, false,
              "label `cluster` of all series; empty: SLURM_CLUSTER_NAME of the job"},
    ConfigKey{"log_level", &Config::log_level, 0, 0, true, "debug, info, warning, error or off"},
    ConfigKey{"ready_file", &Config::ready_file, 0, 0, false,
              "file to write the actual addresses to once the agent is ready"},
    ConfigKey{"user", &Config::user, 0, 0, false,
              "account (name or number) to become when started as root; empty: stay root. Ignored "
              "when not started as root"},
    ConfigKey{"sysfs_root", &Config::sysfs_root, 0, 0, false, "where sysfs is mounted"},
    ConfigKey{"proc_root", &Config::proc_root, 0, 0, false,
              "where procfs is mounted; it proves which job a process belongs to"},
    ConfigKey{"pods_log_root", &Config::pods_log_root, 0, 0, false,
              "the kubelet's log directories; they tell a pod's namespace and name"},
    ConfigKey{"grace_seconds", &Config::grace_seconds, 1, 86'400, true,
              "how long series stay after the last process of a job has left"},
    ConfigKey{"stalled_seconds", &Config::stalled_seconds, 1, 3'600, true,
              "ranks that do not get on for so long are shown as stalled: no more than a third of "
              "hang_seconds of the rules, and less than their stalled_seconds"},
    ConfigKey{"max_slurm_jobs", &Config::max_slurm_jobs, 1, 1'000'000, false,
              "SLURM jobs remembered from prolog and squeue"},
    ConfigKey{"squeue_command", &Config::squeue_command, 0, 0, false,
              "program and arguments that print this node's jobs, such as /usr/bin/squeue --json "
              "--nodelist=%N (%N: node's name, up to its first dot); empty: none"},
    ConfigKey{"squeue_interval_seconds", &Config::squeue_interval_seconds, 1, 86'400, false,
              "how often squeue_command runs; after a quarter of that if a new job is not known"},
    ConfigKey{"squeue_timeout_seconds", &Config::squeue_timeout_seconds, 1, 600, false,
              "after how long squeue_command is killed"},
    ConfigKey{"doctor_interval_seconds", &Config::doctor_interval_seconds, 0, 86'400, false,
              "how often the node is looked at as ncclscope doctor does; 0 = never"},
    ConfigKey{"snapshot_interval_ms", &Config::snapshot_interval_ms, 10, 60'000, false,
              "how often what readers see is renewed"},
    ConfigKey{"tail_records", &Config::tail_records, 1, 16'777'216, false,
              "newest records held for live tails (72 bytes each)"},
    ConfigKey{"max_connections", &Config::max_connections, 1, 65'536, false,
              "connections of plugins at one time"},
    ConfigKey{"max_sessions", &Config::max_sessions, 1, kNoLimit, false,
              "processes remembered, those that have left included"},
    ConfigKey{"max_jobs", &Config::max_jobs, 1, kNoLimit, false, "jobs at one time"},
    ConfigKey{"max_communicators", &Config::max_communicators, 1, kNoLimit, false,
              "communicators at one time; more are folded into one called other"},
    ConfigKey{"quota_connections", &Config::quota_connections, 1, 65'536, false,
              "connections that one user (or Kubernetes pod) may have"},
    ConfigKey{"quota_sessions", &Config::quota_sessions, 1, kNoLimit, false,
              "processes of one user (or pod) that are remembered"},
    ConfigKey{"quota_jobs", &Config::quota_jobs, 1, kNoLimit, false,
              "jobs of one user (or pod), those that have just ended included"},
    ConfigKey{"quota_communicators", &Config::quota_communicators, 1, kNoLimit, false,
              "communicators of one user (or pod); more are folded into one called other"},
    ConfigKey{"quota_bytes_per_second", &Config::quota_bytes_per_second, 0, kNoLimit, false,
              "bytes that are read from one user (or pod), over sockets, and as many through the "
              "API; 0: no limit. A rank with 1,000 operations a second sends about 100,000"},
    ConfigKey{"memory_limit_mb", &Config::memory_limit_mb, 0, 1'048'576, true,
              "resident memory above which new sessions are refused and new communicators folded; "
              "0: no limit"},
    ConfigKey{"series_per_job", &Config::series_per_job, kLeastSeriesOfAJob, kNoLimit, false,
              "series of one job; beyond it, labels are folded step by step"},
    ConfigKey{"series_per_principal", &Config::series_per_principal, kLeastSeriesOfAJob, kNoLimit,
              false, "series of all jobs of one user, or of one pod"},
    ConfigKey{"series_limit", &Config::series_limit, kLeastSeriesOfAJob, kNoLimit, false,
              "series of all jobs together"},
    ConfigKey{"archive_directory", &Config::archive_directory, 0, 0, false,
              "folder in which every operation of every job is kept (about 8 bytes each); empty: "
              "none is"},
    ConfigKey{"archive_group_readable", &Config::archive_group_readable, 0, 1, false,
              "1: the group of archive_directory's files may read them (0640), 0: only the agent's "
              "user (0600)"},
    ConfigKey{"archive_job_mb", &Config::archive_job_mb, 1, 16'777'216, false,
              "MiB that a job's segments may take on this node; beyond it its oldest are deleted"},
    ConfigKey{"archive_total_mb", &Config::archive_total_mb, 1, 16'777'216, false,
              "MiB that the segments of all jobs may take on this node; beyond it the oldest are "
              "deleted"},
    ConfigKey{"archive_age_hours", &Config::archive_age_hours, 1, 87'600, false,
              "after how long a segment is deleted"},
    ConfigKey{"archive_segment_seconds", &Config::archive_segment_seconds, 1, 86'400, false,
              "how long a segment is written to"},
    ConfigKey{"archive_flush_seconds", &Config::archive_flush_seconds, 1, 600, false,
              "what an agent that is killed may lose of the archive; larger blocks take less room"},
    ConfigKey{"archive_zstd_level", &Config::archive_zstd_level, 1, 19, false,
              "how hard to compress; higher ones cost CPU time and gain little"},
    ConfigKey{"inspector_window_seconds", &Config::inspector_window_seconds, 0, 3'600, false,
              "/metrics/inspector shows the last complete window of so many seconds under NCCL "
              "Inspector's names (Inspector's own: 30); 0: there is no such page"},
    ConfigKey{"inspector_min_bytes", &Config::inspector_min_bytes, 0, kNoLimit, false,
              "/metrics/inspector leaves out operations of fewer bytes of one rank"},
};

const ConfigKey* find_key(std::string_view name) {
  const auto it =
      std::find_if(kKeys.begin(), kKeys.end(), [&](const ConfigKey& k) { return k.name == name; });
  return it == kKeys.end() ? nullptr : &*it;
}

Status set_number(Config& config, const ConfigKey& key, std::uint64_t value,
                  const std::string& origin) {
  if (value < key.minimum || value > key.maximum) {
    return Status::invalid(concat(key.name, " = ", value, " (", origin,
                                  ") is out of range: ", key.minimum, " to ", key.maximum));
  }
  config.*std::get<std::uint64_t Config::*>(key.member) = value;
  return {};
}

Status set_text(Config& config, const ConfigKey& key, const std::string& text,
                const std::string& origin) {
  if (const auto* member = std::get_if<std::string Config::*>(&key.member)) {
    const bool plain = std::none_of(text.begin(), text.end(), [](char c) {
      return static_cast<unsigned char>(c) < 0x20 || c == 0x7F;
    });
    if (!plain) {
      return Status::invalid(
          concat(origin, ": ", key.name, " must not hold line ends or other control characters"));
    }
    config.** member = text;
    return {};
  }
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || text.empty()) {
    return Status::invalid(
        concat(key.name, " = '", text, "' (", origin, ") is not a whole number"));
  }
  return set_number(config, key, value, origin);
}

Status read_file(Config& config, const std::string& path) {
  toml::table table;
  try {
    table = toml::parse_file(path);
  } catch (const toml::parse_error& error) {
    return Status::invalid(concat(path, ":", error.source().begin.line, ": ", error.description()));
  }
  for (const auto& [key, node] : table) {
    const std::string origin = concat(path, ":", key.source().begin.line);
    const ConfigKey* known = find_key(key.str());
    if (known == nullptr) {
      return Status::invalid(concat(origin, ": unknown key '", key.str(),
                                    "' (--print-config shows the keys there are)"));
    }
    Status status;
    if (std::holds_alternative<std::string Config::*>(known->member)) {
      const auto value = node.value_exact<std::string>();
      if (!value) {
        return Status::invalid(concat(origin, ": ", known->name, " must be a string"));
      }
      status = set_text(config, *known, *value, origin);
    } else {
      const auto value = node.value_exact<std::int64_t>();
      if (!value || *value < 0) {
        return Status::invalid(
            concat(origin, ": ", known->name, " must be a whole number, not negative"));
      }
      status = set_number(config, *known, static_cast<std::uint64_t>(*value), origin);
    }
    if (!status.ok()) return status;
  }
  return {};
}

Status check(const Config& config) {
  if (const Result<LogLevel> level = parse_log_level(config.log_level); !level.ok()) {
    return level.status();
  }
  if (!config.listen.empty()) {
    if (const Result<HostPort> listen = parse_host_port(config.listen); !listen.ok()) {
      return Status::invalid(concat("listen: ", listen.status().message()));
    }
  }
  if (!config.api_listen.empty()) {
    if (const Result<HostPort> listen = parse_host_port(config.api_listen); !listen.ok()) {
      return Status::invalid(concat("api_listen: ", listen.status().message()));
    }
    for (const auto& [name, path] : {std::pair("api_cert_file", config.api_cert_file),
                                     {"api_key_file", config.api_key_file},
                                     {"api_access_file", config.api_access_file}}) {
      if (path.empty()) {
        return Status::invalid(concat("api_listen = '", config.api_listen, "' needs ", name,
                                      ": the API is served over TCP with TLS and to known callers "
                                      "only"));
      }
    }
  }
  constexpr std::size_t kMaxSocketPath = 107;  // sockaddr_un
  for (const auto& [name, path] :
       {std::pair("socket", config.socket), {"api_socket", config.api_socket}}) {
    if (path.size() > kMaxSocketPath) {
      return Status::invalid(concat(name, " = '", path, "' has ", path.size(),
                                    " bytes; a Unix socket's path has at most ", kMaxSocketPath));
    }
  }
  if (!config.squeue_command.empty() && config.squeue_command.front() != '/') {
    return Status::invalid(concat("squeue_command = '", config.squeue_command,
                                  "' must begin with the program's full path, such as "
                                  "/usr/bin/squeue"));
  }
  if (!config.archive_directory.empty() && config.archive_directory.front() != '/') {
    return Status::invalid(concat("archive_directory = '", config.archive_directory,
                                  "' must be a full path, such as /var/lib/ncclscope/archive"));
  }
  if (config.archive_flush_seconds > config.archive_segment_seconds) {
    return Status::invalid(concat(
        "archive_flush_seconds = ", config.archive_flush_seconds,
        " must not be more than archive_segment_seconds = ", config.archive_segment_seconds));
  }
  if (config.socket.empty()) return Status::invalid("socket must not be empty");
  if (config.socket == config.api_socket) {
    return Status::invalid(concat("socket and api_socket are both '", config.socket, "'"));
  }
  return {};
}

}  // namespace

std::span<const ConfigKey> config_keys() {
  return kKeys;
}

Result<Config> load_config(const ConfigSources& sources) {
  const auto environment = [&](const std::string& name) -> std::optional<std::string> {
    if (sources.environment) return sources.environment(name);
    const char* value = std::getenv(name.c_str());  // NOLINT(concurrency-mt-unsafe): nobody sets it
    return value == nullptr ? std::nullopt : std::optional<std::string>(value);
  };
  Config config;
  std::string file = sources.file;
  if (file.empty()) file = environment("NCCLSCOPE_AGENT_CONFIG").value_or("");
  std::error_code error;
  if (file.empty() && std::filesystem::exists(kDefaultConfigFile, error)) file = kDefaultConfigFile;
  if (!file.empty()) {
    if (Status s = read_file(config, file); !s.ok()) return s;
  }
  for (const ConfigKey& key : kKeys) {
    // Only known names are looked at: in Kubernetes a Service called ncclscope-agent adds variables
    // of its own.
    std::string name = "NCCLSCOPE_AGENT_";
    for (const char* c = key.name; *c != '\0'; ++c) {
      name += *c >= 'a' && *c <= 'z' ? static_cast<char>(*c - 'a' + 'A') : *c;
    }
    if (const auto value = environment(name)) {
      if (Status s = set_text(config, key, *value, name); !s.ok()) return s;
    }
  }
  for (const auto& [name, value] : sources.flags) {
    const ConfigKey* key = find_key(name);
    if (key == nullptr) return Status::invalid(concat("unknown flag --", name));
    if (Status s = set_text(config, *key, value, "flag"); !s.ok()) return s;
  }
  if (Status s = check(config); !s.ok()) return s;
  return config;
}

std::string to_toml(const Config& config) {
  std::string out;
  for (const ConfigKey& key : kKeys) {
    out +=
        concat("# ", key.help, key.reloadable ? " (SIGHUP applies it)" : "", "\n", key.name, " = ");
    if (const auto* member = std::get_if<std::string Config::*>(&key.member)) {
      out += '"';
      for (const char c : config.**member) {
        if (c == '"' || c == '\\') out += '\\';
        out += c;
      }
      out += "\"\n";
    } else {
      out += concat(config.*std::get<std::uint64_t Config::*>(key.member), "\n");
    }
  }
  return out;
}

std::vector<const ConfigKey*> differences(const Config& a, const Config& b) {
  std::vector<const ConfigKey*> out;
  for (const ConfigKey& key : kKeys) {
    if (std::visit([&](auto member) { return a.*member != b.*member; }, key.member)) {
      out.push_back(&key);
    }
  }
  return out;
}

Result<HostPort> parse_host_port(std::string_view text) {
  const std::size_t colon = text.rfind(':');
  HostPort out;
  unsigned port = 0;
  bool good = colon != std::string_view::npos && colon > 0;
  if (good) {
    std::string_view host = text.substr(0, colon);
    if (host.front() == '[' && host.back() == ']')
      host = host.substr(1, host.size() - 2);
    else
      good = host.find(':') == std::string_view::npos;
    out.host = std::string(host);
    const std::string_view digits = text.substr(colon + 1);
    const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
    good = good && !digits.empty() && error == std::errc() &&
           end == digits.data() + digits.size() &&
           port <= std::numeric_limits<std::uint16_t>::max() && !out.host.empty();
  }
  if (!good) {
    return Status::invalid(
        concat("'", text, "' is not address:port, such as 127.0.0.1:9464 or [::]:9464"));
  }
  out.port = static_cast<std::uint16_t>(port);
  return out;
}

}  // namespace ncclscope::agent

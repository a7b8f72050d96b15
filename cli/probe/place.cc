// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/place.h"

#include <array>
#include <charconv>
#include <cstdio>
#include <optional>

namespace ncclscope::cli::probe {
namespace {

constexpr std::uint32_t kMostProcesses = 65'536;

std::uint64_t hash(std::string_view text) {
  std::uint64_t value = 0xcbf29ce484222325U;  // FNV-1a
  for (const char c : text) value = (value ^ static_cast<unsigned char>(c)) * 0x100000001b3U;
  return value;
}

std::optional<std::uint32_t> number(std::string_view text) {
  std::uint32_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (text.empty() || error != std::errc{} || end != text.data() + text.size()) return {};
  return value;
}

/// What one launcher says.
struct Launcher {
  const char* name;
  const char* process;
  const char* processes;
  const char* local;
  const char* locals;
};
// torchrun and mpirun may themselves have been started by srun, so they are asked first.
constexpr std::array<Launcher, 3> kLaunchers{{
    {"torchrun", "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"},
    {"Open MPI", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK",
     "OMPI_COMM_WORLD_LOCAL_SIZE"},
    {"PMI", "PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID", "MPI_LOCALNRANKS"},
}};

void take_local(Place& place, const std::string& local, std::uint32_t locals) {
  place.local = number(local).value_or(0);
  place.alone_on_node = locals == 1 || place.processes == 1;
  place.one_node = locals == place.processes;
}

bool from_launcher(const Launcher& launcher, const Environment& environment, Place& place) {
  const std::optional<std::uint32_t> process = number(environment(launcher.process));
  const std::optional<std::uint32_t> processes = number(environment(launcher.processes));
  if (!process || !processes) return false;
  place.process = *process;
  place.processes = *processes;
  place.source = launcher.name;
  take_local(place, environment(launcher.local), number(environment(launcher.locals)).value_or(0));
  return true;
}

/// A batch script has SLURM_PROCID too, though only one process: steps alone have a number of
/// tasks.
bool from_slurm(const Environment& environment, Place& place) {
  const std::optional<std::uint32_t> process = number(environment("SLURM_PROCID"));
  const std::optional<std::uint32_t> processes = number(environment("SLURM_STEP_NUM_TASKS"));
  if (!process || !processes) return false;
  place.process = *process;
  place.processes = *processes;
  place.source = "SLURM";
  // A node with one task takes all its GPUs only where all nodes do: steps may be uneven.
  const std::uint32_t nodes = number(environment("SLURM_STEP_NUM_NODES")).value_or(0);
  std::uint32_t locals = 0;
  if (nodes == place.processes) locals = 1;
  if (nodes == 1) locals = place.processes;
  take_local(place, environment("SLURM_LOCALID"), locals);
  return true;
}

void from_options(const PlaceOptions& options, Place& place) {
  if (options.process >= 0) place.process = static_cast<std::uint32_t>(options.process);
  if (options.processes >= 0) place.processes = static_cast<std::uint32_t>(options.processes);
  if (options.local >= 0) {
    place.local = static_cast<std::uint32_t>(options.local);
    place.alone_on_node = false;
  }
  if (options.process >= 0 || options.processes >= 0) place.source = "options";
}

std::string key_of(const Environment& environment) {
  if (std::string own = environment("NCCLSCOPE_PROBE_KEY"); !own.empty()) return own;
  std::string key;
  for (const char* name : {"SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID",
                           "SLURM_RESTART_COUNT", "PMIX_NAMESPACE", "MASTER_ADDR", "MASTER_PORT"})
    key += environment(name) + ".";
  return key;
}

/// Host and port of "host:port", "[v6]:port" or "host".
bool split_root(const std::string& text, Place& place) {
  const bool bracket = text.starts_with('[');
  const std::size_t end = bracket ? text.find(']') : text.rfind(':');
  if (bracket && end == std::string::npos) return false;
  place.root_host = bracket ? text.substr(1, end - 1) : text.substr(0, end);
  std::string port;
  if (bracket && end + 1 < text.size()) {
    if (text[end + 1] != ':') return false;
    port = text.substr(end + 2);
  } else if (!bracket && end != std::string::npos) {
    port = text.substr(end + 1);
  } else {
    return !place.root_host.empty();
  }
  const std::optional<std::uint32_t> value = number(port);
  if (!value || *value == 0 || *value > 65'535) return false;
  place.root_port = static_cast<std::uint16_t>(*value);
  return !place.root_host.empty();
}

void find_root(const PlaceOptions& options, const Environment& environment, Place& place) {
  if (!options.root.empty()) {
    if (!split_root(options.root, place))
      place.error = "--root '" + options.root + "': wanted HOST or HOST:PORT of process 0";
    return;
  }
  if (!options.rendezvous.empty()) return;
  if (place.source == "torchrun") place.root_host = environment("MASTER_ADDR");
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"})
    if (place.root_host.empty()) place.root_host = first_host(environment(name));
  if (place.one_node) place.root_host = "127.0.0.1";
  if (place.root_host.empty())
    place.error = "where process 0 of " + std::to_string(place.processes) + " is, is not known (" +
                  place.source +
                  " does not say): give --rendezvous with a folder that all share, or --root";
}

}  // namespace

Place find_place(const PlaceOptions& options, const Environment& environment) {
  Place place;
  place.key = key_of(environment);
  const bool given = options.process >= 0 && options.processes >= 0;
  bool known = given;
  for (const Launcher& launcher : kLaunchers)
    if (!known) known = from_launcher(launcher, environment, place);
  if (!known) known = from_slurm(environment, place);
  from_options(options, place);
  if (place.processes < 1 || place.processes > kMostProcesses || place.process >= place.processes)
    place.error = "process " + std::to_string(place.process) + " of " +
                  std::to_string(place.processes) + " (" + place.source +
                  "): wanted a number from 0 below the number of processes";
  else if ((options.process >= 0) != (options.processes >= 0))
    place.error = "--process and --processes go together";
  else if (place.processes > 1)
    find_root(options, environment, place);
  return place;
}

std::string first_host(std::string_view list) {
  const std::size_t bracket = list.find('['), comma = list.find(',');
  if (bracket == std::string_view::npos || comma < bracket)
    return std::string(list.substr(0, comma));
  const std::size_t end = list.find(']', bracket);
  if (end == std::string_view::npos) return {};
  const std::string_view range = list.substr(bracket + 1, end - bracket - 1);
  // What follows the bracket belongs to the name, up to the comma: "n[1-2]-ib".
  const std::size_t next = list.find(',', end);
  std::string rest(list.substr(end + 1, next == std::string_view::npos ? next : next - end - 1));
  if (rest.find('[') != std::string::npos) rest = first_host(rest);
  return std::string(list.substr(0, bracket)) +
         std::string(range.substr(0, range.find_first_of("-,"))) + rest;
}

std::vector<std::uint16_t> candidate_ports(std::string_view key) {
  constexpr std::uint64_t kFirst = 20'000, kCount = 12'000, kCandidates = 8;
  std::vector<std::uint16_t> ports;
  for (std::uint64_t i = 0; i < kCandidates; ++i)
    ports.push_back(static_cast<std::uint16_t>(kFirst + (hash(key) + i * 1'409) % kCount));
  return ports;
}

std::string digest(std::string_view text) {
  std::array<char, 17> out{};
  (void)std::snprintf(out.data(), out.size(), "%016llx",
                      static_cast<unsigned long long>(hash(text)));
  return out.data();
}

}  // namespace ncclscope::cli::probe

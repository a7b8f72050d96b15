// SPDX-License-Identifier: Apache-2.0
//
// Runs one emulated job for tests/e2e/pipeline/pipeline.py and prints what the emulator knows of it
// as JSON: ranks with pid and end, steps, operations. Options come as "name=value", so that the
// script needs no quoting rules:
//   nodes gpus layout steps seconds seed compute_ms kernel_us message_scale protocol release plugin
//   library_path rank_program hang_seconds pace fault=SPEC (again and again)   env=NAME=VALUE (all
//   ranks) node_env=NODE:NAME=VALUE (ranks of one node)
// SIGTERM ends the job. Ends with 0 when the job ran, whatever its faults did to it; 2 on a bad
// option, 1 when it could not be started.
#include <signal.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <map>
#include <string>
#include <string_view>

#include "sim/simulation.h"

namespace {

using ncclscope::sim::Proto;
using ncclscope::sim::Simulation;
using ncclscope::sim::SimulationConfig;
using ncclscope::sim::SimulationResult;

volatile std::sig_atomic_t asked_to_stop = 0;

[[noreturn]] void refuse(const std::string& why) {
  std::cerr << "run_job: " << why << '\n';
  std::exit(2);
}

std::pair<std::string, std::string> split(std::string_view text, char at) {
  const std::size_t place = text.find(at);
  if (place == std::string_view::npos)
    refuse("no '" + std::string(1, at) + "' in " + std::string(text));
  return {std::string(text.substr(0, place)), std::string(text.substr(place + 1))};
}

void apply(SimulationConfig& config, const std::string& name, const std::string& value) {
  std::string error;
  if (name == "nodes") {
    config.nodes = std::stoi(value);
  } else if (name == "gpus") {
    config.gpus_per_node = std::stoi(value);
  } else if (name == "layout") {
    config.layout = ncclscope::sim::parse_layout(value, &error);
  } else if (name == "release") {
    config.release = ncclscope::sim::parse_release(value, &error);
  } else if (name == "fault") {
    config.faults.push_back(ncclscope::sim::parse_fault(value, &error));
  } else if (name == "steps") {
    config.steps = std::stoll(value);
  } else if (name == "seconds") {
    config.duration_seconds = std::stod(value);
  } else if (name == "hang_seconds") {
    config.hang_seconds = std::stod(value);
  } else if (name == "seed") {
    config.seed = std::stoull(value);
  } else if (name == "compute_ms") {
    config.model.compute_ns = static_cast<std::int64_t>(std::stod(value) * 1e6);
  } else if (name == "kernel_us") {
    config.hardware.fixed_kernel_ns = static_cast<std::int64_t>(std::stod(value) * 1e3);
    config.hardware.noise = 0;
  } else if (name == "message_scale") {
    config.model.message_scale = std::stod(value);
  } else if (name == "protocol") {
    const std::map<std::string, Proto> known{
        {"LL", Proto::kLl}, {"LL128", Proto::kLl128}, {"Simple", Proto::kSimple}};
    const auto at = known.find(value);
    if (at == known.end()) refuse("protocol is LL, LL128 or Simple, not " + value);
    config.tuning.force_proto = static_cast<int>(at->second);
  } else if (name == "pace") {
    if (value != "real" && value != "fast") refuse("pace is real or fast, not " + value);
    config.pace =
        value == "fast" ? ncclscope::sim::Pace::kAsFastAsPossible : ncclscope::sim::Pace::kRealTime;
  } else if (name == "plugin") {
    config.plugin = value;
  } else if (name == "library_path") {
    config.library_path = value;
  } else if (name == "rank_program") {
    config.rank_executable = value;
  } else if (name == "env") {
    config.job_environment.insert(split(value, '='));
  } else if (name == "node_env") {
    const auto [node, rest] = split(value, ':');
    config.node_environment[std::stoi(node)].insert(split(rest, '='));
  } else {
    refuse("unknown option " + name);
  }
  if (!error.empty()) refuse(error);
}

}  // namespace

int main(int argc, char** argv) {
  SimulationConfig config;
  for (int i = 1; i < argc; ++i) {
    const auto [name, value] = split(argv[i], '=');
    try {
      apply(config, name, value);
    } catch (const std::logic_error&) {
      refuse(name + " wants a number, not '" + value + "'");
    }
  }
  if (const std::string error = ncclscope::sim::check(config); !error.empty()) refuse(error);
  // Ranks that hang would outlive this program.
  struct sigaction action {};
  action.sa_handler = [](int) { asked_to_stop = 1; };
  ::sigaction(SIGTERM, &action, nullptr);
  Simulation simulation(config);
  if (const std::string error = simulation.start(); !error.empty()) {
    std::cerr << "run_job: " << error << '\n';
    return 1;
  }
  while (!simulation.wait(0.05)) {
    if (asked_to_stop != 0) simulation.stop();
  }
  const SimulationResult result = simulation.result();
  std::cout << "{\"steps\":" << result.steps << ",\"operations\":" << result.operations
            << ",\"finished\":" << (result.all_finished() ? "true" : "false") << ",\"ranks\":[";
  const char* separator = "";
  for (const auto& rank : result.ranks) {
    std::cout << separator << "{\"rank\":" << rank.rank << ",\"node\":" << rank.node
              << ",\"pid\":" << rank.pid << ",\"exit_code\":" << rank.exit_code
              << ",\"signal\":" << rank.signal << '}';
    separator = ",";
  }
  std::cout << "]}\n";
  return 0;
}

// SPDX-License-Identifier: Apache-2.0
// Body of ncclscope-sim-rank: reads its orders, opens the job's shared memory, plays one rank. Exit
// code: 0 finished, 3 hung until it was given up, 4 aborted, 1 error (text on stderr).
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iomanip>

#include "sim/config_text.h"
#include "sim/programs.h"
#include "sim/simulation.h"

namespace ncclscope::sim {
namespace {

template <typename T>
bool parse(const std::string& text, T* out) {
  if constexpr (std::is_same_v<T, bool>) {
    *out = text == "1";
    return text == "0" || text == "1";
  } else {
    const auto result = std::from_chars(text.data(), text.data() + text.size(), *out);
    return result.ec == std::errc() && result.ptr == text.data() + text.size();
  }
}

}  // namespace

std::string write_config(const SimulationConfig& config, const RankOrders& orders) {
  std::ostringstream out;
  out << std::setprecision(17);
  visit_config(config,
               [&](const char* key, const auto& value) { out << key << ' ' << value << '\n'; });
  out << "layout " << to_text(config.layout) << '\n';
  out << "release " << config.release.text() << '\n';
  for (const Fault& fault : config.faults) out << "fault " << to_text(fault) << '\n';
  out << "world " << orders.world << "\nrank " << orders.rank << "\nactor " << orders.actor
      << "\nend_time " << orders.end_time << "\nhard_end " << orders.hard_end << '\n';
  return out.str();
}

std::string read_config(const std::string& text, SimulationConfig* config, RankOrders* orders) {
  std::istringstream in(text);
  std::string error;
  for (std::string line; std::getline(in, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) return "line \"" + line + "\" is not \"key value\"";
    const std::string key = line.substr(0, space);
    const std::string value = line.substr(space + 1);
    bool known = false;
    bool good = true;
    visit_config(*config, [&](const char* name, auto& member) {
      if (key != name) return;
      known = true;
      good = parse(value, &member);
    });
    if (known) {
      if (!good) return "value \"" + value + "\" of " + key + " cannot be read";
      continue;
    }
    if (key == "layout") {
      config->layout = parse_layout(value, &error);
    } else if (key == "release") {
      config->release = parse_release(value, &error);
    } else if (key == "fault") {
      config->faults.push_back(parse_fault(value, &error));
    } else if (key == "world") {
      orders->world = value;
    } else if (key == "rank") {
      good = parse(value, &orders->rank);
    } else if (key == "actor") {
      good = parse(value, &orders->actor);
    } else if (key == "end_time") {
      good = parse(value, &orders->end_time);
    } else if (key == "hard_end") {
      good = parse(value, &orders->hard_end);
    } else {
      return "key " + key + " is not known";
    }
    if (!error.empty()) return error;
    if (!good) return "value \"" + value + "\" of " + key + " cannot be read";
  }
  return "";
}

int rank_main(int argc, char** argv) {
  if (argc > 1 && std::string(argv[1]) == "--program") return program_main(argc, argv);
  const char* text = std::getenv(kConfigVariable);
  if (text == nullptr) {
    std::fprintf(stderr, "ncclscope-sim-rank is started by a simulation (%s is not set)\n",
                 kConfigVariable);
    return 1;
  }
  SimulationConfig config;
  RankOrders orders;
  const std::string error = read_config(text, &config, &orders);
  if (!error.empty()) {
    std::fprintf(stderr, "ncclscope-sim-rank: %s\n", error.c_str());
    return 1;
  }
  ::unsetenv(kConfigVariable);
  try {
    std::shared_ptr<World> world = World::open(orders.world);
    world->adopt_actor(orders.actor);
    HostOptions options;
    options.world = world;
    options.owner = orders.rank;
    options.profiler.release = config.release;
    if (const char* plugin = std::getenv("NCCL_PROFILER_PLUGIN")) options.profiler.plugin = plugin;
    options.profiler.log_to_stderr = config.log_nccl;
    options.profiler.crash_like_nccl = true;
    options.tuning = config.tuning;
    options.hardware = config.hardware;
    options.hazards = config.hazards;
    GpuClock clock;
    clock.offset_ns = config.gpu_clock_spread_ns * orders.rank;
    clock.drift_ppm = config.gpu_clock_drift_ppm * ((orders.rank * 37 % 101) / 50.0 - 1);
    options.gpu_clocks = {clock};
    RankRun run;
    std::string problem;
    run.job.nodes = config.nodes;
    run.job.gpus_per_node = config.gpus_per_node;
    run.job.layout = resolve_layout(config.layout, config.nodes * config.gpus_per_node,
                                    config.gpus_per_node, &problem);
    run.job.seed = config.seed;
    run.model = config.model;
    run.faults = config.faults;
    run.rank = orders.rank;
    run.end_time = orders.end_time;
    run.hard_end = orders.hard_end;
    run.steps = config.steps > 0 ? config.steps : INT64_MAX;
    run.destroy = config.destroy;
    RankOutcome outcome;
    {
      Host host(options);
      outcome = run_rank(&host, run);
      host.exit_process();
    }
    world->release_actor();
    std::fflush(nullptr);
    return outcome.hung ? 3 : outcome.aborted ? 4 : 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ncclscope-sim-rank %d: %s\n", orders.rank, e.what());
    return 1;
  }
}

}  // namespace ncclscope::sim

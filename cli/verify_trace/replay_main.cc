// SPDX-License-Identifier: Apache-2.0
//
// ncclscope-replay: stands in for one recorded process. Loads the plugin, makes the recorded
// callbacks in recorded time, says "replayed" on stdout, and lives on until its stdin ends: then it
// leaves through exit(), so that the plugin's destructors run as they would in the recorded
// process. Exports clock_gettime (recorded_clock.cc) and ncclGetVersion, which the plugin finds as
// it finds NCCL's.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "cli/verify_trace/recorded_clock.h"
#include "cli/verify_trace/replayer.h"
#include "cli/verify_trace/trace.h"

namespace {

std::atomic<int> g_release{0};

}  // namespace

/// NCCL's release as the recording says it.
extern "C" __attribute__((visibility("default"))) int ncclGetVersion(int* version) {
  if (version == nullptr) return 4;  // ncclInvalidArgument
  *version = g_release.load();
  return 0;
}

int main(int argc, char** argv) {
  using namespace ncclscope::cli;  // NOLINT(google-build-using-namespace)
  CLI::App app{"Replays one process of a recording into a profiler plugin, in recorded time"};
  std::string file;
  std::string report_file;
  ReplayOptions options;
  int pause_ms = 15;
  std::int64_t shift_ns = 0;
  app.add_option("trace", file, "rank<r>.jsonl.gz")->required();
  app.add_option("--plugin", options.plugin, "Shared object that exports ncclProfiler_v<N>")
      ->required();
  app.add_option("--report", report_file, "Where to write what was delivered (JSON)")->required();
  app.add_option("--seed", options.seed, "Seed of the bytes that NCCL leaves undefined");
  app.add_option("--drop-line", options.drop_line, "Index of a line to leave out");
  app.add_option("--until-ns", options.until_ns,
                 "Recorded time after which nothing happens any more");
  app.add_option("--shift-ns", shift_ns, "Added to what the recorded clocks say");
  app.add_option("--pause-ms", pause_ms,
                 "Real time given to the plugin's sender after each step of recorded time");
  CLI11_PARSE(app, argc, argv);

  try {
    Trace trace = load_trace(file);
    restore_null_handles(trace);
    g_release = static_cast<int>(trace.header.nccl_version);
    set_recorded_origin(trace.header.t0_monotonic_ns + shift_ns,
                        trace.header.t0_realtime_ns + shift_ns);
    set_recorded_time(trace.lines.front().t_ns);
    freeze_real_callers();

    const ReplayReport report = replay(trace, options);

    const std::chrono::milliseconds pause(pause_ms);
    std::this_thread::sleep_for(pause);
    if (!report.ends_with_exit) {
      // The process lives on: what the plugin gives up after a while is given up now.
      for (const std::int64_t seconds : {1, 10, 60}) {
        set_recorded_time(recorded_time() + seconds * 1'000'000'000);
        std::this_thread::sleep_for(pause);
      }
    }
    nlohmann::json j;
    j["pid"] = getpid();
    j["delivery"] = report.delivery;
    j["masks"] = report.masks;
    j["final_mask"] = report.final_mask;
    j["callbacks"] = report.callbacks;
    j["null_handles"] = report.null_handles;
    std::ofstream out(report_file);
    out << j.dump() << '\n';
    out.close();
    if (!out) {
      std::fprintf(stderr, "ncclscope-replay: %s cannot be written\n", report_file.c_str());
      return 2;
    }
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ncclscope-replay: %s: %s\n", file.c_str(), e.what());
    return 2;
  }
  std::puts("replayed");
  std::fflush(stdout);
  char c = 0;
  while (read(STDIN_FILENO, &c, 1) > 0) {
  }
  std::exit(0);
}

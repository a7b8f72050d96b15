// SPDX-License-Identifier: Apache-2.0
//
// How often the verdict names the right GPU, and how often it accuses an innocent one: seeded jobs
// with a known fault, seeded jobs without any, through the aggregation of the agents and through
// verdict/, which evaluates the formulas of the recording rules.
//   diagnosis_bench [--faulty N] [--healthy N] [--hangs N] [--most-ranks N] [--seed N]
//                   [--threads N] [--json FILE] [--verbose]
//   diagnosis_bench --series DIR …   plays nothing else: see series.h
// Prints one line per class of fault and layout, beside what two simpler ways would have said of
// the same jobs, and the bars. Ends with 1 if a bar is missed.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/bench/diagnosis/hang_trial.h"
#include "tests/bench/diagnosis/series.h"
#include "tests/bench/diagnosis/trial.h"

namespace ncclscope::bench {
namespace {

struct Options {
  int faulty = 40, healthy = 40, hangs = 40;
  int most_ranks = 64;
  std::uint64_t seed = 1;
  int threads = 1;
  std::string json, series;
  bool verbose = false;
};

struct Tally {
  int jobs = 0, right = 0, falsely = 0, longest_mean = 0, furthest_behind = 0;
  std::uint64_t records = 0;
  std::vector<int> steps;  // to the right verdict

  void add(const Scenario& scenario, const Outcome& outcome) {
    ++jobs;
    const bool is_right = outcome.is_right(scenario);
    right += is_right ? 1 : 0;
    falsely += outcome.falsely ? 1 : 0;
    longest_mean += scenario.is_late(outcome.longest_mean) ? 1 : 0;
    furthest_behind += scenario.is_late(outcome.furthest_behind) ? 1 : 0;
    records += outcome.records;
    if (is_right && outcome.steps >= 0) steps.push_back(outcome.steps);
  }
  [[nodiscard]] double percent(int count) const { return jobs == 0 ? 0 : 100.0 * count / jobs; }
  [[nodiscard]] int steps_at(double share) {
    if (steps.empty()) return -1;
    std::sort(steps.begin(), steps.end());
    return steps[static_cast<std::size_t>(share * static_cast<double>(steps.size() - 1))];
  }
};

bool read(int argc, char** argv, Options& options) {
  for (int i = 1; i < argc; ++i) {
    const std::string flag = argv[i];
    if (flag == "--verbose") {
      options.verbose = true;
      continue;
    }
    if (i + 1 >= argc) return false;
    const char* value = argv[++i];
    if (flag == "--faulty") {
      options.faulty = std::atoi(value);
    } else if (flag == "--healthy") {
      options.healthy = std::atoi(value);
    } else if (flag == "--hangs") {
      options.hangs = std::atoi(value);
    } else if (flag == "--most-ranks") {
      options.most_ranks = std::max(8, std::atoi(value));
    } else if (flag == "--seed") {
      options.seed = std::strtoull(value, nullptr, 10);
    } else if (flag == "--threads") {
      options.threads = std::max(1, std::atoi(value));
    } else if (flag == "--series") {
      options.series = value;
    } else if (flag == "--json") {
      options.json = value;
    } else {
      return false;
    }
  }
  return true;
}

class Bench {
 public:
  explicit Bench(Options options) : options_(std::move(options)) {}

  bool run() {
    const auto begin = std::chrono::steady_clock::now();
    std::vector<std::thread> threads;
    for (int t = 0; t < options_.threads; ++t) threads.emplace_back([this] { work(); });
    for (std::thread& thread : threads) thread.join();
    seconds_ = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    return report();
  }

 private:
  void work() {
    const int jobs = options_.faulty + options_.healthy;
    for (int i = next_++; i < jobs + options_.hangs; i = next_++) {
      const std::uint64_t seed = options_.seed + static_cast<std::uint64_t>(i);
      if (i >= jobs) {
        add_stop(stopping_scenario(seed, options_.most_ranks));
        continue;
      }
      const Scenario scenario = i < options_.faulty ? faulty_scenario(seed, options_.most_ranks)
                                                    : healthy_scenario(seed, options_.most_ranks);
      const Outcome outcome = play(scenario);
      const std::lock_guard<std::mutex> lock(mutex_);
      const bool healthy = scenario.fault == Fault::kNone;
      (healthy ? healthy_ : faulty_).add(scenario, outcome);
      if (healthy) count_features(scenario);
      by_class_[name(scenario.fault)].add(scenario, outcome);
      by_layout_[std::string(healthy ? "healthy " : "faulty ") + name(scenario.family)].add(
          scenario, outcome);
      if (!outcome.is_right(scenario) || outcome.falsely || options_.verbose)
        tell(scenario, outcome);
    }
  }

  /// What could make an innocent look guilty.
  void count_features(const Scenario& s) {
    healthy_with_["an agent that restarts"] += s.agent_restart ? 1 : 0;
    healthy_with_["5 % of one node's records lost"] += s.telemetry_loss > 0 ? 1 : 0;
    healthy_with_["evaluations and checkpoints"] += s.pauses ? 1 : 0;
    healthy_with_["uneven stages"] += s.uneven_stage > 0 ? 1 : 0;
    healthy_with_["a hot expert"] += s.hot_expert > 0 ? 1 : 0;
  }

  void add_stop(const Scenario& scenario) {
    const HangOutcome outcome = play_stop(scenario);
    const bool is_right = outcome.class_right && outcome.ranks_right;
    const std::lock_guard<std::mutex> lock(mutex_);
    auto& [jobs, right] = stops_[name(scenario.stop)];
    ++jobs;
    right += is_right ? 1 : 0;
    if (!is_right || options_.verbose)
      std::printf("%s %s; said: %s\n", is_right ? "right" : "WRONG", describe(scenario).c_str(),
                  outcome.said.c_str());
  }

  static void tell(const Scenario& scenario, const Outcome& outcome) {
    std::printf("%s %s; accused:", outcome.is_right(scenario) ? "right" : "WRONG",
                describe(scenario).c_str());
    for (std::size_t i = 0; i < std::min<std::size_t>(outcome.accused.size(), 8); ++i)
      std::printf(" %d", outcome.accused[i]);
    std::printf("%s, after %d steps%s\n", outcome.accused.size() > 8 ? " ..." : "", outcome.steps,
                outcome.falsely ? ", FALSELY" : "");
  }

  static void row(const std::string& what, Tally& tally) {
    std::printf("%-24s %6d %8.2f %8d %8d %8d %14.1f %16.1f\n", what.c_str(), tally.jobs,
                tally.percent(tally.right), tally.falsely, tally.steps_at(0.5), tally.steps_at(1),
                tally.percent(tally.longest_mean), tally.percent(tally.furthest_behind));
  }

  void bar(const char* bar_name, const char* what, double value, const char* unit,
           const char* limit, double bound, bool ok) {
    char line[512];
    std::snprintf(
        line, sizeof line,
        R"({"name": "%s", "what": "%s", "value": %.6g, "unit": "%s", "bar": {"%s": %g}, "ok": %s})",
        bar_name, what, value, unit, limit, bound, ok ? "true" : "false");
    lines_.emplace_back(line);
    ok_ = ok_ && ok;
  }

  void figure(const char* bar_name, const char* what, double value, const char* unit) {
    char line[512];
    std::snprintf(
        line, sizeof line,
        R"({"name": "%s", "what": "%s", "value": %.6g, "unit": "%s", "bar": null, "ok": null})",
        bar_name, what, value, unit);
    lines_.emplace_back(line);
  }

  bool report() {
    std::printf("%-24s %6s %8s %8s %8s %8s %14s %16s\n", "class or layout", "jobs", "right %",
                "falsely", "steps50", "steps100", "longest mean %", "furthest behind %");
    for (auto& [what, tally] : by_class_) row(what, tally);
    for (auto& [what, tally] : by_layout_) row(what, tally);
    row("all faulty", faulty_);
    row("all healthy", healthy_);
    int stops = 0, stops_right = 0;
    for (const auto& [what, counts] : stops_) {
      std::printf("hang: %-24s %4d jobs, class and ranks right in %d\n", what.c_str(), counts.first,
                  counts.second);
      stops += counts.first;
      stops_right += counts.second;
    }
    if (stops > 0) {
      bar("hang_right", "class and ranks of a hang are right", 100.0 * stops_right / stops, "%",
          "at_least", 100, stops_right == stops);
      figure("hang_jobs", "jobs that stopped for good", stops, "jobs");
    }
    if (options_.faulty > 0) {
      bar("culprit_top1", "the right GPU or node is named within 60 steps, delay >= 3 sigma",
          faulty_.percent(faulty_.right), "%", "at_least", 99,
          faulty_.percent(faulty_.right) >= 99);
      bar("culprit_false", "jobs with a fault in which an innocent GPU is accused, in any window",
          faulty_.falsely, "jobs", "at_most", faulty_.jobs * 0.01,
          faulty_.falsely <= faulty_.jobs * 0.01);
      figure("culprit_steps", "steps from the fault to the verdict, median", faulty_.steps_at(0.5),
             "steps");
      figure("culprit_by_longest_mean", "right, had one accused who has the longest mean time",
             faulty_.percent(faulty_.longest_mean), "%");
      figure("culprit_by_count", "right, had one accused who is furthest behind in calls",
             faulty_.percent(faulty_.furthest_behind), "%");
      figure("culprit_jobs", "jobs with a fault that were played", faulty_.jobs, "jobs");
    }
    if (options_.healthy > 0) {
      bar("healthy_accused", "healthy jobs in which anybody is accused", healthy_.falsely, "jobs",
          "at_most", 0, healthy_.falsely == 0);
      figure("healthy_jobs", "healthy jobs that were played", healthy_.jobs, "jobs");
      for (const auto& [what, jobs] : healthy_with_)
        figure("healthy_with", ("of these with " + what).c_str(), jobs, "jobs");
    }
    std::ofstream json;
    if (!options_.json.empty()) json.open(options_.json);
    for (const std::string& line : lines_) {
      std::printf("%s\n", line.c_str());
      if (json.is_open()) json << line << "\n";
    }
    std::printf("%llu records of jobs of up to %d ranks in %.1f s\n",
                static_cast<unsigned long long>(faulty_.records + healthy_.records),
                options_.most_ranks, seconds_);
    return ok_;
  }

  Options options_;
  std::atomic<int> next_{0};
  std::mutex mutex_;
  Tally faulty_, healthy_;
  std::map<std::string, Tally> by_class_, by_layout_;
  std::map<std::string, std::pair<int, int>> stops_;  // jobs, right
  std::map<std::string, int> healthy_with_;           // jobs
  std::vector<std::string> lines_;
  double seconds_ = 0;
  bool ok_ = true;
};

bool write_all_series(const Options& options) {
  for (int i = 0; i < options.faulty + options.healthy; ++i) {
    const std::uint64_t seed = options.seed + static_cast<std::uint64_t>(i);
    const Scenario scenario = i < options.faulty ? faulty_scenario(seed, options.most_ranks)
                                                 : healthy_scenario(seed, options.most_ranks);
    if (!write_series(scenario, options.series)) {
      std::fprintf(stderr, "diagnosis_bench: cannot write to %s\n", options.series.c_str());
      return false;
    }
    std::printf("%s\n", describe(scenario).c_str());
  }
  return true;
}

}  // namespace
}  // namespace ncclscope::bench

int main(int argc, char** argv) {
  ncclscope::bench::Options options;
  if (!ncclscope::bench::read(argc, argv, options)) {
    std::fprintf(stderr,
                 "diagnosis_bench [--faulty N] [--healthy N] [--hangs N] [--most-ranks N] "
                 "[--seed N] [--threads N] [--json FILE] [--verbose]\n");
    return 2;
  }
  if (!options.series.empty()) return ncclscope::bench::write_all_series(options) ? 0 : 1;
  return ncclscope::bench::Bench(std::move(options)).run() ? 0 : 1;
}

// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope diagnose`: asks all agents of a job, twice or more with a window in between, and says
// what is wrong, how sure that is, and what it rests on.
//   A hang is told from one round. Late GPUs need rates: the time of --window is looked at in three
//   parts, as the alerts look at three windows running.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/diagnose/collect.h"
#include "cli/diagnose/nodes.h"
#include "cli/diagnose/observation.h"
#include "cli/diagnose/other_sources.h"
#include "cli/diagnose/report.h"
#include "cli/text.h"
#include "verdict/judge.h"
#include "verdict/text.h"

namespace ncclscope::cli {
namespace {

using std::chrono::duration;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr std::uint32_t kParts = 3;
constexpr int kPartial = 4;
/// Ranks are not read at the same instant, and plugins report some times a second: so much of a
/// part's operations may be missing on one side.
constexpr double kRaggedSeconds = 1;
constexpr double kLongestHistorySeconds = 3600;

struct DiagnoseOptions {
  AgentOptions agents;
  bool agents_named = false;
  std::string job, nodes, prometheus, prometheus_ca;
  bool slurm = false;
  int port = 9465;
  std::string window = "30s", interval = "2s", timeout = "5s", hang, outside = "10m";
  double late_share = verdict::thresholds::kLateSeconds;
  std::size_t rows = 32;
  bool watch = false, json = false;
  OtherSourceOptions others;
  std::string ras_interval = "5s";
  bool asks_agents = true;  // else only what the other sources say is looked at
};

double seconds_of(const char* option, const std::string& text, double least, double most) {
  const std::optional<double> seconds = parse_duration(text);
  if (!seconds || *seconds < least || *seconds > most)
    throw CLI::ValidationError(option, "'" + printable(text) + "': wanted a time from " +
                                           format_duration(least) + " to " + format_duration(most) +
                                           ", such as 30s or 5m");
  return *seconds;
}

std::string own_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

std::string environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread so far
  return value == nullptr ? "" : value;
}

/// What a Prometheus remembers of the job.
struct Memory {
  std::vector<Prometheus::Sample> lag;  // by (node, gpu)
  std::optional<double> step_seconds;
  std::map<verdict::Shape, verdict::ShapeSample> shapes;
  double longest_ended_seconds = 0;
};

class Diagnosis {
 public:
  explicit Diagnosis(const DiagnoseOptions& options)
      : options_(options),
        window_seconds_(seconds_of("--window", options.window, 1, 3600)),
        interval_seconds_(seconds_of("--interval", options.interval, 0.1, 600)),
        deadline_(static_cast<int>(1e3 * seconds_of("--timeout", options.timeout, 0.1, 60))) {
    if (!options.hang.empty()) {
      settings_.hang.hang_seconds = seconds_of("--hang", options.hang, 1, 86'400);
      // What is no hang yet is told from half of it on.
      settings_.hang.stalled_seconds =
          std::min(settings_.hang.stalled_seconds, settings_.hang.hang_seconds / 2);
      settings_.hang.silent_seconds =
          std::min(settings_.hang.silent_seconds, settings_.hang.stalled_seconds);
    }
    settings_.hang.outside_seconds = seconds_of("--outside", options.outside, 1, 86'400);
    const double part = window_seconds_ / kParts;
    settings_.windows = kParts;
    settings_.provisional = true;
    settings_.window.late_seconds = options.late_share;
    settings_.window.operations_tolerance =
        std::max(settings_.window.operations_tolerance, kRaggedSeconds / part);
    const double baseline_seconds =
        verdict::thresholds::kBaselineSamples * verdict::thresholds::kWindowIntervalSeconds;
    settings_.baseline_windows = static_cast<std::uint32_t>(std::ceil(baseline_seconds / part));
    settings_.baseline_range_windows =
        static_cast<std::uint32_t>(std::ceil(kLongestHistorySeconds / part));
  }

  int run() {
    if (options_.others.any()) others_ = look_at(options_.others, options_.job, settings_);
    if (!options_.asks_agents) return only_others();
    agents_ = find_agents();
    take();
    if (now_->answered == 0) return nobody_answered();
    if (now_->knowing == 0) return nobody_knows();
    return options_.watch ? watch() : once();
  }

 private:
  std::vector<Agent> find_agents() {
    AgentOptions where = options_.agents;
    std::vector<std::string> hosts;
    if (!options_.nodes.empty()) hosts = split_list(options_.nodes);
    if (options_.slurm) hosts = slurm_nodes(options_.job);
    if (!options_.prometheus.empty()) {
      const Prometheus prometheus(options_.prometheus, options_.prometheus_ca, deadline_);
      if (hosts.empty() && !options_.agents_named) hosts = prometheus.nodes(options_.job);
      remember(prometheus);
    }
    const bool inside = hosts.empty() && !options_.agents_named && options_.prometheus.empty() &&
                        environment("SLURM_JOB_ID") == options_.job &&
                        !environment("SLURM_JOB_NODELIST").empty();
    if (inside) hosts = slurm_nodes(options_.job);
    if (!hosts.empty()) {
      if (!options_.agents_named) where.addresses.clear();
      const std::string socket(kDefaultAgent.substr(kDefaultAgent.find('/')));
      for (const std::string& host : hosts)
        where.addresses.push_back(address_of(host, options_.port, own_name(), socket));
    }
    return connect(where);
  }

  void remember(const Prometheus& prometheus) {
    const std::string selector = "{job_id=" + label_value(options_.job) + "}";
    memory_.lag = prometheus.query("gpu:ncclscope_lag_seconds:baseline" + selector);
    const auto one = [&](const std::string& series) -> std::optional<double> {
      const auto found = prometheus.query("max(" + series + selector + ")");
      if (found.empty() || !std::isfinite(found[0].value)) return {};
      return found[0].value;
    };
    memory_.step_seconds = one("job:ncclscope_step_seconds:baseline");
    memory_.shapes = transfer_baselines(
        prometheus.query("job:ncclscope_transfer_bus_bytes_per_second:baseline" + selector),
        prometheus.query("job:ncclscope_bus_bytes_per_operation:baseline" + selector));
    memory_.longest_ended_seconds =
        one("job:ncclscope_stalled_rank_seconds:longest_ended").value_or(0);
  }

  /// One round.
  void take() {
    last_ = ask_all(agents_, options_.job, deadline_);
    auto now =
        std::make_unique<Observation>(observe(last_, options_.job, settings_.hang.silent_seconds));
    waits_.add(*now);
    now->standing.longest_ended_seconds =
        std::max(memory_.longest_ended_seconds, waits_.longest_ended_seconds());
    if (!now_ || !now->same_places(*now_)) begin(*now);
    now_ = std::move(now);
  }

  /// Rates are of one set of ranks: another one begins anew.
  void begin(const Observation& now) {
    places_ = now.job;
    judge_.emplace(places_, settings_);
    verdict::Baseline baseline;
    baseline.step_seconds = memory_.step_seconds;
    baseline.shapes = memory_.shapes;
    if (!memory_.lag.empty())
      baseline.lag.assign(places_.gpus.size(), std::numeric_limits<double>::quiet_NaN());
    for (const Prometheus::Sample& sample : memory_.lag) {
      const auto label = [&](const char* name) {
        const auto at = sample.labels.find(name);
        return at == sample.labels.end() ? std::string() : at->second;
      };
      for (std::size_t g = 0; g < places_.gpus.size(); ++g) {
        if (places_.gpus[g].node == label("node") &&
            std::to_string(places_.gpus[g].index) == label("gpu"))
          baseline.lag[g] = sample.value;
      }
    }
    judge_->set_baseline(std::move(baseline));
    cut_ = last_;
    cut_at_ = steady_clock::now();
  }

  /// The next part of the window, if it is over.
  void cut_window() {
    const double part = window_seconds_ / kParts;
    if (duration<double>(steady_clock::now() - cut_at_).count() < part) return;
    judge_->add(window_between(cut_, last_, *now_));
    cut_ = last_;
    cut_at_ = steady_clock::now();
  }

  std::vector<verdict::Finding> findings() const { return judge_->findings(now_->standing); }

  static bool is_hang(const std::vector<verdict::Finding>& findings) {
    return !findings.empty() && findings.front().kind == verdict::Kind::kHang;
  }

  int once() {
    std::vector<verdict::Finding> found = findings();
    // A hang is a hang: nothing is gained by watching it.
    for (std::uint32_t part = 0; part < kParts && !is_hang(found); ++part) {
      std::this_thread::sleep_until(cut_at_ + duration<double>(window_seconds_ / kParts));
      take();
      cut_window();
      found = findings();
    }
    print(found);
    return status(found);
  }

  int watch() {
    const bool in_place = !options_.json && ::isatty(STDOUT_FILENO) == 1;
    std::string said;
    for (;;) {
      const auto began = steady_clock::now();
      const std::vector<verdict::Finding> found = findings();
      std::string says;
      for (const verdict::Finding& finding : found) says += headline(now_->job, finding) + "\n";
      for (const Missing& missing : now_->missing) says += missing.who + "\n";
      const bool first = judge_->results().empty() && said.empty();
      if (in_place) std::fputs("\x1b[H\x1b[J", stdout);
      if (in_place || options_.json || first || says != said) print(found);
      said = says.empty() ? "\n" : says;
      std::this_thread::sleep_until(began + duration<double>(interval_seconds_));
      take();
      cut_window();
    }
  }

  Report report_on(const std::vector<verdict::Finding>& found) const {
    Report report{*now_, found, {}, options_.rows, settings_.hang.silent_seconds};
    for (const verdict::WindowResult& window : judge_->results()) report.windows.push_back(&window);
    return report;
  }

  void print(const std::vector<verdict::Finding>& found) const {
    const Report report = report_on(found);
    if (options_.json) {
      nlohmann::ordered_json json = report_json(report);
      add_json(others_, json);
      print_json(json);
    } else {
      std::fputs(report_text(report).c_str(), stdout);
      const std::string others = text_of(others_, options_.rows);
      if (!others.empty()) std::fputs(("\n" + others).c_str(), stdout);
      if (options_.watch) std::fputs("\n", stdout);
    }
    std::fflush(stdout);
  }

  void print_json(const nlohmann::ordered_json& json) const {
    const auto replace = nlohmann::ordered_json::error_handler_t::replace;
    std::printf("%s\n", json.dump(options_.watch ? -1 : 2, ' ', false, replace).c_str());
  }

  int only_others() const {
    if (options_.json) {
      nlohmann::ordered_json json;
      json["outcome"] = name(others_.outcome());
      add_json(others_, json);
      print_json(json);
    } else {
      std::fputs(text_of(others_, options_.rows).c_str(), stdout);
    }
    return status_of(others_.outcome());
  }

  int status(const std::vector<verdict::Finding>& found) const {
    const int agents = status_of(outcome_of(report_on(found)));
    const int others = status_of(others_.outcome());
    if (agents == kNegative || others == kNegative) return kNegative;
    return std::max(agents, others);
  }

  static int status_of(Outcome outcome) {
    switch (outcome) {
      case Outcome::kHealthy:
        return kSuccess;
      case Outcome::kFinding:
        return kNegative;
      case Outcome::kPartial:
        return kPartial;
    }
    return kUsage;
  }

  int nobody_answered() const {
    for (const Missing& missing : now_->missing)
      std::fprintf(stderr, "ncclscope diagnose: %s: %s\n", missing.who.c_str(),
                   missing.why.c_str());
    return kUnreachable;
  }

  int nobody_knows() const {
    std::fprintf(stderr,
                 "ncclscope diagnose: no job %s at the %u of %u agents that answered%s\n"
                 "  Name the nodes it runs on with --nodes, --slurm or --prometheus.\n",
                 printable(options_.job).c_str(), now_->answered, now_->asked,
                 std::string(own_jobs_note()).c_str());
    for (const Missing& missing : now_->missing)
      std::fprintf(stderr, "  %s: %s\n", missing.who.c_str(), missing.why.c_str());
    return kUsage;
  }

  const DiagnoseOptions& options_;
  double window_seconds_, interval_seconds_;
  milliseconds deadline_;
  verdict::JudgeOptions settings_;
  std::vector<Agent> agents_;
  OtherSources others_;
  Memory memory_;
  WaitMemory waits_;
  std::unique_ptr<Observation> now_;
  Round last_, cut_;
  steady_clock::time_point cut_at_;
  verdict::Job places_;  // of judge_
  std::optional<verdict::Judge> judge_;
};

void run(const CLI::App& command, DiagnoseOptions& options) {
  options.agents_named = command.get_option("--agent")->count() > 0;
  options.others.between_samples = milliseconds(
      static_cast<int>(1e3 * seconds_of("--ras-interval", options.ras_interval, 0, 600)));
  // Dumps are enough for a diagnosis of their own, also where no agent runs.
  options.asks_agents = !options.others.any() || !options.job.empty() || options.agents_named ||
                        options.slurm || !options.nodes.empty() || !options.prometheus.empty();
  if (options.asks_agents && options.watch && options.others.any())
    throw CLI::ValidationError("--watch", "dumps and RAS are looked at once: leave out --watch");
  if (options.asks_agents && options.job.empty()) options.job = environment("SLURM_JOB_ID");
  if (options.asks_agents && options.job.empty())
    throw CLI::ValidationError("--job", "which job? Neither --job nor SLURM_JOB_ID says");
  int status = kUsage;
  try {
    status = Diagnosis(options).run();
  } catch (const std::runtime_error& error) {
    if (dynamic_cast<const CLI::Error*>(&error) != nullptr) throw;
    std::fprintf(stderr, "ncclscope diagnose: %s\n", error.what());
  }
  if (status != kSuccess) throw CLI::RuntimeError(status);
}

void add_other_sources(CLI::App& command, DiagnoseOptions& options) {
  command
      .add_option("--flight-recorder", options.others.flight_recorder,
                  "Dumps of PyTorch's Flight Recorder in JSON, or folders of them. Without --job "
                  "and agents they are all that is looked at")
      ->type_name("PATH");
  command
      .add_option("--ras", options.others.ras,
                  "What `ncclras -f json` printed (- = standard input); given twice, the first is "
                  "from before")
      ->type_name("FILE")
      ->expected(1, 2);
  command
      .add_option("--ncclras", options.others.ncclras,
                  "Ask NCCL's RAS with ncclras, twice: local (this node's default), HOST or "
                  "HOST:PORT")
      ->type_name("ADDRESS");
  command.add_option("--ncclras-program", options.others.ncclras_program, "Where ncclras is")
      ->type_name("FILE")
      ->capture_default_str();
  command.add_option("--ras-interval", options.ras_interval, "Between the two times")
      ->type_name("TIME")
      ->capture_default_str();
}

}  // namespace

void register_diagnose(CLI::App& app) {
  auto options = std::make_shared<DiagnoseOptions>();
  CLI::App* command = app.add_subcommand(
      "diagnose", "Say why a job is slow or hangs: which GPU, node or link, and what shows it");
  command->add_option("--job", options->job, "The job [SLURM_JOB_ID]")->type_name("ID");
  add_agent_option(*command, options->agents);
  CLI::Option* nodes =
      command
          ->add_option("--nodes", options->nodes,
                       "Nodes to ask, with commas: host or host:port. This node is asked at its "
                       "socket, others with TLS")
          ->type_name("LIST");
  CLI::Option* slurm =
      command->add_flag("--slurm", options->slurm,
                        "Ask the job's nodes as SLURM names them (default inside the job itself)");
  slurm->excludes(nodes);
  command
      ->add_option(
          "--prometheus", options->prometheus,
          "A Prometheus that scrapes the agents: names the job's nodes if neither --agent, "
          "--nodes nor --slurm does, and tells how the job was before (recording rules)")
      ->type_name("URL");
  command
      ->add_option("--prometheus-ca", options->prometheus_ca,
                   "PEM authorities that sign its certificate (default: the system's)")
      ->type_name("FILE");
  command->add_option("--port", options->port, "Port of the agents' api_listen on other nodes")
      ->check(CLI::Range(1, 65535))
      ->capture_default_str();
  command->add_option("--window", options->window, "How long to look, in three parts")
      ->type_name("TIME")
      ->capture_default_str();
  command->add_flag("--watch", options->watch,
                    "Go on until interrupted: every --interval how far everybody is, every third "
                    "of --window who is late; prints when something changes");
  command->add_option("--interval", options->interval, "Between two looks of --watch")
      ->type_name("TIME")
      ->capture_default_str();
  command
      ->add_option("--hang", options->hang,
                   "A wait is a hang from here on (default 60s, or three times the longest wait "
                   "that ended by itself); half of it at most is told as information")
      ->type_name("TIME");
  command
      ->add_option("--outside", options->outside,
                   "Nobody being in NCCL is told if nobody calls for so long")
      ->type_name("TIME")
      ->capture_default_str();
  command
      ->add_option("--late-share", options->late_share,
                   "A GPU is late if it works longer than its peers by this share of the time")
      ->check(CLI::Range(0.0001, 1.0))
      ->capture_default_str();
  command->add_option("--timeout", options->timeout, "Wait for each agent's answer")
      ->type_name("TIME")
      ->capture_default_str();
  command->add_option("--rows", options->rows, "Rows of a table")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  add_other_sources(*command, *options);
  command->add_flag("--json", options->json,
                    "One JSON object with everything; with --watch one a line");
  command->footer(
      "A hang is told at once; late GPUs after --window. Verdicts are those of the alerts, by the "
      "same formulas:\n"
      "hang (process_gone, process_stopped, argument_mismatch, rank_never_called, "
      "gpu_never_started, network_stuck,\n"
      "outside_nccl), late GPU, node, group or replica, slow transfer, link or NIC; waiting and "
      "imbalance are\n"
      "information. What the tables show:\n"
      "CALLED STARTED DONE  collectives since the communicator began: equal numbers are the same "
      "operation\n"
      "IN, LAST DONE        the oldest unfinished operation, and the one that completed last\n"
      "RING                 receives from > . > sends to\n"
      "LAGS                 works so much longer than its peers (the same place of the pipeline "
      "and "
      "of the experts)\n"
      "COMMUNICATES         in collectives and in Recv: who is least in it works longest\n"
      "WAITS, CAUSES        in collectives: for the rank that came last; as that rank, of each of "
      "the "
      "others\n"
      "QUEUE                between call and GPU start; ? = clocks could not be matched\n"
      "Exit status: 0 healthy; 1 something is wrong; 2 wrong arguments, or nobody who answered "
      "knows the job;\n"
      "3 no agent answered; 4 nothing is wrong as far as can be seen, but answers are missing, or "
      "nobody\ncan be compared.");
  command->callback([command, options] { run(*command, *options); });
}

}  // namespace ncclscope::cli

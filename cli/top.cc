// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope top`: a table of what communicates now. Redraws in place on a terminal, prints frame
// after frame elsewhere.
#include <sys/ioctl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/text.h"
#include "cli/top_model.h"

namespace ncclscope::cli {
namespace {

using std::chrono::steady_clock;

constexpr double kStalledSeconds = 5;
// Agents take a snapshot every second; an interval must hold two.
constexpr std::chrono::milliseconds kRetry{100};
constexpr std::chrono::seconds kNoNewSnapshot{10};

struct TopOptions {
  AgentOptions agents;
  std::string job;
  double interval_seconds = 2;
  bool once = false;
  bool json = false;
};

/// "tp_group 3fa2c1": names repeat, so the hash's beginning goes with them.
std::string communicator_label(const TopRow& row) {
  if (row.comm_name.empty()) return printable(row.comm);
  constexpr std::size_t kHashDigits = 6;
  return printable(row.comm_name) + " " + printable(row.comm).substr(0, kHashDigits);
}

std::string rows_text(const std::vector<TopRow>& rows, std::size_t max_rows,
                      std::size_t max_width) {
  using Align = Table::Align;
  Table table({{"JOB"},
               {"COMMUNICATOR"},
               {"RANKS", Align::kRight},
               {"COLLECTIVE"},
               {"SIZE"},
               {"OPS/S", Align::kRight},
               {"BUSBW", Align::kRight},
               {"P50", Align::kRight},
               {"P99", Align::kRight},
               {"BUSY", Align::kRight},
               {"SLOWEST"}});
  for (const TopRow& row : rows) {
    std::string ranks = std::to_string(row.ranks_reporting) + "/" +
                        (row.nranks == 0 ? std::string("?") : std::to_string(row.nranks));
    char busy[16];
    std::snprintf(busy, sizeof busy, "%.1f %%", row.busy_ratio * 100);
    std::string slowest = "-";
    if (row.slowest_rank >= 0)
      slowest =
          "r" + std::to_string(row.slowest_rank) + " on " + printable(row.slowest_node) + ", +" +
          format_duration(row.others_waited_seconds) +
          (row.ranks_reporting < row.nranks ? " (of " + std::to_string(row.ranks_reporting) + ")"
                                            : "");
    table.add({printable(row.job_id), communicator_label(row), std::move(ranks),
               printable(row.collective), row.size, format_rate(row.operations_per_second),
               row.busbw > 0 ? format_bandwidth(row.busbw) : "-",
               row.p50_seconds > 0 ? format_duration(row.p50_seconds) : "-",
               row.p99_seconds > 0 ? format_duration(row.p99_seconds) : "-", busy,
               std::move(slowest)});
  }
  std::string out = table.render(max_rows, max_width);
  if (table.rows() > max_rows)
    out += "... " + std::to_string(table.rows() - max_rows) + " more rows\n";
  return out;
}

nlohmann::ordered_json rows_json(const std::vector<TopRow>& rows, const TopTotals& totals,
                                 const Oldest& oldest) {
  nlohmann::ordered_json out = {{"interval_seconds", totals.seconds},
                                {"jobs", totals.jobs},
                                {"communicators", totals.communicators},
                                {"ranks", totals.ranks},
                                {"oldest_unfinished_seconds", oldest.seconds}};
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const TopRow& row : rows) {
    nlohmann::ordered_json item = {{"job_id", row.job_id},
                                   {"job_name", row.job_name},
                                   {"comm", row.comm},
                                   {"comm_name", row.comm_name},
                                   {"nranks", row.nranks},
                                   {"ranks_reporting", row.ranks_reporting},
                                   {"collective", row.collective},
                                   {"size", row.size},
                                   {"operations_per_second_per_rank", row.operations_per_second},
                                   {"bytes_per_second", row.bytes_per_second},
                                   {"busbw_bytes_per_second", row.busbw},
                                   {"busy_ratio", row.busy_ratio},
                                   {"p50_seconds", row.p50_seconds},
                                   {"p99_seconds", row.p99_seconds}};
    if (row.slowest_rank >= 0) {
      item["slowest_rank"] = row.slowest_rank;
      item["slowest_node"] = row.slowest_node;
      item["others_waited_seconds"] = row.others_waited_seconds;
    }
    list.push_back(std::move(item));
  }
  out["rows"] = std::move(list);
  return out;
}

class Top {
 public:
  explicit Top(const TopOptions& options)
      : options_(options),
        agents_(connect(options.agents)),
        in_place_(isatty(STDOUT_FILENO) == 1 && !options.json) {}

  int run() {
    intervals_.resize(agents_.size());
    bool all_reached = true;
    for (std::size_t i = 0; i < agents_.size(); ++i) all_reached = sample(i) && all_reached;
    if (!all_reached &&
        std::all_of(intervals_.begin(), intervals_.end(),
                    [](const TopInterval& interval) { return interval.after.time_ns() == 0; }))
      return kUnreachable;
    for (;;) {
      std::this_thread::sleep_for(std::chrono::duration<double>(options_.interval_seconds));
      all_reached = true;
      for (std::size_t i = 0; i < agents_.size(); ++i) all_reached = advance(i) && all_reached;
      show();
      if (options_.once) return all_reached ? kSuccess : kUnreachable;
      if (!all_reached && agents_.size() == 1) return kUnreachable;
      if (std::ferror(stdout) != 0) return kSuccess;
    }
  }

 private:
  /// Takes a snapshot of node i; an unreachable one shows nothing.
  bool sample(std::size_t i) {
    v1::GetSnapshotRequest request;
    request.set_job_id(options_.job);
    v1::GetSnapshotResponse response;
    if (!agents_[i].call(&v1::AgentService::Stub::GetSnapshot, request, response)) {
      intervals_[i] = {};
      return false;
    }
    intervals_[i].after.Swap(&response);
    return true;
  }

  /// The newest snapshot becomes the earlier one; waits for one that is newer.
  bool advance(std::size_t i) {
    intervals_[i].before.Swap(&intervals_[i].after);
    const auto deadline = steady_clock::now() + kNoNewSnapshot;
    do {
      if (!sample(i)) return false;
      if (intervals_[i].before.time_ns() == 0 ||
          intervals_[i].after.time_ns() > intervals_[i].before.time_ns())
        return true;
      std::this_thread::sleep_for(kRetry);
    } while (steady_clock::now() < deadline);
    std::fprintf(stderr, "ncclscope: agent at %s has made no new snapshot for %lld s\n",
                 agents_[i].address().c_str(), static_cast<long long>(kNoNewSnapshot.count()));
    return true;
  }

  void show() {
    std::vector<TopInterval> usable;
    std::vector<v1::GetProgressResponse> progress;
    for (std::size_t i = 0; i < agents_.size(); ++i) {
      if (intervals_[i].before.time_ns() == 0 || intervals_[i].after.time_ns() == 0) continue;
      usable.push_back(intervals_[i]);
      v1::GetProgressRequest request;
      request.set_job_id(options_.job);
      if (!agents_[i].call(&v1::AgentService::Stub::GetProgress, request, progress.emplace_back()))
        progress.pop_back();
    }
    const std::vector<TopRow> rows = top_rows(usable);
    const TopTotals totals = top_totals(usable);
    const Oldest oldest = oldest_unfinished(progress, kStalledSeconds);
    if (options_.json) {
      const auto replace = nlohmann::ordered_json::error_handler_t::replace;
      std::printf("%s\n", rows_json(rows, totals, oldest)
                              .dump(options_.once ? 2 : -1, ' ', false, replace)
                              .c_str());
    } else {
      std::fputs(frame(rows, totals, oldest, usable.size()).c_str(), stdout);
    }
    std::fflush(stdout);
  }

  std::string frame(const std::vector<TopRow>& rows, const TopTotals& totals, const Oldest& oldest,
                    std::size_t nodes) const {
    std::size_t max_rows = SIZE_MAX;
    std::size_t max_width = 0;
    std::string out;
    if (in_place_) {
      winsize size{};
      if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_row > 6 && size.ws_col > 0) {
        max_rows = size.ws_row - 6u;
        max_width = size.ws_col;
      }
      out += "\x1b[H\x1b[J";  // home, clear to the end
    }
    out += std::to_string(nodes) + (nodes == 1 ? " node, " : " nodes, ") +
           std::to_string(totals.jobs) + " jobs, " + std::to_string(totals.communicators) +
           " communicators, " + std::to_string(totals.ranks) + " ranks; over the last " +
           format_duration(totals.seconds) + "\n";
    if (oldest.seconds > kStalledSeconds)
      out += "STALLED: " + std::to_string(oldest.ranks) +
             " ranks have an operation unfinished for more than " +
             format_duration(kStalledSeconds) + "; the oldest for " +
             format_duration(oldest.seconds) + ": job " + printable(oldest.job_id) +
             ", communicator " + printable(oldest.comm) + ", rank " + std::to_string(oldest.rank) +
             " on " + printable(oldest.node) + ", operation #" + std::to_string(oldest.index) +
             "\n";
    if (rows.empty()) {
      out += "no operations in this time\n";
    } else {
      out += rows_text(rows, max_rows, max_width);
    }
    if (!in_place_ && !options_.once) out += "\n";
    return out;
  }

  const TopOptions& options_;
  std::vector<Agent> agents_;
  bool in_place_;
  std::vector<TopInterval> intervals_;
};

}  // namespace

void register_top(CLI::App& app) {
  auto options = std::make_shared<TopOptions>();
  CLI::App* command = app.add_subcommand("top", "Show what communicates now, busiest first");
  add_agent_option(*command, options->agents);
  command->add_option("--job", options->job, "Only this job")->type_name("ID");
  command->add_option("--interval", options->interval_seconds, "Seconds between frames (default 2)")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.1, 3600.0));
  command->add_flag("--once", options->once, "One frame, then end");
  command->add_flag("--json", options->json,
                    "One JSON object per frame; seconds and bytes per second");
  command->footer(
      "RANKS    ranks on the nodes asked / ranks of the communicator\n"
      "OPS/S    operations per second of one rank\n"
      "BUSBW    bus bandwidth as nccl-tests defines it, 10^9 bytes per second, waiting included\n"
      "P50 P99  duration, of all operations of the job with that name and size\n"
      "BUSY     share of the time a rank spent in these operations\n"
      "SLOWEST  the rank that came last, and how long the others waited for it per operation, all "
      "sizes;\n"
      "         (of N): of the ranks on the nodes asked only, the last one may be elsewhere;\n"
      "         - where GPU times are known of other operations on each rank\n"
      "Exit status: 0 ended; 2 wrong arguments; 3 an agent was not reached.");
  command->callback([options] {
    if (const int status = Top(*options).run(); status != kSuccess) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli

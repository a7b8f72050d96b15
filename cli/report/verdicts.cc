// SPDX-License-Identifier: Apache-2.0
#include "cli/report/verdicts.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <map>
#include <set>
#include <tuple>
#include <utility>

#include "cli/report/page.h"
#include "cli/report/pictures.h"
#include "cli/report/quantiles.h"
#include "cli/report/schema.h"
#include "cli/text.h"
#include "verdict/judge.h"
#include "verdict/text.h"
#include "verdict/thresholds.h"

namespace ncclscope::cli::report {
namespace {

constexpr std::size_t kMostWindows = 48;
constexpr unsigned kFewestWindows = 6;
/// Operations of a rank in a window, of its most frequent collective: about five steps at least.
constexpr double kWantedOperations = 10;
/// The first operations of a communicator set up connections.
constexpr int kFirstOperations = 3;
/// Of a window, so that a hiccup, which passes, is nobody's fault: a verdict needs three running.
constexpr double kLeastWindowSeconds = 1;
constexpr double kFewTimed = 0.9;

/// One run of one job.
struct Run {
  std::string job;
  std::int64_t run = 0;
};

/// Something that was found in windows running.
struct Episode {
  verdict::Finding finding;
  std::size_t first = 0, last = 0;  // windows
};

class RunJudge {
 public:
  RunJudge(Connection& connection, const std::string& view, Run run, const JudgeLimits& limits)
      : connection_(connection), run_(std::move(run)), limits_(limits) {
    from_ = " FROM " + view + " WHERE job = " + sql_literal(run_.job) +
            " AND coalesce(run, 0) = " + std::to_string(run_.run) +
            " AND seconds > 0 AND ranks > 1 AND rank IS NOT NULL";
  }

  /// Returns why the run cannot be judged, else nothing.
  std::string judge(std::vector<Insight>& out) {
    choose_communicators();
    if (!find_places()) return "there are operations of one GPU alone";
    if (std::string reason = find_windows(); !reason.empty()) return reason;
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE windows AS SELECT least(CAST(floor((time_ns - " +
        std::to_string(first_ns_) + ") / " + std::to_string(width_ns_) + ") AS BIGINT), " +
        std::to_string(windows_ - 1) +
        ") AS w, communicator, rank, collective, CASE WHEN collective IN " + synchronising_list() +
        " THEN bytes END AS bytes, algorithm, count(*) AS n,"
        " sum(seconds) AS s, sum(coalesce(busbw, 0) * seconds) AS b,"
        " sum(coalesce(queue_seconds, 0)) AS q" +
        from_ + " AND (sequence IS NULL OR sequence >= " + std::to_string(kFirstOperations) +
        ") GROUP BY ALL");
    verdict::JudgeOptions options;
    // Windows end at the same moment for all, and an operation may end behind it for some.
    options.window.operations_tolerance = 0.15;
    options.baseline_windows = static_cast<std::uint32_t>(windows_ / 4);
    options.baseline_range_windows = static_cast<std::uint32_t>(windows_);
    verdict::Judge judge(job_, options);
    for (std::size_t w = 0; w < windows_; ++w) {
      judge.add(window(w));
      for (const verdict::Finding& finding : judge.findings()) remember(finding, w);
    }
    for (const Episode& episode : episodes_) tell(episode, options.windows, out);
    if (left_out_ > 0) tell_left_out(out);
    connection_.run("DROP TABLE windows; DROP TABLE judged_communicators");
    return {};
  }

 private:
  /// Restricts from_ to those with most time if there are very many; finds the time of the run.
  void choose_communicators() {
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE judged_communicators AS SELECT communicator, sum(seconds) AS"
        " s, least(count(*), greatest(max(ranks), max(rank) + 1)) AS members, min(time_ns) AS"
        " first, max(time_ns) AS last" +
        from_ + " GROUP BY 1");
    std::int64_t communicators = 0;
    std::int64_t members = 0;
    for_each_row(connection_,
                 "SELECT count(*), sum(members), min(first), max(last) FROM judged_communicators",
                 [&](const Rows& rows, std::size_t r) {
                   communicators = rows.integer(0, r);
                   members = rows.integer(1, r);
                   first_ns_ = rows.integer(2, r);
                   last_ns_ = rows.integer(3, r);
                 });
    if (static_cast<std::size_t>(communicators) <= limits_.communicators &&
        static_cast<std::size_t>(members) <= limits_.members)
      return;
    connection_.run(
        "CREATE OR REPLACE TEMP TABLE judged_communicators AS SELECT communicator FROM (SELECT"
        " communicator, row_number() OVER most AS place, sum(members) OVER most AS members FROM"
        " judged_communicators WINDOW most AS (ORDER BY s DESC, communicator ROWS UNBOUNDED"
        " PRECEDING)) WHERE place = 1 OR (place <= " +
        std::to_string(limits_.communicators) +
        " AND members <= " + std::to_string(limits_.members) + ")");
    for_each_row(connection_, "SELECT count(*) FROM judged_communicators",
                 [&](const Rows& rows, std::size_t r) {
                   judged_ = rows.integer(0, r);
                   left_out_ = communicators - judged_;
                 });
    from_ += " AND communicator IN (SELECT communicator FROM judged_communicators)";
  }

  bool find_places() {
    job_.job_id = run_.job;
    std::map<std::tuple<std::string, std::int64_t, std::string>, std::uint32_t> gpus;
    for_each_row(connection_,
                 "SELECT communicator, rank, any_value(node), any_value(pid), "
                 "any_value(coalesce(gpu, CASE WHEN pid IS NULL THEN file ELSE '' END)),"
                 " max(ranks), max(nodes), max(communicator_name), max(dimension)" +
                     from_ + " GROUP BY 1, 2 ORDER BY max(ranks) DESC, 1, 2",
                 [&](const Rows& rows, std::size_t r) {
                   const auto [c, new_communicator] = communicators_.try_emplace(
                       std::string(rows.text(0, r)),
                       static_cast<std::uint32_t>(job_.communicators.size()));
                   if (new_communicator) {
                     verdict::Communicator& made = job_.communicators.emplace_back();
                     made.comm = printable(rows.text(0, r));
                     made.nranks = static_cast<std::uint32_t>(rows.integer(5, r));
                     made.nnodes = static_cast<std::uint32_t>(rows.integer(6, r));
                     made.name = printable(rows.text(7, r));
                     made.dimension = printable(rows.text(8, r));
                   }
                   const std::string node = printable(rows.text(2, r));
                   const auto rank = static_cast<std::int32_t>(rows.integer(1, r));
                   const auto [g, new_gpu] =
                       gpus.try_emplace({node, rows.integer(3, r), std::string(rows.text(4, r))},
                                        static_cast<std::uint32_t>(job_.gpus.size()));
                   // The largest communicator comes first: if it has everybody, its ranks are the
                   // job's.
                   if (new_gpu)
                     job_.gpus.push_back({node.empty() ? "an unknown node" : node, -1,
                                          c->second == 0 ? std::to_string(rank) : "",
                                          rows.is_null(3, r) ? -1 : rows.integer(3, r)});
                   members_[{c->second, rank}] = static_cast<std::uint32_t>(job_.members.size());
                   job_.members.push_back({c->second, g->second, rank});
                 });
    if (!job_.communicators.empty() && job_.communicators[0].nranks < job_.gpus.size()) {
      for (verdict::Gpu& gpu : job_.gpus) gpu.global_rank.clear();
    }
    return job_.gpus.size() > 1;
  }

  /// Returns why there are too few, else nothing.
  std::string find_windows() {
    double operations = 0;
    for_each_row(connection_,
                 "SELECT max(n) FROM (SELECT count(*) AS n" + from_ +
                     " GROUP BY communicator, rank, collective)",
                 [&](const Rows& rows, std::size_t r) { operations = rows.number(0, r); });
    const double seconds = static_cast<double>(last_ns_ - first_ns_) * 1e-9;
    windows_ = std::min({kMostWindows, static_cast<std::size_t>(operations / kWantedOperations),
                         static_cast<std::size_t>(seconds / kLeastWindowSeconds)});
    if (seconds < kFewestWindows * kLeastWindowSeconds)
      return "the run is shorter than " + format_duration(kFewestWindows * kLeastWindowSeconds);
    if (windows_ < kFewestWindows)
      return "no rank has " + std::to_string(static_cast<int>(kFewestWindows * kWantedOperations)) +
             " operations of a kind";
    width_ns_ = (last_ns_ - first_ns_) / static_cast<std::int64_t>(windows_) + 1;
    return {};
  }

  verdict::Window window(std::size_t w) {
    verdict::Window out;
    out.seconds = static_cast<double>(width_ns_) * 1e-9;
    out.gpus.resize(job_.gpus.size());
    out.coverage.assign(job_.communicators.size(), 1);
    const std::string of = " FROM windows WHERE w = " + std::to_string(w);
    for_each_row(connection_,
                 "SELECT communicator, rank, collective, sum(n), sum(s), sum(b), sum(q)" + of +
                     " GROUP BY 1, 2, 3 ORDER BY 1, 2, 3",
                 [&](const Rows& rows, std::size_t r) {
                   const auto member = members_.at({communicators_.at(std::string(rows.text(0, r))),
                                                    static_cast<std::int32_t>(rows.integer(1, r))});
                   const std::string collective(rows.text(2, r));
                   const auto kind = verdict::synchronising(collective);
                   verdict::GpuRates& gpu = out.gpus[job_.members[member].gpu];
                   gpu.queue_seconds += rows.number(6, r) / out.seconds;
                   if (!kind && collective != "Send")
                     gpu.other_seconds += rows.number(4, r) / out.seconds;
                   if (!kind || rows.integer(3, r) < 3) return;
                   out.collectives.push_back({member, *kind, rows.number(3, r) / out.seconds,
                                              rows.number(4, r) / out.seconds,
                                              rows.number(5, r) / out.seconds});
                 });
    // There may be many sizes; a size that does not dominate a collective is of no use.
    for_each_row(
        connection_,
        "WITH shapes AS (SELECT communicator, collective, bytes, coalesce(algorithm, '') AS a,"
        " sum(s) AS s" +
            of + " AND collective IN " + synchronising_list() +
            " GROUP BY 1, 2, 3, 4) SELECT communicator, collective, bytes, a, s FROM shapes JOIN"
            " (SELECT communicator, collective, sum(s) AS sum FROM shapes GROUP BY 1, 2) USING"
            " (communicator, collective) WHERE s >= sum * " +
            std::to_string(verdict::thresholds::kDominantShare) + " ORDER BY 1, 2, 3, 4",
        [&](const Rows& rows, std::size_t r) {
          const auto kind = verdict::synchronising(std::string(rows.text(1, r)));
          if (!kind) return;
          out.shapes.push_back({communicators_.at(std::string(rows.text(0, r))), *kind,
                                std::to_string(rows.integer(2, r)), std::string(rows.text(3, r)),
                                rows.number(4, r) / out.seconds});
        });
    return out;
  }

  void remember(const verdict::Finding& finding, std::size_t w) {
    for (Episode& episode : episodes_) {
      // A communicator is named that shows it most, and that may change from window to window.
      const bool same =
          episode.finding.kind == finding.kind && episode.finding.gpus == finding.gpus &&
          (!finding.gpus.empty() || episode.finding.communicator == finding.communicator);
      if (!same || episode.last + 2 < w) continue;
      episode.last = w;
      if (finding.seconds > episode.finding.seconds) episode.finding = finding;
      return;
    }
    episodes_.push_back({finding, w, w});
  }

  void tell(const Episode& episode, std::uint32_t windows, std::vector<Insight>& out) const {
    Insight insight;
    const verdict::Finding& finding = episode.finding;
    insight.weight =
        verdict::is_fault(finding.kind) ? Insight::Weight::kFault : Insight::Weight::kInformation;
    insight.kind = std::string(verdict::name(finding.kind));
    const std::size_t first = episode.first + 1 >= windows ? episode.first + 1 - windows : 0;
    insight.since_ns = first_ns_ + static_cast<std::int64_t>(first) * width_ns_;
    insight.until_ns =
        std::min(last_ns_, first_ns_ + static_cast<std::int64_t>(episode.last + 1) * width_ns_);
    const bool to_the_end = episode.last + 1 == windows_;
    std::string text = verdict::headline(job_, finding);
    text += first == 0 && to_the_end ? ", all the time"
            : to_the_end
                ? ", since " + utc_text(insight.since_ns) + " to the end"
                : ", from " + utc_text(insight.since_ns) + " to " + utc_text(insight.until_ns);
    text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
    insight.text = text + ".";
    insight.detail = verdict::explanation(job_, finding) + of_run();
    out.push_back(std::move(insight));
  }

  void tell_left_out(std::vector<Insight>& out) const {
    out.push_back({Insight::Weight::kInformation, "judged_in_part",
                   "Of " + std::to_string(judged_ + left_out_) + " communicators the " +
                       std::to_string(judged_) + " with most time were judged.",
                   "More would not fit into the memory." + of_run(), 0, 0});
  }

  [[nodiscard]] std::string of_run() const {
    if (run_.run == 0 && !several_runs) return {};
    return " Job " + printable(run_.job) + ", run " + std::to_string(run_.run) + ".";
  }

 public:
  bool several_runs = false;

 private:
  Connection& connection_;
  Run run_;
  JudgeLimits limits_;
  std::string from_;
  std::int64_t judged_ = 0, left_out_ = 0;  // communicators, if some are
  verdict::Job job_;
  std::map<std::string, std::uint32_t> communicators_;
  std::map<std::pair<std::uint32_t, std::int32_t>, std::uint32_t> members_;
  std::int64_t first_ns_ = 0, last_ns_ = 0, width_ns_ = 0;
  std::size_t windows_ = 0;
  std::vector<Episode> episodes_;
};

std::string percent(double share) {
  char text[32];
  (void)std::snprintf(text, sizeof text, "%.3g %%", share * 100);
  return text;
}

void add_records(Connection& connection, const std::string& view, const RunHead& head,
                 std::vector<Insight>& out) {
  if (head.operations == 0) return;
  const double timed = static_cast<double>(head.timed) / static_cast<double>(head.operations);
  if (timed < kFewTimed) {
    std::string reasons;
    for_each_row(connection,
                 "SELECT coalesce(timing, 'unknown'), count(*) AS n FROM " + view +
                     " WHERE seconds IS NULL GROUP BY 1 ORDER BY n DESC, 1 LIMIT 4",
                 [&](const Rows& rows, std::size_t r) {
                   reasons += (reasons.empty() ? "" : ", ") + printable(rows.text(0, r)) + " (" +
                              std::to_string(rows.integer(1, r)) + ")";
                 });
    out.push_back({Insight::Weight::kNotice, "untimed",
                   percent(1 - timed) + " of the operations have no duration.",
                   "They count, and enter no bandwidth. Why: " + reasons + ".", 0, 0});
  }
  const auto several = [&](const std::vector<std::string>& versions, const char* of,
                           const char* kind) {
    if (versions.size() < 2) return;
    std::string list;
    for (const std::string& version : versions) list += (list.empty() ? "" : ", ") + version;
    out.push_back({Insight::Weight::kNotice, kind,
                   std::string("Processes used different releases of ") + of + ": " + list + ".",
                   "", 0, 0});
  };
  several(head.nccl_versions, "NCCL", "nccl_versions");
  several(head.plugin_versions, "the plugin", "plugin_versions");
}

}  // namespace

std::vector<Insight> find_insights(Connection& connection, const std::string& view,
                                   const RunHead& head, const JudgeLimits& limits) {
  std::vector<Run> runs;
  for_each_row(connection,
               "SELECT job, coalesce(run, 0) FROM " + view +
                   " GROUP BY 1, 2 ORDER BY count(*) DESC, 1, 2"
                   " LIMIT 8",
               [&](const Rows& rows, std::size_t r) {
                 runs.push_back({std::string(rows.text(0, r)), rows.integer(1, r)});
               });
  std::vector<Insight> out;
  std::string unjudged;
  std::size_t judged = 0;
  for (const Run& run : runs) {
    RunJudge judge(connection, view, run, limits);
    judge.several_runs = runs.size() > 1;
    if (std::string reason = judge.judge(out); reason.empty())
      ++judged;
    else
      unjudged = std::move(reason);
  }
  add_records(connection, view, head, out);
  std::stable_sort(out.begin(), out.end(),
                   [](const Insight& a, const Insight& b) { return a.weight > b.weight; });
  if (judged == 0 && !unjudged.empty())
    out.push_back(
        {Insight::Weight::kInformation, "unjudged",
         "Who is late and which transfers became slower was not judged: " + unjudged + ".", "", 0,
         0});
  if (std::all_of(out.begin(), out.end(),
                  [](const Insight& insight) { return insight.kind == "judged_in_part"; }))
    out.push_back(
        {Insight::Weight::kInformation, "nothing", "Nothing stands out.",
         "Nobody is late, and no transfer became slower, as far as operations of all ranks of "
         "a communicator can be compared.",
         0, 0});
  return out;
}

}  // namespace ncclscope::cli::report

// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/verify_trace.h"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstdio>
#include <fstream>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <thread>
#include <utility>

#include "cli/verify_trace/compare.h"
#include "cli/verify_trace/limits.h"
#include "cli/verify_trace/selftest.h"
#include "cli/verify_trace/session.h"
#include "cli/verify_trace/trace.h"
#include "proto/nccl/profiler_common.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int kDifferences = 1;
constexpr int kCannotRun = 2;

struct FolderResult {
  std::string name;
  std::vector<std::string> modes;
  std::size_t ranks = 0, operations = 0;
  std::vector<Difference> differences;
  std::size_t fields_changed = 0;  // selftest
  std::vector<std::string> fields_not_compared;
  std::string error;
  bool done = false;
};

fs::path find_limits(const std::string& given, const fs::path& folder) {
  if (!given.empty()) return given;
  // Beside the recordings: tests/data/trace-limits.json for tests/data/nccl-traces/<folder>.
  for (fs::path p = fs::absolute(folder).lexically_normal(); p.has_relative_path();
       p = p.parent_path()) {
    std::error_code ignored;
    if (fs::exists(p / "trace-limits.json", ignored)) return p / "trace-limits.json";
  }
  throw std::runtime_error("trace-limits.json is neither in " + folder.string() +
                           " nor in a folder above it; name it with --limits");
}

json read_expected(const fs::path& folder) {
  std::ifstream in(folder / "expected.json");
  if (!in) throw std::runtime_error((folder / "expected.json").string() + ": cannot be read");
  return json::parse(in);
}

class Run {
 public:
  Run(const VerifyTraceOptions& options, Programs programs)
      : options_(options), session_(std::move(programs)) {
    for (const std::string& f : options.folders) {
      fs::path folder = fs::path(f).lexically_normal();
      if (folder.filename().empty()) folder = folder.parent_path();
      folders_.push_back(folder);
    }
    limits_ = Limits::load(find_limits(options.limits, folders_.front()));
    uses_ = limits_;
    results_.resize(folders_.size());
    if (!options.keep.empty()) {
      keep_ = options.keep;
    } else {
      own_keep_ = std::make_unique<TemporaryDirectory>();
      keep_ = own_keep_->path();
    }
    fs::create_directories(keep_);
  }

  int run() {
    unsigned jobs = options_.jobs > 0 ? static_cast<unsigned>(options_.jobs)
                                      : 2 * std::thread::hardware_concurrency();
    jobs = std::max(1u, std::min(jobs, static_cast<unsigned>(folders_.size())));
    std::vector<std::thread> threads;
    threads.reserve(jobs);
    for (unsigned i = 0; i < jobs; ++i) threads.emplace_back([this] { work(); });
    for (std::thread& t : threads) t.join();
    return report();
  }

 private:
  void work() {
    for (;;) {
      const std::size_t i = next_.fetch_add(1);
      if (i >= folders_.size()) return;
      FolderResult r;
      r.name = folders_[i].filename().string();
      try {
        verify(folders_[i], r);
      } catch (const std::exception& e) {
        r.error = e.what();
      }
      const std::lock_guard lock(mutex_);
      r.done = true;
      results_[i] = std::move(r);
      if (!options_.json) print_finished();
    }
  }

  Comparison replay_and_compare(const fs::path& folder, const std::string& mode,
                                std::optional<DroppedLine> drop, ReplayedFolder& replayed,
                                json& expected) {
    replayed = session_.replay(folder, mode, {drop, {}, 0, {}});
    // The answer is on disk before the truth is opened, and it is read back from there.
    const fs::path stored =
        keep_ / (folder.filename().string() + "." + mode + (drop ? ".dropped" : "") + ".json");
    {
      std::ofstream out(stored);
      out << replayed.answer.dump(1) << '\n';
      out.close();
      if (!out) throw std::runtime_error(stored.string() + ": cannot be written");
    }
    std::ifstream in(stored);
    replayed.answer = json::parse(in);
    expected = read_expected(folder);
    Limits used = limits_;
    Comparison c = compare(replayed, expected, used);
    if (!replayed.answer.at("settled").get<bool>()) {
      c.differences.push_back(
          {folder.filename().string(), -1, "", "", "books", "settled within 15 s", "not settled"});
    }
    const std::lock_guard lock(mutex_);
    uses_.add_uses(used);
    return c;
  }

  void verify(const fs::path& folder, FolderResult& r) {
    for (const std::string& mode : useful_mask_modes(folder, options_.mask)) {
      ReplayedFolder replayed;
      json expected;
      Comparison c = replay_and_compare(folder, mode, std::nullopt, replayed, expected);
      r.modes.push_back(mode);
      r.ranks = c.ranks;
      r.operations = std::max(r.operations, c.operations);
      const bool clean = c.differences.empty();
      std::move(c.differences.begin(), c.differences.end(), std::back_inserter(r.differences));
      c.differences.clear();
      if (!options_.selftest) continue;
      if (!clean) {
        r.differences.push_back({r.name, -1, "", "", "selftest",
                                 "a comparison without differences to start from", "see above"});
        return;
      }
      selftest(folder, mode, replayed, expected, c, r);
    }
  }

  void selftest(const fs::path& folder, const std::string& mode, const ReplayedFolder& replayed,
                const json& expected, const Comparison& clean, FolderResult& r) {
    const SelftestResult changed = change_every_field(replayed, expected, clean, limits_);
    r.fields_changed += changed.noticed.size();
    for (const std::string& field : changed.missed) {
      r.differences.push_back({r.name, -1, "", "", "selftest",
                               "a changed " + field + " is noticed by name", "it is not"});
    }
    const std::optional<DroppedLine> drop = line_that_matters(folder, replayed);
    if (!drop) return;
    ReplayedFolder without;
    json again;
    const Comparison c = replay_and_compare(folder, mode, drop, without, again);
    ++r.fields_changed;
    if (c.differences.empty()) {
      r.differences.push_back({r.name, -1, "", "", "selftest",
                               "line " + std::to_string(drop->line) + " of process " +
                                   std::to_string(drop->file) + " left out is noticed",
                               "it is not"});
    }
  }

  /// A delivered line whose absence changes the outcome: a KernelCh, a task or an API call.
  static std::optional<DroppedLine> line_that_matters(const fs::path& folder,
                                                      const ReplayedFolder& replayed) {
    const std::vector<fs::path> files = trace_files(folder);
    for (const std::uint32_t type :
         {std::uint32_t{nccl::kKernelCh}, std::uint32_t{nccl::kColl}, std::uint32_t{nccl::kP2p},
          std::uint32_t{nccl::kCollApi}, std::uint32_t{nccl::kP2pApi}}) {
      for (std::size_t f = 0; f < files.size(); ++f) {
        Trace trace = load_trace(files[f]);
        restore_null_handles(trace);
        const auto delivery =
            replayed.answer.at("workers").at(f).at("report").at("delivery").get<std::string>();
        for (std::size_t i = 0; i < trace.lines.size(); ++i) {
          const TraceLine& l = trace.lines[i];
          if (l.callback == Callback::kStart && l.type == type && delivery[i] == '1' &&
              l.parent != kNoHandle) {
            return DroppedLine{f, i};
          }
        }
      }
    }
    return std::nullopt;
  }

  static bool good(const FolderResult& r) { return r.error.empty() && r.differences.empty(); }

  /// Prints what is complete, in the order of the command line.
  void print_finished() {
    while (printed_ < results_.size() && results_[printed_].done) {
      const FolderResult& r = results_[printed_++];
      for (const Difference& d : r.differences) std::printf("%s\n", to_line(d).c_str());
      if (!r.error.empty()) std::printf("%s: %s\n", r.name.c_str(), r.error.c_str());
      if (good(r)) {
        std::string modes;
        for (const std::string& m : r.modes) modes += (modes.empty() ? "" : "+") + m;
        std::printf("ok %s: %zu ranks, %zu operations, mask %s", r.name.c_str(), r.ranks,
                    r.operations, modes.c_str());
        if (options_.selftest) std::printf(", %zu changes noticed", r.fields_changed);
        std::printf("\n");
      } else {
        std::printf("FAILED %s: %zu differences\n", r.name.c_str(),
                    r.differences.size() + (r.error.empty() ? 0 : 1));
      }
      std::fflush(stdout);
    }
  }

  int report() {
    std::vector<std::string> unused;
    if (options_.check_limits) {
      for (const Limit& l : uses_.entries()) {
        if (l.used == 0) unused.push_back(l.field + " (" + l.section + "): " + l.why);
      }
    }
    const auto bad = static_cast<std::size_t>(std::count_if(
        results_.begin(), results_.end(), [](const FolderResult& r) { return !good(r); }));
    const bool cannot = std::any_of(results_.begin(), results_.end(),
                                    [](const FolderResult& r) { return !r.error.empty(); });
    if (options_.json) {
      json out;
      out["folders"] = json::array();
      for (const FolderResult& r : results_) {
        json differences = json::array();
        for (const Difference& d : r.differences) {
          differences.push_back({{"rank", d.rank},
                                 {"comm", d.comm},
                                 {"op", d.op},
                                 {"field", d.field},
                                 {"expected", d.expected},
                                 {"got", d.got}});
        }
        out["folders"].push_back({{"folder", r.name},
                                  {"masks", r.modes},
                                  {"ranks", r.ranks},
                                  {"operations", r.operations},
                                  {"differences", differences},
                                  {"error", r.error}});
      }
      out["unused_limits"] = unused;
      std::printf("%s\n", out.dump(1).c_str());
    } else {
      for (const std::string& u : unused)
        std::printf("trace-limits.json: nothing needs the entry %s\n", u.c_str());
      std::printf("%zu of %zu folders without differences\n", results_.size() - bad,
                  results_.size());
    }
    if (bad == 0 && unused.empty()) return 0;
    return cannot && bad == results_.size() ? kCannotRun : kDifferences;
  }

  const VerifyTraceOptions& options_;
  ReplaySession session_;
  std::unique_ptr<TemporaryDirectory> own_keep_;
  fs::path keep_;
  Limits limits_;  // as read, with no uses
  Limits uses_;    // over all folders; guarded by mutex_
  std::vector<fs::path> folders_;
  std::vector<FolderResult> results_;
  std::atomic<std::size_t> next_{0};
  std::mutex mutex_;
  std::size_t printed_ = 0;
};

}  // namespace

int verify_trace(const VerifyTraceOptions& options) {
  try {
    Programs programs = find_programs();
    if (!options.plugin.empty()) programs.plugin = fs::absolute(options.plugin);
    if (!options.agent.empty()) programs.agent = fs::absolute(options.agent);
    if (!options.replayer.empty()) programs.replayer = fs::absolute(options.replayer);
    const std::pair<const char*, const fs::path*> needed[] = {
        {"--plugin (libnccl-profiler-ncclscope.so)", &programs.plugin},
        {"--agent (ncclscope-agent)", &programs.agent},
        {"--replayer (ncclscope-replay)", &programs.replayer}};
    for (const auto& [what, path] : needed) {
      std::error_code ignored;
      if (!fs::exists(*path, ignored)) {
        throw std::runtime_error("\"" + path->string() + "\" does not exist; name it with " + what);
      }
    }
    return Run(options, programs).run();
  } catch (const std::exception& e) {
    std::fprintf(stderr, "verify-trace: %s\n", e.what());
    return kCannotRun;
  }
}

void add_verify_trace_options(CLI::App& app, VerifyTraceOptions& options) {
  app.add_option("DIR", options.folders, "Folders with rank<r>.jsonl.gz and expected.json")
      ->required()
      ->check(CLI::ExistingDirectory);
  app.add_option("-j,--jobs", options.jobs, "Folders at a time (default: two per processor)")
      ->check(CLI::NonNegativeNumber);
  app.add_option("--mask", options.mask,
                 "Replay under the plugin's own mask, the recording's, or both")
      ->check(CLI::IsMember({"default", "recorded", "both"}));
  app.add_flag("--json", options.json, "Print the result as JSON");
  app.add_flag("--selftest", options.selftest,
               "Change one value of every compared field in turn and leave out one line: each must "
               "be noticed");
  app.add_flag("--check-limits", options.check_limits,
               "Fail when an entry of trace-limits.json is needed by no folder given");
  app.add_option("--limits", options.limits, "trace-limits.json (default: in a folder above DIR)");
  app.add_option("--keep", options.keep, "Keep the agent's answers in this folder");
  app.add_option("--plugin", options.plugin,
                 "libnccl-profiler-ncclscope.so (default: beside this program)");
  app.add_option("--agent", options.agent, "ncclscope-agent (default: beside this program)");
  app.add_option("--replayer", options.replayer, "ncclscope-replay (default: beside this program)");
}

void register_verify_trace(CLI::App& app) {
  CLI::App* sub = app.add_subcommand(
      "verify-trace",
      "Replay recordings of NCCL through plugin and agent, and compare with expected.json");
  auto options = std::make_shared<VerifyTraceOptions>();
  add_verify_trace_options(*sub, *options);
  sub->callback([options] {
    if (const int status = verify_trace(*options); status != 0) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli

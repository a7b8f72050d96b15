// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/session.h"

#include <unistd.h>

#include <chrono>
#include <fstream>
#include <iterator>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "cli/verify_trace/nccl_rules.h"
#include "cli/verify_trace/trace.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using std::chrono::milliseconds;

constexpr int kSenderIntervalMs = 5;
constexpr milliseconds kReplayLimit{120'000};
constexpr milliseconds kExitLimit{20'000};
constexpr milliseconds kKnownLimit{5'000};
constexpr milliseconds kSettleLimit{15'000};

fs::path first_existing(const fs::path& base, const std::vector<const char*>& candidates) {
  for (const char* c : candidates) {
    std::error_code ignored;
    const fs::path p = base / c;
    if (fs::exists(p, ignored)) return fs::weakly_canonical(p, ignored);
  }
  return {};
}

std::string text_of(const fs::path& file) {
  std::ifstream in(file);
  return {std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
}

}  // namespace

Programs find_programs() {
  std::error_code ignored;
  const fs::path here = fs::read_symlink("/proc/self/exe", ignored).parent_path();
  Programs p;
  p.plugin =
      first_existing(here, {"libnccl-profiler-ncclscope.so", "../lib/libnccl-profiler-ncclscope.so",
                            "../lib/ncclscope/libnccl-profiler-ncclscope.so",
                            "../plugin/libnccl-profiler-ncclscope.so",
                            "../../plugin/libnccl-profiler-ncclscope.so"});
  p.agent = first_existing(here, {"ncclscope-agent", "../agent/ncclscope-agent",
                                  "../../agent/ncclscope-agent", "../sbin/ncclscope-agent"});
  p.replayer = first_existing(here, {"ncclscope-replay", "../libexec/ncclscope/ncclscope-replay",
                                     "verify_trace/ncclscope-replay"});
  return p;
}

ReplaySession::ReplaySession(Programs programs) : programs_(std::move(programs)) {
  const fs::path config = directory_.path() / "agent.toml";
  std::ofstream(config).close();
  api_ = directory_.path() / "api.sock";
  const fs::path log = directory_.path() / "agent.log";
  agent_.emplace(std::vector<std::string>{programs_.agent.string(),
                                          "--config",
                                          config.string(),
                                          "--socket",
                                          (directory_.path() / "agent.sock").string(),
                                          "--api-socket",
                                          api_.string(),
                                          "--listen",
                                          "",
                                          "--snapshot-interval-ms",
                                          "20",
                                          "--tail-records",
                                          "262144",
                                          "--grace-seconds",
                                          "3600",
                                          "--max-sessions",
                                          "1000000",
                                          "--max-jobs",
                                          "100000",
                                          "--max-communicators",
                                          "1000000"},
                 environment_with({"NCCLSCOPE_", "SLURM_", "NCCL_"}, {}), log);
  client_.emplace(address());
  if (!client_->ready(milliseconds(15'000))) {
    throw std::runtime_error("agent " + programs_.agent.string() +
                             " did not come up within 15 s: " + text_of(log));
  }
}

ReplaySession::~ReplaySession() {
  client_.reset();
  if (agent_) agent_->stop(milliseconds(5'000));
}

ReplayedFolder ReplaySession::replay(const fs::path& folder, const std::string& mask_mode,
                                     const ReplayPlan& plan) {
  const std::string job = std::to_string(next_job_.fetch_add(1));
  const std::vector<fs::path> files = trace_files(folder);
  if (files.empty()) throw std::runtime_error(folder.string() + ": holds no rank<r>.jsonl.gz");

  ReplayedFolder result;
  result.folder = folder;
  result.mask_mode = mask_mode;
  std::vector<Child> children;
  std::vector<fs::path> reports;
  std::vector<fs::path> logs;
  for (std::size_t i = 0; i < files.size(); ++i) {
    const std::string name = job + "-" + std::to_string(i);
    reports.push_back(directory_.path() / (name + ".json"));
    logs.push_back(directory_.path() / (name + ".log"));
    std::vector<std::string> added = {
        "NCCLSCOPE_SOCKET=" + (directory_.path() / "agent.sock").string(),
        "NCCLSCOPE_SENDER_INTERVAL_MS=" + std::to_string(kSenderIntervalMs),
        // Recorded time says nothing about what the plugin costs here.
        "NCCLSCOPE_OVERHEAD_BUDGET=1",
        "SLURM_JOB_ID=" + job,
        "SLURM_STEP_ID=0",
        "SLURM_PROCID=" + std::to_string(i),
        "SLURM_LOCALID=" + std::to_string(i),
        "SLURM_NTASKS=" + std::to_string(files.size()),
        "SLURM_JOB_NAME=" + folder.filename().string(),
    };
    if (mask_mode == "recorded") {
      added.push_back("NCCLSCOPE_MASK=" + std::to_string(load_trace(files[i]).header.mask));
    }
    std::vector<std::string> arguments = {programs_.replayer.string(),
                                          files[i].string(),
                                          "--plugin",
                                          programs_.plugin.string(),
                                          "--report",
                                          reports[i].string(),
                                          "--pause-ms",
                                          std::to_string(3 * kSenderIntervalMs),
                                          "--seed",
                                          std::to_string(i + 1)};
    if (plan.drop && plan.drop->file == i) {
      arguments.emplace_back("--drop-line");
      arguments.push_back(std::to_string(plan.drop->line));
    }
    if (i < plan.until_ns.size()) {
      arguments.emplace_back("--until-ns");
      arguments.push_back(std::to_string(plan.until_ns[i]));
    }
    if (plan.shift_ns != 0) arguments.push_back("--shift-ns=" + std::to_string(plan.shift_ns));
    children.emplace_back(arguments, environment_with({"NCCLSCOPE_", "SLURM_", "NCCL_"}, added),
                          logs[i]);
  }
  std::vector<std::int64_t> pids;
  for (std::size_t i = 0; i < children.size(); ++i) {
    if (!children[i].wait_for_line("replayed", kReplayLimit)) {
      const int status = children[i].wait(milliseconds(1'000));
      throw std::runtime_error(
          files[i].string() + ": the replayer " +
          (status == -1 ? "hangs" : "ended with status " + std::to_string(status)) + ": " +
          text_of(logs[i]));
    }
    pids.push_back(children[i].pid());
  }
  // The recorded processes lived for seconds: nobody leaves before the agent knows them all.
  const auto known_by = std::chrono::steady_clock::now() + kKnownLimit;
  while (!is_settled(client_->books(job), pids, false) &&
         std::chrono::steady_clock::now() < known_by) {
    std::this_thread::sleep_for(milliseconds(5));
  }
  if (plan.look) plan.look(job);
  for (Child& c : children) c.close_stdin();
  for (std::size_t i = 0; i < children.size(); ++i) {
    const int status = children[i].wait(kExitLimit);
    if (status != 0) {
      throw std::runtime_error(
          files[i].string() + ": the replayer " +
          (status == -1 ? "does not exit" : "exits with status " + std::to_string(status)) + ": " +
          text_of(logs[i]));
    }
  }

  const auto end = std::chrono::steady_clock::now() + kSettleLimit;
  bool settled = false;
  while (!settled && std::chrono::steady_clock::now() < end) {
    settled = is_settled(client_->books(job), pids, true);
    if (!settled) std::this_thread::sleep_for(milliseconds(10));
  }
  // The sums come from a snapshot: from one that was made after everything had come.
  const std::int64_t settled_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                                      std::chrono::system_clock::now().time_since_epoch())
                                      .count();
  do {
    std::this_thread::sleep_for(milliseconds(5));
    result.answer = client_->answer(job);
  } while (result.answer.at("snapshot").at("time_ns").get<std::int64_t>() <= settled_ns &&
           std::chrono::steady_clock::now() < end);
  result.answer["settled"] = settled;
  json workers = json::array();
  for (std::size_t i = 0; i < files.size(); ++i) {
    json report = json::parse(text_of(reports[i]), nullptr, false);
    if (report.is_discarded())
      throw std::runtime_error(reports[i].string() + ": no report of the replayer");
    workers.push_back(
        {{"file", files[i].filename().string()}, {"pid", pids[i]}, {"report", std::move(report)}});
  }
  result.answer["workers"] = std::move(workers);
  std::error_code ignored;
  for (const fs::path& p : reports) fs::remove(p, ignored);
  for (const fs::path& p : logs) fs::remove(p, ignored);
  return result;
}

std::vector<std::string> useful_mask_modes(const fs::path& folder, const std::string& wanted) {
  if (wanted != "both") return {wanted};
  const std::vector<fs::path> files = trace_files(folder);
  if (files.empty()) throw std::runtime_error(folder.string() + ": holds no rank<r>.jsonl.gz");
  const TraceHeader header = load_trace(files.front()).header;
  const std::uint32_t tasks = std::uint32_t{nccl::kColl} | nccl::kP2p;
  const bool has_channels = header.interface_version >= 3;
  const std::uint32_t asked = tasks | (has_channels ? std::uint32_t{nccl::kKernelCh} : 0);
  std::vector<std::string> modes;
  if ((header.mask & asked) == asked) modes.emplace_back("default");
  // 0x46 brings what the default mask of 2.28 and later brings: nothing new under the recording's
  // mask.
  if (header.mask != asked || header.nccl_version < kNccl228 || header.interface_version < 4)
    modes.emplace_back("recorded");
  return modes;
}

}  // namespace ncclscope::cli

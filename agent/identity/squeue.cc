// SPDX-License-Identifier: Apache-2.0
//
// The answer is read with a filter that keeps only the fields that are used: squeue prints some
// kilobytes per job.
#include "agent/identity/squeue.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "agent/base/command.h"
#include "agent/identity/label_value.h"

namespace ncclscope::agent {
namespace {

using nlohmann::json;

constexpr std::array<std::string_view, 11> kFields = {
    "job_id",       "name",          "partition",  "account",     "user_name", "user_id",
    "array_job_id", "array_task_id", "het_job_id", "restart_cnt", "job_state"};
constexpr std::string_view kHetOffset = "het_job_offset";

/// Depths as the parser counts them: {"jobs": [{"job_id": 7}]} has "jobs" at 1 and "job_id" at 3.
bool wanted(int depth, json::parse_event_t event, const json& parsed) {
  if (event != json::parse_event_t::key) return true;
  const auto& key = parsed.get_ref<const std::string&>();
  if (depth == 1) return key == "jobs";
  if (depth == 3)
    return key == kHetOffset || std::find(kFields.begin(), kFields.end(), key) != kFields.end();
  return true;
}

std::string text(const json& job, std::string_view field) {
  const auto it = job.find(field);
  return it != job.end() && it->is_string() ? label_value(it->get_ref<const std::string&>())
                                            : std::string();
}

/// A number that is set, as SLURM writes it in any of its versions.
std::optional<std::uint64_t> number(const json& job, std::string_view field) {
  const auto it = job.find(field);
  if (it == job.end()) return std::nullopt;
  const json* value = &*it;
  if (value->is_object()) {
    const auto set = value->find("set");
    const auto infinite = value->find("infinite");
    const auto inner = value->find("number");
    if (inner == value->end() || (set != value->end() && *set != true) ||
        (infinite != value->end() && *infinite == true))
      return std::nullopt;
    value = &*inner;
  }
  // 0xfffffffe is SLURM's "no value".
  if (!value->is_number_unsigned() || value->get<std::uint64_t>() >= 0xffff'fffe)
    return std::nullopt;
  return value->get<std::uint64_t>();
}

/// A text, or since 23.02 a list of a state and its flags.
bool is_over_or_waits(const json& job) {
  const auto it = job.find("job_state");
  if (it == job.end()) return false;
  const auto one = [](const json& state) {
    if (!state.is_string()) return false;
    constexpr std::array<std::string_view, 13> kNotHere = {
        "PENDING",   "COMPLETED",    "CANCELLED", "FAILED",   "TIMEOUT",
        "NODE_FAIL", "PREEMPTED",    "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY",
        "REVOKED",   "SPECIAL_EXIT", "REQUEUED"};
    const auto& name = state.get_ref<const std::string&>();
    return std::find(kNotHere.begin(), kNotHere.end(), name) != kNotHere.end();
  };
  if (!it->is_array()) return one(*it);
  return std::any_of(it->begin(), it->end(), one);
}

std::optional<QueuedJob> to_job(const json& job) {
  if (!job.is_object() || is_over_or_waits(job)) return std::nullopt;
  const auto id = number(job, "job_id");
  if (!id || *id == 0) return std::nullopt;
  QueuedJob out;
  out.slurm_job_id = std::to_string(*id);
  JobFacts& facts = out.facts;
  facts.user = text(job, "user_name");
  if (const auto uid = number(job, "user_id")) facts.uid = static_cast<std::int64_t>(*uid);
  facts.job_name = text(job, "name");
  facts.partition = text(job, "partition");
  facts.account = text(job, "account");
  const auto array_job = number(job, "array_job_id");
  const auto array_task = number(job, "array_task_id");
  if (array_job.value_or(0) > 0 && array_task) {
    facts.array_job_id = std::to_string(*array_job);
    facts.array_task = std::to_string(*array_task);
  }
  if (const auto het_job = number(job, "het_job_id"); het_job.value_or(0) > 0) {
    facts.het_job_id = std::to_string(*het_job);
    if (const auto offset = number(job, kHetOffset)) facts.het_offset = std::to_string(*offset);
  }
  if (const auto restarts = number(job, "restart_cnt"))
    facts.restarts = static_cast<std::uint32_t>(*restarts);
  return out;
}

}  // namespace

Result<std::vector<QueuedJob>> parse_squeue(std::string_view text) {
  const json document = json::parse(text, wanted, /*allow_exceptions=*/false);
  if (document.is_discarded()) return Status::invalid("what it printed is not JSON");
  const auto jobs = document.is_object() ? document.find("jobs") : document.end();
  if (jobs == document.end() || !jobs->is_array())
    return Status::invalid("what it printed has no list called jobs");
  std::vector<QueuedJob> out;
  for (const json& job : *jobs) {
    if (auto known = to_job(job)) out.push_back(std::move(*known));
  }
  return out;
}

std::vector<std::string> command_words(std::string_view command, std::string_view node) {
  std::vector<std::string> words;
  bool in_word = false;
  for (std::size_t i = 0; i < command.size(); ++i) {
    const char c = command[i];
    if (c == ' ' || c == '\t') {
      in_word = false;
      continue;
    }
    if (!std::exchange(in_word, true)) words.emplace_back();
    const char next = i + 1 < command.size() ? command[i + 1] : '\0';
    if (c == '%' && (next == 'N' || next == '%')) {
      words.back() += next == 'N' ? node : "%";
      ++i;
    } else {
      words.back() += c;
    }
  }
  return words;
}

SqueuePoller::SqueuePoller(const Clock& clock, Options options, Handler handler)
    : clock_(clock),
      options_(std::move(options)),
      handler_(std::move(handler)),
      cancel_(::eventfd(0, EFD_CLOEXEC)),
      thread_([this] { run(); }) {}

SqueuePoller::~SqueuePoller() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  const std::uint64_t one = 1;
  (void)!::write(cancel_.get(), &one, sizeof one);
  thread_.join();
}

void SqueuePoller::ask() {
  {
    const std::lock_guard lock(mutex_);
    asked_ = true;
  }
  wake_.notify_all();
}

void SqueuePoller::run() {
  do {
    poll_once();
  } while (pause());
}

/// False: the poller ends.
bool SqueuePoller::pause() {
  std::unique_lock lock(mutex_);
  const auto begin = std::chrono::steady_clock::now();
  wake_.wait_until(lock, begin + options_.minimum_pause, [this] { return stopping_; });
  wake_.wait_until(lock, begin + options_.interval, [this] { return stopping_ || asked_; });
  asked_ = false;
  return !stopping_;
}

void SqueuePoller::poll_once() {
  CommandLimits limits;
  limits.timeout = options_.timeout;
  limits.max_output_bytes = options_.max_output_bytes;
  limits.cancel_fd = cancel_.get();
  const Result<std::string> output = run_command(options_.command, limits);
  Status status = output.status();
  if (output.ok()) {
    Result<std::vector<QueuedJob>> jobs = parse_squeue(output.value());
    if (jobs.ok()) {
      handler_(std::move(jobs).value());
      return;
    }
    status = jobs.status();
  }
  {
    const std::lock_guard lock(mutex_);
    if (stopping_) return;
  }
  ++failures_;
  limiter_.log(
      clock_.monotonic_ns(), LogLevel::kWarning,
      concat("squeue_command: ", status.message(), "; jobs keep what was known of them before"));
}

}  // namespace ncclscope::agent

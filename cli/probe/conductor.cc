// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/conductor.h"

#include <algorithm>
#include <charconv>
#include <set>
#include <utility>

#include "cli/text.h"

namespace ncclscope::cli::probe {
namespace {

constexpr std::size_t kMostGpusOfWorker = 64;
constexpr std::size_t kNamed = 8;  // workers that a message names one by one
constexpr std::size_t kLongestText = 1000;

bool read_int(std::string_view text, int& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size();
}

}  // namespace

Conductor::Conductor(Plan plan, std::size_t workers) : plan_(std::move(plan)), workers_(workers) {
  for (std::size_t i = 0; i < workers; ++i) workers_[i].who = "process " + std::to_string(i);
}

std::size_t Conductor::add_worker() {
  workers_.emplace_back();
  return workers_.size() - 1;
}

void Conductor::arrived(std::size_t worker, std::string who, std::string host) {
  workers_[worker].who = std::move(who);
  workers_[worker].host = std::move(host);
}

void Conductor::fail(const std::string& why) {
  if (failure_.empty()) failure_ = why;
}

std::string Conductor::place_of(const Worker& worker) const {
  std::string place = worker.who;
  if (ranks_ > 0) {
    const auto gpus = static_cast<std::uint32_t>(worker.gpus.size());
    place = "rank " + std::to_string(worker.first_rank);
    if (gpus > 1)
      place = "ranks " + place.substr(5) + " to " + std::to_string(worker.first_rank + gpus - 1);
  }
  return place + " on " + worker.host;
}

void Conductor::take(std::size_t from, std::string_view line) {
  Worker& worker = workers_[from];
  const Words words = split_word(line);
  if (worker.host.empty() || worker.gone) return;
  if (words.first == "version") {
    take_version(worker, words.rest);
  } else if (words.first == "gpu") {
    take_gpu(worker, words.rest);
  } else if (words.first == "links") {
    if (worker.link_lines.size() < kMostGpusOfWorker) worker.link_lines.emplace_back(line);
  } else if (words.first == "ready") {
    worker.ready = true;
    if (worker.gpus.empty()) fail(place_of(worker) + ": it has no GPU");
  } else if (words.first == "id") {
    take_id(from, words.rest);
  } else if (words.first == "stage") {
    worker.stage = printable(words.rest.substr(0, kLongestText));
  } else if (words.first == "result") {
    take_result(worker, line);
  } else if (words.first == "done") {
    worker.done = true;
    for (const Measured& m : measured_)
      if (all_done() && m.heard != ranks_)
        fail("results of " + std::string(collective_name(m.row.collective)) + " came from " +
             std::to_string(m.heard) + " of " + std::to_string(ranks_) + " ranks");
  } else if (words.first == "failed") {
    fail(place_of(worker) + ": " + printable(words.rest.substr(0, kLongestText)));
  } else {
    fail(place_of(worker) + " sent what nobody understands: " + printable(line.substr(0, 80)));
  }
}

void Conductor::take_version(Worker& worker, std::string_view rest) {
  const Words nccl = split_word(rest);
  const Words runtime = split_word(nccl.rest);
  if (!read_int(nccl.first, worker.nccl) || !read_int(runtime.first, worker.runtime) ||
      !read_int(runtime.rest, worker.driver))
    fail(place_of(worker) + " sent no versions");
}

void Conductor::take_gpu(Worker& worker, std::string_view rest) {
  const Words words = split_word(rest);
  if (worker.ready || worker.gpus.size() >= kMostGpusOfWorker) {
    fail(place_of(worker) + " has too many GPUs");
    return;
  }
  worker.gpus.push_back({printable(words.first), printable(words.rest)});
}

void Conductor::take_id(std::size_t from, std::string_view rest) {
  const std::optional<std::string> id = from_hex(rest);
  if (from != 0 || !begun_ || started_ || !id || id->size() != kIdBytes) {
    fail(place_of(workers_[from]) + " sent an id that is none, or nobody asked for");
    return;
  }
  start_all(*id);
}

void Conductor::take_result(const Worker& worker, std::string_view line) {
  const std::optional<Result> result = parse_result(line);
  const bool own = result && result->rank >= worker.first_rank &&
                   result->rank < worker.first_rank + worker.gpus.size();
  if (!started_ || !own || result->row >= measured_.size()) {
    fail(place_of(worker) + " sent a result that nobody asked for");
    return;
  }
  Measured& m = measured_[result->row];
  const double seconds = static_cast<double>(result->nanoseconds) * 1e-9;
  ++m.heard;
  m.seconds_sum += seconds;
  if (seconds > m.seconds_most) {
    m.seconds_most = seconds;
    m.slowest_rank = result->rank;
  }
  if (result->wrong) {
    ++m.checked_ranks;
    m.wrong += *result->wrong;
  }
}

void Conductor::ended(std::size_t worker, const std::string& why) {
  Worker& w = workers_[worker];
  w.gone = true;
  if (!w.done) fail(place_of(w) + ": " + why);
}

bool Conductor::all_ready() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.ready; });
}

bool Conductor::all_done() const {
  return std::all_of(workers_.begin(), workers_.end(), [](const Worker& w) { return w.done; });
}

void Conductor::begin() {
  if (begun_ || !all_ready() || !failure_.empty()) return;
  begun_ = true;
  std::uint32_t next = 0;
  for (Worker& worker : workers_) {
    worker.first_rank = next;
    next += static_cast<std::uint32_t>(worker.gpus.size());
    if (worker.nccl != workers_[0].nccl)
      fail(worker.who + " on " + worker.host + " has NCCL " + std::to_string(worker.nccl) + ", " +
           workers_[0].who + " on " + workers_[0].host + " has " +
           std::to_string(workers_[0].nccl) + ": install one release");
  }
  ranks_ = next;
  for (const Row& row : rows_of(plan_, ranks_)) measured_.push_back({row});
  outgoing_.push_back({0, "identify"});
}

void Conductor::start_all(const std::string& id) {
  started_ = true;
  for (std::size_t i = 0; i < workers_.size(); ++i)
    outgoing_.push_back({i, start_line({workers_[i].first_rank, ranks_, id, plan_})});
}

std::vector<Conductor::Message> Conductor::outgoing() {
  return std::exchange(outgoing_, {});
}

std::string Conductor::waiting_for() const {
  std::string text;
  std::size_t named = 0, left = 0;
  for (const Worker& worker : workers_) {
    const bool awaited = ranks_ > 0 ? !worker.done : !worker.ready;
    if (!awaited) continue;
    if (named == kNamed) {
      ++left;
      continue;
    }
    ++named;
    text += text.empty() ? "" : "; ";
    if (worker.host.empty()) {
      text += worker.who + " did not come";
    } else {
      text += place_of(worker) + (worker.stage.empty() ? " has not begun" : ": " + worker.stage);
    }
  }
  if (left > 0) text += "; and " + std::to_string(left) + " more";
  return text;
}

std::uint32_t Conductor::nodes() const {
  std::set<std::string> hosts;
  for (const Worker& worker : workers_) hosts.insert(worker.host);
  return static_cast<std::uint32_t>(hosts.size());
}

}  // namespace ncclscope::cli::probe

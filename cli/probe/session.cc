// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/session.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <list>
#include <optional>
#include <stdexcept>
#include <utility>

#include "cli/probe/channel.h"
#include "cli/probe/exit_status.h"
#include "cli/probe/rendezvous.h"
#include "cli/text.h"

namespace ncclscope::cli::probe {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds kLongestWait{200};     // between looks at clock, signals and children
constexpr milliseconds kGoodbye{3000};        // for workers to abort and end by themselves
constexpr milliseconds kHearVerdict{15'000};  // after the limit, for process 0 to say how it went

Program worker_program(const SessionOptions& options, const std::string& gpus) {
  Program program{{options.worker, "--gpus", gpus}, {}};
  if (!options.worker_root.empty())
    program.arguments.insert(program.arguments.end(), {"--sys-root", options.worker_root});
  if (std::getenv("NCCLSCOPE_JOB_NAME") == nullptr)  // NOLINT(concurrency-mt-unsafe): one thread
    program.environment.emplace_back("NCCLSCOPE_JOB_NAME=ncclscope-probe");
  return program;
}

std::string gpus_of(const SessionOptions& options) {
  if (!options.gpus.empty()) return options.gpus;
  if (options.place.alone_on_node) return "all";
  return "local:" + std::to_string(options.place.local);
}

bool interrupted(const SessionOptions& options) {
  return options.interrupted != nullptr && options.interrupted->load();
}

void wait_for_any(const std::vector<int>& descriptors, steady_clock::time_point until) {
  std::vector<pollfd> waiting;
  for (const int fd : descriptors)
    if (fd >= 0) waiting.push_back({fd, POLLIN, 0});
  const auto left = std::chrono::duration_cast<milliseconds>(until - steady_clock::now());
  const auto wait = std::clamp(left, milliseconds(0), kLongestWait);
  (void)::poll(waiting.data(), waiting.size(), static_cast<int>(wait.count()));
}

/// A worker that ended has a reason, which is worth some moments: the loader's message says more
/// than a closed pipe.
std::string how_it_ended(Child& child) {
  const auto until = steady_clock::now() + milliseconds(1000);
  while (child.ended().empty() && steady_clock::now() < until) ::usleep(5000);
  std::string how = child.ended();
  if (how.empty()) how = "closed its lines, but runs on";
  if (how == "ended with status 127")
    how +=
        ": it cannot be loaded. NCCL (libnccl.so.2) or the CUDA runtime is missing; see above, "
        "and docs/probe.md";
  return "its worker " + how;
}

}  // namespace

struct Leader::Parts {
  const SessionOptions& options;
  Conductor& conductor;
  std::list<Child> children;  // of workers 0 and, if the GPU is shared, 1
  std::optional<Listener> listener;
  std::vector<std::optional<Channel>> remote;  // by process
  bool shared = false;
  steady_clock::time_point until;

  [[nodiscard]] bool alone() const { return options.place.processes == 1; }
  [[nodiscard]] std::vector<int> descriptors() {
    std::vector<int> out;
    for (Child& child : children) out.push_back(child.channel().fd());
    if (listener)
      for (const int fd : listener->descriptors()) out.push_back(fd);
    for (const std::optional<Channel>& channel : remote)
      if (channel) out.push_back(channel->fd());
    return out;
  }
  void read_children() {
    std::size_t worker = 0;
    for (Child& child : children) {
      const std::size_t number = worker++;
      if (!child.channel().open()) continue;
      for (const std::string& line : child.channel().read_lines()) conductor.take(number, line);
      if (!child.channel().open()) conductor.ended(number, how_it_ended(child));
    }
  }
  void read_remote() {
    if (!listener) return;
    for (Arrival& arrival : listener->arrivals()) {
      conductor.arrived(arrival.process, "process " + std::to_string(arrival.process),
                        arrival.host);
      remote[arrival.process].emplace(std::move(arrival.channel));
    }
    for (std::size_t process = 0; process < remote.size(); ++process) {
      std::optional<Channel>& channel = remote[process];
      if (!channel || !channel->open()) continue;
      for (const std::string& line : channel->read_lines()) conductor.take(process, line);
      if (!channel->open()) conductor.ended(process, "its connection was closed");
    }
  }
  /// Processes that come when it is over would otherwise look for us until their time is over.
  void tell_latecomers(const std::string& line) {
    const auto last = steady_clock::now() + kGoodbye;
    const auto missing = [this] {
      return std::any_of(remote.begin() + 1, remote.end(),
                         [](const auto& r) { return !r.has_value(); });
    };
    while (listener && missing() && steady_clock::now() < last) {
      wait_for_any(listener->descriptors(), last);
      for (Arrival& arrival : listener->arrivals()) {
        arrival.channel.write_line(line);
        remote[arrival.process].emplace(std::move(arrival.channel));
      }
    }
  }
  void send(const Conductor::Message& message) {
    if (message.to < remote.size() && remote[message.to]) {
      remote[message.to]->write_line(message.line);
      return;
    }
    auto child = children.begin();
    std::advance(child, std::min(message.to, children.size() - 1));
    child->channel().write_line(message.line);
  }
  /// NCCL gives a GPU to one rank of a node only: two workers on the one GPU pass for two nodes
  /// that are joined by loopback.
  void share_if_single() {
    const Worker& first = conductor.workers().front();
    if (shared || !alone() || !first.ready || first.gpus.size() != 1 ||
        conductor.workers().size() > 1)
      return;
    shared = true;
    const std::string host = first.host;  // adding one moves the others
    const std::size_t second = conductor.add_worker();
    conductor.arrived(second, "the second process", host);
    children.emplace_back(worker_program(options, gpus_of(options)));
    for (std::size_t worker = 0; worker < 2; ++worker) {
      send({worker, "set NCCL_HOSTID=ncclscope-probe-" + std::to_string(worker)});
      send({worker, "set NCCL_SOCKET_IFNAME=lo"});
      send({worker, "set NCCL_IB_DISABLE=1"});
    }
  }
  void step() {
    wait_for_any(descriptors(), until);
    read_children();
    read_remote();
    share_if_single();
    conductor.begin();
    for (const Conductor::Message& message : conductor.outgoing()) send(message);
  }
};

Leader::Leader(const SessionOptions& options, Conductor& conductor)
    : parts_(new Parts{options, conductor, {}, {}, {}, false, {}}) {}

Leader::~Leader() = default;

bool Leader::shares_gpu() const {
  return parts_->shared;
}

Outcome Leader::run() {
  Parts& p = *parts_;
  p.until = steady_clock::now() + p.options.limit;
  try {
    if (!p.alone()) p.listener.emplace(p.options.place, p.options.rendezvous);
    p.remote.resize(p.options.place.processes);
    p.children.emplace_back(worker_program(p.options, gpus_of(p.options)));
    p.conductor.arrived(0, p.alone() ? "this process" : "process 0", own_host());
    while (!p.conductor.all_done() && p.conductor.failure().empty()) {
      if (interrupted(p.options)) return {End::kFailed, "interrupted"};
      if (steady_clock::now() >= p.until)
        return {End::kTimeout,
                "not done within " +
                    format_duration(static_cast<double>(p.options.limit.count()) * 1e-3) +
                    ". Waited for: " + p.conductor.waiting_for()};
      p.step();
    }
  } catch (const std::runtime_error& error) {
    return {End::kFailed, error.what()};
  }
  if (!p.conductor.failure().empty()) return {End::kFailed, p.conductor.failure()};
  return {End::kMeasured, ""};
}

namespace {

/// Asks workers to abort, waits for a moment, kills. Names those that cannot be killed.
std::string end_all(std::list<Child>& children) {
  for (Child& child : children) child.channel().write_line("stop");
  const auto until = steady_clock::now() + kGoodbye;
  const auto running = [&] {
    return std::any_of(children.begin(), children.end(),
                       [](Child& child) { return child.ended().empty(); });
  };
  while (running() && steady_clock::now() < until) ::usleep(10'000);
  std::string stuck;
  for (Child& child : children)
    if (!child.kill()) stuck += (stuck.empty() ? "worker " : ", ") + std::to_string(child.pid());
  return stuck.empty() ? stuck : stuck + " cannot be killed: it is stuck in the driver";
}

}  // namespace

std::string Leader::finish(int status, const std::string& why) {
  const std::string line = "verdict " + std::to_string(status) + " " + why.substr(0, 2000);
  for (std::optional<Channel>& channel : parts_->remote)
    if (channel) channel->write_line(line);
  parts_->tell_latecomers(line);
  return end_all(parts_->children);
}

namespace {

/// Carries lines between process 0 and the worker of this process.
class Relay {
 public:
  explicit Relay(const SessionOptions& options)
      : options_(options), until_(steady_clock::now() + options.limit) {}

  int run(std::string& why) {
    // The worker begins at once: a GPU that is not there is told even if process 0 does not come.
    children_.emplace_back(worker_program(options_, gpus_of(options_)));
    try {
      root_.emplace(join(options_.place, options_.rendezvous, own_host(), until_));
    } catch (const std::runtime_error& error) {
      why = error.what() + what_failed_here();
      return kCouldNotRun;
    }
    const auto last = until_ + kHearVerdict;
    while (!status_ && root_->open()) {
      if (interrupted(options_)) {
        root_->write_line("failed interrupted");
        why = "interrupted";
        break;
      }
      if (steady_clock::now() > last) {
        why = "process 0 did not end within the time limit";
        status_ = kNoEnd;
        break;
      }
      from_root(why);
      from_worker();
      if (!status_ && root_->open())
        wait_for_any({root_->fd(), children_.front().channel().fd()}, last);
    }
    if (!status_ && why.empty()) why = "the connection to process 0 was closed";
    const std::string stuck = end_all(children_);
    if (!stuck.empty()) why += (why.empty() ? "" : "; ") + stuck;
    return status_.value_or(kCouldNotRun);
  }

 private:
  void from_root(std::string& why) {
    for (const std::string& line : root_->read_lines()) {
      const Words words = split_word(line);
      if (words.first != "verdict") {
        children_.front().channel().write_line(line);
        continue;
      }
      const Words verdict = split_word(words.rest);
      int status = kCouldNotRun;
      const std::string_view text = verdict.first;
      (void)std::from_chars(text.data(), text.data() + text.size(), status);
      status_ = std::clamp(status, 0, static_cast<int>(kNoEnd));
      if (*status_ >= kCouldNotRun) why = printable(verdict.rest);
      return;
    }
  }
  /// Why the worker would not have done either.
  std::string what_failed_here() {
    for (const std::string& line : children_.front().channel().read_lines())
      if (line.starts_with("failed ")) return "; its worker: " + printable(split_word(line).rest);
    return {};
  }
  void from_worker() {
    Channel& worker = children_.front().channel();
    if (!worker.open()) return;
    for (const std::string& line : worker.read_lines()) {
      done_ = done_ || line == "done" || line.starts_with("failed ");
      root_->write_line(line);
    }
    if (!worker.open() && !done_) root_->write_line("failed " + how_it_ended(children_.front()));
  }

  const SessionOptions& options_;
  steady_clock::time_point until_;
  std::list<Child> children_;
  std::optional<Channel> root_;
  std::optional<int> status_;
  bool done_ = false;
};

}  // namespace

int follow(const SessionOptions& options, std::string& why) {
  try {
    return Relay(options).run(why);
  } catch (const std::runtime_error& error) {
    why = error.what();
    return kCouldNotRun;
  }
}

}  // namespace ncclscope::cli::probe

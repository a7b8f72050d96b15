// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope tail`: operations as agents receive them.
//   Thread: one per agent; they share standard output under a lock, a line at a time.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <cstdio>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/ending_signals.h"
#include "cli/json.h"
#include "cli/tail_text.h"

namespace ncclscope::cli {
namespace {

struct TailOptions {
  AgentOptions agents;
  std::string job;
  bool json = false;
  bool once = false;
  bool new_only = false;
  bool operations_only = false;
};

std::string json_line(const std::string& node, const v1::TailOperationsResponse& response) {
  nlohmann::ordered_json out = {{"node", node}};
  out.update(message_json(response));
  return out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

class Tail {
 public:
  explicit Tail(const TailOptions& options) : options_(options), agents_(connect(options.agents)) {}

  int run() {
    for (std::size_t i = 0; i < agents_.size(); ++i)
      contexts_.push_back(std::make_unique<grpc::ClientContext>());
    const sigset_t signals = ending_signals();
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < agents_.size(); ++i) threads.emplace_back([this, i] { follow(i); });
    // A signal ends the streams; the threads then find their way out by themselves.
    std::thread signal_waiter([&] {
      const timespec moment{0, 100'000'000};
      while (!ended_ && sigtimedwait(&signals, nullptr, &moment) < 0) {
      }
      interrupted_ = !ended_;
      for (const auto& context : contexts_) context->TryCancel();
    });
    for (std::thread& thread : threads) thread.join();
    ended_ = true;
    signal_waiter.join();
    return failed_ ? kUnreachable : kSuccess;
  }

 private:
  void follow(std::size_t i) {
    std::string node;
    if (!agents_[i].node(node)) {
      failed_ = true;
      return;
    }
    v1::TailOperationsRequest request;
    request.set_job_id(options_.job);
    request.set_include_held(!options_.new_only);
    request.set_follow(!options_.once);
    const auto reader = agents_[i].stub().TailOperations(contexts_[i].get(), request);
    v1::TailOperationsResponse response;
    std::uint64_t skipped = 0;
    while (!broken_pipe_ && reader->Read(&response)) {
      if (response.skipped() > skipped) {
        std::fprintf(
            stderr,
            "ncclscope: %s: too slow for the agent at %s, at least %llu records skipped so far\n",
            node.c_str(), agents_[i].address().c_str(),
            static_cast<unsigned long long>(response.skipped()));
        skipped = response.skipped();
      }
      if (options_.operations_only && !response.has_operation()) continue;
      print((options_.json ? json_line(node, response) : tail_line(node, response)) + "\n");
    }
    if (broken_pipe_) contexts_[i]->TryCancel();
    const grpc::Status status = reader->Finish();
    const bool wanted = interrupted_ || broken_pipe_;
    if (!wanted && !agents_[i].check(status)) failed_ = true;
    if (!wanted && status.ok() && !options_.once)
      std::fprintf(stderr, "ncclscope: agent at %s ended the stream: it is stopping\n",
                   agents_[i].address().c_str());
  }

  void print(const std::string& line) {
    const std::lock_guard lock(mutex_);
    std::fputs(line.c_str(), stdout);
    // Lines are wanted at once; when all held operations come in a rush, buffering them is cheaper.
    if (options_.once) return;
    if (std::fflush(stdout) != 0) broken_pipe_ = true;
  }

  const TailOptions& options_;
  std::vector<Agent> agents_;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts_;
  std::mutex mutex_;
  std::atomic<bool> ended_ = false;
  std::atomic<bool> interrupted_ = false;
  std::atomic<bool> broken_pipe_ = false;
  std::atomic<bool> failed_ = false;
};

}  // namespace

void register_tail(CLI::App& app) {
  auto options = std::make_shared<TailOptions>();
  CLI::App* command = app.add_subcommand("tail", "Show operations as they arrive");
  add_agent_option(*command, options->agents);
  command->add_option("--job", options->job, "Only this job")->type_name("ID");
  command->add_flag("--json", options->json, "One JSON object per line");
  auto* once =
      command->add_flag("--once", options->once, "End after the operations the agent still holds");
  command
      ->add_flag_callback(
          "--follow", [] {}, "Go on until interrupted (the default)")
      ->excludes(once);
  command->add_flag("--new", options->new_only, "Leave out the operations the agent holds already")
      ->excludes(once);
  command->add_flag("--operations", options->operations_only,
                    "Leave out network and channel records");
  command->footer(
      "Times are when the operation was called, local time. busbw is bus bandwidth as nccl-tests "
      "defines it, in\n"
      "10^9 bytes per second; sizes are in powers of 1024.\n"
      "Exit status: 0 ended or interrupted; 2 wrong arguments; 3 an agent was not reached or "
      "failed.");
  command->callback([options] {
    const sigset_t signals = ending_signals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    if (const int status = Tail(*options).run(); status != kSuccess)
      throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli

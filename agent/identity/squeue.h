// SPDX-License-Identifier: Apache-2.0
//
// Asks SLURM which jobs run on this node, by running `squeue --json`: a second source beside the
// prolog, which knows neither a job's name nor its account.
//   Thread: one of its own runs the command and reads its answer, so a command that hangs delays
//   nothing else; the answer is handed over through a callback, on that thread.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "agent/base/clock.h"
#include "agent/base/log.h"
#include "agent/base/result.h"
#include "agent/base/scoped_fd.h"
#include "agent/identity/job_table.h"

namespace ncclscope::agent {

/// The jobs in what `squeue --json` printed that have begun and not ended. Knows the plain numbers
/// of SLURM 22.05 and the {"set": true, "number": 7} of later ones; fields that are missing or of
/// another type are unknown. Fails if it is no JSON, or has no list of jobs.
[[nodiscard]] Result<std::vector<QueuedJob>> parse_squeue(std::string_view json);

/// The words of a command line, split at blanks; no quoting. %N becomes `node`, %% becomes %.
[[nodiscard]] std::vector<std::string> command_words(std::string_view command,
                                                     std::string_view node);

class SqueuePoller {
 public:
  struct Options {
    std::vector<std::string> command;
    std::chrono::milliseconds interval{60'000};
    std::chrono::milliseconds timeout{10'000};
    /// Between two runs, however often ask() is called.
    std::chrono::milliseconds minimum_pause{5'000};
    std::size_t max_output_bytes = std::size_t{8} << 20;
  };
  using Handler = std::function<void(std::vector<QueuedJob>)>;

  /// Runs the command at once and then every interval. `handler` is called on the poller's thread.
  SqueuePoller(const Clock& clock, Options options, Handler handler);
  /// Kills a running command.
  ~SqueuePoller();
  SqueuePoller(const SqueuePoller&) = delete;
  SqueuePoller& operator=(const SqueuePoller&) = delete;

  /// Somebody met a job that is not known: do not wait for the interval. Any thread.
  void ask();
  /// Runs that failed: not started, exit status, time limit, too much output, no answer. Any
  /// thread.
  [[nodiscard]] std::uint64_t failures() const { return failures_; }

 private:
  void run();
  bool pause();
  void poll_once();

  const Clock& clock_;
  const Options options_;
  const Handler handler_;
  ScopedFd cancel_;  // readable once the poller ends
  std::atomic<std::uint64_t> failures_{0};
  LogLimiter limiter_{1, 600'000'000'000};
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stopping_ = false;  // guarded by mutex_
  bool asked_ = false;     // guarded by mutex_
  std::thread thread_;
};

}  // namespace ncclscope::agent

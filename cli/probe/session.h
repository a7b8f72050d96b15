// SPDX-License-Identifier: Apache-2.0
//
// One run of the probe as a process of it sees it. Process 0 conducts: it starts its worker (two,
// if the whole run has one GPU only), lets the others in, and moves lines until all are done or
// time is over. The others start their worker and carry lines between it and process 0.
//   Workers are processes of their own because what hangs in a driver can neither be interrupted
//   nor always killed: whoever waits for this program gets an answer all the same.
//   Thread: one.
#pragma once

#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "cli/probe/conductor.h"
#include "cli/probe/place.h"

namespace ncclscope::cli::probe {

struct SessionOptions {
  Place place;
  std::string rendezvous;   // folder; empty = by the place's host and ports
  std::string worker;       // path of the program
  std::string worker_root;  // where it finds sys/ and proc/; empty: the machine's own
  std::string gpus;         // "0,3"; empty = by the place
  std::chrono::milliseconds limit{120'000};
  const std::atomic<bool>* interrupted = nullptr;
};

enum class End : unsigned char {
  kMeasured,  // all ranks have measured everything
  kFailed,    // it could not be run, or broke off
  kTimeout,   // not within the limit
};

struct Outcome {
  End end = End::kFailed;
  std::string why;  // one line; empty if measured
};

/// Process 0's part. `conductor` has one worker for each process of the place. The verdict is sent
/// to the others by finish(), which also ends all workers: call it always.
class Leader {
 public:
  Leader(const SessionOptions& options, Conductor& conductor);
  ~Leader();
  Leader(const Leader&) = delete;
  Leader& operator=(const Leader&) = delete;

  [[nodiscard]] Outcome run();
  /// @param status  what all processes end with
  /// @return workers that could not be ended: "worker 4711 is stuck in the driver"; else empty
  std::string finish(int status, const std::string& why);
  /// Both of its workers share the only GPU there is.
  [[nodiscard]] bool shares_gpu() const;

 private:
  struct Parts;
  std::unique_ptr<Parts> parts_;
};

/// The part of any other process: ends with process 0's status. What goes wrong here is told in
/// `why`.
[[nodiscard]] int follow(const SessionOptions& options, std::string& why);

}  // namespace ncclscope::cli::probe

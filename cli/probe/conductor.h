// SPDX-License-Identifier: Apache-2.0
//
// Brings workers together, on this node and others: waits until all are ready, hands NCCL's unique
// id round, gives out ranks, collects results, and knows who has got how far when time runs out.
//   Thread: pure; lines go in and out as text (cli/probe/protocol.h), the caller moves them.
//   A worker is whoever holds a place, also before it has come.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cli/probe/plan.h"
#include "cli/probe/protocol.h"

namespace ncclscope::cli::probe {

struct GpuOfWorker {
  std::string pci, name;
};

struct Worker {
  std::string who;   // "process 3", for messages
  std::string host;  // where it runs; empty until it has come
  bool ready = false, done = false, gone = false;
  int nccl = 0, runtime = 0, driver = 0;
  std::vector<GpuOfWorker> gpus;
  std::vector<std::string> link_lines;
  std::uint32_t first_rank = 0;
  std::string stage;  // the last it named
};

/// A line of the table, over all ranks.
struct Measured {
  Row row;
  std::uint32_t heard = 0;  // ranks
  double seconds_sum = 0, seconds_most = 0;
  std::uint32_t slowest_rank = 0;
  std::uint64_t wrong = 0;  // elements
  std::uint32_t checked_ranks = 0;

  /// Mean over the ranks, as nccl-tests has it by default.
  [[nodiscard]] double seconds() const { return heard == 0 ? 0 : seconds_sum / heard; }
};

class Conductor {
 public:
  struct Message {
    std::size_t to = 0;
    std::string line;
  };

  /// @param workers  how many there will be; all are waited for
  Conductor(Plan plan, std::size_t workers);

  /// Adds one more to the workers that are waited for.
  std::size_t add_worker();
  /// The worker has come; before that its lines are refused.
  void arrived(std::size_t worker, std::string who, std::string host);
  void take(std::size_t from, std::string_view line);
  /// No more lines come from there. Not a failure after "done".
  void ended(std::size_t worker, const std::string& why);
  /// Goes on from "all are ready"; until then a caller may add workers.
  void begin();
  [[nodiscard]] bool all_ready() const;

  /// Lines to be sent, in order; each is given out once.
  [[nodiscard]] std::vector<Message> outgoing();

  [[nodiscard]] bool all_done() const;
  /// What went wrong first; empty while all is well.
  [[nodiscard]] const std::string& failure() const { return failure_; }
  /// Who is being waited for, and in what they are: "process 5 did not come; rank 3 on n2 in
  /// AllReduce of 4096 bytes".
  [[nodiscard]] std::string waiting_for() const;

  [[nodiscard]] const Plan& plan() const { return plan_; }
  [[nodiscard]] std::uint32_t ranks() const { return ranks_; }  // 0 before begin()
  [[nodiscard]] std::uint32_t nodes() const;
  [[nodiscard]] const std::vector<Worker>& workers() const { return workers_; }
  [[nodiscard]] const std::vector<Measured>& measured() const { return measured_; }

 private:
  void fail(const std::string& why);
  void start_all(const std::string& id);
  void take_version(Worker& worker, std::string_view rest);
  void take_gpu(Worker& worker, std::string_view rest);
  void take_id(std::size_t from, std::string_view rest);
  void take_result(const Worker& worker, std::string_view line);
  [[nodiscard]] std::string place_of(const Worker& worker) const;

  Plan plan_;
  std::vector<Worker> workers_;
  std::vector<Measured> measured_;
  std::vector<Message> outgoing_;
  std::string failure_;
  std::uint32_t ranks_ = 0;
  bool begun_ = false, started_ = false;
};

}  // namespace ncclscope::cli::probe

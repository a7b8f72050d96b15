// SPDX-License-Identifier: Apache-2.0
//
// Dumps of PyTorch's Flight Recorder as rows of `operations`: the last collectives of each rank,
// with the GPU's time where it was measured (TORCH_NCCL_ENABLE_TIMING=1).
#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "cli/diagnose/flight_recorder.h"
#include "cli/report/operations.h"

namespace ncclscope::cli::report {

/// One row. What the dump does not say is empty or 0.
struct FlightRow {
  std::string communicator;  // made of the group's name and ranks: equal on all ranks
  std::string communicator_name, collective;
  std::int64_t rank = -1, ranks = 0, sequence = 0;
  std::int64_t bytes = 0, rank_bytes = 0;
  std::int64_t time_ns = 0, enqueued_ns = 0;
  double seconds = 0, algbw = 0, busbw = 0;
  std::string datatype;
};

/// Only operations that NCCL knows. Pure.
[[nodiscard]] std::vector<FlightRow> flight_rows(const FlightDump& dump);

class FlightSource : public OperationSource {
 public:
  /// `pool` must outlive this.
  FlightSource(std::vector<FlightDump> dumps, StringPool& pool)
      : dumps_(std::move(dumps)), pool_(pool) {}

  [[nodiscard]] std::unique_ptr<OperationStream> next() override;

 private:
  std::vector<FlightDump> dumps_;
  std::atomic<std::size_t> taken_{0};
  StringPool& pool_;
};

}  // namespace ncclscope::cli::report

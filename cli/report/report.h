// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope report`: from input files to a folder with Parquet, statistics and pictures. Steps:
// find inputs, write operations/job=*/ (streaming), make the view `operations` over them, compute,
// write the outputs. All of it is bounded by `memory_bytes`, whatever the input size.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "cli/report/throughput.h"

namespace ncclscope::cli::report {

struct ReportOptions {
  std::vector<std::string> paths;
  std::filesystem::path output;
  std::string job;                   // of Inspector logs, instead of what their path says
  unsigned threads = 0;              // 0 = one per core, at most 8; the memory bounds them too
  std::uint64_t memory_mb = 500;     // of the whole process
  std::uint64_t terminal_rows = 20;  // of each table
  bool overwrite = false;
  bool strict = false;  // anything that could not be read makes the exit status 1
  bool quiet = false;
  bool pictures = true;
  std::vector<std::string> compare;  // two: inputs, or folders of reports
  double least_change = 0.03;        // of a bandwidth, that counts in a comparison
  ThroughputOptions throughput;
  std::vector<std::string> flight_recorder;  // dumps of PyTorch's Flight Recorder, folders of them
};

/// An exit status of commands.h. Throws DuckdbError, InputError, std::filesystem::filesystem_error.
[[nodiscard]] int run_report(const ReportOptions& options);

}  // namespace ncclscope::cli::report

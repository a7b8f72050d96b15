// SPDX-License-Identifier: Apache-2.0
//
// Where a job's agents are: named by the user, asked of SLURM, or of a Prometheus that scrapes
// them; and what that Prometheus remembers of the job. Errors are thrown as std::runtime_error.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "verdict/judge.h"

namespace ncclscope::cli {

/// "a,b,c" apart, without empty ones.
[[nodiscard]] std::vector<std::string> split_list(std::string_view text);

/// host -> host:port; host:port, [v6]:port and paths stay. The node itself is asked at its socket
/// if `local_socket` exists.
[[nodiscard]] std::string address_of(const std::string& host, int port,
                                     const std::string& local_name,
                                     const std::string& local_socket);

/// The nodes of a job, from SLURM_JOB_NODELIST inside it, else from squeue.
[[nodiscard]] std::vector<std::string> slurm_nodes(const std::string& job_id);

/// Runs a program without a shell and returns its standard output; at most `limit`.
[[nodiscard]] std::string output_of(const std::vector<std::string>& arguments,
                                    std::chrono::milliseconds limit);

/// A Prometheus' HTTP API.
class Prometheus {
 public:
  Prometheus(std::string url, std::string ca, std::chrono::milliseconds limit);

  struct Sample {
    std::map<std::string, std::string> labels;
    double value = 0;
  };
  /// An instant query.
  [[nodiscard]] std::vector<Sample> query(const std::string& expression) const;

  struct Series {
    std::map<std::string, std::string> labels;
    std::vector<std::pair<double, double>> samples;  // seconds since 1970, value
  };
  /// A range query; times in seconds since 1970.
  [[nodiscard]] std::vector<Series> query_range(const std::string& expression, double start,
                                                double end, double step_seconds) const;

  /// Hosts whose agents reported the job within the last ten minutes.
  [[nodiscard]] std::vector<std::string> nodes(const std::string& job_id) const;

 private:
  /// The answer to /api/v1/<path>, with `expression` as query.
  [[nodiscard]] std::string ask(const std::string& path, const std::string& expression) const;

  std::string url_, ca_;
  std::chrono::milliseconds limit_;
};

/// The vector of an answer to an instant query. Pure.
[[nodiscard]] std::vector<Prometheus::Sample> parse_vector(const std::string& body);
/// Bandwidths of transfers as recording rules remember them, where the bytes per operation are
/// known too. Pure.
[[nodiscard]] std::map<verdict::Shape, verdict::ShapeSample> transfer_baselines(
    const std::vector<Prometheus::Sample>& bandwidths,
    const std::vector<Prometheus::Sample>& bytes_per_operation);
/// The matrix of an answer to a range query. Pure.
[[nodiscard]] std::vector<Prometheus::Series> parse_matrix(const std::string& body);
/// As a label's value in a selector, quoted. Pure.
[[nodiscard]] std::string label_value(std::string_view value);
/// "host" of "host:port" or "[v6]:port". Pure.
[[nodiscard]] std::string host_of(const std::string& instance);

}  // namespace ncclscope::cli

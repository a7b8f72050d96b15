// SPDX-License-Identifier: Apache-2.0
//
// One window of a job: who waited, who made the others wait, how fast the transfer itself was. The
// formulas of the recording rules (group ncclscope.window), without those that look at other
// windows. Pure; linear in the window.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "verdict/job.h"
#include "verdict/thresholds.h"

namespace ncclscope::verdict {

struct WindowOptions {
  double coverage = thresholds::kCoverage;
  /// Largest relative difference of the ranks' operation counts from rank 0's. Where ranks are not
  /// read at the same instant, a short window needs more.
  double operations_tolerance = thresholds::kOperationsTolerance;
  double late_seconds = thresholds::kLateSeconds;
};

/// One collective of a communicator. Kept only if all its ranks can be compared.
struct CommunicatorTiming {
  std::uint32_t communicator = kNone;
  Collective collective{};
  std::uint32_t last = kNone;      // the member that spends least in it: it came last
  double operations = 0;           // per second, of rank 0
  double min_seconds = 0;          // of an operation, of the member that came last
  double others_mean_seconds = 0;  // of an operation, of all the others
  double caused = 0;               // operations * (others' mean - min)
  double bus_bytes_per_operation = 0;
  double transfer = 0;          // bus bytes per second of the member that waited least
  std::string size, algorithm;  // that make up most of its time; empty = none does
};

/// Where a set of GPUs stands in its job.
enum class RoleKind : std::uint8_t {
  kStage,    // of the pipeline
  kReplica,  // of data parallelism
  kExpert,
  kGroup,  // the members of one communicator
};
struct Role {
  RoleKind kind{};
  std::string_view dimension;          // of the communicators that say so
  std::int32_t rank = -1;              // in those; of stage, replica and expert
  std::uint32_t communicator = kNone;  // of kGroup
  std::vector<std::uint32_t> gpus;     // sorted
};

struct WindowResult {
  double seconds = 0;
  // As Job::gpus, seconds per second.
  /// In collectives and in Recv. A step takes all GPUs of a job the same time, so the one that
  /// communicates least works longest.
  std::vector<double> communication;
  /// How much less it communicates than its peers do: the GPUs at the same place of the pipeline,
  /// and with the same expert.
  std::vector<double> lag;
  /// For whom it waits in collectives, and what it costs the others there. Shown, not judged by.
  std::vector<double> wait, caused;
  std::vector<double> queue;
  /// By how much longer its operations queue than the median GPU's: hosts run ahead of their GPUs,
  /// so operations queue everywhere, but who calls late lets the others' queue behind the one that
  /// waits for it, and who computes longer starts its own late. Empty: not known.
  std::vector<std::optional<double>> queue_excess;
  std::vector<NetworkRates> send, receive;
  std::vector<char> judged;  // all its collectives can be compared
  std::vector<char> late;    // by this window alone
  /// Alone with its expert, and lags no more than its share of tokens is larger than others', or
  /// its share is not known.
  std::vector<char> loaded;
  /// Seconds per second by which its peers as a whole work longer than the job's GPUs do; 0 where
  /// that is little.
  std::vector<double> uneven;
  double noise = 0;      // of lag
  double threshold = 0;  // of lag, by this window alone
  std::vector<CommunicatorTiming> timings;
  /// Seconds per byte as multiples of the job's median, where that is too much; 0 = it is not. As
  /// Job::gpus.
  std::vector<double> slow_send, slow_receive;
  /// A slow NIC is seen twice: in what its GPU sends, and in what is sent to it. Those whose own
  /// sends are slow and to which a slow one sends; and slow ones that send to such a one and are
  /// none themselves. As Job::gpus.
  std::vector<char> slow_nic, explained;
  /// Seconds per byte that what has come waits for the GPU, as multiples of the job's median, where
  /// that is too much and the GPU's own sends are not held up; 0 = it is not. As Job::gpus.
  std::vector<double> slow_taking;
  std::optional<double> step_seconds;

  [[nodiscard]] bool anybody_late() const;
  /// The collective in which `gpu` costs the others most; null if it came last in none.
  [[nodiscard]] const CommunicatorTiming* worst(const Job& job, std::uint32_t gpu) const;
};

[[nodiscard]] WindowResult evaluate(const Job& job, const Window& window,
                                    const WindowOptions& options = {});

/// From where on a GPU is late, of a noise.
[[nodiscard]] double late_threshold(double noise, double late_seconds);

/// The roles whose GPUs are exactly `gpus` (sorted).
[[nodiscard]] std::vector<Role> roles_of(const Job& job, const std::vector<std::uint32_t>& gpus);

}  // namespace ncclscope::verdict

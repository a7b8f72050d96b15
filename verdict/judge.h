// SPDX-License-Identifier: Apache-2.0
//
// The verdict: windows in, findings out. Keeps the last windows of a job and its baselines, as the
// recording rules do (three windows running; the same job before), and puts findings in the order
// of weight: hangs, late GPUs (rolled up to node, group or replica), imbalance, slow transfer.
//   Not thread-safe; no clocks: windows follow each other as they are given.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "verdict/hang.h"
#include "verdict/job.h"
#include "verdict/thresholds.h"
#include "verdict/window.h"

namespace ncclscope::verdict {

enum class Kind : std::uint8_t {
  kHang,
  kWaiting,  // information: not yet a hang
  kLateGpu,
  kLateNode,
  kLateGroup,    // all members of one communicator
  kLateReplica,  // all GPUs of one replica of data parallelism
  kSlowTransfer,
  kSlowLink,
  kSlowNic,
  kImbalance,  // information
  kBlind,      // information: telemetry sees too little of a communicator
};
/// "hang", "late_gpu", ...
[[nodiscard]] std::string_view name(Kind kind);
/// Something is wrong; else it is only told.
[[nodiscard]] bool is_fault(Kind kind);

enum class Confidence : std::uint8_t {
  kLow,     // what is not known could change the verdict
  kMedium,  // its rule holds, in fewer windows than the alerts ask for, or with answers missing
  kHigh,    // all that the alerts ask for was seen
};
[[nodiscard]] std::string_view name(Confidence confidence);

/// Why a GPU is late.
enum class Reason : std::uint8_t { kUnknown, kHost, kGpu, kEither };
[[nodiscard]] std::string_view name(Reason reason);

struct Finding {
  Kind kind{};
  Confidence confidence = Confidence::kHigh;
  HangClass hang_class{};                // of kHang and kWaiting
  std::vector<std::uint32_t> gpus;       // accused; of slow transfer: suspects
  std::vector<std::uint32_t> members;    // accused, of kHang and kWaiting
  std::uint32_t communicator = kNone;    // concerned; of kLateGroup: whose members they are
  std::optional<Collective> collective;  // that shows it most
  std::int32_t replica = -1;             // of kLateReplica
  Reason reason = Reason::kUnknown;      // of kLateGpu; of slow transfer kGpu: they take slowly
  /// Hang: waiting since. Late, imbalance: works longer than its peers, who wait for it, per
  /// second; of several, the most.
  double seconds = 0;
  double wait_seconds = 0;       // late: what it waits itself, per second
  double queue_seconds = 0;      // late: its queue, per second
  double queue_excess = 0;       // late: longer than the median GPU's queue, per second
  double threshold_seconds = 0;  // hang: from here on; late: per second
  double share = 0;              // slow transfer: of its baseline; link: times the median
  double observed_seconds = 0;   // seen in windows running, of so long together
  std::uint32_t unreported = 0;  // hang: ranks of which nothing is known
  bool point_to_point = false;   // hang: what they wait in are Send and Recv
  bool unobserved = false;       // hang: of the accused's last operations nobody sees the end
  bool hidden = false;           // late: steps are no slower than before
};

/// What a transfer is compared by: a communicator's identity plays no part.
struct Shape {
  Collective collective{};
  std::string size, algorithm, dimension;
  std::uint32_t nranks = 0, nnodes = 0;
  bool operator==(const Shape&) const = default;
  bool operator<(const Shape& o) const {
    return std::tie(collective, size, algorithm, dimension, nranks, nnodes) <
           std::tie(o.collective, o.size, o.algorithm, o.dimension, o.nranks, o.nnodes);
  }
};
struct ShapeSample {
  double transfer = 0;  // bus bytes per second of the rank that waits least
  double bytes = 0;     // bus bytes of an operation
};

/// What is known from elsewhere of the job as it was before; empty = nothing.
struct Baseline {
  std::vector<double> lag;  // as Job::gpus, seconds per second; NaN = not known
  std::optional<double> step_seconds;
  std::map<Shape, ShapeSample> shapes{};
};

struct JudgeOptions {
  WindowOptions window;
  HangOptions hang;
  /// Windows in which a GPU must be late, running, for full confidence.
  std::uint32_t windows = 3;
  /// A verdict of fewer windows is told too, with less confidence.
  bool provisional = false;
  /// Windows that a baseline must rest on, ...
  std::uint32_t baseline_windows =
      static_cast<std::uint32_t>(thresholds::kBaselineSamples * thresholds::kWindowIntervalSeconds /
                                 thresholds::kWindowSeconds);
  /// ... and how many are looked at.
  std::uint32_t baseline_range_windows =
      static_cast<std::uint32_t>(thresholds::kBaselineRangeSeconds / thresholds::kWindowSeconds);
};

class Judge {
 public:
  /// `job` must outlive the judge, and stay as it is.
  explicit Judge(const Job& job, JudgeOptions options = {});

  /// The next window. Windows do not overlap.
  void add(const Window& window);
  /// In place of what the windows so far would give.
  void set_baseline(Baseline baseline) { given_ = std::move(baseline); }

  /// About the last windows.
  [[nodiscard]] std::vector<Finding> findings() const;
  /// About now and the last windows.
  [[nodiscard]] std::vector<Finding> findings(const Standing& standing) const;

  /// Oldest first; no more than `windows`.
  [[nodiscard]] const std::deque<WindowResult>& results() const { return results_; }

 private:
  /// One window, as baselines remember it.
  struct Past {
    bool unaccused = false;   // nobody was accused in it
    std::vector<double> lag;  // as Job::gpus
    std::optional<double> step_seconds;
    std::map<Shape, ShapeSample> shapes;
  };

  [[nodiscard]] Shape shape_of(const CommunicatorTiming& timing) const;
  [[nodiscard]] std::map<Shape, ShapeSample> shapes_of(const WindowResult& result) const;
  void remember(const WindowResult& result);
  void renew_baselines();
  /// Who is late in the last `windows` windows, each of them.
  struct Late {
    std::vector<std::uint32_t> accused;
    std::vector<std::uint32_t> uneven;  // their work is larger: no fault
    double threshold = 0;               // of lag
  };
  [[nodiscard]] Late late_in(std::size_t windows) const;
  [[nodiscard]] const std::map<Shape, ShapeSample>& shape_baseline() const {
    return given_.shapes.empty() ? own_.shapes : given_.shapes;
  }
  [[nodiscard]] bool was_always_so(std::uint32_t gpu, double lag) const;
  [[nodiscard]] std::size_t running() const;
  void add_late(std::vector<Finding>& out) const;
  void add_imbalance(std::vector<Finding>& out) const;
  void add_links(std::vector<Finding>& out) const;
  void add_slow_transfer(std::vector<Finding>& out) const;
  void narrow_to_slow_taking(Finding& finding) const;
  void find_slow(const WindowResult& result);
  [[nodiscard]] Finding late_finding(const std::vector<std::uint32_t>& gpus,
                                     double threshold) const;
  [[nodiscard]] Confidence confidence_of(std::size_t windows) const;

  const Job& job_;
  JudgeOptions options_;
  std::deque<WindowResult> results_;
  /// Of results_: timings (by place) whose transfer is slow, and their share of the baseline.
  std::deque<std::map<std::size_t, double>> slow_;
  std::deque<Past> past_;
  Baseline given_, own_;
};

}  // namespace ncclscope::verdict

// SPDX-License-Identifier: Apache-2.0
//
// Written by deploy/prometheus/render.py from thresholds.json: change that, not this. Windows and
// thresholds of verdicts, the same as those of the recording rules and alerts.
#pragma once

namespace ncclscope::verdict::thresholds {

/// window of rates and verdicts; at least 5 steps of training, and 4 scrapes
inline constexpr double kWindowSeconds = 300;
/// how often verdicts and bandwidths are evaluated
inline constexpr double kWindowIntervalSeconds = 60;
/// how often baselines are evaluated
inline constexpr double kBaselineIntervalSeconds = 300;
/// how far back the same job is looked at
inline constexpr double kBaselineRangeSeconds = 21600;
/// evaluations a baseline must rest on; more than fit into three windows, or a fault would be one
inline constexpr double kBaselineSamples = 30;
/// how far back other jobs are looked at
inline constexpr double kFleetRangeSeconds = 604800;
/// distance of the looks at other jobs
inline constexpr double kFleetStepSeconds = 3600;
/// jobs a baseline of the fleet must rest on
inline constexpr double kFleetJobs = 3;
/// a wait is a hang from here on
inline constexpr double kHangSeconds = 60;
/// a wait is a hang from this multiple of the job's longest wait that ended by itself, if that is
/// longer than hang_seconds
inline constexpr double kHangMultiple = 3;
/// from here on a wait is looked into, and told as information
inline constexpr double kStalledSeconds = 30;
/// a running process that tells an agent nothing for so long is stopped (ncclscope diagnose)
inline constexpr double kSilentSeconds = 10;
/// how far back a rank of a stalled communicator is looked for that reports no more
inline constexpr double kLostOffsetSeconds = 300;
/// nobody calls NCCL for so long
inline constexpr double kOutsideForSeconds = 600;
/// largest relative difference of the ranks' operation counts from rank 0's
inline constexpr double kOperationsTolerance = 0.01;
/// least share of recorded operations for a verdict
inline constexpr double kCoverage = 0.99;
/// least seconds by which a late GPU works longer than its peers, per second
inline constexpr double kLateSeconds = 0.01;
/// a GPU is compared with this quantile of its peers' time in communication
inline constexpr double kPeerQuantile = 0.6;
/// this quantile of GPUs' distances from the median of their node is a job's noise
inline constexpr double kNoiseQuantile = 0.25;
/// this quantile is it where that is more, ...
inline constexpr double kWideNoiseQuantile = 0.33;
/// ... up to this: of eight GPUs of a node two make the median and are always near it, so a quarter
/// can be small by chance; but half of a small job's GPUs differ by far more where one is late
inline constexpr double kWideNoiseSeconds = 0.004;
/// a late GPU lags by at least this multiple of the noise, in all windows
inline constexpr double kNoiseMultiple = 13;
/// accused are those that lag at least by this share of the job's largest lag
inline constexpr double kDominance = 0.5;
/// below this multiple of what a GPU always lagged, its lateness is imbalance
inline constexpr double kImbalanceShare = 1.5;
/// host or GPU is told where queue time differs from the median of the job's GPUs by more than this
/// share of what a late GPU causes
inline constexpr double kQueueShare = 0.1;
/// transfer bandwidth below this share of its baseline is told
inline constexpr double kBandwidthShare = 0.9;
/// window in which a drop of bandwidth is seen: just under six times the scrape interval, so that
/// it holds five intervals
inline constexpr double kRecentSeconds = 89;
/// evaluations that a job's usual noise of bandwidth must be known from
inline constexpr double kRecentSamples = 240;
/// transfer bandwidth below its median by this multiple of its standard deviation has dropped, in a
/// job with one communicator and one kind of collective
inline constexpr double kDropDeviations = 5.1;
/// this much more for each e-fold number of communicators, of which the slowest is looked at
inline constexpr double kDropLeastDeviations = 0.75;
/// a drop lasts until the bandwidth is above this share of its median again
inline constexpr double kDropEndShare = 0.98;
/// that deviation is taken as larger by this share of the evaluations it is known from: few of them
/// may show too little of it
inline constexpr double kFewSamples = 22;
/// and it must be below this share of the median
inline constexpr double kDropShare = 0.97;
/// largest difference of bytes per operation (relative) and of the dominant size's share while a
/// drop is looked for
inline constexpr double kMixTolerance = 0.02;
/// least share of a communicator's time that one size and algorithm must make up to be held against
/// a baseline
inline constexpr double kDominantShare = 0.9;
/// largest relative difference of bytes per operation from those of a baseline
inline constexpr double kBytesTolerance = 0.1;
/// seconds per byte above this multiple of the median of the job's GPUs are a slow link
inline constexpr double kNetworkOutlier = 1.5;
/// and above that median by this multiple of the GPUs' median distance from it, as a share: where
/// all differ, nobody stands out
inline constexpr double kNetworkNoiseMultiple = 5;
/// GPUs whose network phases must be known for that
inline constexpr double kNetworkGpus = 4;
/// a GPU's network phases are known from this many operations in a window on, one sampled block: of
/// a few, one that hung for a moment decides
inline constexpr double kNetworkOperations = 16;
/// and are compared if an operation carries at least this share of the bytes that it does for the
/// job's median GPU: of small messages more than the link's speed is seen
inline constexpr double kNetworkBytesShare = 0.5;
/// step time above this multiple of its baseline is told
inline constexpr double kStepShare = 1.05;
/// steps of at most this multiple of their baseline: a late GPU does no harm
inline constexpr double kUnharmedShare = 1.02;

}  // namespace ncclscope::verdict::thresholds

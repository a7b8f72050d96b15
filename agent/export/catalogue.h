// SPDX-License-Identifier: Apache-2.0
//
// The one table of every metric the agent exposes: name, type, unit, labels, help, since when.
// HELP lines, docs/metrics.md, the golden files and dashboard checks come from it. Within schema 1
// rows and labels are only added, and histogram bounds never change.
//   Thread: constant data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace ncclscope::agent {

inline constexpr std::string_view kMetricSchema = "1";

enum class MetricType : std::uint8_t { kCounter, kGauge, kHistogram };
/// As Prometheus's text format spells it.
[[nodiscard]] constexpr const char* name(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

/// Which table of docs/metrics.md a metric belongs to.
enum class MetricGroup : std::uint8_t {
  kIdentity,
  kCollective,
  kPointToPoint,
  kRank,
  kProgress,
  kNetwork,
  kStep,
  kTelemetry,
  kPlugin,
  kAgent,
};
inline constexpr std::size_t kMetricGroupCount = 10;

/// In order of exposition.
enum class Metric : std::uint8_t {
  kJobInfo,
  kJobThroughput,
  kCommunicatorInfo,
  kRankInfo,
  kRankState,
  kGpuInfo,
  kGpuCommunicators,
  kCommunicatorLocalRanks,
  kCollectiveOperations,
  kCollectiveBytes,
  kCollectiveBusBytes,
  kCollectiveBusySeconds,
  kCollectiveDuration,
  kP2pOperations,
  kP2pBytes,
  kP2pBusBytes,
  kP2pBusySeconds,
  kP2pDuration,
  kCommunicatorCollectiveSeconds,
  kRankCollectiveSeconds,
  kRankCollectiveOperations,
  kRankCollectiveBusBytes,
  kRankP2pSeconds,
  kRankP2pOperations,
  kRankP2pBusBytes,
  kRankQueueSeconds,
  kRankQueueOperations,
  kCommunicatorOperations,
  kCommunicatorInflight,
  kCommunicatorOldestSignature,
  kStalledRankSeconds,
  kStalledRankOperations,
  kNetworkPhaseSeconds,
  kNetworkBytes,
  kNetworkOperations,
  kNetworkPeerInfo,
  kStepSeconds,
  kStepCommunicationRatio,
  kGpuCommunicationSeconds,
  kGpuCollectiveSeconds,
  kGpuBlockingSeconds,
  kOperationsUnobserved,
  kOperationsMissing,
  kTelemetryCoverage,
  kUntimedRatio,
  kJobSeries,
  kJobFoldStep,
  kPluginInfo,
  kPluginRdmaDevices,
  kPluginEventsSeen,
  kPluginEventsRecorded,
  kPluginEventsDropped,
  kPluginEventsOpen,
  kPluginRecordsWritten,
  kPluginRecordsReceived,
  kPluginRecordsEarlier,
  kPluginRecordsLost,
  kPluginBooksBalanced,
  kPluginCallbacks,
  kPluginCallbackSeconds,
  kPluginSenderSeconds,
  kPluginOverhead,
  kPluginRecentOverhead,
  kPluginBudget,
  kPluginGovernor,
  kPluginGovernorChanges,
  kPluginGovernorSince,
  kPluginGovernorTrigger,
  kPluginDetail,
  kPluginGpuTiming,
  kPluginNcclCost,
  kPluginNcclCostError,
  kPluginNcclCostBlocks,
  kPluginInspectorLines,
  kAgentBuildInfo,
  kAgentStartTime,
  kAgentConnections,
  kAgentConnectionsAccepted,
  kAgentConnectionsRefused,
  kAgentSessionsRefused,
  kAgentIdentityMismatches,
  kAgentSqueueFailures,
  kAgentRdmaPorts,
  kNodeFindings,
  kAgentFrames,
  kAgentReceivedBytes,
  kAgentRecords,
  kAgentUnknownRecords,
  kAgentDecodeErrors,
  kAgentQuotaExceeded,
  kAgentSeries,
  kAgentSeriesLimit,
  kAgentSeriesFolded,
  kAgentFolds,
  kAgentArchiveOperations,
  kAgentArchiveDropped,
  kAgentArchiveWrittenBytes,
  kAgentArchiveStoredBytes,
  kAgentArchiveLimitBytes,
  kAgentArchiveSegments,
  kAgentArchiveDeleted,
  kAgentSnapshotAge,
  kAgentScrapes,
  kAgentScrapeSeconds,
  kAgentCpuSeconds,
  kAgentResidentMemory,
};
inline constexpr std::size_t kMetricCount =
    static_cast<std::size_t>(Metric::kAgentResidentMemory) + 1;
inline constexpr std::size_t kMaxLabels = 12;

/// Label names of a metric, in order of exposition.
struct LabelNames {
  std::array<std::string_view, kMaxLabels> names{};
  std::size_t count = 0;

  [[nodiscard]] constexpr std::size_t size() const noexcept { return count; }
  [[nodiscard]] constexpr std::string_view operator[](std::size_t i) const noexcept {
    return names[i];
  }
  [[nodiscard]] constexpr const std::string_view* begin() const noexcept { return names.data(); }
  [[nodiscard]] constexpr const std::string_view* end() const noexcept {
    return names.data() + count;
  }
};

struct MetricDefinition {
  Metric id{};
  MetricGroup group{};
  std::string_view name;  // as in text format 0.0.4: counters end in _total
  MetricType type{};
  std::string_view unit;  // "seconds", "bytes", "ratio"; empty where the number counts things
  LabelNames labels;
  std::string_view help;
  std::string_view since;

  /// Name of the OpenMetrics family: counters without _total.
  [[nodiscard]] constexpr std::string_view family() const noexcept {
    return type == MetricType::kCounter
               ? name.substr(0, name.size() - std::string_view("_total").size())
               : name;
  }
};

/// All metrics, in order of exposition: catalogue()[i].id == i.
[[nodiscard]] std::span<const MetricDefinition, kMetricCount> catalogue() noexcept;
[[nodiscard]] const MetricDefinition& definition(Metric metric) noexcept;

/// Upper bounds of every duration histogram in seconds (+Inf excluded): 10 us * 4^i.
[[nodiscard]] std::span<const double> duration_bounds() noexcept;
/// The same as label values `le`, spelled alike in every format.
[[nodiscard]] std::span<const std::string_view> duration_bound_labels() noexcept;
/// Those of one histogram: of durations, or of steps (kStepBoundsNs).
[[nodiscard]] std::span<const double> histogram_bounds(Metric metric) noexcept;
[[nodiscard]] std::span<const std::string_view> histogram_bound_labels(Metric metric) noexcept;

/// The text of docs/metrics.md.
[[nodiscard]] std::string metrics_reference();

}  // namespace ncclscope::agent

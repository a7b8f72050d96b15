// SPDX-License-Identifier: Apache-2.0
//
// The columns of `operations`: one row per operation and rank, as written to Parquet and as every
// query of the report sees it. The only place that names them; docs/parquet-schema.md is the same
// list for people (a test compares them). Columns are only ever appended. Pure data.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

namespace ncclscope::cli::report {

enum class ColumnType : std::uint8_t { kText, kInt32, kInt64, kDouble };

struct Column {
  const char* name;
  ColumnType type;
};

/// Indexes into kColumns; ColumnId::kCount is their number.
enum class ColumnId : std::uint8_t {
  kSource,
  kFile,
  kCluster,
  kRun,
  kStep,
  kNode,
  kPid,
  kGpu,
  kCommunicator,
  kCommunicatorName,
  kRank,
  kRanks,
  kNodes,
  kDimension,
  kCommunicationClass,
  kCollective,
  kSequence,
  kAlgorithm,
  kProtocol,
  kDatatype,
  kReduction,
  kRoot,
  kPeer,
  kChannels,
  kBytes,
  kRankBytes,
  kTimeNs,
  kEnqueuedNs,
  kStartNs,
  kEndNs,
  kSeconds,
  kTransferSeconds,
  kQueueSeconds,
  kAlgbw,
  kBusbw,
  kTiming,
  kNcclVersion,
  kPluginVersion,
  kFused,
  kCount
};
inline constexpr std::size_t kColumnCount = static_cast<std::size_t>(ColumnId::kCount);

/// In the order of ColumnId. `job` is not among them: it is the partition (a folder job=<id>), and
/// a column of the view.
inline constexpr std::array<Column, kColumnCount> kColumns{{
    {"source", ColumnType::kText},
    {"file", ColumnType::kText},
    {"cluster", ColumnType::kText},
    {"run", ColumnType::kInt32},
    {"step", ColumnType::kText},
    {"node", ColumnType::kText},
    {"pid", ColumnType::kInt64},
    {"gpu", ColumnType::kText},
    {"communicator", ColumnType::kText},
    {"communicator_name", ColumnType::kText},
    {"rank", ColumnType::kInt32},
    {"ranks", ColumnType::kInt32},
    {"nodes", ColumnType::kInt32},
    {"dimension", ColumnType::kText},
    {"communication_class", ColumnType::kText},
    {"collective", ColumnType::kText},
    {"sequence", ColumnType::kInt64},
    {"algorithm", ColumnType::kText},
    {"protocol", ColumnType::kText},
    {"datatype", ColumnType::kText},
    {"reduction", ColumnType::kText},
    {"root", ColumnType::kInt32},
    {"peer", ColumnType::kInt32},
    {"channels", ColumnType::kInt32},
    {"bytes", ColumnType::kInt64},
    {"rank_bytes", ColumnType::kInt64},
    {"time_ns", ColumnType::kInt64},
    {"enqueued_ns", ColumnType::kInt64},
    {"start_ns", ColumnType::kInt64},
    {"end_ns", ColumnType::kInt64},
    {"seconds", ColumnType::kDouble},
    {"transfer_seconds", ColumnType::kDouble},
    {"queue_seconds", ColumnType::kDouble},
    {"algbw", ColumnType::kDouble},
    {"busbw", ColumnType::kDouble},
    {"timing", ColumnType::kText},
    {"nccl_version", ColumnType::kText},
    {"plugin_version", ColumnType::kText},
    {"fused", ColumnType::kInt32},
}};

[[nodiscard]] constexpr const char* column_name(ColumnId column) {
  return kColumns[static_cast<std::size_t>(column)].name;
}

/// Some of the columns, by bit.
using ColumnSet = std::uint64_t;
static_assert(kColumnCount <= 64);
inline constexpr ColumnSet kAllColumns = ~ColumnSet{0} >> (64 - kColumnCount);
template <typename... Columns>
[[nodiscard]] constexpr ColumnSet column_set(Columns... columns) {
  return ((ColumnSet{1} << static_cast<unsigned>(columns)) | ...);
}
/// What lines of NCCL Inspector can have, and what only verbose ones have.
inline constexpr ColumnSet kInspectorColumns = column_set(
    ColumnId::kSource, ColumnId::kFile, ColumnId::kNode, ColumnId::kPid, ColumnId::kCommunicator,
    ColumnId::kCommunicatorName, ColumnId::kRank, ColumnId::kRanks, ColumnId::kNodes,
    ColumnId::kCommunicationClass, ColumnId::kCollective, ColumnId::kSequence, ColumnId::kAlgorithm,
    ColumnId::kProtocol, ColumnId::kPeer, ColumnId::kBytes, ColumnId::kRankBytes, ColumnId::kTimeNs,
    ColumnId::kSeconds, ColumnId::kAlgbw, ColumnId::kBusbw, ColumnId::kTiming,
    ColumnId::kPluginVersion);
inline constexpr ColumnSet kTraceColumns =
    column_set(ColumnId::kChannels, ColumnId::kEnqueuedNs, ColumnId::kStartNs, ColumnId::kEndNs,
               ColumnId::kQueueSeconds);

/// Partition column of the Parquet folders and of the view.
inline constexpr const char* kJobColumn = "job";
/// Folder of the Parquet files below the report's output folder.
inline constexpr const char* kOperationsFolder = "operations";

/// CREATE VIEW `operations` over the Parquet files of one report; `output` is the report's folder.
/// The view has all columns, also those that the files lack because no input had them.
[[nodiscard]] std::string operations_view(const std::string& output,
                                          const std::string& view = "operations");

/// 'text' as an SQL literal.
[[nodiscard]] std::string sql_literal(const std::string& text);

}  // namespace ncclscope::cli::report

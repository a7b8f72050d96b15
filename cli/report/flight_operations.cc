// SPDX-License-Identifier: Apache-2.0
#include "cli/report/flight_operations.h"

#include <algorithm>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>

#include "proto/model/bandwidth.h"
#include "proto/model/operation.h"

namespace ncclscope::cli::report {
namespace {

model::Function function_of(std::string_view name) {
  for (std::size_t i = 0; i < model::kFunctionCount; ++i) {
    const auto function = static_cast<model::Function>(i);
    if (model::name(function) == name) return function;
  }
  return model::Function::kUnknown;
}

/// In place of a hash of NCCL's.
std::string identity_of(const std::string& name, const std::vector<std::int32_t>& ranks) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3u; };
  for (const char c : name) mix(static_cast<unsigned char>(c));
  for (const std::int32_t rank : ranks) {
    for (unsigned shift = 0; shift < 32; shift += 8)
      mix(static_cast<unsigned char>(static_cast<std::uint32_t>(rank) >> shift));
  }
  std::string out = "0x";
  for (int shift = 60; shift >= 0; shift -= 4) out += "0123456789abcdef"[(hash >> shift) & 15u];
  return out;
}

/// S of nccl-tests, in elements: all that the operation moves.
std::uint64_t elements_of(const FlightEntry& entry, model::Function function) {
  switch (function) {
    case model::Function::kAllGather:
    case model::Function::kGather:
    case model::Function::kReduceScatter:
    case model::Function::kScatter:
      return std::max(entry.input_elements, entry.output_elements);
    default:
      return entry.input_elements > 0 ? entry.input_elements : entry.output_elements;
  }
}

class FlightStream : public OperationStream {
 public:
  FlightStream(const FlightDump& dump, StringPool& pool)
      : rows_(flight_rows(dump)), pool_(pool), dump_(dump) {}

  bool fill(OperationBatch& writer) override {
    for (; at_ < rows_.size() && !writer.full(); ++at_) write(rows_[at_], writer);
    return at_ < rows_.size();
  }

 private:
  void write(const FlightRow& row, OperationBatch& writer) {
    const auto text = [&](ColumnId column, const std::string& value) {
      writer.text(column, pool_.intern(value));
    };
    const auto integer = [&](ColumnId column, std::int64_t value) {
      if (value > 0) writer.integer(column, value);
    };
    text(ColumnId::kSource, "flight_recorder");
    text(ColumnId::kFile, dump_.file.substr(dump_.file.rfind('/') + 1));
    text(ColumnId::kCommunicator, row.communicator);
    text(ColumnId::kCommunicatorName, row.communicator_name);
    writer.integer(ColumnId::kRank, row.rank);
    integer(ColumnId::kRanks, row.ranks);
    text(ColumnId::kCollective, row.collective);
    writer.integer(ColumnId::kSequence, row.sequence);
    text(ColumnId::kDatatype, row.datatype);
    writer.integer(ColumnId::kBytes, row.bytes);
    writer.integer(ColumnId::kRankBytes, row.rank_bytes);
    integer(ColumnId::kTimeNs, row.time_ns);
    integer(ColumnId::kEnqueuedNs, row.enqueued_ns);
    text(ColumnId::kTiming, row.seconds > 0 ? "gpu" : "none");
    text(ColumnId::kNcclVersion, dump_.nccl_version);
    if (row.seconds > 0) writer.number(ColumnId::kSeconds, row.seconds);
    if (row.algbw > 0) writer.number(ColumnId::kAlgbw, row.algbw);
    if (row.busbw > 0) writer.number(ColumnId::kBusbw, row.busbw);
    writer.end_row();
  }

  std::vector<FlightRow> rows_;
  StringPool& pool_;
  const FlightDump& dump_;
  std::size_t at_ = 0;
};

}  // namespace

std::vector<FlightRow> flight_rows(const FlightDump& dump) {
  std::map<std::string_view, const FlightGroup*> groups;
  for (const FlightGroup& group : dump.groups) groups[group.name] = &group;
  std::vector<FlightRow> out;
  for (const FlightEntry& entry : dump.entries) {
    const std::string_view collective = nccl_name(entry.operation);
    const std::uint64_t element = torch_element_bytes(entry.datatype);
    if (collective.empty() || element == 0) continue;
    const model::Function function = function_of(collective);
    const auto group = groups.find(entry.group);
    static const FlightGroup kUnknown;
    const FlightGroup& known = group == groups.end() ? kUnknown : *group->second;
    FlightRow row;
    row.communicator = identity_of(entry.group, known.ranks);
    row.communicator_name = known.description == "undefined" ? "" : known.description;
    row.collective = collective;
    const auto at = std::find(known.ranks.begin(), known.ranks.end(), dump.rank);
    row.rank = at == known.ranks.end() ? dump.rank : at - known.ranks.begin();
    row.ranks = static_cast<std::int64_t>(known.ranks.size());
    row.sequence = entry.sequence;
    row.bytes = static_cast<std::int64_t>(elements_of(entry, function) * element);
    const std::uint64_t own =
        function == model::Function::kReduceScatter ? entry.output_elements : entry.input_elements;
    row.rank_bytes = static_cast<std::int64_t>(own * element);
    row.enqueued_ns = entry.created_ns;
    row.time_ns = entry.completed_ns > 0 ? entry.completed_ns : entry.created_ns;
    row.datatype = entry.datatype;
    if (entry.completed && entry.duration_seconds > 0) {
      row.seconds = entry.duration_seconds;
      row.algbw = static_cast<double>(row.bytes) / row.seconds;
      row.busbw = row.algbw * model::bus_factor(function, static_cast<std::uint32_t>(row.ranks));
    }
    out.push_back(std::move(row));
  }
  return out;
}

std::unique_ptr<OperationStream> FlightSource::next() {
  const std::size_t number = taken_.fetch_add(1);
  if (number >= dumps_.size()) return nullptr;
  return std::make_unique<FlightStream>(dumps_[number], pool_);
}

}  // namespace ncclscope::cli::report

// SPDX-License-Identifier: Apache-2.0
#include "agent/aggregate/inspector_windows.h"

#include <algorithm>
#include <cmath>
#include <tuple>
#include <utility>

namespace ncclscope::agent {
namespace {

auto labels(const InspectorRow& row) {
  return std::tie(row.function, row.comm_name, row.nnodes, row.nranks, row.gpu, row.size.unit,
                  row.size.k, row.algorithm, row.protocol);
}

}  // namespace

std::size_t InspectorWindows::KeyHash::operator()(const Key& key) const {
  // Fibonacci hashing of what differs.
  std::uint64_t hash = key.communicator * 0x9E3779B97F4A7C15u;
  hash ^= static_cast<std::uint64_t>(key.function) |
          static_cast<std::uint64_t>(key.algorithm) << 8 |
          static_cast<std::uint64_t>(key.protocol) << 16 | std::uint64_t{key.size.unit} << 24 |
          std::uint64_t{key.size.k} << 32 |
          static_cast<std::uint64_t>(static_cast<std::uint16_t>(key.gpu.entry)) << 48;
  hash *= 0x9E3779B97F4A7C15u;
  return static_cast<std::size_t>(hash ^ hash >> 32);
}

bool InspectorWindows::add(const Key& key, const std::string& name, std::uint32_t nnodes,
                           std::uint64_t duration_ns, double bus_bytes, std::size_t& room) {
  auto it = current_.find(key);
  if (it == current_.end()) {
    if (room == 0) return false;
    --room;
    it = current_.emplace(key, Sums()).first;
    it->second.name = name.empty() ? std::string(model::inspector::kUnknown) : name;
    it->second.nnodes = nnodes;
  }
  Sums& sums = it->second;
  ++sums.operations;
  const auto ns = static_cast<double>(duration_ns);
  sums.microseconds += ns / 1000;
  if (bus_bytes > 0) {
    ++sums.with_bandwidth;
    sums.logarithms += std::log(bus_bytes / ns);
  }
  return true;
}

void InspectorWindows::rotate(const GpuTable& gpus) {
  last_.reset();
  if (current_.empty()) return;
  std::vector<InspectorRow> rows;
  rows.reserve(current_.size());
  for (auto& [key, sums] : current_) {
    InspectorRow& row = rows.emplace_back();
    row.comm_name = std::move(sums.name);
    row.nranks = key.nranks;
    row.nnodes = sums.nnodes;
    row.gpu = gpus.index(key.gpu);
    row.function = key.function;
    row.algorithm = key.algorithm;
    row.protocol = key.protocol;
    row.size = key.size;
    row.operations = sums.operations;
    row.microseconds = sums.microseconds;
    row.with_bandwidth = sums.with_bandwidth;
    row.logarithms = sums.logarithms;
  }
  current_.clear();
  std::sort(rows.begin(), rows.end(),
            [](const InspectorRow& a, const InspectorRow& b) { return labels(a) < labels(b); });
  std::size_t kept = 0;
  for (std::size_t i = 1; i < rows.size(); ++i) {
    InspectorRow& to = rows[kept];
    InspectorRow& from = rows[i];
    if (labels(to) == labels(from)) {
      to.operations += from.operations;
      to.microseconds += from.microseconds;
      to.with_bandwidth += from.with_bandwidth;
      to.logarithms += from.logarithms;
    } else if (++kept != i) {
      rows[kept] = std::move(from);
    }
  }
  rows.resize(kept + 1);
  rows.shrink_to_fit();
  last_ = std::make_shared<const std::vector<InspectorRow>>(std::move(rows));
}

}  // namespace ncclscope::agent

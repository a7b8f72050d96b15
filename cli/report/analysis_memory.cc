// SPDX-License-Identifier: Apache-2.0
#include "cli/report/analysis_memory.h"

#include <algorithm>
#include <string>

namespace ncclscope::cli::report {
namespace {

constexpr std::uint64_t kBytesOfThread = 100'000'000;
constexpr double kCounted = 0.4;
/// With less many queries fail. Then more than the whole memory may be used.
constexpr std::uint64_t kLeastFree = 150'000'000;

}  // namespace

AnalysisShare analysis_share(std::uint64_t memory_bytes, std::uint64_t resident_bytes,
                             unsigned threads) {
  const std::uint64_t left = memory_bytes - std::min(memory_bytes, resident_bytes);
  const std::uint64_t most = std::max<std::uint64_t>(left / kBytesOfThread, 1);
  return {static_cast<unsigned>(std::min<std::uint64_t>(most, std::max(threads, 1U))),
          static_cast<std::uint64_t>(static_cast<double>(std::max(left, kLeastFree)) * kCounted)};
}

void begin_analysis(Connection& connection, const AnalysisShare& share) {
  connection.save_memory();
  connection.run("SET threads = " + std::to_string(share.threads) + "; SET memory_limit = '" +
                 std::to_string(share.memory_bytes / 1000) + "KB'");
}

}  // namespace ncclscope::cli::report

// SPDX-License-Identifier: Apache-2.0
#include "verdict/job.h"

#include <array>

namespace ncclscope::verdict {
namespace {

constexpr std::array<std::string_view, kCollectives> kNames = {"AllReduce", "AllGather",
                                                               "ReduceScatter", "AlltoAll"};

}  // namespace

std::optional<Collective> synchronising(std::string_view name) {
  for (std::size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i] == name) return static_cast<Collective>(i);
  }
  return {};
}

std::string_view name(Collective collective) {
  return kNames[static_cast<std::size_t>(collective)];
}

}  // namespace ncclscope::verdict

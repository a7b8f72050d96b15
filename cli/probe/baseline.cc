// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/baseline.h"

#include <algorithm>
#include <array>

#include "cli/probe/plan.h"

namespace ncclscope::cli::probe {

std::string_view size_label(std::uint64_t bytes) noexcept {
  struct Class {
    std::uint64_t most;
    std::string_view label;
  };
  constexpr std::array<Class, 6> kClasses{{{std::uint64_t{4} << 10, "<=4KiB"},
                                           {std::uint64_t{64} << 10, "<=64KiB"},
                                           {std::uint64_t{1} << 20, "<=1MiB"},
                                           {std::uint64_t{16} << 20, "<=16MiB"},
                                           {std::uint64_t{256} << 20, "<=256MiB"},
                                           {std::uint64_t{4} << 30, "<=4GiB"}}};
  for (const Class& c : kClasses)
    if (bytes <= c.most) return c.label;
  return ">4GiB";
}

std::string baseline_query(std::uint32_t ranks, std::uint32_t nodes, const std::string& cluster) {
  std::string selector =
      "nranks=\"" + std::to_string(ranks) + "\",nnodes=\"" + std::to_string(nodes) + "\"";
  if (!cluster.empty()) selector += ",cluster=" + label_value(cluster);
  return "max by (collective, size) (shape:ncclscope_transfer_bus_bytes_per_second:baseline{" +
         selector + "})";
}

topology::Limit baseline_of(const std::vector<Prometheus::Sample>& answer,
                            model::Function collective, std::uint64_t bytes) {
  const std::string size(size_label(bytes));
  double best = 0;
  for (const Prometheus::Sample& sample : answer) {
    const auto has = [&](const char* name, std::string_view value) {
      const auto at = sample.labels.find(name);
      return at != sample.labels.end() && at->second == value;
    };
    if (has("collective", collective_name(collective)) && has("size", size))
      best = std::max(best, sample.value);
  }
  if (best <= 0) return {0, "Prometheus has none of this shape, size " + size};
  return {best * 1e-9, "size " + size};
}

}  // namespace ncclscope::cli::probe

// SPDX-License-Identifier: Apache-2.0
#include "topology/limits.h"

#include <algorithm>
#include <limits>
#include <set>

namespace ncclscope::topology {
namespace {

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::string pair_name(std::size_t a, std::size_t b, const Path& path) {
  return std::string(path_name(path.type)) + " between GPU" + std::to_string(a) + " and GPU" +
         std::to_string(b);
}

void lower(Limit& limit, double gigabytes, const std::string& what) {
  if (gigabytes < limit.gigabytes) limit = {gigabytes, what};
}

Limit settled(Limit limit) {
  if (limit.gigabytes == kNoLimit)
    return {0, limit.what.empty() ? "one GPU has no path to grade" : limit.what};
  return limit;
}

/// Of all NICs that these GPUs are given, together.
Limit nics_limit(const Machine& machine, const Paths& paths, const std::vector<std::size_t>& gpus) {
  double all = 0;
  std::set<int> nics;
  std::string names;
  for (const std::size_t gpu : gpus) {
    const Rail rail = paths.rail(gpu);
    if (rail.nic < 0 || !nics.insert(rail.nic).second) continue;
    if (rail.path.gigabytes <= 0) return {0, "the speed of a NIC is not known"};
    all += rail.path.gigabytes;
    const std::string& name = machine.nics[static_cast<std::size_t>(rail.nic)].name;
    if (nics.size() <= 4) names += (names.empty() ? "" : ", ") + name;
    if (nics.size() == 5) names += ", ...";
  }
  if (nics.empty()) return {0, "no active NIC is known"};
  return {all, (nics.size() == 1 ? "NIC " : std::to_string(nics.size()) + " NICs: ") + names};
}

bool joined_by_switches(PathType type) {
  return type == PathType::kNvl || type == PathType::kPix || type == PathType::kPxb;
}

}  // namespace

Limit ring_limit(const Machine& machine, const Paths& paths, const std::vector<std::size_t>& gpus,
                 unsigned nnodes) {
  if (gpus.empty()) return {0, "its GPUs are not known"};
  Limit limit{kNoLimit, ""};
  for (std::size_t i = 0; i + 1 < gpus.size(); ++i) {
    if (gpus[i] == gpus[i + 1]) continue;
    const Path path = paths.gpu_gpu(gpus[i], gpus[i + 1]);
    const std::string name = pair_name(gpus[i], gpus[i + 1], path);
    if (path.gigabytes <= 0) return {0, "the speed of " + name + " is not known"};
    lower(limit, path.gigabytes, name);
  }
  if (nnodes > 1) {
    Limit nics = nics_limit(machine, paths, gpus);
    if (nics.gigabytes <= 0) return nics;
    lower(limit, nics.gigabytes, nics.what);
  }
  return settled(limit);
}

Limit all_to_all_limit(const Machine& machine, const Paths& paths,
                       const std::vector<std::size_t>& gpus, unsigned nnodes) {
  if (gpus.empty()) return {0, "its GPUs are not known"};
  const auto others = static_cast<double>(gpus.size() - 1);  // on this node
  Limit limit{kNoLimit, ""};
  for (std::size_t i = 0; i < gpus.size(); ++i) {
    for (std::size_t j = 0; j < gpus.size(); ++j) {
      if (gpus[i] == gpus[j]) continue;
      const Path path = paths.gpu_gpu(gpus[i], gpus[j]);
      const std::string name = pair_name(gpus[i], gpus[j], path);
      if (!joined_by_switches(path.type))
        return {0, "pairs share links in ways that their grades do not tell: " + name};
      if (path.gigabytes <= 0) return {0, "the speed of " + name + " is not known"};
      // Behind a switch a pair's links are all that the GPU has; links to one GPU are the pair's.
      const Gpu& gpu = machine.gpus[gpus[i]];
      const bool direct = path.type == PathType::kNvl && gpu.nvlinks_active > 0 &&
                          gpu.nvlinks[gpus[j]] < gpu.nvlinks_active;
      lower(limit, direct ? path.gigabytes * others : path.gigabytes, name);
    }
  }
  if (nnodes > 1) {
    Limit nics = nics_limit(machine, paths, gpus);
    if (nics.gigabytes <= 0) return nics;
    // Of a GPU's n - 1 parts, n - k leave the node through its share of the NICs.
    const auto here = static_cast<double>(gpus.size());
    const double all = here * nnodes;
    lower(limit, nics.gigabytes / here * (all - 1) / (all - here), nics.what);
  }
  return settled(limit);
}

}  // namespace ncclscope::topology

// SPDX-License-Identifier: Apache-2.0
#include "verdict/window.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>

#include "verdict/statistics.h"

namespace ncclscope::verdict {
namespace {

std::size_t cell(std::uint32_t communicator, Collective collective) {
  return communicator * kCollectives + static_cast<std::size_t>(collective);
}

/// Of one collective of a communicator, over its ranks.
struct Sums {
  std::uint32_t ranks = 0;
  std::uint32_t last = kNone;
  double min_operations = 0, max_operations = 0, operations = 0;
  double min_mean = 0, means = 0;
  double bus_bytes = 0;

  void add(const CollectiveRates& rates) {
    const double mean = rates.seconds / rates.operations;
    if (ranks == 0 || mean < min_mean) {
      min_mean = mean;
      last = rates.member;
    }
    min_operations = ranks == 0 ? rates.operations : std::min(min_operations, rates.operations);
    max_operations = std::max(max_operations, rates.operations);
    operations += rates.operations;
    means += mean;
    bus_bytes += rates.bus_bytes;
    ++ranks;
  }
};

double coverage_of(const std::vector<double>& coverage, std::uint32_t communicator) {
  return communicator < coverage.size() ? coverage[communicator] : 1;
}

/// Can its ranks be compared? All of them report, telemetry sees enough, they did the same number.
bool eligible(const Communicator& communicator, double coverage, const Sums& sums,
              const WindowOptions& options) {
  return communicator.nranks > 1 && sums.ranks == communicator.nranks &&
         sums.min_operations >= (1 - options.operations_tolerance) * sums.max_operations &&
         coverage >= options.coverage;
}

std::vector<Sums> sum_up(const Job& job, const Window& window) {
  std::vector<Sums> cells(job.communicators.size() * kCollectives);
  for (const CollectiveRates& rates : window.collectives) {
    if (rates.operations <= 0) continue;
    cells[cell(job.members[rates.member].communicator, rates.collective)].add(rates);
  }
  return cells;
}

/// The size and algorithm that make up most of a collective's time.
void add_shapes(const Job& job, const Window& window, std::vector<CommunicatorTiming>& timings) {
  struct Shape {
    const ShapeRates* most = nullptr;
    double sum = 0;
  };
  std::vector<Shape> cells(job.communicators.size() * kCollectives);
  for (const ShapeRates& rates : window.shapes) {
    Shape& shape = cells[cell(rates.communicator, rates.collective)];
    shape.sum += rates.busy_seconds;
    if (shape.most == nullptr || rates.busy_seconds > shape.most->busy_seconds) shape.most = &rates;
  }
  for (CommunicatorTiming& timing : timings) {
    const Shape& shape = cells[cell(timing.communicator, timing.collective)];
    if (shape.most == nullptr || shape.sum <= 0 ||
        shape.most->busy_seconds < thresholds::kDominantShare * shape.sum)
      continue;
    timing.size = shape.most->size;
    timing.algorithm = shape.most->algorithm;
  }
}

std::vector<CommunicatorTiming> time_communicators(const Job& job, const Window& window,
                                                   const WindowOptions& options,
                                                   std::vector<std::size_t>& place) {
  const std::vector<Sums> cells = sum_up(job, window);
  std::vector<CommunicatorTiming> timings;
  place.assign(cells.size(), kNone);
  for (std::uint32_t c = 0; c < job.communicators.size(); ++c) {
    for (std::size_t k = 0; k < kCollectives; ++k) {
      const auto collective = static_cast<Collective>(k);
      const Sums& sums = cells[cell(c, collective)];
      if (!eligible(job.communicators[c], coverage_of(window.coverage, c), sums, options)) continue;
      CommunicatorTiming timing;
      timing.communicator = c;
      timing.collective = collective;
      timing.last = sums.last;
      timing.operations = sums.max_operations;
      timing.min_seconds = sums.min_mean;
      timing.others_mean_seconds = (sums.means - sums.min_mean) / (sums.ranks - 1);
      timing.caused = timing.operations * (timing.others_mean_seconds - timing.min_seconds);
      timing.bus_bytes_per_operation = sums.bus_bytes / sums.operations;
      timing.transfer =
          timing.min_seconds > 0 ? timing.bus_bytes_per_operation / timing.min_seconds : 0;
      place[cell(c, collective)] = timings.size();
      timings.push_back(std::move(timing));
    }
  }
  add_shapes(job, window, timings);
  return timings;
}

/// Time in Send and Recv above the median of the GPUs that share a GPU's data-parallel
/// communicator.
std::vector<double> p2p_excess(const Job& job, const Window& window) {
  std::vector<double> excess(job.gpus.size(), 0);
  std::vector<std::uint32_t> group(job.gpus.size(), kNone);
  for (const Member& member : job.members) {
    if (job.communicators[member.communicator].dimension == "dp" && group[member.gpu] == kNone)
      group[member.gpu] = member.communicator;
  }
  std::map<std::uint32_t, std::vector<double>> seconds;
  for (std::size_t g = 0; g < window.gpus.size(); ++g) {
    if (group[g] != kNone && window.gpus[g].p2p_seconds)
      seconds[group[g]].push_back(*window.gpus[g].p2p_seconds);
  }
  std::map<std::uint32_t, double> medians;
  for (auto& [communicator, values] : seconds) medians[communicator] = median(std::move(values));
  for (std::size_t g = 0; g < window.gpus.size(); ++g) {
    if (group[g] != kNone && window.gpus[g].p2p_seconds)
      excess[g] = std::max(0.0, *window.gpus[g].p2p_seconds - medians[group[g]]);
  }
  return excess;
}

void add_waits(const Job& job, const Window& window, const std::vector<std::size_t>& place,
               WindowResult& result) {
  result.wait.assign(job.gpus.size(), 0);
  result.caused.assign(job.gpus.size(), 0);
  result.judged.assign(job.gpus.size(), 0);
  for (const CollectiveRates& rates : window.collectives) {
    if (rates.operations <= 0) continue;
    const Member& member = job.members[rates.member];
    const std::size_t at = place[cell(member.communicator, rates.collective)];
    if (at == kNone) continue;
    result.judged[member.gpu] = 1;
    result.wait[member.gpu] += rates.seconds - rates.operations * result.timings[at].min_seconds;
  }
  result.p2p_excess = p2p_excess(job, window);
  for (std::size_t g = 0; g < job.gpus.size(); ++g) {
    if (result.judged[g] != 0) result.wait[g] += result.p2p_excess[g];
  }
  for (const CommunicatorTiming& timing : result.timings)
    result.caused[job.members[timing.last].gpu] += timing.caused;
}

void find_late(const WindowOptions& options, WindowResult& result) {
  std::vector<double> caused;
  for (std::size_t g = 0; g < result.judged.size(); ++g) {
    if (result.judged[g] != 0) caused.push_back(result.caused[g]);
  }
  result.late.assign(result.judged.size(), 0);
  if (caused.empty()) return;
  result.threshold = std::max(thresholds::kLateDeviations * median_absolute_deviation(caused),
                              options.late_seconds);
  for (std::size_t g = 0; g < result.judged.size(); ++g) {
    const bool late = result.judged[g] != 0 && result.caused[g] >= result.threshold &&
                      result.caused[g] >= thresholds::kCausedPerWait * result.wait[g];
    result.late[g] = late ? 1 : 0;
  }
}

/// Seconds per byte that stand out from the job's, as multiples of its median.
std::vector<double> outliers(const Window& window, NetworkRates GpuRates::*direction) {
  std::vector<double> out(window.gpus.size(), 0);
  std::vector<double> known;
  const auto per_byte = [&](const GpuRates& gpu) {
    const NetworkRates& rates = gpu.*direction;
    return rates.bytes > 0 ? rates.seconds / rates.bytes : -1;
  };
  for (const GpuRates& gpu : window.gpus) {
    if (const double value = per_byte(gpu); value >= 0) known.push_back(value);
  }
  if (static_cast<double>(known.size()) < thresholds::kNetworkGpus) return out;
  const double middle = median(std::move(known));
  if (middle <= 0) return out;
  for (std::size_t g = 0; g < window.gpus.size(); ++g) {
    const double multiple = per_byte(window.gpus[g]) / middle;
    if (multiple > thresholds::kNetworkOutlier) out[g] = multiple;
  }
  return out;
}

RoleKind kind_of(std::string_view dimension) {
  if (dimension == "pp") return RoleKind::kStage;
  return dimension == "dp" ? RoleKind::kReplica : RoleKind::kExpert;
}

void add_unique(std::vector<std::uint32_t>& sorted, std::uint32_t value) {
  const auto at = std::lower_bound(sorted.begin(), sorted.end(), value);
  if (at == sorted.end() || *at != value) sorted.insert(at, value);
}

}  // namespace

bool WindowResult::anybody_late() const {
  return std::find(late.begin(), late.end(), 1) != late.end();
}

const CommunicatorTiming* WindowResult::worst(const Job& job, std::uint32_t gpu) const {
  const CommunicatorTiming* found = nullptr;
  for (const CommunicatorTiming& timing : timings) {
    if (job.members[timing.last].gpu != gpu) continue;
    if (found == nullptr || timing.caused > found->caused) found = &timing;
  }
  return found;
}

WindowResult evaluate(const Job& job, const Window& window, const WindowOptions& options) {
  WindowResult result;
  result.seconds = window.seconds;
  result.step_seconds = window.step_seconds;
  std::vector<std::size_t> place;
  result.timings = time_communicators(job, window, options, place);
  add_waits(job, window, place, result);
  result.queue.reserve(job.gpus.size());
  for (const GpuRates& gpu : window.gpus) result.queue.push_back(gpu.queue_seconds);
  result.queue.resize(job.gpus.size(), 0);
  find_late(options, result);
  result.slow_send = outliers(window, &GpuRates::send);
  result.slow_receive = outliers(window, &GpuRates::receive);
  result.slow_send.resize(job.gpus.size(), 0);
  result.slow_receive.resize(job.gpus.size(), 0);
  return result;
}

std::vector<Role> roles_of(const Job& job, const std::vector<std::uint32_t>& gpus) {
  std::map<std::pair<std::string_view, std::int32_t>, std::vector<std::uint32_t>> places;
  std::vector<std::vector<std::uint32_t>> groups(job.communicators.size());
  for (const Member& member : job.members) {
    const Communicator& communicator = job.communicators[member.communicator];
    if (communicator.nranks == 1) continue;
    add_unique(groups[member.communicator], member.gpu);
    const std::string_view dimension = communicator.dimension;
    if (dimension == "pp" || dimension == "dp" || dimension == "ep")
      add_unique(places[{dimension, member.rank}], member.gpu);
  }
  std::vector<Role> found;
  for (auto& [place, members] : places) {
    if (members == gpus)
      found.push_back(Role{kind_of(place.first), place.first, place.second, kNone, members});
  }
  for (std::uint32_t c = 0; c < groups.size(); ++c) {
    const Communicator& communicator = job.communicators[c];
    if (groups[c] == gpus && communicator.nranks == groups[c].size())
      found.push_back(Role{RoleKind::kGroup, communicator.dimension, -1, c, gpus});
  }
  return found;
}

}  // namespace ncclscope::verdict

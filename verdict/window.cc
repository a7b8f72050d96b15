// SPDX-License-Identifier: Apache-2.0
#include "verdict/window.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <tuple>
#include <utility>

#include "verdict/statistics.h"

namespace ncclscope::verdict {
namespace {

constexpr std::int32_t kNoPeer = -2;
/// What has come must wait for a GPU to take it at least by this share of the time that GPUs wait
/// for data.
constexpr double kLeastTakingShare = 0.1;
/// Keeps a share of tokens finite where an expert takes all there are.
constexpr double kLeastOthers = 0.01;

std::size_t cell(std::uint32_t communicator, Collective collective) {
  return communicator * kCollectives + static_cast<std::size_t>(collective);
}

/// Of one collective of a communicator, over its ranks.
struct Sums {
  std::uint32_t ranks = 0;
  std::uint32_t last = kNone;
  double min_operations = 0, max_operations = 0, operations = 0;
  double first_operations = 0;  // of rank 0
  double min_mean = 0, means = 0;
  double bus_bytes = 0;

  void add(const CollectiveRates& rates, std::int32_t rank) {
    const double mean = rates.seconds / rates.operations;
    if (ranks == 0 || mean < min_mean) {
      min_mean = mean;
      last = rates.member;
    }
    min_operations = ranks == 0 ? rates.operations : std::min(min_operations, rates.operations);
    max_operations = std::max(max_operations, rates.operations);
    if (rank == 0) first_operations = rates.operations;
    operations += rates.operations;
    means += mean;
    bus_bytes += rates.bus_bytes;
    ++ranks;
  }
};

double coverage_of(const std::vector<double>& coverage, std::uint32_t communicator) {
  return communicator < coverage.size() ? coverage[communicator] : 1;
}

/// Can its ranks be compared? All of them report, telemetry sees enough, they did as many as rank
/// 0.
bool eligible(const Communicator& communicator, double coverage, const Sums& sums,
              const WindowOptions& options) {
  return communicator.nranks > 1 && sums.ranks == communicator.nranks &&
         sums.min_operations >= (1 - options.operations_tolerance) * sums.first_operations &&
         sums.max_operations <= (1 + options.operations_tolerance) * sums.first_operations &&
         coverage >= options.coverage;
}

std::vector<Sums> sum_up(const Job& job, const Window& window) {
  std::vector<Sums> cells(job.communicators.size() * kCollectives);
  for (const CollectiveRates& rates : window.collectives) {
    if (rates.operations <= 0) continue;
    const Member& member = job.members[rates.member];
    cells[cell(member.communicator, rates.collective)].add(rates, member.rank);
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
      timing.operations = sums.first_operations;
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

/// Time in communication, and what of it is waiting. A GPU is judged only if all its collectives
/// can be compared: what it does in the others would be missing.
void add_times(const Job& job, const Window& window, const std::vector<std::size_t>& place,
               WindowResult& result) {
  const std::size_t gpus = job.gpus.size();
  result.communication.assign(gpus, 0);
  result.wait.assign(gpus, 0);
  result.caused.assign(gpus, 0);
  result.judged.assign(gpus, 0);
  std::vector<char> blind(gpus, 0);
  for (const CollectiveRates& rates : window.collectives) {
    const Member& member = job.members[rates.member];
    if (rates.operations <= 0 || job.communicators[member.communicator].nranks == 1) continue;
    const std::size_t at = place[cell(member.communicator, rates.collective)];
    if (at == kNone) {
      blind[member.gpu] = 1;
      continue;
    }
    result.judged[member.gpu] = 1;
    result.communication[member.gpu] += rates.seconds;
    result.wait[member.gpu] += rates.seconds - rates.operations * result.timings[at].min_seconds;
  }
  for (const Member& member : job.members) {
    if (std::find(window.untimed.begin(), window.untimed.end(), member.communicator) !=
        window.untimed.end())
      blind[member.gpu] = 1;
  }
  for (std::size_t g = 0; g < gpus; ++g) {
    if (blind[g] != 0) result.judged[g] = 0;
    if (g < window.gpus.size()) result.communication[g] += window.gpus[g].other_seconds;
  }
  for (const CommunicatorTiming& timing : result.timings)
    result.caused[job.members[timing.last].gpu] += timing.caused;
}

/// Where a GPU does the same work as its peers: its rank in communicators of pipeline and experts.
struct Place {
  std::int32_t stage = -1;
  std::int32_t expert = -1;
  bool operator<(const Place& other) const {
    return std::tie(stage, expert) < std::tie(other.stage, other.expert);
  }
};

/// By how many more tokens than others' a GPU's expert takes, as a share; NaN = not known. The
/// others of n ranks send it h times the tokens that each of them takes: it moves (n-1) * h, and
/// the others (n-2) + h, whichever of sent and received is more. Of two ranks both move the same.
std::vector<double> extra_tokens(const Job& job, const Window& window) {
  std::map<std::uint32_t, std::vector<double>> bytes;
  const auto per_operation = [](const CollectiveRates& rates) {
    return rates.bus_bytes / rates.operations;
  };
  const auto is_exchange = [](const CollectiveRates& rates) {
    return rates.collective == Collective::kAllToAll && rates.operations > 0;
  };
  for (const CollectiveRates& rates : window.collectives) {
    if (is_exchange(rates))
      bytes[job.members[rates.member].communicator].push_back(per_operation(rates));
  }
  std::map<std::uint32_t, double> medians;
  for (const auto& [communicator, values] : bytes) medians[communicator] = median(values);
  std::vector<double> extra(job.gpus.size(), std::numeric_limits<double>::quiet_NaN());
  for (const CollectiveRates& rates : window.collectives) {
    if (!is_exchange(rates)) continue;
    const Member& member = job.members[rates.member];
    const double middle = medians[member.communicator];
    const auto others = static_cast<double>(bytes[member.communicator].size()) - 1;
    if (middle <= 0 || others < 2) continue;
    const double ratio = per_operation(rates) / middle;
    const double share = others * (ratio - 1) / std::max(others - ratio, kLeastOthers);
    extra[member.gpu] = std::fmax(extra[member.gpu], share);
  }
  return extra;
}

void compare_peers(const Job& job, const Window& window, const WindowOptions& options,
                   WindowResult& result) {
  const std::size_t gpus = job.gpus.size();
  std::vector<Place> places(gpus);
  for (const Member& member : job.members) {
    const std::string& dimension = job.communicators[member.communicator].dimension;
    if (dimension == "pp") places[member.gpu].stage = member.rank;
    if (dimension == "ep") places[member.gpu].expert = member.rank;
  }
  std::map<Place, std::size_t> counts;
  for (std::size_t g = 0; g < gpus; ++g) counts[places[g]] += result.judged[g] != 0 ? 1u : 0u;
  // Nobody else has its expert: it is held against the others, and its tokens are looked at.
  std::vector<char> single(gpus, 0);
  for (std::size_t g = 0; g < gpus; ++g)
    single[g] = places[g].expert >= 0 && counts[places[g]] == 1 ? 1 : 0;
  for (std::size_t g = 0; g < gpus; ++g) {
    if (single[g] != 0) places[g].expert = kNoPeer;
  }
  std::map<Place, std::vector<double>> times;
  std::vector<double> all;
  for (std::size_t g = 0; g < gpus; ++g) {
    if (result.judged[g] == 0) continue;
    times[places[g]].push_back(result.communication[g]);
    all.push_back(result.communication[g]);
  }
  const double job_typical = quantile(thresholds::kPeerQuantile, std::move(all));
  std::map<Place, double> typical;
  for (auto& [place, values] : times)
    typical[place] = quantile(thresholds::kPeerQuantile, std::move(values));
  const std::vector<double> extra = extra_tokens(job, window);
  result.lag.assign(gpus, 0);
  result.loaded.assign(gpus, 0);
  result.uneven.assign(gpus, 0);
  for (std::size_t g = 0; g < gpus; ++g) {
    if (result.judged[g] == 0) continue;
    const double peers = typical[places[g]];
    result.lag[g] = peers - result.communication[g];
    // Time that is not communication grows with the tokens, at most. Where nobody knows how many
    // an expert takes, that may be why it works longer.
    if (single[g] != 0 &&
        (std::isnan(extra[g]) || (extra[g] > 0 && result.lag[g] <= extra[g] * (1 - peers))))
      result.loaded[g] = 1;
    if (job_typical - peers >= options.late_seconds) result.uneven[g] = job_typical - peers;
  }
}

/// What GPUs of a node differ by: a late node does not count into it, and of late GPUs there are
/// few. Of two GPUs nothing can be said.
double noise_of(const Job& job, const WindowResult& result) {
  std::map<std::string_view, std::vector<double>> nodes;
  for (std::size_t g = 0; g < job.gpus.size(); ++g) {
    if (result.judged[g] != 0) nodes[job.gpus[g].node].push_back(result.lag[g]);
  }
  std::vector<double> distances;
  for (const auto& [node, lags] : nodes) {
    const double middle = lags.size() > 1 ? median(lags) : 0;
    for (const double lag : lags) distances.push_back(std::abs(lag - middle));
  }
  if (distances.size() < 3) return 0;
  const double wide = quantile(thresholds::kWideNoiseQuantile, distances);
  return std::max(quantile(thresholds::kNoiseQuantile, std::move(distances)),
                  std::min(wide, thresholds::kWideNoiseSeconds));
}

void find_late(const Job& job, const WindowOptions& options, WindowResult& result) {
  result.noise = noise_of(job, result);
  result.threshold = late_threshold(result.noise, options.late_seconds);
  result.late.assign(result.judged.size(), 0);
  for (std::size_t g = 0; g < result.judged.size(); ++g) {
    if (result.judged[g] != 0 && result.lag[g] >= result.threshold) result.late[g] = 1;
  }
}

/// Which GPUs' network phases can be compared: enough operations are known, and they carry about as
/// many bytes.
std::vector<char> comparable(const Window& window, NetworkRates GpuRates::*direction) {
  std::vector<double> bytes(window.gpus.size(), -1);  // of an operation; negative = not known
  std::vector<double> known;
  for (std::size_t g = 0; g < window.gpus.size(); ++g) {
    const NetworkRates& rates = window.gpus[g].*direction;
    if (rates.bytes <= 0 || rates.operations * window.seconds < thresholds::kNetworkOperations)
      continue;
    bytes[g] = rates.bytes / rates.operations;
    known.push_back(bytes[g]);
  }
  const double least = thresholds::kNetworkBytesShare * median(std::move(known));
  std::vector<char> out(window.gpus.size(), 0);
  for (std::size_t g = 0; g < out.size(); ++g) out[g] = bytes[g] >= least ? 1 : 0;
  return out;
}

/// Seconds per byte that stand out from the job's, as multiples of its median.
std::vector<double> outliers(const Window& window, NetworkRates GpuRates::*direction) {
  std::vector<double> out(window.gpus.size(), 0);
  const std::vector<char> compared = comparable(window, direction);
  std::vector<double> known;
  const auto per_byte = [&](std::size_t g) {
    const NetworkRates& rates = window.gpus[g].*direction;
    return rates.seconds / rates.bytes;
  };
  for (std::size_t g = 0; g < out.size(); ++g) {
    if (compared[g] != 0) known.push_back(per_byte(g));
  }
  if (static_cast<double>(known.size()) < thresholds::kNetworkGpus) return out;
  const double middle = median(known);
  if (middle <= 0) return out;
  for (double& value : known) value = std::abs(value / middle - 1);
  const double least = std::max(thresholds::kNetworkOutlier,
                                1 + thresholds::kNetworkNoiseMultiple * median(std::move(known)));
  for (std::size_t g = 0; g < out.size(); ++g) {
    if (compared[g] != 0 && per_byte(g) / middle > least) out[g] = per_byte(g) / middle;
  }
  return out;
}

void find_nics(const Window& window, WindowResult& result) {
  result.slow_nic.assign(result.slow_send.size(), 0);
  result.explained.assign(result.slow_send.size(), 0);
  const auto slow = [&](std::uint32_t gpu) { return result.slow_send[gpu] > 0; };
  for (const NetworkPeers& p : window.peers) {
    if (slow(p.from) && slow(p.to)) result.slow_nic[p.to] = 1;
  }
  for (const NetworkPeers& p : window.peers) {
    if (slow(p.from) && result.slow_nic[p.to] != 0 && result.slow_nic[p.from] == 0)
      result.explained[p.from] = 1;
  }
}

/// Who takes what it has received later than others do, by so much that it matters beside the time
/// that the job's GPUs wait for data. Whose own sends are held up cannot take more, and is a
/// victim.
void find_slow_taking(const Window& window, WindowResult& result) {
  const std::size_t gpus = result.slow_send.size();
  result.slow_taking.assign(gpus, 0);
  std::vector<double> taking;
  std::vector<double> waiting;
  std::vector<double> held_up;
  for (const GpuRates& gpu : window.gpus) {
    if (gpu.receive.bytes <= 0 || gpu.send.bytes <= 0) continue;
    taking.push_back(gpu.receive.blocked_seconds / gpu.receive.bytes);
    waiting.push_back(gpu.receive.seconds / gpu.receive.bytes);
    held_up.push_back(gpu.send.blocked_seconds / gpu.send.bytes);
  }
  if (static_cast<double>(taking.size()) < thresholds::kNetworkGpus) return;
  const double usual = median(std::move(taking));
  const double least = kLeastTakingShare * median(std::move(waiting));
  const double usual_hold = median(std::move(held_up));
  for (std::size_t g = 0; g < window.gpus.size(); ++g) {
    const GpuRates& gpu = window.gpus[g];
    if (gpu.receive.bytes <= 0 || gpu.send.bytes <= 0 || result.slow_send[g] > 0) continue;
    const double mine = gpu.receive.blocked_seconds / gpu.receive.bytes;
    if (mine <= thresholds::kNetworkOutlier * usual || mine - usual <= least) continue;
    const double hold = gpu.send.blocked_seconds / gpu.send.bytes;
    if (hold > thresholds::kNetworkOutlier * usual_hold && hold - usual_hold > least) continue;
    result.slow_taking[g] = usual > 0 ? mine / usual : mine / least;
  }
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

/// See WindowResult::queue_excess.
std::vector<std::optional<double>> queue_excess(const Window& window) {
  const auto mean = [](const GpuRates& gpu) { return gpu.queue_seconds / gpu.queue_operations; };
  std::vector<double> means;
  for (const GpuRates& gpu : window.gpus) {
    if (gpu.queue_operations > 0) means.push_back(mean(gpu));
  }
  const double middle = means.empty() ? 0 : quantile(0.5, std::move(means));
  std::vector<std::optional<double>> out;
  for (const GpuRates& gpu : window.gpus) {
    out.emplace_back();
    if (gpu.queue_operations > 0) out.back() = (mean(gpu) - middle) * gpu.calls;
  }
  return out;
}

WindowResult evaluate(const Job& job, const Window& window, const WindowOptions& options) {
  WindowResult result;
  result.seconds = window.seconds;
  result.step_seconds = window.step_seconds;
  std::vector<std::size_t> place;
  result.timings = time_communicators(job, window, options, place);
  add_times(job, window, place, result);
  compare_peers(job, window, options, result);
  result.queue.reserve(job.gpus.size());
  for (const GpuRates& gpu : window.gpus) {
    result.queue.push_back(gpu.queue_seconds);
    result.send.push_back(gpu.send);
    result.receive.push_back(gpu.receive);
  }
  result.send.resize(job.gpus.size());
  result.receive.resize(job.gpus.size());
  result.queue.resize(job.gpus.size(), 0);
  result.queue_excess = queue_excess(window);
  result.queue_excess.resize(job.gpus.size());
  find_late(job, options, result);
  result.slow_send = outliers(window, &GpuRates::send);
  result.slow_receive = outliers(window, &GpuRates::receive);
  result.slow_send.resize(job.gpus.size(), 0);
  result.slow_receive.resize(job.gpus.size(), 0);
  find_nics(window, result);
  find_slow_taking(window, result);
  return result;
}

double late_threshold(double noise, double late_seconds) {
  return std::max(thresholds::kNoiseMultiple * noise, late_seconds);
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

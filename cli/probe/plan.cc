// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/plan.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cstdio>
#include <limits>

#include "proto/model/bandwidth.h"

namespace ncclscope::cli::probe {
namespace {

using model::Function;

constexpr std::array<Function, 4> kCollectives{Function::kAllReduce, Function::kAllGather,
                                               Function::kReduceScatter, Function::kAllToAll};
constexpr std::uint64_t kMostBytes = std::uint64_t{1} << 40;
constexpr std::uint32_t kMostIterations = 1'000'000;

std::uint64_t parts_of(Function collective, std::uint64_t ranks) {
  return model::size_needs_ranks(collective) ? ranks : 1;
}

template <typename Number>
bool read_number(std::string_view text, Number& out) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), out);
  return error == std::errc{} && end == text.data() + text.size() && !text.empty();
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const std::size_t at = text.find(separator);
    parts.push_back(text.substr(0, at));
    if (at == std::string_view::npos) return parts;
    text.remove_prefix(at + 1);
  }
}

}  // namespace

std::string problem_of(const Plan& plan) {
  const auto number = [](std::uint64_t n) { return std::to_string(n); };
  if (plan.collectives.empty()) return "no collective is named";
  if (plan.min_bytes < kElementBytes || plan.min_bytes > plan.max_bytes)
    return "sizes from " + number(plan.min_bytes) + " to " + number(plan.max_bytes) +
           " bytes: wanted at least " + number(kElementBytes) + ", and the smaller one first";
  if (plan.max_bytes > kMostBytes)
    return number(plan.max_bytes) + " bytes: at most " + number(kMostBytes);
  if (plan.factor < 2 && plan.min_bytes != plan.max_bytes)
    return "a factor of " + number(plan.factor) + ": wanted at least 2";
  if (plan.iterations < 1 || plan.iterations > kMostIterations || plan.warmup > kMostIterations)
    return number(plan.iterations) + " iterations after " + number(plan.warmup) +
           ": wanted from 1 to " + number(kMostIterations);
  return {};
}

std::vector<Row> rows_of(const Plan& plan, std::uint32_t ranks) {
  std::vector<Row> rows;
  for (const Function collective : plan.collectives) {
    std::uint64_t last = 0;
    for (std::uint64_t wanted = plan.min_bytes;; wanted *= plan.factor) {
      const std::uint64_t parts = parts_of(collective, ranks);
      Row row{collective, std::max<std::uint64_t>(wanted / kElementBytes / parts, 1), 0, false};
      row.bytes = row.count * parts * kElementBytes;
      row.checked = row.bytes <= plan.check_bytes;
      if (row.bytes != last) rows.push_back(row);
      last = row.bytes;
      if (plan.factor < 2 || wanted > plan.max_bytes / plan.factor) break;
    }
  }
  return rows;
}

std::uint64_t buffer_bytes(const std::vector<Row>& rows) {
  std::uint64_t most = kElementBytes;
  for (const Row& row : rows) most = std::max(most, row.bytes);
  return most;
}

double algorithm_gigabytes(const Row& row, double seconds) noexcept {
  return seconds > 0 ? static_cast<double>(row.bytes) / seconds * 1e-9 : 0;
}

double bus_gigabytes(const Row& row, std::uint32_t ranks, double seconds) noexcept {
  return algorithm_gigabytes(row, seconds) * model::bus_factor(row.collective, ranks);
}

std::string_view collective_name(Function collective) noexcept {
  switch (collective) {
    case Function::kAllReduce:
      return "AllReduce";
    case Function::kAllGather:
      return "AllGather";
    case Function::kReduceScatter:
      return "ReduceScatter";
    case Function::kAllToAll:
      return "AlltoAll";
    default:
      return "unknown";
  }
}

std::optional<Function> collective_of(std::string_view name) {
  const auto plain = [](std::string_view text) {
    std::string out;
    for (const char c : text)
      if (c != '_' && c != '-')
        out += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    return out;
  };
  for (const Function collective : kCollectives)
    if (plain(name) == plain(collective_name(collective))) return collective;
  return {};
}

std::optional<std::uint64_t> parse_size(std::string_view text) {
  const std::size_t digits = std::min(text.find_first_not_of("0123456789"), text.size());
  std::uint64_t value = 0;
  if (!read_number(text.substr(0, digits), value)) return {};
  std::string_view unit = text.substr(digits);
  if (unit == "B") unit = {};
  if (unit.empty()) return value;
  constexpr std::string_view kUnits = "KMGT";
  const std::size_t power =
      kUnits.find(static_cast<char>(std::toupper(static_cast<unsigned char>(unit[0]))));
  const std::string_view rest = unit.substr(1);
  if (power == std::string_view::npos || (!rest.empty() && rest != "B" && rest != "iB")) return {};
  const std::uint64_t scale = std::uint64_t{1} << (10 * (power + 1));
  if (value > std::numeric_limits<std::uint64_t>::max() / scale) return {};
  return value * scale;
}

std::string plan_text(const Plan& plan) {
  std::string text;
  for (const Function collective : plan.collectives) {
    if (!text.empty()) text += ',';
    text += collective_name(collective);
  }
  for (const std::uint64_t number :
       {plan.min_bytes, plan.max_bytes, std::uint64_t{plan.factor}, std::uint64_t{plan.iterations},
        std::uint64_t{plan.warmup}, plan.check_bytes})
    text += ":" + std::to_string(number);
  return text;
}

std::optional<Plan> parse_plan(std::string_view text) {
  const std::vector<std::string_view> parts = split(text, ':');
  if (parts.size() != 7) return {};
  Plan plan;
  for (const std::string_view name : split(parts[0], ',')) {
    const std::optional<Function> collective = collective_of(name);
    if (!collective) return {};
    plan.collectives.push_back(*collective);
  }
  if (!read_number(parts[1], plan.min_bytes) || !read_number(parts[2], plan.max_bytes) ||
      !read_number(parts[3], plan.factor) || !read_number(parts[4], plan.iterations) ||
      !read_number(parts[5], plan.warmup) || !read_number(parts[6], plan.check_bytes) ||
      !problem_of(plan).empty())
    return {};
  return plan;
}

float contributions_sum(std::uint64_t ranks, std::uint64_t i) noexcept {
  constexpr std::uint64_t kCycle = 127;  // of contribution(): 0 + 1 + ... + 126, and the rest
  const std::uint64_t rest = ranks % kCycle;
  const std::uint64_t of_rest = rest == 0 ? 0 : rest * (rest - 1) / 2;
  const std::uint64_t sum =
      ranks * (i % 251) + ranks / kCycle * (kCycle * (kCycle - 1) / 2) + of_rest;
  return static_cast<float>(sum);
}

std::uint64_t sent_elements(const Row& row, std::uint64_t ranks) noexcept {
  const bool whole =
      row.collective == Function::kReduceScatter || row.collective == Function::kAllToAll;
  return whole ? row.count * ranks : row.count;
}

std::uint64_t received_elements(const Row& row, std::uint64_t ranks) noexcept {
  const bool whole =
      row.collective == Function::kAllGather || row.collective == Function::kAllToAll;
  return whole ? row.count * ranks : row.count;
}

std::uint64_t count_wrong(const Row& row, std::uint64_t rank, std::uint64_t ranks,
                          const std::vector<float>& received) {
  const auto expected = [&](std::uint64_t i) {
    switch (row.collective) {
      case Function::kAllGather:
        return contribution(i / row.count, i % row.count);
      case Function::kReduceScatter:
        return contributions_sum(ranks, rank * row.count + i);
      case Function::kAllToAll:
        return contribution(i / row.count, rank * row.count + i % row.count);
      default:
        return contributions_sum(ranks, i);
    }
  };
  const std::uint64_t wanted = received_elements(row, ranks);
  std::uint64_t wrong = wanted - std::min<std::uint64_t>(wanted, received.size());
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(wanted, received.size()); ++i)
    if (received[i] != expected(i)) ++wrong;  // also where it is no number
  return wrong;
}

}  // namespace ncclscope::cli::probe

// SPDX-License-Identifier: Apache-2.0
#include "cli/report/effect.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <numeric>

#include "verdict/statistics.h"

namespace ncclscope::cli::report {
namespace {

constexpr double kMedianError = 1.2533;  // of a normal distribution, by its standard error
constexpr double kMadToDeviation = 1.4826;
constexpr double kNormal95 = 1.96;
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();

std::vector<double> logarithms(const std::vector<double>& values) {
  std::vector<double> out;
  for (const double v : values) {
    if (v > 0) out.push_back(std::log(v));
  }
  return out;
}

/// Standard error of the median.
double error_of(const std::vector<double>& values, double median) {
  std::vector<double> deviations;
  deviations.reserve(values.size());
  for (const double v : values) deviations.push_back(std::fabs(v - median));
  return kMedianError * kMadToDeviation * verdict::median(deviations) /
         std::sqrt(static_cast<double>(values.size()));
}

double pearson_of(const std::vector<double>& x, const std::vector<double>& y) {
  const auto n = static_cast<double>(x.size());
  const double mean_x = std::accumulate(x.begin(), x.end(), 0.0) / n;
  const double mean_y = std::accumulate(y.begin(), y.end(), 0.0) / n;
  double xy = 0;
  double xx = 0;
  double yy = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    xy += (x[i] - mean_x) * (y[i] - mean_y);
    xx += (x[i] - mean_x) * (x[i] - mean_x);
    yy += (y[i] - mean_y) * (y[i] - mean_y);
  }
  return xx > 0 && yy > 0 ? xy / std::sqrt(xx * yy) : kNaN;
}

/// Equal values share the mean of their ranks.
std::vector<double> ranks_of(const std::vector<double>& values) {
  std::vector<std::size_t> order(values.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (std::size_t begin = 0; begin < order.size();) {
    std::size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = (static_cast<double>(begin) + static_cast<double>(end - 1)) / 2;
    for (; begin < end; ++begin) ranks[order[begin]] = rank;
  }
  return ranks;
}

}  // namespace

bool Effect::known() const {
  return blocks_a >= kFewestBlocks && blocks_b >= kFewestBlocks;
}

bool Effect::changed(double least) const {
  return known() && std::fabs(ratio - 1) >= least && (low > 1 || high < 1) &&
         std::fabs(delta) >= kLargeDelta;
}

double student_999(std::size_t degrees) {
  struct Point {
    std::size_t degrees;
    double value;
  };
  // What lies between is taken as at the next smaller number, which is the larger value.
  constexpr std::array<Point, 14> kTable{{{1, 636.6},
                                          {2, 31.60},
                                          {3, 12.92},
                                          {4, 8.610},
                                          {5, 6.869},
                                          {6, 5.959},
                                          {8, 5.041},
                                          {10, 4.587},
                                          {15, 4.073},
                                          {20, 3.850},
                                          {30, 3.646},
                                          {60, 3.460},
                                          {120, 3.373},
                                          {1000, 3.300}}};
  double value = kTable[0].value;
  for (const Point& point : kTable) {
    if (point.degrees <= degrees) value = point.value;
  }
  return value;
}

Effect effect_of(const std::vector<double>& a, const std::vector<double>& b) {
  const std::vector<double> log_a = logarithms(a);
  const std::vector<double> log_b = logarithms(b);
  Effect out;
  out.blocks_a = log_a.size();
  out.blocks_b = log_b.size();
  if (log_a.empty() || log_b.empty()) return out;
  const double median_a = verdict::median(log_a);
  const double median_b = verdict::median(log_b);
  out.a = std::exp(median_a);
  out.b = std::exp(median_b);
  const double difference = median_b - median_a;
  const double error = std::hypot(error_of(log_a, median_a), error_of(log_b, median_b));
  const std::size_t all = log_a.size() + log_b.size();
  const double margin = student_999(all > 2 ? all - 2 : 0) * error;
  out.ratio = std::exp(difference);
  out.low = std::exp(difference - margin);
  out.high = std::exp(difference + margin);
  double above = 0;
  for (const double x : log_a) {
    for (const double y : log_b) above += y > x ? 1 : y < x ? -1 : 0;
  }
  out.delta = above / (static_cast<double>(log_a.size()) * static_cast<double>(log_b.size()));
  return out;
}

Correlation correlation_of(const std::vector<double>& x, const std::vector<double>& y) {
  Correlation out;
  out.pairs = std::min(x.size(), y.size());
  out.pearson = out.low = out.high = out.spearman = kNaN;
  if (out.pairs < 3 || x.size() != y.size()) return out;
  out.pearson = pearson_of(x, y);
  out.spearman = pearson_of(ranks_of(x), ranks_of(y));
  if (std::isnan(out.pearson) || out.pairs < 4) return out;
  const double limited = std::clamp(out.pearson, -1 + 1e-12, 1 - 1e-12);
  const double margin = kNormal95 / std::sqrt(static_cast<double>(out.pairs) - 3);
  out.low = std::tanh(std::atanh(limited) - margin);
  out.high = std::tanh(std::atanh(limited) + margin);
  return out;
}

}  // namespace ncclscope::cli::report

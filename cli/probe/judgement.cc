// SPDX-License-Identifier: Apache-2.0
#include "cli/probe/judgement.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>

namespace ncclscope::cli::probe {
namespace {

std::string number(double value) {
  std::array<char, 32> text{};
  (void)std::snprintf(text.data(), text.size(), "%.4g", value);
  return text.data();
}

std::string subject(const Comparison& c) {
  return std::string(collective_name(c.row.collective)) + " of " + std::to_string(c.row.bytes) +
         " bytes reaches " + number(c.bus) + " GB/s on the bus, ";
}

void below_fraction(const Comparison& c, double fraction, const topology::Limit& of,
                    const std::string& what, Judgement& out) {
  if (of.gigabytes <= 0 || c.bus >= fraction * of.gigabytes) return;
  out.reasons.push_back(subject(c) + number(100 * c.bus / of.gigabytes) + " % of " + what + ", " +
                        number(of.gigabytes) + " GB/s (" + of.what + "); wanted at least " +
                        number(100 * fraction) + " %");
}

bool known(const std::vector<Comparison>& comparisons, topology::Limit Comparison::*which) {
  return std::any_of(comparisons.begin(), comparisons.end(),
                     [which](const Comparison& c) { return (c.*which).gigabytes > 0; });
}

void count_wrong_results(const std::vector<Measured>& measured, Judgement& out) {
  for (const Measured& m : measured)
    if (m.wrong > 0)
      out.reasons.push_back(std::string(collective_name(m.row.collective)) + " of " +
                            std::to_string(m.row.bytes) + " bytes: " + std::to_string(m.wrong) +
                            " elements of all ranks' results are wrong");
}

}  // namespace

double Thresholds::min_bus_of(model::Function collective) const {
  double least = 0;
  for (const auto& [which, value] : min_bus) {
    if (which == collective) return value;
    if (!which) least = value;
  }
  return least;
}

std::optional<std::pair<std::optional<model::Function>, double>> parse_min_bus(
    const std::string& text) {
  const std::size_t equals = text.find('=');
  std::optional<model::Function> collective;
  std::string value = text;
  if (equals != std::string::npos) {
    collective = collective_of(text.substr(0, equals));
    if (!collective) return {};
    value = text.substr(equals + 1);
  }
  char* end = nullptr;
  const double least = std::strtod(value.c_str(), &end);
  if (value.empty() || *end != '\0' || !std::isfinite(least) || least < 0) return {};
  return std::pair{collective, least};
}

Judgement judge(const std::vector<Measured>& measured, std::uint32_t ranks,
                const Thresholds& thresholds, const References& references) {
  Judgement out;
  count_wrong_results(measured, out);
  std::map<model::Function, const Measured*> largest;
  for (const Measured& m : measured) {
    const Measured*& best = largest[m.row.collective];
    if (best == nullptr || m.row.bytes > best->row.bytes) best = &m;
  }
  for (const auto& [collective, m] : largest)
    out.comparisons.push_back({m->row, bus_gigabytes(m->row, ranks, m->seconds()),
                               references.allowed(collective),
                               references.baseline(collective, m->row.bytes)});
  for (const Comparison& c : out.comparisons) {
    const double least = thresholds.min_bus_of(c.row.collective);
    if (c.bus < least) out.reasons.push_back(subject(c) + "wanted at least " + number(least));
    below_fraction(c, thresholds.min_fraction, c.allowed, "what the paths allow", out);
    below_fraction(c, thresholds.min_baseline_fraction, c.baseline, "the fleet's baseline", out);
  }
  if (!out.reasons.empty()) {
    out.status = kBelow;
    return out;
  }
  const auto must_know = [&](double fraction, topology::Limit Comparison::*which,
                             const std::string& what) {
    if (fraction <= 0 || known(out.comparisons, which)) return;
    out.status = kCouldNotRun;
    out.reasons.push_back(
        what + " is not known, hence no fraction of it: " + (out.comparisons.front().*which).what);
  };
  must_know(thresholds.min_fraction, &Comparison::allowed, "what the paths allow");
  must_know(thresholds.min_baseline_fraction, &Comparison::baseline, "the fleet's baseline");
  return out;
}

}  // namespace ncclscope::cli::probe

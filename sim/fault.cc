// SPDX-License-Identifier: Apache-2.0
// Text form of faults: see fault.h.
#include "sim/fault.h"

#include <charconv>
#include <cmath>
#include <iterator>
#include <sstream>

namespace ncclscope::sim {
namespace {

struct Name {
  FaultKind kind;
  const char* name;
  bool needs_target;
  bool needs_delay;
  bool needs_factor;
};
constexpr Name kNames[] = {
    {FaultKind::kLate, "late", true, true, false},
    {FaultKind::kSlowGpu, "slow-gpu", true, false, true},
    {FaultKind::kSlowKernel, "slow-kernel", true, true, false},
    {FaultKind::kSlowLink, "slow-link", true, false, true},
    {FaultKind::kSlowNic, "slow-nic", true, false, true},
    {FaultKind::kMissing, "missing", true, false, false},
    {FaultKind::kStuck, "stuck", true, false, false},
    {FaultKind::kMismatch, "mismatch", true, false, false},
    {FaultKind::kCrash, "crash", true, false, false},
    {FaultKind::kAbort, "abort", false, false, false},
    {FaultKind::kPause, "pause", true, true, false},
};

bool parse_number(const std::string& text, double* out) {
  const char* end = text.data() + text.size();
  const auto result = std::from_chars(text.data(), end, *out);
  return result.ec == std::errc() && result.ptr == end && std::isfinite(*out);
}

}  // namespace

const char* fault_help() {
  return "late:rank=R,ms=N | slow-gpu:rank=R,factor=F | slow-kernel:rank=R,ms=N | "
         "slow-link:rank=R|node=N,factor=F | slow-nic:rank=R|node=N,factor=F | missing:rank=R | "
         "stuck:rank=R|node=N | "
         "mismatch:rank=R | crash:rank=R | abort | pause:rank=R,ms=N; all take from=STEP and "
         "until=STEP";
}

Fault parse_fault(const std::string& text, std::string* error) {
  Fault fault;
  error->clear();
  const auto fail = [&](const std::string& what) {
    *error = "fault \"" + text + "\": " + what + "; known are " + fault_help();
    return Fault{};
  };
  const std::size_t colon = text.find(':');
  const std::string kind = text.substr(0, colon);
  const Name* name = nullptr;
  for (const Name& candidate : kNames) {
    if (kind == candidate.name) name = &candidate;
  }
  if (name == nullptr) return fail("kind \"" + kind + "\" does not exist");
  fault.kind = name->kind;
  bool has_delay = false;
  bool has_factor = false;
  bool has_until = false;
  std::istringstream rest(colon == std::string::npos ? "" : text.substr(colon + 1));
  for (std::string pair; std::getline(rest, pair, ',');) {
    const std::size_t equal = pair.find('=');
    const std::string key = pair.substr(0, equal);
    double value = 0;
    if (equal == std::string::npos || !parse_number(pair.substr(equal + 1), &value) || value < 0) {
      return fail("\"" + pair + "\" is not key=number with a number of at least 0");
    }
    const bool whole = value == std::floor(value) && value < 1e15;
    if (key == "ms" || key == "us") {
      fault.delay_ns = static_cast<std::int64_t>(value * (key == "ms" ? 1e6 : 1e3));
      has_delay = true;
    } else if (key == "factor") {
      if (value < 1) return fail("factor must be at least 1, is " + pair.substr(equal + 1));
      fault.factor = value;
      has_factor = true;
    } else if (!whole) {
      return fail("\"" + pair + "\" must be a whole number");
    } else if (key == "rank") {
      fault.rank = static_cast<int>(value);
    } else if (key == "node") {
      fault.node = static_cast<int>(value);
    } else if (key == "from" || key == "step") {
      fault.from_step = static_cast<std::int64_t>(value);
    } else if (key == "until") {
      fault.until_step = static_cast<std::int64_t>(value);
      has_until = true;
    } else {
      return fail("key \"" + key + "\" is not one of rank, node, ms, us, factor, from, until");
    }
  }
  if (name->needs_target && fault.rank < 0 && fault.node < 0) return fail("needs rank= or node=");
  if (fault.rank >= 0 && fault.node >= 0) return fail("takes rank= or node=, not both");
  if (name->needs_delay && !has_delay) return fail("needs ms= or us=");
  if (name->needs_factor && !has_factor) return fail("needs factor=");
  if (has_until && fault.until_step <= fault.from_step) return fail("until must be after from");
  const bool once = fault.kind == FaultKind::kMismatch || fault.kind == FaultKind::kPause;
  if (once && !has_until) fault.until_step = fault.from_step + 1;
  return fault;
}

std::string to_text(const Fault& fault) {
  std::ostringstream out;
  for (const Name& name : kNames) {
    if (name.kind == fault.kind) out << name.name << ":";
  }
  if (fault.rank >= 0) out << "rank=" << fault.rank << ",";
  if (fault.node >= 0) out << "node=" << fault.node << ",";
  if (fault.delay_ns > 0) out << "us=" << static_cast<double>(fault.delay_ns) / 1e3 << ",";
  if (fault.factor > 1) out << "factor=" << fault.factor << ",";
  out << "from=" << fault.from_step;
  if (fault.until_step != INT64_MAX) out << ",until=" << fault.until_step;
  return out.str();
}

}  // namespace ncclscope::sim

// SPDX-License-Identifier: Apache-2.0
#include "verdict/text.h"

#include <cctype>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <string_view>
#include <vector>

namespace ncclscope::verdict {
namespace {

constexpr std::size_t kMostNamed = 8;

std::string number(double value, int decimals) {
  char text[48];
  (void)std::snprintf(text, sizeof text, "%.*f", decimals, value);
  return text;
}

std::string percent(double share) {
  return number(share * 100, share < 0.1 ? 1 : 0) + " %";
}

template <typename Describe>
std::string list(const std::vector<std::uint32_t>& items, std::string_view separator,
                 Describe&& describe) {
  std::string out;
  for (std::size_t i = 0; i < items.size() && i < kMostNamed; ++i) {
    if (i > 0) out += separator;
    out += describe(items[i]);
  }
  if (items.size() > kMostNamed)
    out += " and " + std::to_string(items.size() - kMostNamed) + " more";
  return out;
}

std::string members_text(const Job& job, const Finding& finding) {
  return list(finding.members, ", ", [&](std::uint32_t m) { return describe_member(job, m); });
}

std::string gpus_text(const Job& job, const Finding& finding) {
  return list(finding.gpus, "; ", [&](std::uint32_t g) { return describe_gpu(job, g); });
}

std::string ranks_text(const Job& job, const Finding& finding) {
  return std::string(finding.members.size() == 1 ? "rank " : "ranks ") +
         list(finding.members, ", ",
              [&](std::uint32_t m) { return std::to_string(job.members[m].rank); });
}

std::string communicator_name(const Job& job, std::uint32_t communicator) {
  const Communicator& c = job.communicators[communicator];
  return c.name.empty() ? c.comm : c.name;
}

std::string capitalised(std::string text) {
  if (!text.empty()) text[0] = static_cast<char>(std::toupper(static_cast<unsigned char>(text[0])));
  return text;
}

std::string hang_headline(const Job& job, const Finding& f) {
  if (f.hang_class == HangClass::kOutsideNccl) return "nobody is in NCCL";
  if (f.communicator == kNone)
    return "nobody calls NCCL, and whether the last operations end is not seen";
  const std::string of = " of communicator " + communicator_name(job, f.communicator);
  switch (f.hang_class) {
    case HangClass::kProcessGone:
      if (f.members.empty())
        return std::to_string(f.unreported) + (f.unreported == 1 ? " rank" : " ranks") + of +
               (f.unreported == 1 ? " does" : " do") + " not report";
      return ranks_text(job, f) + of + (f.members.size() == 1 ? " is gone" : " are gone");
    case HangClass::kProcessStopped:
      return ranks_text(job, f) + of + (f.members.size() == 1 ? " says" : " say") +
             " nothing any more";
    case HangClass::kArgumentMismatch:
      return ranks_text(job, f) + of + (f.members.size() == 1 ? " calls" : " call") +
             " another operation than the others";
    case HangClass::kRankNeverCalled:
      return ranks_text(job, f) + of + (f.members.size() == 1 ? " has" : " have") +
             " not called what the others wait in";
    case HangClass::kGpuNeverStarted:
      return "the GPU of " + ranks_text(job, f) + of + " never started";
    case HangClass::kNetworkStuck:
      return "the network of communicator " + communicator_name(job, f.communicator) + " is stuck";
    case HangClass::kUnknown:
      return "communicator " + communicator_name(job, f.communicator) +
             " stands still, and what its last operations wait for is not seen";
    case HangClass::kOutsideNccl:
      break;
  }
  return "";
}

std::string hang_cause(const Job& job, const Finding& f) {
  const std::string who = members_text(job, f);
  const bool one = f.members.size() == 1;
  switch (f.hang_class) {
    case HangClass::kProcessGone:
      if (f.members.empty())
        return "Fewer ranks report than the communicator has, and the missing ones (" +
               std::to_string(f.unreported) +
               ") never reported here: their processes ended, or "
               "their nodes' agents were not asked or do not answer.";
      return "Gone: " + who +
             ". Processes ended without an end of the communicator, or are not "
             "reported any more.";
    case HangClass::kProcessStopped:
      return "Silent: " + who +
             ". Processes exist and their plugins tell nothing: stopped (a "
             "debugger, SIGSTOP, a frozen cgroup), or their node does not run them.";
    case HangClass::kArgumentMismatch:
      return "At the same index, " + who + (one ? " calls" : " call") +
             " another operation, size, datatype or root than the others.";
    case HangClass::kRankNeverCalled:
      if (f.point_to_point)
        return "The others wait in Send or Recv; " + who + (one ? " has" : " have") +
               " nothing in flight anywhere: outside NCCL.";
      if (f.unobserved)
        return "The others have called an operation that " + who + (one ? " has" : " have") +
               " not. Whether " + (one ? "it is" : "they are") +
               " outside NCCL or in an operation that does not end cannot be told: GPU times of "
               "the last ones were not asked for.";
      return "Outside NCCL: " + who + ". The others have called an operation that " +
             (one ? "this one has" : "these have") + " not.";
    case HangClass::kGpuNeverStarted:
      return "Called, and the GPU never started: " + who +
             ". No collective of another communicator "
             "occupies it; look for a kernel or a copy that does not end in front of it.";
    case HangClass::kNetworkStuck:
      return "All ranks have called and started, and nothing moves. No rank is accused.";
    case HangClass::kOutsideNccl:
      return "All processes run, nothing is in flight in any communicator, and nobody calls: a "
             "long "
             "checkpoint or evaluation, a deadlock in the program, or a job that waits for input.";
    case HangClass::kUnknown:
      if (f.communicator == kNone)
        return "All processes run, all ranks have called the same, and nobody calls. GPU times of "
               "the last operations were not asked for, so it cannot be told whether they ended "
               "(then everybody is outside NCCL) or a GPU or the network is stuck in one.";
      return "All ranks have called, and GPU times of their last operations were not asked for: a "
             "GPU or the network is stuck in one, but which cannot be told.";
  }
  return "";
}

std::string hang_explanation(const Job& job, const Finding& f) {
  std::string out = hang_cause(job, f);
  if (f.communicator == kNone) return out + " For " + describe_seconds(f.seconds) + ".";
  out += " " + capitalised(describe_communicator(job, f.communicator)) + " has stood still for " +
         describe_seconds(f.seconds) +
         (f.kind == Kind::kHang ? "; a wait is a hang from " : "; not yet a hang, that is from ") +
         describe_seconds(f.threshold_seconds) + " on.";
  if (f.unreported > 0 && !f.members.empty())
    out += " " + std::to_string(f.unreported) + " of its ranks are not reported.";
  return out;
}

std::string worst_text(const Job& job, const Finding& f) {
  if (!f.collective) return "";
  return ", most in " + std::string(name(*f.collective)) + " of " +
         describe_communicator(job, f.communicator);
}

std::string reason_text(const Finding& f) {
  switch (f.reason) {
    case Reason::kHost:
      return "late on the host (data loader, Python, CPU): its operations queue for less time than "
             "the others' (" +
             describe_seconds(-f.queue_excess) + " per second).";
    case Reason::kGpu:
      return "its GPU was still computing when the operation was called: its operations queue for "
             "longer than the others' (" +
             describe_seconds(f.queue_excess) + " per second).";
    case Reason::kEither:
      return "host or GPU cannot be told, its operations queue for as long as the others'.";
    case Reason::kUnknown:
      return "host or GPU is not known, its clocks could not be matched.";
  }
  return "";
}

std::string late_explanation(const Job& job, const Finding& f) {
  const bool one = f.gpus.size() == 1;
  std::string out;
  if (f.kind != Kind::kLateGpu) out = "Late are " + gpus_text(job, f) + ". ";
  out += std::string(one ? "It works " : "They work up to ") + describe_seconds(f.seconds) +
         " per second longer than " + (one ? "its" : "their") + " peers, and the others wait for " +
         (one ? "it" : "them") + worst_text(job, f) + "; " + (one ? "it waits " : "they wait ") +
         describe_seconds(f.wait_seconds) + " per second " + (one ? "itself" : "themselves") +
         ". A GPU counts as late from " + describe_seconds(f.threshold_seconds) + " per second on.";
  if (f.kind == Kind::kLateGpu) out += " Reason: " + reason_text(f);
  if (f.hidden) out += " Steps are no slower than before: the waiting is hidden behind computing.";
  return out;
}

}  // namespace

std::string describe_seconds(double seconds) {
  if (seconds < 0.0005) return seconds > 0 ? number(seconds * 1e6, 0) + " us" : "0 s";
  if (seconds < 1) return number(seconds * 1e3, seconds < 0.01 ? 1 : 0) + " ms";
  if (seconds < 120) return number(seconds, 1) + " s";
  const auto whole = static_cast<long long>(std::llround(seconds));
  if (whole < 7200) return std::to_string(whole / 60) + " min " + std::to_string(whole % 60) + " s";
  return std::to_string(whole / 3600) + " h " + std::to_string(whole / 60 % 60) + " min";
}

std::string describe_gpu(const Job& job, std::uint32_t gpu) {
  const Gpu& g = job.gpus[gpu];
  if (g.node.empty()) return "the GPU of global rank " + g.global_rank;
  std::string out = g.index >= 0 ? "GPU " + std::to_string(g.index) + " of " + g.node
                    : g.pid >= 0 ? "the GPU of pid " + std::to_string(g.pid) + " on " + g.node
                                 : "a GPU of " + g.node;
  if (!g.global_rank.empty()) out += " (global rank " + g.global_rank + ")";
  return out;
}

std::string describe_member(const Job& job, std::uint32_t member) {
  const Member& m = job.members[member];
  const Gpu& g = job.gpus[m.gpu];
  std::string out = "rank " + std::to_string(m.rank) + " (";
  if (g.node.empty()) return out + "global rank " + g.global_rank + ")";
  if (!g.global_rank.empty()) out += "global rank " + g.global_rank + ", ";
  out += g.index < 0 ? g.node : "GPU " + std::to_string(g.index) + " of " + g.node;
  return out + ")";
}

std::string describe_communicator(const Job& job, std::uint32_t communicator) {
  const Communicator& c = job.communicators[communicator];
  std::string out = "communicator " + (c.name.empty() ? c.comm : c.name) + " (";
  if (!c.name.empty()) out += c.comm;
  if (c.nranks > 0) out += (c.name.empty() ? "" : ", ") + std::to_string(c.nranks) + " ranks";
  return out + ")";
}

std::string headline(const Job& job, const Finding& f) {
  switch (f.kind) {
    case Kind::kHang:
      return "hang (" + std::string(name(f.hang_class)) + "): " + hang_headline(job, f);
    case Kind::kWaiting:
      if (f.hang_class == HangClass::kUnknown) return "unknown: " + hang_headline(job, f);
      return "waiting for " + ranks_text(job, f) + " of communicator " +
             communicator_name(job, f.communicator) + (f.unobserved ? "" : " (outside NCCL)");
    case Kind::kLateGpu:
      return describe_gpu(job, f.gpus.front()) + " is late";
    case Kind::kLateNode:
      return "node " + job.gpus[f.gpus.front()].node + " is late";
    case Kind::kLateGroup:
      return "the members of communicator " + communicator_name(job, f.communicator) + " are late";
    case Kind::kLateReplica:
      return "data-parallel replica " + std::to_string(f.replica) + " is late";
    case Kind::kSlowTransfer:
      return std::string(name(*f.collective)) + " of communicator " +
             communicator_name(job, f.communicator) + " transfers at " + percent(f.share) +
             " of what it did";
    case Kind::kSlowLink:
      return "the egress link of " + describe_gpu(job, f.gpus.front()) + " is slow";
    case Kind::kSlowNic:
      return "the NIC of " + describe_gpu(job, f.gpus.front()) + " is slow";
    case Kind::kImbalance:
      return "the work is unevenly spread";
    case Kind::kBlind:
      return "telemetry of communicator " + communicator_name(job, f.communicator) + " is blind";
  }
  return "";
}

std::string explanation(const Job& job, const Finding& f) {
  switch (f.kind) {
    case Kind::kHang:
    case Kind::kWaiting:
      return hang_explanation(job, f);
    case Kind::kLateGpu:
    case Kind::kLateNode:
    case Kind::kLateGroup:
    case Kind::kLateReplica:
      return late_explanation(job, f);
    case Kind::kSlowTransfer:
      if (f.reason == Reason::kGpu)
        return "Even the rank that waits least is slower than before, with the same mix of "
               "messages, and nobody is late. What has come waits for " +
               gpus_text(job, f) +
               " to take it, longer than at the others, and nothing holds up what it sends on: the "
               "GPU is slow, not its NIC.";
      return "Even the rank that waits least is slower than before, with the same mix of messages, "
             "and nobody is late: the transfer itself is slower. Suspects: " +
             (f.gpus.empty() ? "none stands out" : gpus_text(job, f)) + ".";
    case Kind::kSlowLink:
      return "A byte it sends is on the wire " + number(f.share, 1) +
             " times as long as the median of the job's GPUs; what it receives is as fast as "
             "others'.";
    case Kind::kSlowNic:
      return "A byte it sends is on the wire " + number(f.share, 1) +
             " times as long as the median of the job's GPUs, and what it receives takes long as "
             "well: the NIC, not one direction.";
    case Kind::kImbalance:
      return gpus_text(job, f) +
             (f.gpus.size() == 1 ? " works longer, up to " : " work longer, up to ") +
             describe_seconds(f.seconds) +
             " per second: a whole pipeline stage or expert, or no more than this job always had "
             "it. Uneven work, no fault.";
    case Kind::kBlind:
      return percent(f.share) + " of the operations of " +
             describe_communicator(job, f.communicator) +
             " were recorded: no verdict is made about it.";
  }
  return "";
}

}  // namespace ncclscope::verdict

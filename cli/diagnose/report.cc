// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/report.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>
#include <string_view>

#include "cli/text.h"
#include "verdict/text.h"

namespace ncclscope::cli {
namespace {

using verdict::describe_seconds;
using verdict::Finding;
using verdict::Kind;
using verdict::kNone;
using Json = nlohmann::ordered_json;

/// Waits below this are not worth a number: an operation is always in flight for a moment.
constexpr double kShownSeconds = 0.5;

std::string operation_text(const v1::OperationBrief& operation) {
  std::string out = printable(operation.collective()) + " " + format_bytes(operation.bytes());
  if (!operation.datatype().empty()) {
    const std::string type = printable(operation.datatype());
    out += " " + (type.starts_with("nccl") ? type.substr(4) : type);
  }
  return out;
}

/// What a member is in: "#118 AllReduce 32 MiB Float32, on the network".
std::string unfinished_text(const v1::RankProgress& p) {
  if (p.inflight_seconds() <= 0) return "-";
  std::string out = p.oldest_is_p2p() ? "Send/Recv #" : "#";
  out += std::to_string(p.oldest_index());
  if (p.has_oldest()) out += " " + operation_text(p.oldest());
  if (p.oldest_on_network())
    out += ", on the network";
  else if (p.oldest_started())
    out += ", GPU started";
  else
    out += ", GPU not started";
  return out;
}

std::string last_text(const v1::RankProgress& p) {
  if (!p.has_last()) return "-";
  return operation_text(p.last()) + ", " + describe_seconds(p.last().age_seconds()) + " ago";
}

std::string neighbours_text(const v1::RankProgress& p) {
  std::string sends;
  std::string receives;
  for (const v1::Neighbour& n : p.neighbours()) {
    std::string& list = n.is_send() ? sends : receives;
    list += (list.empty() ? "" : ",") + std::to_string(n.peer());
  }
  if (sends.empty() && receives.empty()) return "-";
  return (receives.empty() ? "?" : receives) + " > . > " + (sends.empty() ? "?" : sends);
}

std::string state_text(const verdict::Progress& p, double silent_seconds) {
  switch (p.state) {
    case verdict::MemberState::kFinalized:
      return "finalized";
    case verdict::MemberState::kVanished:
    case verdict::MemberState::kLost:
      return "gone";
    case verdict::MemberState::kRunning:
      break;
  }
  if (p.sample_age_seconds >= silent_seconds)
    return "silent for " + describe_seconds(p.sample_age_seconds);
  if (p.inflight_seconds >= kShownSeconds) return "waits";
  return p.collective_ends_unknown || p.p2p_ends_unknown ? "not seen" : "outside NCCL";
}

std::string gpu_number(const verdict::Gpu& gpu) {
  return gpu.index < 0 ? "?" : std::to_string(gpu.index);
}

/// The members of a communicator: the accused first, then those who are behind, then by rank.
std::vector<std::uint32_t> by_interest(const Report& report, std::uint32_t communicator,
                                       const std::vector<std::uint32_t>& accused) {
  std::vector<std::uint32_t> members;
  for (std::uint32_t m = 0; m < report.now.job.members.size(); ++m) {
    if (report.now.job.members[m].communicator == communicator) members.push_back(m);
  }
  const auto is_accused = [&](std::uint32_t m) {
    return std::find(accused.begin(), accused.end(), m) != accused.end();
  };
  std::stable_sort(members.begin(), members.end(), [&](std::uint32_t a, std::uint32_t b) {
    if (is_accused(a) != is_accused(b)) return is_accused(a);
    const std::uint64_t called_a = report.now.standing.progress[a].enqueued;
    const std::uint64_t called_b = report.now.standing.progress[b].enqueued;
    if (called_a != called_b) return called_a < called_b;
    return report.now.job.members[a].rank < report.now.job.members[b].rank;
  });
  return members;
}

std::string and_more(std::size_t all, std::size_t shown) {
  return all > shown ? "... and " + std::to_string(all - shown) + " more (--json has all)\n" : "";
}

/// Where in the program those wait who wait, one line for each place.
std::string called_text(const Report& report, const std::vector<std::uint32_t>& members) {
  std::map<std::string, std::string> places;
  for (const std::uint32_t m : members) {
    const std::string& at = report.now.members[m].called_at;
    if (at.empty()) continue;
    std::string& ranks = places[at];
    ranks += (ranks.empty() ? "" : ", ") + std::to_string(report.now.job.members[m].rank);
  }
  std::string out;
  for (const auto& [at, ranks] : places)
    out += "  Called at " + at + " by rank" + (ranks.find(',') == std::string::npos ? " " : "s ") +
           ranks + "\n";
  return out;
}

/// How far everybody in a communicator is.
std::string progress_table(const Report& report, const Finding& finding) {
  using Align = Table::Align;
  const verdict::Job& job = report.now.job;
  Table table({{""},
               {"RANK", Align::kRight},
               {"GLOBAL", Align::kRight},
               {"NODE"},
               {"GPU", Align::kRight},
               {"PID", Align::kRight},
               {"CALLED", Align::kRight},
               {"STARTED", Align::kRight},
               {"DONE", Align::kRight},
               {"WAITS", Align::kRight},
               {"STATE"},
               {"IN"},
               {"LAST DONE"},
               {"RING"}});
  const std::vector<std::uint32_t> members =
      by_interest(report, finding.communicator, finding.members);
  for (std::size_t i = 0; i < members.size() && i < report.max_rows; ++i) {
    const std::uint32_t m = members[i];
    const verdict::Progress& p = report.now.standing.progress[m];
    const MemberFacts& facts = report.now.members[m];
    const verdict::Gpu& gpu = job.gpus[job.members[m].gpu];
    const bool accused =
        std::find(finding.members.begin(), finding.members.end(), m) != finding.members.end();
    const bool p2p = finding.point_to_point;
    table.add({accused ? ">" : "", std::to_string(job.members[m].rank),
               gpu.global_rank.empty() ? "-" : gpu.global_rank, gpu.node.empty() ? "?" : gpu.node,
               gpu_number(gpu), facts.pid == 0 ? "?" : std::to_string(facts.pid),
               std::to_string(p2p ? p.p2p_enqueued : p.enqueued),
               std::to_string(p2p ? p.p2p_started : p.started),
               std::to_string(p2p ? p.p2p_completed : p.completed),
               p.inflight_seconds >= kShownSeconds ? describe_seconds(p.inflight_seconds) : "-",
               state_text(p, report.silent_seconds), unfinished_text(facts.progress),
               last_text(facts.progress), neighbours_text(facts.progress)});
  }
  return describe_communicator(job, finding.communicator) + ":\n" + table.render() +
         and_more(members.size(), report.max_rows) + called_text(report, members);
}

/// Seconds per byte; negative = not known.
double network_rate(const verdict::NetworkRates& rates) {
  return rates.bytes > 0 ? rates.seconds / rates.bytes : -1;
}

std::string milliseconds_text(double seconds) {
  const long long tenths = std::llround(seconds * 1e4);
  return (tenths < 0 ? "-" : "") + std::to_string(std::llabs(tenths) / 10) + "." +
         std::to_string(std::llabs(tenths) % 10);
}

std::string communicator_name(const verdict::Job& job, std::uint32_t communicator) {
  const verdict::Communicator& c = job.communicators[communicator];
  return c.name.empty() ? c.comm : c.name;
}

std::string network_text(const verdict::NetworkRates& rates) {
  return rates.bytes > 0 ? describe_seconds(network_rate(rates) * 1e9) + "/GB" : "-";
}

bool judges_anybody(const verdict::WindowResult& window) {
  return std::find(window.judged.begin(), window.judged.end(), 1) != window.judged.end();
}

/// Who communicates least, which is who works longest.
std::string rates_table(const Report& report) {
  using Align = Table::Align;
  const verdict::Job& job = report.now.job;
  const verdict::WindowResult& last = *report.windows.back();
  Table table({{""},
               {"NODE"},
               {"GPU", Align::kRight},
               {"GLOBAL", Align::kRight},
               {"LAGS", Align::kRight},
               {"COMMUNICATES", Align::kRight},
               {"WAITS", Align::kRight},
               {"CAUSES", Align::kRight},
               {"QUEUE", Align::kRight},
               {"SEND WIRE", Align::kRight},
               {"RECV DATA", Align::kRight},
               {"CAME LAST IN"}});
  std::vector<std::uint32_t> gpus(job.gpus.size());
  for (std::uint32_t g = 0; g < gpus.size(); ++g) gpus[g] = g;
  std::stable_sort(gpus.begin(), gpus.end(), [&](std::uint32_t a, std::uint32_t b) {
    return last.judged[a] != last.judged[b] ? last.judged[a] != 0 : last.lag[a] > last.lag[b];
  });
  for (std::size_t i = 0; i < gpus.size() && i < report.max_rows; ++i) {
    const std::uint32_t g = gpus[i];
    const verdict::Gpu& gpu = job.gpus[g];
    const verdict::CommunicatorTiming* worst = last.worst(job, g);
    const auto judged = [&](double seconds) {
      return last.judged[g] != 0 ? milliseconds_text(seconds) : std::string("?");
    };
    table.add({last.late[g] != 0 ? ">" : "", gpu.node, gpu_number(gpu),
               gpu.global_rank.empty() ? "-" : gpu.global_rank, judged(last.lag[g]),
               judged(last.communication[g]), judged(last.wait[g]), judged(last.caused[g]),
               last.queue[g] > 0 ? milliseconds_text(last.queue[g]) : "?",
               network_text(last.send[g]), network_text(last.receive[g]),
               worst == nullptr ? "-"
                                : std::string(name(worst->collective)) + " of " +
                                      communicator_name(job, worst->communicator)});
  }
  std::string out = "GPUs over the last " + describe_seconds(last.seconds) +
                    ", in ms per second:\n" + table.render() +
                    and_more(gpus.size(), report.max_rows);
  if (!judges_anybody(last))
    out +=
        "Nobody can be compared: in no AllReduce, AllGather, ReduceScatter or AlltoAll did all "
        "ranks "
        "report equally often.\n";
  return out;
}

std::string since_text(const Report& report, const Finding& finding) {
  const bool hang = finding.kind == Kind::kHang || finding.kind == Kind::kWaiting;
  const double seconds = hang ? finding.seconds : finding.observed_seconds;
  if (seconds <= 0) return "";
  const auto since = report.now.time_ns - static_cast<std::int64_t>(seconds * 1e9);
  const std::string when = format_time_of_day(since);
  return (hang ? ", since " : ", at least since ") + when.substr(0, when.find('.'));
}

std::string job_text(const Report& report) {
  const std::string& id = report.now.job.job_id;
  return id.empty() ? "The job" : "Job " + id;
}

std::string finding_text(const Report& report, const Finding& finding, bool first) {
  const verdict::Job& job = report.now.job;
  std::string out = first ? job_text(report) + ": " : "Also: ";
  out += headline(job, finding) + "\n";
  out += "  Confidence " + std::string(name(finding.confidence)) + since_text(report, finding) +
         ".\n  " + explanation(job, finding) + "\n";
  return out;
}

/// One cause often shows in several communicators: those that name nobody new are told in short.
bool is_repetition(const Finding& a, const Finding& b) {
  return a.kind == b.kind && a.hang_class == b.hang_class && !a.gpus.empty() && a.gpus == b.gpus &&
         a.kind == Kind::kHang;
}

std::string verdict_text(const Report& report) {
  const std::string job = job_text(report);
  if (report.findings.empty()) {
    if (outcome_of(report) == Outcome::kPartial)
      return job + ": nothing is wrong as far as can be seen, but " +
             (report.now.missing.empty() ? "who is late cannot be told\n"
                                         : "answers are missing\n");
    return job + ": healthy\n";
  }
  std::string out;
  std::size_t repeated = 0;
  const Finding& first = report.findings.front();
  for (std::size_t i = 0; i < report.findings.size(); ++i) {
    if (i > 0 && is_repetition(first, report.findings[i])) {
      ++repeated;
    } else {
      if (i == 0 && !is_fault(first.kind) && outcome_of(report) == Outcome::kHealthy)
        out += job + ": healthy; for information:\n";
      out += finding_text(report, report.findings[i], i == 0);
    }
  }
  if (repeated > 0)
    out += "  The same shows in " + std::to_string(repeated) + " more communicator" +
           (repeated == 1 ? "" : "s") + ".\n";
  return out;
}

std::string missing_text(const Report& report) {
  std::string out;
  std::size_t shown = 0;
  for (const Missing& missing : report.now.missing) {
    if (++shown > report.max_rows) break;
    out += "  " + missing.who + ": " + missing.why + "\n";
  }
  if (out.empty()) return out;
  return "Missing answers:\n" + out + and_more(report.now.missing.size(), report.max_rows);
}

Json gpu_json(const verdict::Job& job, std::uint32_t g) {
  const verdict::Gpu& gpu = job.gpus[g];
  return {{"node", gpu.node}, {"gpu", gpu.index}, {"global_rank", gpu.global_rank}};
}

Json finding_json(const Report& report, const Finding& f) {
  const verdict::Job& job = report.now.job;
  Json out;
  out["kind"] = std::string(name(f.kind));
  out["fault"] = is_fault(f.kind);
  const bool hang = f.kind == Kind::kHang || f.kind == Kind::kWaiting;
  if (hang) out["class"] = std::string(name(f.hang_class));
  out["confidence"] = std::string(name(f.confidence));
  out["headline"] = headline(job, f);
  out["explanation"] = explanation(job, f);
  if (f.communicator != kNone) {
    out["comm"] = job.communicators[f.communicator].comm;
    out["comm_name"] = job.communicators[f.communicator].name;
  }
  if (f.collective) out["collective"] = std::string(name(*f.collective));
  out["gpus"] = Json::array();
  for (const std::uint32_t g : f.gpus) out["gpus"].push_back(gpu_json(job, g));
  if (hang) {
    out["ranks"] = Json::array();
    for (const std::uint32_t m : f.members) out["ranks"].push_back(job.members[m].rank);
    out["waiting_seconds"] = f.seconds;
    out["threshold_seconds"] = f.threshold_seconds;
    out["unreported_ranks"] = f.unreported;
    out["since_unix_seconds"] = static_cast<double>(report.now.time_ns) * 1e-9 - f.seconds;
    return out;
  }
  if (f.kind == Kind::kLateReplica) out["replica"] = f.replica;
  if (f.kind == Kind::kLateGpu) out["reason"] = std::string(name(f.reason));
  if (f.kind == Kind::kSlowTransfer || f.kind == Kind::kSlowLink || f.kind == Kind::kSlowNic ||
      f.kind == Kind::kBlind) {
    out["share"] = f.share;
  } else {
    out["lag_seconds_per_second"] = f.seconds;
    out["wait_seconds_per_second"] = f.wait_seconds;
    out["queue_seconds_per_second"] = f.queue_seconds;
    out["threshold_seconds_per_second"] = f.threshold_seconds;
    out["hidden"] = f.hidden;
  }
  out["observed_seconds"] = f.observed_seconds;
  return out;
}

Json operation_json(const v1::OperationBrief& o) {
  return {{"collective", o.collective()},  {"bytes", o.bytes()}, {"count", o.count()},
          {"datatype", o.datatype()},      {"root", o.root()},   {"index", o.index()},
          {"age_seconds", o.age_seconds()}};
}

Json member_json(const Report& report, std::uint32_t m) {
  const verdict::Job& job = report.now.job;
  const verdict::Progress& p = report.now.standing.progress[m];
  const MemberFacts& facts = report.now.members[m];
  Json out = {{"comm", job.communicators[job.members[m].communicator].comm},
              {"rank", job.members[m].rank}};
  out.update(gpu_json(job, job.members[m].gpu));
  out["pid"] = facts.pid;
  out["state"] = p.state == verdict::MemberState::kRunning     ? "running"
                 : p.state == verdict::MemberState::kFinalized ? "finalized"
                                                               : "vanished";
  out["called"] = p.enqueued;
  out["started"] = p.started;
  out["completed"] = p.completed;
  out["p2p_called"] = p.p2p_enqueued;
  out["p2p_started"] = p.p2p_started;
  out["p2p_completed"] = p.p2p_completed;
  out["ends_unknown"] = p.collective_ends_unknown || p.p2p_ends_unknown;
  out["inflight_seconds"] = p.inflight_seconds;
  out["idle_seconds"] = p.idle_seconds;
  out["silent_seconds"] = p.sample_age_seconds;
  if (p.inflight_seconds > 0) {
    out["oldest_index"] = facts.progress.oldest_index();
    out["oldest_is_p2p"] = facts.progress.oldest_is_p2p();
    out["oldest_started"] = facts.progress.oldest_started();
    out["oldest_on_network"] = facts.progress.oldest_on_network();
  }
  if (!facts.called_at.empty()) out["called_at"] = facts.called_at;
  if (facts.progress.has_oldest()) out["oldest"] = operation_json(facts.progress.oldest());
  if (facts.progress.has_last()) out["last"] = operation_json(facts.progress.last());
  out["neighbours"] = Json::array();
  for (const v1::Neighbour& n : facts.progress.neighbours())
    out["neighbours"].push_back({{"rank", n.peer()}, {"sends_to", n.is_send()}});
  return out;
}

Json rates_json(const Report& report, std::uint32_t g) {
  const verdict::WindowResult& last = *report.windows.back();
  Json out = gpu_json(report.now.job, g);
  out["judged"] = last.judged[g] != 0;
  out["late"] = last.late[g] != 0;
  out["lag_seconds_per_second"] = last.lag[g];
  out["communication_seconds_per_second"] = last.communication[g];
  out["caused_seconds_per_second"] = last.caused[g];
  out["wait_seconds_per_second"] = last.wait[g];
  out["queue_seconds_per_second"] = last.queue[g];
  if (const double send = network_rate(last.send[g]); send >= 0)
    out["send_wire_seconds_per_byte"] = send;
  if (const double receive = network_rate(last.receive[g]); receive >= 0)
    out["receive_data_wait_seconds_per_byte"] = receive;
  if (report.now.gpus[g].communication_ratio)
    out["communication_ratio"] = *report.now.gpus[g].communication_ratio;
  return out;
}

/// Rates were looked at, and say nothing of any GPU; and it is not that the job waits for a rank.
bool nobody_is_judged(const Report& report) {
  return !report.windows.empty() && report.now.job.gpus.size() > 1 &&
         std::none_of(report.windows.begin(), report.windows.end(),
                      [](const verdict::WindowResult* w) { return judges_anybody(*w); }) &&
         std::none_of(report.findings.begin(), report.findings.end(),
                      [](const Finding& f) { return f.kind == Kind::kWaiting; });
}

}  // namespace

const char* name(Outcome outcome) {
  switch (outcome) {
    case Outcome::kHealthy:
      return "healthy";
    case Outcome::kFinding:
      return "finding";
    case Outcome::kPartial:
      return "partial";
  }
  return "";
}

Outcome outcome_of(const Report& report) {
  if (std::any_of(report.findings.begin(), report.findings.end(),
                  [](const Finding& f) { return is_fault(f.kind); }))
    return Outcome::kFinding;
  const bool unknown =
      std::any_of(report.findings.begin(), report.findings.end(), [](const Finding& f) {
        return f.kind == Kind::kWaiting && f.hang_class == verdict::HangClass::kUnknown;
      });
  return report.now.missing.empty() && !unknown && !nobody_is_judged(report) ? Outcome::kHealthy
                                                                             : Outcome::kPartial;
}

std::string report_text(const Report& report) {
  const Observation& now = report.now;
  std::string out = verdict_text(report);
  const bool by_progress =
      !report.findings.empty() && (report.findings.front().kind == Kind::kHang ||
                                   report.findings.front().kind == Kind::kWaiting);
  if (by_progress && report.findings.front().communicator != kNone)
    out += "\n" + progress_table(report, report.findings.front());
  if (!by_progress && !report.windows.empty()) out += "\n" + rates_table(report);
  if (const std::string text = configuration_text(now.configuration, report.max_rows);
      !text.empty())
    out += "\n" + text;
  if (const std::string missing = missing_text(report); !missing.empty()) out += "\n" + missing;
  if (!now.source.empty()) return out + "\n" + now.source + "\n";
  out += "\n" + std::to_string(now.answered) + " of " + std::to_string(now.asked) +
         (now.asked == 1 ? " agent" : " agents") + " answered, " + std::to_string(now.knowing) +
         (now.knowing == 1 ? " knows" : " know") +
         " the job: " + std::to_string(now.job.gpus.size()) +
         (now.job.gpus.size() == 1 ? " GPU, " : " GPUs, ") +
         std::to_string(now.job.communicators.size()) +
         (now.job.communicators.size() == 1 ? " communicator\n" : " communicators\n");
  return out;
}

Json report_json(const Report& report) {
  const Observation& now = report.now;
  Json out;
  out["job_id"] = now.job.job_id;
  out["outcome"] = name(outcome_of(report));
  out["time_unix_seconds"] = static_cast<double>(now.time_ns) * 1e-9;
  if (now.source.empty())
    out["agents"] = {{"asked", now.asked}, {"answered", now.answered}, {"knowing", now.knowing}};
  else
    out["source"] = now.source;
  out["findings"] = Json::array();
  for (const Finding& finding : report.findings)
    out["findings"].push_back(finding_json(report, finding));
  out["missing"] = Json::array();
  for (const Missing& missing : now.missing)
    out["missing"].push_back(
        {{"kind", name(missing.kind)}, {"who", missing.who}, {"why", missing.why}});
  if (now.source.empty()) out["configuration"] = configuration_json(now.configuration);
  out["communicators"] = Json::array();
  for (std::uint32_t c = 0; c < now.job.communicators.size(); ++c) {
    const verdict::Communicator& communicator = now.job.communicators[c];
    out["communicators"].push_back({{"comm", communicator.comm},
                                    {"name", communicator.name},
                                    {"dimension", communicator.dimension},
                                    {"nranks", communicator.nranks},
                                    {"nnodes", communicator.nnodes},
                                    {"coverage", now.standing.coverage[c]}});
  }
  out["ranks"] = Json::array();
  for (std::uint32_t m = 0; m < now.job.members.size(); ++m)
    out["ranks"].push_back(member_json(report, m));
  out["windows"] = Json::array();
  for (const verdict::WindowResult* window : report.windows) {
    out["windows"].push_back({{"seconds", window->seconds},
                              {"noise_seconds_per_second", window->noise},
                              {"threshold_seconds_per_second", window->threshold},
                              {"compared_collectives", window->timings.size()}});
  }
  out["gpus"] = Json::array();
  if (!report.windows.empty()) {
    for (std::uint32_t g = 0; g < now.job.gpus.size(); ++g)
      out["gpus"].push_back(rates_json(report, g));
  }
  return out;
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/ras.h"

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <nlohmann/json.hpp>
#include <regex>
#include <set>
#include <stdexcept>
#include <utility>

#include "cli/json_file.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;
using Json = nlohmann::ordered_json;
/// A process: where RAS sees it, and its id there.
using Process = std::pair<std::string, std::int64_t>;

constexpr std::size_t kMostNamed = 8;

[[noreturn]] void refuse(const std::string& where, const std::string& wanted) {
  throw std::runtime_error(where + ": wanted " + wanted + ", as `ncclras -f json` prints it");
}

std::int64_t number(const json& object, const char* key, std::int64_t otherwise,
                    const std::string& where) {
  const auto found = object.find(key);
  if (found == object.end()) return otherwise;
  if (!found->is_number_integer()) refuse(where + ": " + key, "a number");
  return found->get<std::int64_t>();
}

bool flag(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_boolean() && found->get<bool>();
}

std::string text(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? printable(found->get<std::string>()) : "";
}

/// "0x514e98cf4e44862b" and "0x1a" as 16 digits; what is none stays as it is.
std::string comm_of(const std::string& hash) {
  std::uint64_t value = 0;
  const char* begin = hash.data() + (hash.starts_with("0x") ? 2 : 0);
  const auto [end, error] = std::from_chars(begin, hash.data() + hash.size(), value, 16);
  if (error != std::errc() || end != hash.data() + hash.size()) return hash;
  std::string digits(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4) digits[i] = "0123456789abcdef"[value & 15];
  return digits;
}

RasRank rank_of(const json& value, const std::string& where) {
  if (!value.is_object() || !value.contains("rank")) refuse(where, "an object with a rank");
  RasRank rank;
  rank.rank = static_cast<std::int32_t>(number(value, "rank", -1, where));
  rank.host = text(value, "host");
  rank.pid = number(value, "pid", 0, where);
  rank.gpu = static_cast<std::int32_t>(
      number(value, "nvml_dev", number(value, "cuda_dev", -1, where), where));
  const auto found = value.find("status");
  const json status = found == value.end() || !found->is_object() ? json::object() : *found;
  rank.init_state = number(status, "init_state", 0, where);
  rank.async_error = number(status, "async_error", 0, where);
  rank.finalizing = flag(status, "finalize_called") || flag(status, "destroy_flag");
  rank.aborted = flag(status, "abort_flag");
  rank.unresponsive = flag(status, "unresponsive");
  rank.dead = flag(status, "considered_dead");
  if (const auto counts = value.find("collective_counts"); counts != value.end()) {
    if (!counts->is_object()) refuse(where + ": collective_counts", "an object");
    for (const auto& [name, count] : counts->items()) {
      if (!count.is_number_unsigned()) refuse(where + ": " + printable(name), "a count");
      rank.launched[printable(name)] = count.get<std::uint64_t>();
    }
  }
  return rank;
}

std::vector<RasRank> ranks_of(const json& communicator, const char* key, const std::string& where) {
  std::vector<RasRank> out;
  const auto list = communicator.find(key);
  if (list == communicator.end()) return out;
  if (!list->is_array()) refuse(where + ": " + key, "a list");
  for (std::size_t i = 0; i < list->size(); ++i)
    out.push_back(rank_of((*list)[i], where + ": " + key + " " + std::to_string(i)));
  return out;
}

std::string name_of(const RasRank& rank) {
  std::string out = "rank " + std::to_string(rank.rank) + " (pid " + std::to_string(rank.pid);
  if (!rank.host.empty()) out += " on " + rank.host;
  if (rank.gpu >= 0) out += ", GPU " + std::to_string(rank.gpu);
  return out + ")";
}

std::string names_of(const std::vector<RasRank>& ranks) {
  std::string out;
  for (std::size_t i = 0; i < ranks.size() && i < kMostNamed; ++i)
    out += (i == 0 ? "" : ", ") + name_of(ranks[i]);
  if (ranks.size() > kMostNamed)
    out += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  return out;
}

std::string ranks_text(const std::vector<RasRank>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  for (std::size_t i = 0; i < ranks.size() && i < kMostNamed; ++i)
    out += (i == 0 ? "" : ", ") + std::to_string(ranks[i].rank);
  if (ranks.size() > kMostNamed)
    out += " and " + std::to_string(ranks.size() - kMostNamed) + " more";
  return out;
}

const RasCommunicator* same_in(const RasStatus* status, const RasCommunicator& communicator) {
  if (status == nullptr) return nullptr;
  for (const RasCommunicator& other : status->communicators) {
    if (other.hash == communicator.hash && other.size == communicator.size) return &other;
  }
  return nullptr;
}

/// Nobody has launched anything since.
bool stands_still(const RasCommunicator& now, const RasCommunicator& before) {
  std::map<std::int32_t, const RasRank*> then;
  for (const RasRank& rank : before.ranks) then[rank.rank] = &rank;
  return std::all_of(now.ranks.begin(), now.ranks.end(), [&](const RasRank& rank) {
    const auto at = then.find(rank.rank);
    return at != then.end() && at->second->launched == rank.launched;
  });
}

/// A communicator whose ranks have launched different numbers of operations.
struct Uneven {
  const RasCommunicator* communicator = nullptr;
  bool still = false;  // seen twice, the same each time
  std::uint64_t most = 0;
  std::vector<RasRank> behind;
};

class RasJudge {
 public:
  RasJudge(const RasStatus& now, const RasStatus* earlier) : now_(now), earlier_(earlier) {}

  std::vector<RasFinding> findings() {
    for (const RasCommunicator& c : now_.communicators) add_silent(c);
    for (const RasCommunicator& c : now_.communicators) add_errors(c);
    for (const RasCommunicator& c : now_.communicators) look_at_counts(c);
    add_behind();
    std::stable_partition(out_.begin(), out_.end(), [](const RasFinding& f) { return f.fault; });
    return std::move(out_);
  }

 private:
  RasFinding& add(const RasCommunicator& c, const char* kind, const std::vector<RasRank>& ranks) {
    RasFinding& finding = out_.emplace_back();
    finding.kind = kind;
    finding.comm = c.hash;
    finding.ranks = ranks;
    return finding;
  }
  static std::string of(const RasCommunicator& c) { return " of communicator " + c.hash; }

  /// One process is told once, whatever the number of its communicators.
  std::vector<RasRank> new_ones(const std::vector<RasRank>& ranks, std::set<Process>& told) {
    std::vector<RasRank> out;
    for (const RasRank& rank : ranks) {
      if (told.insert({rank.host, rank.pid}).second) out.push_back(rank);
    }
    return out;
  }

  void add_silent(const RasCommunicator& c) {
    std::vector<RasRank> dead;
    std::vector<RasRank> silent;
    for (const RasRank& rank : c.missing) (rank.dead ? dead : silent).push_back(rank);
    for (const auto& missing : c.missing) missing_.insert({missing.host, missing.pid});
    dead = new_ones(dead, told_);
    silent = new_ones(silent, told_);
    if (!dead.empty()) {
      RasFinding& f = add(c, "process_gone", dead);
      f.confidence = "high";
      f.headline = ranks_text(dead) + of(c) + (dead.size() == 1 ? " is dead" : " are dead");
      f.explanation = "RAS has given up on " + names_of(dead) +
                      ": their processes ended, or their nodes are not reachable.";
    }
    if (!silent.empty()) {
      RasFinding& f = add(c, "process_stopped", silent);
      f.confidence = "medium";
      f.headline =
          ranks_text(silent) + of(c) + (silent.size() == 1 ? " does" : " do") + " not answer";
      f.explanation = "RAS gets no answer from " + names_of(silent) +
                      ": stopped, ended a short time ago, or not reachable.";
    }
  }

  void add_errors(const RasCommunicator& c) {
    std::vector<RasRank> broken;
    std::string codes;
    for (const RasRank& rank : c.ranks) {
      if (rank.async_error == 0 && rank.init_state == 0 && !rank.aborted) continue;
      broken.push_back(rank);
      if (broken.size() > kMostNamed) continue;
      codes += std::string(codes.empty() ? "" : "; ") + "rank " + std::to_string(rank.rank) + ":";
      if (rank.async_error != 0) codes += " asynchronous error " + std::to_string(rank.async_error);
      if (rank.init_state != 0) codes += " state of init " + std::to_string(rank.init_state);
      if (rank.aborted) codes += " aborted";
    }
    if (broken.empty()) return;
    RasFinding& f = add(c, "nccl_error", broken);
    f.confidence = "high";
    f.headline = ranks_text(broken) + of(c) + (broken.size() == 1 ? " reports" : " report") +
                 " an error of NCCL";
    f.explanation = codes + ". " + names_of(broken) + ". The codes are those of ncclResult_t.";
  }

  void look_at_counts(const RasCommunicator& c) {
    Uneven uneven;
    uneven.communicator = &c;
    std::map<std::map<std::string, std::uint64_t>, std::vector<RasRank>> parties;
    for (const RasRank& rank : c.ranks) {
      if (rank.finalizing) return;  // ends anyhow
      uneven.most = std::max(uneven.most, rank.launches());
      parties[rank.launched].push_back(rank);
    }
    if (parties.size() < 2) return;
    const RasCommunicator* before = same_in(earlier_, c);
    if (before != nullptr && !stands_still(c, *before)) return;  // it moves
    uneven.still = before != nullptr;
    for (const RasRank& rank : c.ranks) {
      if (rank.launches() < uneven.most) uneven.behind.push_back(rank);
    }
    if (uneven.behind.empty()) {
      add_mismatch(c, parties, uneven.still);
      return;
    }
    // Who is ahead here waits here; being behind elsewhere is none of his doing.
    for (const RasRank& rank : c.ranks) {
      if (rank.launches() == uneven.most) waiting_.insert({rank.host, rank.pid});
    }
    uneven_.push_back(std::move(uneven));
  }

  /// As many operations each, and not the same ones.
  void add_mismatch(
      const RasCommunicator& c,
      const std::map<std::map<std::string, std::uint64_t>, std::vector<RasRank>>& parties,
      bool still) {
    std::size_t most = 0;
    for (const auto& [counts, ranks] : parties) most = std::max(most, ranks.size());
    std::vector<RasRank> accused;
    const bool even = std::all_of(parties.begin(), parties.end(),
                                  [&](const auto& party) { return party.second.size() == most; });
    for (const auto& [counts, ranks] : parties) {
      if (ranks.size() < most || even) accused.insert(accused.end(), ranks.begin(), ranks.end());
    }
    RasFinding& f = add(c, "argument_mismatch", accused);
    f.confidence = still ? "high" : "medium";
    f.headline = ranks_text(accused) + of(c) + (accused.size() == 1 ? " has" : " have") +
                 " launched other collectives than the others";
    f.explanation =
        "All ranks have launched equally many, but not the same: " + names_of(accused) + ".";
  }

  void add_behind() {
    const auto waits_elsewhere = [&](const RasRank& rank) {
      return waiting_.contains({rank.host, rank.pid});
    };
    bool circle = true;
    for (const Uneven& u : uneven_)
      circle = circle && std::all_of(u.behind.begin(), u.behind.end(), waits_elsewhere);
    for (const Uneven& u : uneven_) {
      std::vector<RasRank> accused;
      for (const RasRank& rank : u.behind) {
        if (circle || !waits_elsewhere(rank)) accused.push_back(rank);
      }
      if (accused.empty()) continue;
      std::uint64_t least = u.most;
      for (const RasRank& rank : accused) least = std::min(least, rank.launches());
      RasFinding& f = add(*u.communicator, "rank_never_called", accused);
      f.fault = u.still;
      f.confidence = !u.still || circle ? "low" : "high";
      f.headline = ranks_text(accused) + of(*u.communicator) +
                   (accused.size() == 1 ? " has" : " have") + " not launched what the others have";
      f.explanation = names_of(accused) + " launched " + std::to_string(least) +
                      (accused.size() == 1 ? "" : " or more") + " collectives, the others up to " +
                      std::to_string(u.most) + ". ";
      f.explanation +=
          u.still ? "Nobody in this communicator has launched anything between the two samples."
                  : "One sample does not tell whether it moves: give an earlier one, too.";
      if (circle && u.still)
        f.explanation += " Everybody who is behind somewhere waits elsewhere: a circle.";
    }
  }

  const RasStatus& now_;
  const RasStatus* earlier_;
  std::vector<RasFinding> out_;
  std::set<Process> told_, missing_, waiting_;
  std::vector<Uneven> uneven_;
};

}  // namespace

std::uint64_t RasRank::launches() const {
  std::uint64_t sum = 0;
  for (const auto& [name, count] : launched) sum += count;
  return sum;
}

RasStatus parse_ras_status(const std::string& source, const std::string& text_of_status) {
  json root = json::parse(text_of_status, nullptr, false);
  if (root.is_discarded()) {
    // Such a place can be nowhere in valid JSON but inside a string, and RAS prints no strings of
    // users.
    static const std::regex kNoComma(R"((\d)(\s+"status"))");
    root = parse_json(source, std::regex_replace(text_of_status, kNoComma, "$1,$2"));
  }
  const std::string where = printable(source);
  if (!root.is_object() || !root.contains("communicators") || !root["communicators"].is_array())
    refuse(where, "an object with communicators");
  RasStatus status;
  status.source = where;
  status.nccl_version = text(root, "nccl_version");
  status.timestamp = text(root, "timestamp");
  if (const auto ras = root.find("ras"); ras != root.end() && ras->is_object())
    status.timeouts = static_cast<std::uint64_t>(
        std::max<std::int64_t>(0, number(*ras, "timeouts_count", 0, where)));
  std::size_t index = 0;
  for (const json& value : root["communicators"]) {
    const std::string here = where + ": communicator " + std::to_string(index++);
    if (!value.is_object()) refuse(here, "an object");
    RasCommunicator c;
    c.hash = comm_of(text(value, "hash"));
    if (c.hash.empty()) refuse(here + ": hash", "a hash");
    c.size = static_cast<std::int32_t>(number(value, "size", 0, here));
    c.ranks = ranks_of(value, "ranks", here);
    c.missing = ranks_of(value, "missing_ranks", here);
    status.communicators.push_back(std::move(c));
  }
  return status;
}

std::vector<RasFinding> judge_ras(const RasStatus& now, const RasStatus* earlier) {
  return RasJudge(now, earlier).findings();
}

std::string ras_text(const RasStatus& now, const std::vector<RasFinding>& findings,
                     bool two_samples) {
  std::string out = "NCCL RAS (" + now.source;
  if (!now.nccl_version.empty()) out += ", NCCL " + now.nccl_version;
  if (!now.timestamp.empty()) out += ", " + now.timestamp;
  out += "):\n";
  for (const RasFinding& f : findings) {
    out += "  " + f.kind + (f.fault ? ": " : " (information): ") + f.headline +
           "\n    Confidence " + f.confidence + ". " + f.explanation + "\n";
  }
  if (findings.empty())
    out += two_samples
               ? "  Nothing stands out.\n"
               : "  Nothing stands out. Equal counts in one sample do not say that it moves.\n";
  if (now.timeouts > 0)
    out += "  RAS itself had " + std::to_string(now.timeouts) +
           " timeouts: what it says may be incomplete.\n";
  std::set<Process> processes;
  for (const RasCommunicator& c : now.communicators) {
    for (const RasRank& rank : c.ranks) processes.insert({rank.host, rank.pid});
  }
  return out + "  " + std::to_string(processes.size()) + " processes answered, " +
         std::to_string(now.communicators.size()) +
         (now.communicators.size() == 1 ? " communicator\n" : " communicators\n");
}

Json ras_json(const RasStatus& now, const std::vector<RasFinding>& findings) {
  Json out;
  out["source"] = now.source;
  out["nccl_version"] = now.nccl_version;
  out["timestamp"] = now.timestamp;
  out["timeouts"] = now.timeouts;
  out["communicators"] = now.communicators.size();
  out["findings"] = Json::array();
  for (const RasFinding& f : findings) {
    Json ranks = Json::array();
    for (const RasRank& rank : f.ranks)
      ranks.push_back({{"rank", rank.rank},
                       {"host", rank.host},
                       {"pid", rank.pid},
                       {"gpu", rank.gpu},
                       {"launched", rank.launched}});
    out["findings"].push_back({{"kind", f.kind},
                               {"fault", f.fault},
                               {"confidence", f.confidence},
                               {"headline", f.headline},
                               {"explanation", f.explanation},
                               {"comm", f.comm},
                               {"ranks", std::move(ranks)}});
  }
  return out;
}

}  // namespace ncclscope::cli

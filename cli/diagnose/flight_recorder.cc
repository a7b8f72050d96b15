// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/flight_recorder.h"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <utility>

#include "cli/json_file.h"
#include "cli/text.h"
#include "verdict/text.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;

constexpr std::uintmax_t kMostBytes = std::uintmax_t{1} << 30;
constexpr std::size_t kMostGroupRanks = 1u << 20;

/// Says where in which file something is not as it should be.
class Place {
 public:
  explicit Place(std::string where) : where_(std::move(where)) {}
  [[nodiscard]] Place at(const std::string& more) const { return Place(where_ + ": " + more); }
  [[noreturn]] void refuse(const std::string& wanted, const json& is) const {
    std::string text = is.dump(-1, ' ', false, json::error_handler_t::replace);
    if (text.size() > 60) text = text.substr(0, 57) + "...";
    throw std::runtime_error(where_ + ": wanted " + wanted + ", is " + printable(text));
  }

 private:
  std::string where_;
};

/// Numbers come as numbers, as strings (JSON form) or as null (converted pickles).
std::optional<std::int64_t> integer(const json& value) {
  if (value.is_number_integer()) return value.get<std::int64_t>();
  if (!value.is_string()) return {};
  const auto& text = value.get_ref<const std::string&>();
  std::int64_t number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return number;
}

std::int64_t integer_of(const json& object, const char* key, const Place& place,
                        std::optional<std::int64_t> missing = {}) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) {
    if (missing) return *missing;
    place.at(key).refuse("a number", nullptr);
  }
  const std::optional<std::int64_t> number = integer(*found);
  if (!number) place.at(key).refuse("a number", *found);
  return *number;
}

std::string text_of(const json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && found->is_string() ? printable(found->get<std::string>()) : "";
}

std::string text_or_number(const json& value) {
  if (value.is_string()) return printable(value.get<std::string>());
  return value.is_number_integer() ? std::to_string(value.get<std::int64_t>()) : "";
}

/// "[0, 1]" or a list.
std::vector<std::int32_t> ranks_of(const json& value, const Place& place) {
  json list = value;
  if (value.is_string()) list = json::parse(value.get<std::string>(), nullptr, false);
  if (!list.is_array() || list.size() > kMostGroupRanks) place.refuse("a list of ranks", value);
  std::vector<std::int32_t> out;
  for (const json& rank : list) {
    const std::optional<std::int64_t> number = integer(rank);
    if (!number || *number < 0 || *number > INT32_MAX) place.refuse("a list of ranks", value);
    out.push_back(static_cast<std::int32_t>(*number));
  }
  return out;
}

/// Elements of all tensors, [[3, 4], [2]] = 14.
std::uint64_t elements_of(const json& object, const char* key, const Place& place) {
  const auto found = object.find(key);
  if (found == object.end() || found->is_null()) return 0;
  if (!found->is_array()) place.at(key).refuse("a list of sizes", *found);
  std::uint64_t sum = 0;
  for (const json& tensor : *found) {
    if (!tensor.is_array()) place.at(key).refuse("a list of sizes", *found);
    std::uint64_t product = 1;
    for (const json& size : tensor) {
      const std::optional<std::int64_t> number = integer(size);
      if (!number || *number < 0) place.at(key).refuse("a list of sizes", *found);
      product *= static_cast<std::uint64_t>(*number);
    }
    sum += product;
  }
  return sum;
}

std::string datatype_of(const json& object) {
  for (const char* key : {"input_dtypes", "output_dtypes"}) {
    const auto found = object.find(key);
    if (found != object.end() && found->is_array() && !found->empty() && found->front().is_string())
      return printable(found->front().get<std::string>());
  }
  return "";
}

/// Who called, as far as it is no part of PyTorch.
std::string called_at(const json& entry) {
  const auto frames = entry.find("frames");
  if (frames == entry.end() || !frames->is_array()) return "";
  std::string first;
  for (const json& frame : *frames) {
    if (!frame.is_object()) continue;
    const std::string file = text_of(frame, "filename");
    const auto line = frame.find("line");
    std::string text = file.substr(file.rfind('/') + 1) + ":" +
                       (line == frame.end() ? "?" : text_or_number(*line)) + " (" +
                       text_of(frame, "name") + ")";
    if (file.find("torch/distributed/") == std::string::npos) return text;
    if (first.empty()) first = std::move(text);
  }
  return first;
}

FlightEntry entry_of(const json& value, const Place& place) {
  if (!value.is_object()) place.refuse("an object", value);
  FlightEntry entry;
  const auto group = value.find("process_group");
  if (group == value.end() || !group->is_array() || group->empty() || !group->front().is_string())
    place.at("process_group").refuse("[name, description]", group == value.end() ? json() : *group);
  entry.group = printable(group->front().get<std::string>());
  const auto name = value.find("profiling_name");
  if (name == value.end() || !name->is_string())
    place.at("profiling_name")
        .refuse("a name such as nccl:all_reduce", name == value.end() ? json() : *name);
  entry.operation = printable(name->get<std::string>());
  if (const std::size_t colon = entry.operation.find(':'); colon != std::string::npos)
    entry.operation.erase(0, colon + 1);
  const auto p2p = value.find("is_p2p");
  entry.point_to_point = p2p != value.end() && p2p->is_boolean() && p2p->get<bool>();
  entry.sequence =
      integer_of(value, entry.point_to_point ? "p2p_seq_id" : "collective_seq_id", place);
  entry.record = integer_of(value, "record_id", place, 0);
  const std::string state = text_of(value, "state");
  if (state != "scheduled" && state != "started" && state != "completed")
    place.at("state").refuse("scheduled, started or completed", value.value("state", json()));
  entry.created_ns = integer_of(value, "time_created_ns", place);
  entry.started_ns = integer_of(value, "time_discovered_started_ns", place, 0);
  entry.completed_ns = integer_of(value, "time_discovered_completed_ns", place, 0);
  entry.completed = state == "completed";
  entry.started = entry.completed || state == "started" || entry.started_ns > 0;
  if (const auto ms = value.find("duration_ms"); ms != value.end() && ms->is_number())
    entry.duration_seconds = ms->get<double>() * 1e-3;
  entry.input_elements = elements_of(value, "input_sizes", place);
  entry.output_elements = elements_of(value, "output_sizes", place);
  entry.datatype = datatype_of(value);
  entry.called_at = called_at(value);
  return entry;
}

void add_groups(FlightDump& dump, const json& root, const Place& place) {
  const auto config = root.find("pg_config");
  if (config == root.end()) return;
  if (!config->is_object()) place.at("pg_config").refuse("an object", *config);
  for (const auto& [name, group] : config->items()) {
    const Place here = place.at("pg_config: " + printable(name));
    if (!group.is_object()) here.refuse("an object", group);
    FlightGroup out;
    out.name = printable(name);
    out.description = text_of(group, "desc");
    if (const auto ranks = group.find("ranks"); ranks != group.end())
      out.ranks = ranks_of(*ranks, here.at("ranks"));
    dump.groups.push_back(std::move(out));
  }
}

// ---- what the dumps say together
// -----------------------------------------------------------------

/// What all ranks must agree on. Sizes count where NCCL asks the same of everybody.
std::uint64_t signature_of(const FlightEntry& entry) {
  static const std::set<std::string_view> kInput = {
      "all_reduce",       "broadcast",      "reduce",      "all_gather",
      "_all_gather_base", "_broadcast_oop", "_reduce_oop", "allreduce_coalesced"};
  static const std::set<std::string_view> kOutput = {"reduce_scatter", "_reduce_scatter_base"};
  std::uint64_t elements = 0;
  if (kInput.contains(entry.operation)) elements = entry.input_elements;
  if (kOutput.contains(entry.operation)) elements = entry.output_elements;
  std::uint64_t hash = 0xCBF29CE484222325u;
  const auto mix = [&hash](unsigned char byte) { hash = (hash ^ byte) * 0x100000001B3u; };
  for (const char c : entry.operation + "/" + entry.datatype) mix(static_cast<unsigned char>(c));
  for (unsigned shift = 0; shift < 64; shift += 8)
    mix(static_cast<unsigned char>(elements >> shift));
  return hash == 0 ? 1 : hash;
}

std::uint64_t bytes_of(const FlightEntry& entry) {
  return std::max(entry.input_elements, entry.output_elements) *
         torch_element_bytes(entry.datatype);
}

void fill(v1::OperationBrief& brief, const FlightEntry& entry, std::int64_t now_ns) {
  const std::string_view name = nccl_name(entry.operation);
  brief.set_collective(name.empty() ? entry.operation : std::string(name));
  brief.set_bytes(bytes_of(entry));
  brief.set_count(entry.input_elements);
  brief.set_datatype(entry.datatype);
  brief.set_index(static_cast<std::uint64_t>(entry.sequence));
  const std::int64_t since = entry.completed_ns > 0 ? entry.completed_ns : entry.created_ns;
  brief.set_age_seconds(static_cast<double>(now_ns - since) * 1e-9);
}

std::uint64_t as_count(std::int64_t sequence) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(sequence, 0));
}

/// How far one rank is in one group.
class RankProgressOf {
 public:
  void add(const FlightEntry& entry) {
    Counts& counts = entry.point_to_point ? p2p_ : collectives_;
    counts.called = std::max(counts.called, entry.sequence);
    if (entry.started) counts.started = std::max(counts.started, entry.sequence);
    newest_ns_ = std::max({newest_ns_, entry.created_ns, entry.started_ns, entry.completed_ns});
    if (entry.completed) {
      if (last_ == nullptr || entry.record > last_->record) last_ = &entry;
      return;
    }
    if (counts.unfinished < 0 || entry.sequence < counts.unfinished)
      counts.unfinished = entry.sequence;
    if (oldest_ == nullptr || entry.record < oldest_->record) oldest_ = &entry;
    if (!entry.point_to_point &&
        (oldest_collective_ == nullptr || entry.record < oldest_collective_->record))
      oldest_collective_ = &entry;
  }

  /// @param timed  whether starts were recorded; else everything called counts as started
  void finish(verdict::Progress& p, MemberFacts& facts, std::int64_t now_ns, bool timed) const {
    p.enqueued = as_count(collectives_.called);
    p.completed = as_count(collectives_.completed());
    p.started = timed ? std::max(as_count(collectives_.started), p.completed) : p.enqueued;
    p.p2p_enqueued = as_count(p2p_.called);
    p.p2p_completed = as_count(p2p_.completed());
    p.p2p_started = timed ? std::max(as_count(p2p_.started), p.p2p_completed) : p.p2p_enqueued;
    p.idle_seconds = static_cast<double>(now_ns - newest_ns_) * 1e-9;
    v1::RankProgress& shown = facts.progress;
    if (last_ != nullptr) fill(*shown.mutable_last(), *last_, now_ns);
    if (oldest_ == nullptr) return;
    p.inflight_seconds = static_cast<double>(now_ns - oldest_->created_ns) * 1e-9;
    if (oldest_collective_ != nullptr) p.signature = signature_of(*oldest_collective_);
    fill(*shown.mutable_oldest(), *oldest_, now_ns);
    shown.set_inflight_seconds(p.inflight_seconds);
    shown.set_oldest_index(as_count(oldest_->sequence));
    shown.set_oldest_started(oldest_->started);
    shown.set_oldest_is_p2p(oldest_->point_to_point);
    facts.called_at = oldest_->called_at;
  }

 private:
  struct Counts {
    std::int64_t called = 0, started = 0, unfinished = -1;
    [[nodiscard]] std::int64_t completed() const {
      return unfinished < 0 ? called : unfinished - 1;
    }
  };
  Counts collectives_, p2p_;
  const FlightEntry* last_ = nullptr;
  const FlightEntry* oldest_ = nullptr;
  const FlightEntry* oldest_collective_ = nullptr;
  std::int64_t newest_ns_ = 0;
};

class DumpObserver {
 public:
  DumpObserver(const std::vector<FlightDump>& dumps, Observation& out) : dumps_(dumps), out_(out) {
    for (const FlightDump& dump : dumps) {
      for (const FlightEntry& entry : dump.entries) {
        out.time_ns =
            std::max({out.time_ns, entry.created_ns, entry.started_ns, entry.completed_ns});
        timed_ |= entry.started && !entry.completed;
        timed_ |= entry.started_ns > 0;
      }
    }
  }

  void observe() {
    for (const FlightDump& dump : dumps_) add(dump);
    add_missing();
  }

 private:
  void add(const FlightDump& dump) {
    const auto gpu = static_cast<std::uint32_t>(out_.job.gpus.size());
    out_.job.gpus.push_back({"", -1, std::to_string(dump.rank)});
    out_.gpus.emplace_back();
    std::map<std::string, RankProgressOf> groups;
    for (const FlightGroup& group : dump.groups) groups[group.name];
    for (const FlightEntry& entry : dump.entries) groups[entry.group].add(entry);
    for (const auto& named : groups) {
      const std::string& name = named.first;  // clang takes no structured binding in a lambda
      const RankProgressOf& progress = named.second;
      const auto group = std::find_if(dump.groups.begin(), dump.groups.end(),
                                      [&](const FlightGroup& g) { return g.name == name; });
      static const FlightGroup kUnknown;
      const FlightGroup& known = group == dump.groups.end() ? kUnknown : *group;
      std::int32_t rank = dump.rank;
      if (!known.ranks.empty()) {
        const auto at = std::find(known.ranks.begin(), known.ranks.end(), dump.rank);
        if (at == known.ranks.end()) continue;  // it knows the group, and is no member
        rank = static_cast<std::int32_t>(at - known.ranks.begin());
      }
      const std::uint32_t c = communicator(name, known);
      out_.job.members.push_back({c, gpu, rank});
      present_[c].insert(rank);
      MemberFacts facts;
      verdict::Progress p;
      progress.finish(p, facts, out_.time_ns, timed_);
      out_.members.push_back(std::move(facts));
      out_.standing.progress.push_back(p);
    }
  }

  /// Names are of one process: groups of other ranks may be called the same.
  std::uint32_t communicator(const std::string& name, const FlightGroup& group) {
    const auto [at, is_new] = communicators_.try_emplace(
        {name, group.ranks}, static_cast<std::uint32_t>(out_.job.communicators.size()));
    if (is_new) {
      verdict::Communicator& made = out_.job.communicators.emplace_back();
      made.comm = "process group " + name;
      made.name = group.description == "undefined" ? "" : group.description;
      made.nranks = static_cast<std::uint32_t>(group.ranks.size());
      out_.standing.coverage.push_back(1);
      ranks_.push_back(group.ranks);
      present_.emplace_back();
    }
    return at->second;
  }

  void add_missing() {
    std::set<std::int32_t> absent;
    for (std::uint32_t c = 0; c < ranks_.size(); ++c) {
      for (std::size_t r = 0; r < ranks_[c].size(); ++r) {
        if (!present_[c].contains(static_cast<std::int32_t>(r))) absent.insert(ranks_[c][r]);
      }
    }
    if (!absent.empty()) {
      std::string who = absent.size() == 1 ? "global rank" : "global ranks";
      std::size_t shown = 0;
      for (const std::int32_t rank : absent) {
        if (++shown > 16) break;
        who += (shown == 1 ? " " : ", ") + std::to_string(rank);
      }
      if (absent.size() > 16) who += ", ... (" + std::to_string(absent.size()) + ")";
      out_.missing.push_back({Missing::Kind::kRanks, who, "no dump of theirs was given"});
      out_.standing.agents_missing = true;
    }
    if (!timed_ && !dumps_.empty())
      out_.missing.push_back({Missing::Kind::kNotRecorded, "whether GPUs had started",
                              "the dumps do not tell (TORCH_NCCL_ENABLE_TIMING=1 would)"});
  }

  const std::vector<FlightDump>& dumps_;
  Observation& out_;
  bool timed_ = false;
  std::map<std::pair<std::string, std::vector<std::int32_t>>, std::uint32_t> communicators_;
  std::vector<std::vector<std::int32_t>> ranks_;  // by communicator, global
  std::vector<std::set<std::int32_t>> present_;   // by communicator, of the group
};

}  // namespace

std::int32_t rank_of_dump(std::string_view file) {
  std::string_view name = file.substr(file.rfind('/') + 1);
  if (name.ends_with(".json")) name.remove_suffix(5);
  std::size_t begin = name.size();
  while (begin > 0 && name[begin - 1] >= '0' && name[begin - 1] <= '9') --begin;
  std::int32_t rank = -1;
  const std::string_view digits = name.substr(begin);
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), rank);
  return error == std::errc() && end == digits.data() + digits.size() ? rank : -1;
}

FlightDump parse_flight_dump(const std::string& file, const std::string& text) {
  const Place place(printable(file));
  if (text.starts_with('\x80'))
    throw std::runtime_error(
        printable(file) +
        ": a pickle, as PyTorch writes its dumps. Of your own job's dump, make JSON with\n"
        "  python3 -c 'import json,pickle,sys; "
        "json.dump(pickle.load(open(sys.argv[1],\"rb\")),open(sys.argv[1]+\".json\",\"w\"))' " +
        printable(file));
  const json root = parse_json(file, text);
  if (!root.is_object() || (!root.contains("entries") && !root.contains("pg_config")))
    place.refuse("a dump of the Flight Recorder (an object with pg_config and entries)", root);
  FlightDump dump;
  dump.file = file;
  dump.version = text_of(root, "version");
  if (!dump.version.empty() && !dump.version.starts_with("2."))
    place.at("version").refuse("2.x", root["version"]);
  dump.nccl_version = text_of(root, "nccl_version");
  dump.rank = static_cast<std::int32_t>(integer_of(root, "rank", place, rank_of_dump(file)));
  if (dump.rank < 0)
    throw std::runtime_error(printable(file) +
                             ": whose is it? A dump's name ends in the rank, such as "
                             "nccl_trace_rank_12 or nccl_trace_rank_12.json");
  add_groups(dump, root, place);
  const auto entries = root.find("entries");
  if (entries == root.end()) return dump;
  if (!entries->is_array()) place.at("entries").refuse("a list", *entries);
  std::size_t number = 0;
  for (const json& entry : *entries)
    dump.entries.push_back(entry_of(entry, place.at("entry " + std::to_string(number++))));
  return dump;
}

std::vector<FlightDump> read_flight_dumps(const std::vector<std::string>& paths) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!std::filesystem::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    std::vector<std::string> inside;
    for (const auto& found : std::filesystem::directory_iterator(path, error)) {
      if (found.is_regular_file(error)) inside.push_back(found.path().string());
    }
    // A pickle and the JSON made of it lie side by side.
    for (const std::string& file : inside) {
      if (std::find(inside.begin(), inside.end(), file + ".json") == inside.end())
        files.push_back(file);
    }
    if (inside.empty())
      throw std::runtime_error(printable(path) +
                               ": no dumps of the Flight Recorder in this folder");
  }
  std::vector<FlightDump> dumps;
  dumps.reserve(files.size());
  for (const std::string& file : files)
    dumps.push_back(parse_flight_dump(file, read_text_file(file, kMostBytes)));
  std::stable_sort(dumps.begin(), dumps.end(),
                   [](const FlightDump& a, const FlightDump& b) { return a.rank < b.rank; });
  for (std::size_t i = 1; i < dumps.size(); ++i) {
    if (dumps[i].rank == dumps[i - 1].rank)
      throw std::runtime_error("two dumps of rank " + std::to_string(dumps[i].rank) + ": " +
                               printable(dumps[i - 1].file) + " and " + printable(dumps[i].file) +
                               ". Give those of one moment of one job");
  }
  return dumps;
}

std::uint32_t torch_element_bytes(std::string_view datatype) {
  static const std::map<std::string_view, std::uint32_t> kBytes = {
      {"Byte", 1},         {"Char", 1},     {"Bool", 1},         {"Short", 2},
      {"Half", 2},         {"BFloat16", 2}, {"Int", 4},          {"Float", 4},
      {"Long", 8},         {"Double", 8},   {"ComplexFloat", 8}, {"ComplexDouble", 16},
      {"UInt16", 2},       {"UInt32", 4},   {"UInt64", 8},       {"Float8_e5m2", 1},
      {"Float8_e4m3fn", 1}};
  const auto found = kBytes.find(datatype);
  return found == kBytes.end() ? 0 : found->second;
}

std::string_view nccl_name(std::string_view operation) {
  // "send 0->1" and "recv 0<-1" name the peer.
  operation = operation.substr(0, operation.find(' '));
  static const std::map<std::string_view, std::string_view> kNames = {
      {"all_reduce", "AllReduce"},
      {"all_reduce_barrier", "AllReduce"},
      {"allreduce_coalesced", "AllReduce"},
      {"all_gather", "AllGather"},
      {"_all_gather_base", "AllGather"},
      {"all_gather_into_tensor_coalesced", "AllGather"},
      {"reduce_scatter", "ReduceScatter"},
      {"_reduce_scatter_base", "ReduceScatter"},
      {"reduce_scatter_tensor_coalesced", "ReduceScatter"},
      {"broadcast", "Broadcast"},
      {"_broadcast_oop", "Broadcast"},
      {"reduce", "Reduce"},
      {"_reduce_oop", "Reduce"},
      {"all_to_all", "AlltoAll"},
      {"alltoall_base", "AlltoAll"},
      {"gather", "Gather"},
      {"scatter", "Scatter"},
      {"send", "Send"},
      {"recv", "Recv"}};
  const auto found = kNames.find(operation);
  return found == kNames.end() ? std::string_view() : found->second;
}

Observation observe_flight_dumps(const std::vector<FlightDump>& dumps, const std::string& job_id) {
  Observation out;
  out.job.job_id = job_id;
  DumpObserver(dumps, out).observe();
  out.asked = out.answered = out.knowing = static_cast<std::uint32_t>(dumps.size());
  out.source = std::to_string(dumps.size()) + (dumps.size() == 1 ? " dump" : " dumps") +
               " of PyTorch's Flight Recorder: " + std::to_string(out.job.communicators.size()) +
               (out.job.communicators.size() == 1 ? " process group" : " process groups");
  return out;
}

}  // namespace ncclscope::cli

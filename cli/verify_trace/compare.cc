// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/compare.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "cli/verify_trace/facts.h"
#include "cli/verify_trace/nccl_rules.h"
#include "cli/verify_trace/trace.h"
#include "proto/model/bandwidth.h"
#include "proto/model/operation.h"
#include "proto/nccl/profiler_common.h"
#include "proto/wire/frame.h"

namespace ncclscope::cli {
namespace {

using nlohmann::json;
using Pointer = json::json_pointer;

constexpr double kRelativeTolerance = 1e-9;
constexpr std::uint64_t kWarmupOperations = 3;

std::string shown(const json& v) {
  return v.is_string() ? v.get<std::string>() : v.dump();
}

bool same(const json& want, const json& got) {
  if (want.is_number_float() || got.is_number_float()) {
    const double a = want.get<double>();
    const double b = got.get<double>();
    return std::abs(a - b) <= kRelativeTolerance * std::max(std::abs(a), std::abs(b));
  }
  return want == got;
}

model::Function function_of(const std::string& text) {
  for (std::size_t i = 0; i < model::kFunctionCount; ++i) {
    const auto f = static_cast<model::Function>(i);
    if (model::name(f) == text) return f;
  }
  return model::Function::kUnknown;
}

model::DataType datatype_of(const std::string& text) {
  for (std::size_t i = 0; i < model::kDataTypeCount; ++i) {
    const auto t = static_cast<model::DataType>(i);
    if (model::name(t) == text) return t;
  }
  return model::DataType::kUnknown;
}

bool is_rooted(const std::string& func) {
  return func == "Broadcast" || func == "Reduce" || func == "Gather" || func == "Scatter";
}

std::string or_empty(const json& v) {
  return v.is_null() ? std::string() : v.get<std::string>();
}

/// What the answer holds about one communicator of one process.
struct Reported {
  std::vector<std::size_t> operations;  // indexes into answer["operations"], by operation index
};

class Comparer {
 public:
  Comparer(const ReplayedFolder& replayed, const json& expected, Limits& limits)
      : replayed_(replayed), answer_(replayed.answer), expected_(expected), limits_(limits) {
    where_.scenario = replayed.folder.filename().string();
    where_.mask_mode = replayed.mask_mode;
    result_.operations = 0;
  }

  Comparison run() {
    check_tail();
    for (const json& process : expected_.at("processes")) compare_process(process);
    find_strangers();
    compare_sums();
    return std::move(result_);
  }

 private:
  // ---- one comparison ---------------------------------------------------------------------------
  void difference(const std::string& field, const std::string& want, const std::string& got) {
    result_.differences.push_back(
        {where_.scenario + (replayed_.mask_mode == "recorded" ? " (recorded mask)" : ""), rank_,
         comm_, op_, field, want, got});
  }

  void check(const std::string& field, const json& want, const Pointer& where) {
    result_.compared.push_back({field, where});
    const json& got = answer_.at(where);
    if (!same(want, got)) difference(field, shown(want), shown(got));
  }

  void check_any(const std::string& field, const std::vector<std::string>& want,
                 const Pointer& where) {
    result_.compared.push_back({field, where});
    const json& got = answer_.at(where);
    if (std::find(want.begin(), want.end(), got.get<std::string>()) != want.end()) return;
    std::string list;
    for (const std::string& w : want) list += (list.empty() ? "" : " or ") + w;
    difference(field, list, shown(got));
  }

  /// `truth` is what expected.json says, `carried` what can be known through this interface,
  /// release and mask.
  void check_limited(const std::string& field, const json& truth, const json& carried,
                     const Pointer& where) {
    if (!same(truth, carried) && !limits_.allows(field, where_)) {
      difference(
          field, shown(truth) + " (expected.json)",
          shown(carried) + " is all that is carried here, and trace-limits.json does not list it");
    }
    check(field, carried, where);
  }

  // ---- processes and communicators --------------------------------------------------------------
  void check_tail() { check("tail_skipped", 0, Pointer("/skipped")); }

  void compare_process(const json& process) {
    const auto file = process.at("file").get<std::string>();
    std::size_t w = 0;
    const json& workers = answer_.at("workers");
    while (w < workers.size() && workers[w].at("file") != process.at("file")) ++w;
    if (w == workers.size())
      throw std::runtime_error("expected.json names " + file + ", which was not replayed");
    const json& worker = workers[w];
    const auto pid = worker.at("pid").get<std::int64_t>();
    const json& report = worker.at("report");

    Trace trace = load_trace(replayed_.folder / file);
    restore_null_handles(trace);
    const auto delivery = report.at("delivery").get<std::string>();
    const TraceIndex index(trace, delivery);
    where_.interface_version = trace.header.interface_version;
    where_.nccl_version = trace.header.nccl_version;
    mask_ = report.at("masks").empty() ? 0 : report.at("masks").back().get<std::uint32_t>();

    std::uint64_t seen = 0;
    std::size_t number = 0;
    for (const json& c : process.at("communicators")) {
      const Reported reported = reported_of(c, pid, number++);
      seen += compare_communicator(c, index, pid, reported);
    }
    compare_books(pid, seen);
  }

  [[nodiscard]] bool hash_known() const { return where_.interface_version >= 4; }

  /// Finds a communicator's records: by its id where the interface gives one, else by the order of
  /// the inits.
  Reported reported_of(const json& communicator, std::int64_t pid, std::size_t number) {
    Reported r;
    const json& operations = answer_.at("operations");
    rank_ = communicator.at("rank").get<int>();
    comm_ = communicator.at("commId").is_null()
                ? "#" + std::to_string(number)
                : communicator.at("commId").get<std::string>().substr(2);
    std::optional<std::uint32_t> wanted_id;
    if (!hash_known()) {
      std::set<std::uint32_t> ids;
      for (const json& o : answer_.at("progress")) {
        if (o.at("pid") == pid) ids.insert(o.at("communicator_id").get<std::uint32_t>());
      }
      for (const json& o : operations) {
        if (o.at("pid") == pid) ids.insert(o.at("communicator_id").get<std::uint32_t>());
      }
      if (number < ids.size())
        wanted_id = *std::next(ids.begin(), static_cast<std::ptrdiff_t>(number));
    }
    for (std::size_t i = 0; i < operations.size(); ++i) {
      const json& o = operations[i];
      if (o.at("pid") != pid) continue;
      if (hash_known() ? (o.at("comm") == comm_ && o.at("rank") == rank_)
                       : o.at("communicator_id") == wanted_id) {
        r.operations.push_back(i);
        claimed_.insert(i);
      }
    }
    communicator_id_ = wanted_id;
    return r;
  }

  /// Returns the number of operations that the plugin could see.
  std::uint64_t compare_communicator(const json& communicator, const TraceIndex& index,
                                     std::int64_t pid, const Reported& reported) {
    ++result_.ranks;
    where_.function.clear();
    where_.visible.clear();
    op_.clear();
    facts_ = index.operations(communicator);
    nranks_ = communicator.at("nranks").get<std::uint32_t>();
    self_sent_.reset();
    for (const OperationFacts& f : facts_) {
      const json& o = *f.expected;
      if (f.task == nullptr || o.at("func") != "Send" || o.at("peer") != communicator.at("rank"))
        continue;
      if (self_sent_ && *self_sent_ < f.task_line) continue;
      self_sent_ = f.task_line;
      self_plan_ = f.plan;
    }
    std::uint64_t visible = 0;
    std::vector<const OperationFacts*> launched;
    std::vector<std::size_t> launched_at;
    for (const bool p2p : {false, true}) {
      std::vector<std::size_t> got;
      for (const std::size_t i : reported.operations) {
        const auto& name =
            answer_.at("operations")[i].at("collective").get_ref<const std::string&>();
        if ((name == "Send" || name == "Recv") == p2p) got.push_back(i);
      }
      std::sort(got.begin(), got.end(), [this](std::size_t a, std::size_t b) {
        return answer_.at("operations")[a].at("index").get<std::uint64_t>() <
               answer_.at("operations")[b].at("index").get<std::uint64_t>();
      });
      std::vector<const OperationFacts*> want;
      for (const OperationFacts& f : facts_) {
        if (f.visible() && f.point_to_point == p2p) want.push_back(&f);
      }
      std::sort(want.begin(), want.end(), [](const OperationFacts* a, const OperationFacts* b) {
        return a->index < b->index;
      });
      op_ = p2p ? "Send/Recv" : "collectives";
      if (want.size() != got.size()) {
        difference("operations", std::to_string(want.size()), std::to_string(got.size()));
      }
      for (const std::size_t i : got)
        result_.compared.push_back({"operations", Pointer("/operations/" + std::to_string(i))});
      for (std::size_t i = 0; i < std::min(want.size(), got.size()); ++i)
        compare_operation(*want[i], got[i], index);
      visible += want.size();
      const std::size_t pairs = std::min(want.size(), got.size());
      launched.insert(launched.end(), want.begin(),
                      want.begin() + static_cast<std::ptrdiff_t>(pairs));
      launched_at.insert(launched_at.end(), got.begin(),
                         got.begin() + static_cast<std::ptrdiff_t>(pairs));
      op_.clear();
    }
    compare_plans(launched, launched_at);
    for (const OperationFacts& f : facts_) check_visibility(f);
    compare_network(communicator, pid);
    compare_progress(communicator, pid);
    compare_description(communicator, pid);
    result_.operations += static_cast<std::size_t>(visible);
    return visible;
  }

  // ---- operations -------------------------------------------------------------------------------
  void name_operation(const OperationFacts& f) {
    where_.function = f.expected->at("func").get<std::string>();
    where_.visible = f.task != nullptr  ? (f.copy_engine ? "ce" : "task")
                     : f.api != nullptr ? "api"
                                        : "none";
    op_ = where_.function + " #" + std::to_string(f.expected->at("i").get<int>());
  }

  void check_visibility(const OperationFacts& f) {
    name_operation(f);
    const auto truth = f.expected->at("visible").get<std::string>();
    if (truth != where_.visible && !limits_.allows("visible", where_)) {
      difference(
          "visible", truth + " (expected.json)",
          where_.visible + " is what the callbacks say, and trace-limits.json does not list it");
    }
    op_.clear();
    where_.function.clear();
    where_.visible.clear();
  }

  [[nodiscard]] bool mask_has_channels() const {
    return where_.interface_version >= 3 && (mask_ & nccl::kKernelCh) != 0;
  }

  enum class GpuTime : std::uint8_t { kNone, kMust, kMay, kMustNot };

  /// The channels whose stamps can be those of the operation: after a send to itself not the first,
  /// where NCCL's counter is behind the GPU's.
  [[nodiscard]] std::vector<ChannelFacts> sound_channels(const OperationFacts& f) const {
    std::vector<ChannelFacts> out = f.channels;
    const bool own_plan = f.plan != kNoHandle && f.plan == self_plan_;
    if (self_sent_ && f.task != nullptr && f.task_line > *self_sent_ && !own_plan)
      std::erase_if(out, [](const ChannelFacts& c) { return c.channel == 0; });
    return out;
  }

  /// Whether an operation's GPU stamps have to be believed, of its sound channels.
  GpuTime gpu_time(const OperationFacts& f, const std::vector<ChannelFacts>& sound,
                   const TraceIndex& index) const {
    const json& o = *f.expected;
    if (f.channels.empty() || where_.interface_version < 4 || o.at("gpu_start_ns").is_null())
      return GpuTime::kNone;
    if (sound.empty()) return GpuTime::kMustNot;
    // What the recording says is of all channels.
    const bool all = sound.size() == f.channels.size();
    if (all && o.at("stale").is_boolean())
      return o.at("stale").get<bool>() ? GpuTime::kMustNot : GpuTime::kMust;
    // Undecided by it: after a send to itself stamps count from the host's call on, by
    // the calibrated clock.
    if (!self_sent_ || f.task == nullptr || f.task_line < *self_sent_) return GpuTime::kMust;
    const std::optional<std::int64_t> bound = index.clock_bound(*self_sent_);
    const std::int64_t call =
        (f.api != nullptr ? f.api->t_ns : f.task->t_ns) + index.trace().header.t0_realtime_ns;
    bool all_after = true;
    bool any_before = false;
    for (const ChannelFacts& c : sound) {
      const auto start = static_cast<std::int64_t>(c.gpu_start_ns);
      if (start < call) all_after = false;
      if (bound && start + *bound < call) any_before = true;
    }
    if (!bound) return GpuTime::kMay;  // nothing to calibrate with
    if (any_before) return GpuTime::kMustNot;
    // The bound contains the delay with which reports are noticed: between both clocks either
    // verdict is sound.
    return all_after ? GpuTime::kMust : GpuTime::kMay;
  }

  void compare_operation(const OperationFacts& f, std::size_t at, const TraceIndex& index) {
    name_operation(f);
    const json& o = *f.expected;
    const json& got = answer_.at("operations")[at];
    const Pointer p("/operations/" + std::to_string(at));
    const TraceHeader& header = index.trace().header;
    const bool api = f.api != nullptr;
    const bool task = f.task != nullptr;
    const int version = where_.interface_version;
    const auto func = o.at("func").get<std::string>();

    check("index", f.index, p / "index");
    check("collective", func, p / "collective");

    // Type, count, bytes: the caller's where the API event came, else what the task says.
    const auto true_type = o.at("datatype").get<std::string>();
    std::string type = true_type;
    std::uint64_t count = o.at("count").get<std::uint64_t>();
    if (!api) {
      const json& t = f.task->fields.at("datatype");
      type = t.is_number() ? std::string(nccl::kDatatypes[t.get<std::size_t>()].profiler_name)
                           : t.get<std::string>();
      if (type == "Unknown") type = "ncclUint8";
      count = f.task->fields.at("count").get<std::uint64_t>();
    }
    const model::Function function = function_of(func);
    const bool ranks_known = version >= 4;
    const std::uint64_t bytes =
        model::message_bytes(function, count, datatype_of(type), ranks_known ? nranks_ : 0);
    check_limited("datatype", true_type, type, p / "datatype");
    check_limited("count", o.at("count"), count, p / "count");
    check_limited("bytes", o.at("bytes"), bytes, p / "bytes");
    check_limited("bytes_complete", true, ranks_known || !model::size_needs_ranks(function),
                  p / "bytes_complete");
    check_limited("bytes_ambiguous", false, version == 1 && type == "ncclFloat64",
                  p / "bytes_ambiguous");

    check("root", is_rooted(func) ? o.at("root") : json(-1), p / "root");
    const json peer = f.point_to_point ? o.at("peer") : json(-1);
    check_limited("peer", peer, task ? peer : json(-1), p / "peer");

    // What NCCL chose.
    const bool has_sequence = task && !f.point_to_point && !f.copy_engine;
    check("sequence_known", has_sequence, p / "sequence_known");
    if (has_sequence) check("sequence", o.at("seq"), p / "sequence");
    check("algorithm", or_empty(o.at("algo")), p / "algorithm");
    check("protocol", or_empty(o.at("proto")), p / "protocol");
    const bool adapter_garbage =
        f.point_to_point && version == 4 && native_interface(where_.nccl_version) != 4;
    const bool channels_known = task && !f.copy_engine && version >= 4 && !adapter_garbage;
    const bool has_channels = !o.at("nChannels").is_null();
    check_limited("channels_known", has_channels, channels_known, p / "channels_known");
    if (channels_known) check("channels", o.at("nChannels"), p / "channels");

    // GPU time.
    const std::size_t stopped = static_cast<std::size_t>(std::count_if(
        f.channels.begin(), f.channels.end(), [](const ChannelFacts& c) { return c.stopped; }));
    const bool carried = !f.channels.empty() || (!f.channels_masked && mask_has_channels());
    check_limited("channels_seen", o.at("kernelch"), stopped, p / "channels_seen");
    const bool true_complete = o.at("complete").is_null() || o.at("complete").get<bool>();
    check_limited("complete", true_complete, !carried || true_complete, p / "complete");
    const std::vector<ChannelFacts> sound = sound_channels(f);
    compare_time(f, sound, p, got, gpu_time(f, sound, index), carried, header);

    // Host times.
    const std::int64_t api_ns = (api ? f.api->t_ns : f.task->t_ns) + header.t0_realtime_ns;
    check("api_time_ns", api_ns, p / "api_time_ns");
    const auto enqueued_at = [api_ns, &f](std::int64_t t_ns) {
      const auto delay_us =
          static_cast<std::uint64_t>(std::max<std::int64_t>(t_ns - f.api->t_ns, 0)) / 1000;
      return api_ns + static_cast<std::int64_t>(std::min(delay_us, wire::kMaxEnqueueUs)) * 1000;
    };
    // Its plan began, or it was handed over itself: a plan is submitted in one go.
    std::int64_t enqueue_ns = api && task ? enqueued_at(f.task->t_ns) : api_ns;
    if (api && task && f.plan != kNoHandle && got.at("enqueue_time_ns") != enqueue_ns) {
      enqueue_ns = enqueued_at(f.plan_t_ns);
    }
    check("enqueue_time_ns", enqueue_ns, p / "enqueue_time_ns");

    check("api_seen", api, p / "api_seen");
    check("task_seen", task, p / "task_seen");
    check("copy_engine", f.copy_engine, p / "copy_engine");
    check("graph", false, p / "graph");
    check("warmup", f.index < kWarmupOperations, p / "warmup");
  }

  void compare_time(const OperationFacts& f, const std::vector<ChannelFacts>& sound,
                    const Pointer& p, const json& got, GpuTime gpu, bool carried,
                    const TraceHeader& header) {
    const json& o = *f.expected;
    const bool all = sound.size() == f.channels.size();
    std::uint64_t sound_start = std::numeric_limits<std::uint64_t>::max();
    std::uint64_t sound_stop = 0;
    for (const ChannelFacts& c : sound) {
      sound_start = std::min(sound_start, c.gpu_start_ns);
      sound_stop = std::max(sound_stop, c.gpu_stop_ns);
    }
    const bool host =
        where_.interface_version == 3 && !f.channels.empty() && !o.at("host_duration_ns").is_null();
    const bool true_host = where_.interface_version == 3 && !o.at("host_duration_ns").is_null();
    const bool truly_timed =
        gpu == GpuTime::kMust || gpu == GpuTime::kMay ||
        (f.channels_masked && !o.at("gpu_start_ns").is_null() && o.at("stale") == false);
    if (gpu == GpuTime::kMay) gpu = got.at("timing") == "gpu" ? GpuTime::kMust : GpuTime::kMustNot;
    const bool timed = gpu == GpuTime::kMust;

    const std::string truth = truly_timed && (timed || f.channels_masked) ? "gpu"
                              : true_host                                 ? "host_callback"
                                                                          : "none";
    const std::string timing = timed ? "gpu" : host ? "host_callback" : "none";
    check_limited("timing", truth, timing, p / "timing");

    const std::uint64_t true_ns = truth == "gpu" && !all ? sound_stop - sound_start
                                  : truth == "gpu"       ? o.at("duration_ns").get<std::uint64_t>()
                                  : truth == "host_callback"
                                      ? o.at("host_duration_ns").get<std::uint64_t>()
                                      : 0;
    check_limited("duration_ns", true_ns, timing == "none" ? std::uint64_t{0} : true_ns,
                  p / "duration_ns");
    const std::uint64_t true_start = truth != "gpu" ? 0
                                     : all          ? o.at("gpu_start_ns").get<std::uint64_t>()
                                                    : sound_start;
    if (host) {
      std::int64_t first = f.channels.front().host_start_ns;
      for (const ChannelFacts& c : f.channels) first = std::min(first, c.host_start_ns);
      check("gpu_start_ns", header.t0_monotonic_ns + first, p / "gpu_start_ns");
    } else {
      check_limited("gpu_start_ns", true_start, timed ? true_start : 0, p / "gpu_start_ns");
    }

    // Bandwidth: defined once, for GPU time only.
    const auto func = function_of(o.at("func").get<std::string>());
    const auto bytes = o.at("bytes").get<std::uint64_t>();
    const double true_busbw =
        truth == "gpu" ? model::bus_bandwidth(func, bytes, nranks_, true_ns) : 0.0;
    const double true_algbw =
        truth == "gpu" ? static_cast<double>(bytes) / (static_cast<double>(true_ns) * 1e-9) : 0.0;
    if (truth == "gpu" && all) {
      // expected.json rounds to a tenth of a byte per second.
      const double written = o.at("busbw").get<double>();
      if (std::abs(written - true_busbw) > 0.051 + kRelativeTolerance * written) {
        difference("busbw", shown(o.at("busbw")) + " (expected.json)",
                   "bytes and duration give " + shown(json(true_busbw)));
      }
    }
    check_limited("busbw", true_busbw, timed ? true_busbw : 0.0, p / "busbw");
    check_limited("algbw", true_algbw, timed ? true_algbw : 0.0, p / "algbw");
    check_reason(f, p, timed, host, gpu, carried);
  }

  void check_reason(const OperationFacts& f, const Pointer& p, bool timed, bool host, GpuTime gpu,
                    bool carried) {
    const json& o = *f.expected;
    const bool to_itself = f.point_to_point && f.task != nullptr && o.at("peer") == rank_;
    std::vector<std::string> reasons;
    if (timed) {
      reasons = {"", "none"};
    } else if (f.copy_engine) {
      reasons = {"copy_engine"};
    } else if (f.task == nullptr) {
      reasons = {"api_only"};
    } else if (to_itself) {
      reasons = {"self"};
    } else if (host || !carried) {  // NOLINT(bugprone-branch-clone): the order is the meaning
      reasons = {"not_carried"};
    } else if (gpu == GpuTime::kMustNot) {
      reasons = {"counter_drift", "timing_rejected"};
    } else if (o.at("complete") == false) {
      // Channel reports never came: given up, or the communicator ended first, or its counters are
      // known to be lost.
      reasons = {"unfinished", "lost", "counter_drift"};
    } else {
      reasons = {"not_carried"};
    }
    check_any("untimed_reason", reasons, p / "untimed_reason");
  }

  /// Operations launched together share a plan id, others do not.
  void compare_plans(const std::vector<const OperationFacts*>& want,
                     const std::vector<std::size_t>& got) {
    std::map<std::int64_t, std::size_t> first_want;
    std::map<std::uint64_t, std::size_t> first_got;
    std::map<std::int64_t, std::size_t> sharing;
    for (const OperationFacts& f : facts_) {
      if (f.plan != kNoHandle) ++sharing[f.plan];
    }
    for (std::size_t i = 0; i < want.size(); ++i) {
      const OperationFacts& f = *want[i];
      name_operation(f);
      const Pointer p = Pointer("/operations/" + std::to_string(got[i])) / "plan";
      const auto plan = answer_.at(p).get<std::uint64_t>();
      const std::size_t expected_first =
          f.plan == kNoHandle ? i : first_want.emplace(f.plan, i).first->second;
      const std::size_t got_first = plan == 0 ? i : first_got.emplace(plan, i).first->second;
      result_.compared.push_back({"plan", p});
      if (expected_first != got_first || (f.plan == kNoHandle) != (plan == 0)) {
        difference("plan",
                   f.plan == kNoHandle
                       ? "none"
                       : "launched with the one numbered " + std::to_string(expected_first),
                   plan == 0 ? "none"
                             : std::to_string(plan) + ": launched with the one numbered " +
                                   std::to_string(got_first));
      }
      const json& fused = f.expected->at("fused");
      const bool shares = f.plan != kNoHandle && sharing[f.plan] > 1;
      if (fused.is_boolean() && fused.get<bool>() != shares && !limits_.allows("plan", where_)) {
        difference("plan", std::string(fused.get<bool>() ? "fused" : "alone") + " (expected.json)",
                   shares ? "shares its Group" : "has a Group of its own");
      }
    }
    op_.clear();
    where_.function.clear();
  }

  // ---- network ----------------------------------------------------------------------------------
  void compare_network(const json& communicator, std::int64_t pid) {
    const json& records = answer_.at("network");
    for (const OperationFacts& f : facts_) {
      if (!f.visible()) continue;
      name_operation(f);
      for (const bool is_send : {true, false}) {
        std::vector<std::size_t> mine;
        for (std::size_t i = 0; i < records.size(); ++i) {
          const json& r = records[i];
          const bool same_comm =
              hash_known() ? r.at("comm") == comm_ && r.at("rank") == communicator.at("rank")
                           : r.at("communicator_id") == communicator_id_;
          if (r.at("pid") == pid && same_comm && r.at("index") == f.index &&
              r.at("is_p2p") == f.point_to_point && r.at("is_send") == is_send) {
            mine.push_back(i);
            claimed_network_.insert(i);
          }
        }
        const auto n = f.network.find(is_send);
        if (n != f.network.end() && n->second.answered && !n->second.whole)
          continue;  // torn off by an abort
        const bool expected = n != f.network.end() && n->second.answered;
        if (expected != !mine.empty()) {
          difference("network.records", expected ? "one" : "none", std::to_string(mine.size()));
          continue;
        }
        if (!expected) continue;
        const NetworkFacts& want = n->second;
        const auto sum = [&](const std::string& field, const std::string& path,
                             std::uint64_t wanted) {
          std::uint64_t total = 0;
          for (const std::size_t i : mine) {
            const Pointer at("/network/" + std::to_string(i) + path);
            result_.compared.push_back({field, at});
            total += answer_.at(at).get<std::uint64_t>();
          }
          if (total != wanted) difference(field, std::to_string(wanted), std::to_string(total));
        };
        for (const std::size_t i : mine) {
          result_.compared.push_back({"network.records", Pointer("/network/" + std::to_string(i))});
        }
        const std::string prefix = is_send ? "network.send." : "network.receive.";
        sum(prefix + (is_send ? "gpu_wait" : "data_wait"), "/phase_ns/0", want.phase_ns[0]);
        sum(prefix + (is_send ? "peer_wait" : "flush"), "/phase_ns/1", want.phase_ns[1]);
        sum(prefix + (is_send ? "wire" : "gpu_wait"), "/phase_ns/2", want.phase_ns[2]);
        sum(prefix + "bytes", "/bytes", want.bytes);
        sum(prefix + "steps", "/steps", want.steps);
        sum(prefix + "steps_incomplete", "/steps_incomplete", want.steps_incomplete);
      }
      // Sampled operations are those with low indexes; with ProxyStep in the mask for good it is
      // all of them.
      const bool sampled = replayed_.mask_mode == "recorded" || f.index < 16;
      const bool taken = std::any_of(f.network.begin(), f.network.end(),
                                     [](const auto& n) { return n.second.answered; });
      if (f.has_steps && sampled && !f.point_to_point && !taken) {
        difference("network.records", "steps of this operation are wanted",
                   "the plugin answered NULL to all of them");
      }
    }
    op_.clear();
    where_.function.clear();
  }

  // ---- progress, description, books, sums -------------------------------------------------------
  void compare_progress(const json& communicator, std::int64_t pid) {
    const json& all = answer_.at("progress");
    std::size_t at = all.size();
    for (std::size_t i = 0; i < all.size(); ++i) {
      const bool match =
          hash_known() ? all[i].at("comm") == comm_ && all[i].at("rank") == communicator.at("rank")
                       : all[i].at("communicator_id") == communicator_id_;
      if (all[i].at("pid") == pid && match) at = i;
    }
    if (at == all.size()) {
      difference("progress", "one entry", "none");
      return;
    }
    const Pointer p("/progress/" + std::to_string(at));
    for (const bool p2p : {false, true}) {
      std::uint64_t enqueued = 0;
      std::optional<std::uint64_t> first_open;
      for (const OperationFacts& f : facts_) {
        if (!f.visible() || f.point_to_point != p2p) continue;
        ++enqueued;
        const bool carried = !f.channels.empty() || (!f.channels_masked && mask_has_channels());
        if (carried && f.expected->at("complete") == false) {
          first_open = std::min(first_open.value_or(f.index), f.index);
        }
      }
      const std::string prefix = p2p ? "p2p_" : "collectives_";
      check("progress." + prefix + "enqueued", enqueued, p / (prefix + "enqueued"));
      // What has been given up does not hold up what came after it, so the last completed may be
      // later than the first open one; it is never more than what was called.
      if (!first_open) {
        check("progress." + prefix + "completed", enqueued, p / (prefix + "completed"));
      }
    }
    // A process that leaves in good order without destroying its communicator ends it one way or
    // the other.
    if (communicator.at("finalized").get<bool>()) {
      check_any("progress.state", {"finalized"}, p / "state");
    } else {
      check_any("progress.state", {"finalized", "vanished"}, p / "state");
    }
  }

  void compare_description(const json& communicator, std::int64_t pid) {
    const json& jobs = answer_.at("snapshot").at("jobs");
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      const json& comms = jobs[j].at("communicators");
      for (std::size_t c = 0; c < comms.size(); ++c) {
        if (comms[c].at("hash_known") != hash_known() ||
            (hash_known() && comms[c].at("comm") != comm_))
          continue;
        const json& ranks = comms[c].at("ranks");
        for (std::size_t r = 0; r < ranks.size(); ++r) {
          if (ranks[r].at("pid") != pid || (hash_known() && ranks[r].at("rank") != rank_)) continue;
          const Pointer p("/snapshot/jobs/" + std::to_string(j) + "/communicators/" +
                          std::to_string(c));
          const bool known = where_.interface_version >= 4;
          check_limited("communicator.name", or_empty(communicator.at("commName")),
                        known ? or_empty(communicator.at("commName")) : "", p / "name");
          check_limited("communicator.nranks", nranks_, known ? nranks_ : 0, p / "nranks");
          const json nodes =
              communicator.at("nNodes").is_null() ? json(0) : communicator.at("nNodes");
          check_limited("communicator.nnodes", nodes, known ? nodes : json(0), p / "nnodes");
          result_.compared.push_back(
              {"communicator.rank", p / "ranks" / std::to_string(r) / "rank"});
          if (!hash_known() && ranks[r].at("rank") != rank_) break;
          return;
        }
      }
    }
    difference("communicator.rank", std::to_string(rank_), "no such rank in the snapshot");
  }

  void compare_books(std::int64_t pid, std::uint64_t seen) {
    rank_ = -1;
    comm_.clear();
    op_.clear();
    const json& all = answer_.at("books");
    std::uint64_t totals[3] = {};  // seen, recorded, operations received
    std::map<std::string, std::uint64_t> untimed;
    std::vector<Pointer> where;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const json& b = all[i];
      if (b.at("pid") != pid) continue;
      const Pointer p("/books/" + std::to_string(i));
      where.push_back(p);
      totals[0] += b.at("seen").get<std::uint64_t>();
      totals[1] += b.at("recorded").get<std::uint64_t>();
      totals[2] += b.at("operations_received").get<std::uint64_t>();
      check("books.open", 0, p / "open");
      check("books.records_lost", 0, p / "records_lost");
      check("books.operations_lost", 0, p / "operations_lost");
      check("books.records_overwritten", 0, p / "records_overwritten");
      check("books.records_received", b.at("records_written"), p / "records_received");
      check("books.balanced", true, p / "balanced");
      check("books.nccl_version", where_.nccl_version, p / "nccl_version");
      check("books.interface_version", where_.interface_version, p / "interface_version");
      check("books.stops_unmatched", 0, p / "stops_unmatched");
      check("books.children_dropped", 0, p / "children_dropped");
      for (std::size_t k = 0; k < b.at("dropped").size(); ++k) {
        check("books.dropped", 0, p / "dropped" / std::to_string(k) / "value");
      }
      for (std::size_t k = 0; k < b.at("untimed").size(); ++k) {
        const json& u = b.at("untimed")[k];
        untimed[u.at("reason").get<std::string>()] += u.at("value").get<std::uint64_t>();
        result_.compared.push_back({"books.untimed", p / "untimed" / std::to_string(k) / "value"});
      }
    }
    if (where.empty()) {
      difference("books", "an entry of process " + std::to_string(pid), "none");
      return;
    }
    const auto total = [&](const std::string& field, const char* key, std::uint64_t want,
                           std::uint64_t got) {
      for (const Pointer& p : where) result_.compared.push_back({field, p / key});
      if (want != got) difference(field, std::to_string(want), std::to_string(got));
    };
    total("books.seen", "seen", seen, totals[0]);
    total("books.recorded", "recorded", seen, totals[1]);
    total("books.operations_received", "operations_received", seen, totals[2]);
    std::map<std::string, std::uint64_t> told;
    for (const json& o : answer_.at("operations")) {
      const auto reason = o.at("untimed_reason").get<std::string>();
      if (o.at("pid") == pid && !reason.empty() && reason != "none") ++told[reason];
    }
    std::erase_if(untimed, [](const auto& u) { return u.second == 0; });
    if (told != untimed) difference("books.untimed", json(told).dump(), json(untimed).dump());
  }

  void find_strangers() {
    rank_ = -1;
    comm_.clear();
    op_.clear();
    const json& operations = answer_.at("operations");
    for (std::size_t i = 0; i < operations.size(); ++i) {
      if (claimed_.contains(i)) continue;
      const json& o = operations[i];
      comm_ = o.at("comm").get<std::string>();
      rank_ = o.at("rank").get<int>();
      difference("operations", "none of this communicator and rank", shown(o.at("collective")));
    }
    const json& network = answer_.at("network");
    for (std::size_t i = 0; i < network.size(); ++i) {
      if (claimed_network_.contains(i)) continue;
      comm_ = network[i].at("comm").get<std::string>();
      rank_ = network[i].at("rank").get<int>();
      difference("network.records",
                 "none of an operation with index " + shown(network[i].at("index")), "one");
    }
  }

  /// The operations that make up each all-to-all: one Send to and one Receive from every rank of
  /// the communicator in one launch; the rank itself included, but where it exchanges with at least
  /// three others.
  [[nodiscard]] std::vector<std::vector<const json*>> all_to_alls() const {
    std::map<std::string, std::size_t> nranks;  // as far as the agent knows
    for (const json& job : answer_.at("snapshot").at("jobs")) {
      for (const json& c : job.at("communicators")) {
        nranks[c.at("comm").get<std::string>()] = c.at("nranks").get<std::size_t>();
      }
    }
    std::map<std::tuple<std::string, int, std::int64_t, int>, std::vector<const json*>> launches;
    for (const json& o : answer_.at("operations")) {
      const auto plan = o.at("plan").get<int>();
      const bool point_to_point = o.at("collective") == "Send" || o.at("collective") == "Recv";
      if (!point_to_point || plan == 0) continue;
      launches[{o.at("comm").get<std::string>(), o.at("rank").get<int>(),
                o.at("pid").get<std::int64_t>(), plan}]
          .push_back(&o);
    }
    std::vector<std::vector<const json*>> out;
    for (auto& [key, operations] : launches) {
      const std::size_t n = nranks[std::get<0>(key)];
      std::set<std::pair<bool, int>> transfers;
      for (const json* o : operations) {
        transfers.emplace(o->at("collective") == "Send", o->at("peer").get<int>());
      }
      const bool own = transfers.contains({true, std::get<1>(key)});
      const std::size_t whole = own ? 2 * n : 2 * n - 2;
      if (n > (own ? 1 : 3) && transfers.size() == whole && operations.size() == whole) {
        out.push_back(std::move(operations));
      }
    }
    return out;
  }

  /// The agent's sums must be those of the operations it tells of.
  void compare_sums() {
    struct Sum {
      std::uint64_t operations = 0, bytes = 0, timed = 0;
      Pointer any;
    };
    std::map<std::pair<std::string, std::string>, Sum> want;
    std::map<std::pair<std::string, std::string>, Sum> got;
    for (const json& o : answer_.at("operations")) {
      Sum& s = want[{o.at("comm").get<std::string>(), o.at("collective").get<std::string>()}];
      ++s.operations;
      s.bytes += o.at("bytes").get<std::uint64_t>();
      // Without bytes there is no bandwidth.
      if (o.at("timing") == "gpu" && o.at("bytes") != 0) ++s.timed;
    }
    // An all-to-all is counted as one collective and not as its Sends and Receives.
    for (const auto& operations : all_to_alls()) {
      const auto comm = operations.front()->at("comm").get<std::string>();
      Sum& whole = want[{comm, "AlltoAll"}];
      std::uint64_t sent = 0;
      std::uint64_t received = 0;
      bool timed = true;
      for (const json* o : operations) {
        const auto name = o->at("collective").get<std::string>();
        const auto bytes = o->at("bytes").get<std::uint64_t>();
        const bool has_time = o->at("timing") == "gpu" && bytes != 0;
        (name == "Send" ? sent : received) += bytes;
        timed = timed && (has_time || o->at("peer") == o->at("rank"));
        Sum& part = want[{comm, name}];
        --part.operations;
        part.bytes -= bytes;
        if (has_time) --part.timed;
      }
      ++whole.operations;
      whole.bytes += std::max(sent, received);
      if (timed) ++whole.timed;
    }
    const json& jobs = answer_.at("snapshot").at("jobs");
    for (std::size_t j = 0; j < jobs.size(); ++j) {
      const json& sums = jobs[j].at("sums");
      for (std::size_t i = 0; i < sums.size(); ++i) {
        const Pointer p("/snapshot/jobs/" + std::to_string(j) + "/sums/" + std::to_string(i));
        Sum& s = got[{sums[i].at("comm").get<std::string>(),
                      sums[i].at("collective").get<std::string>()}];
        s.operations += sums[i].at("operations").get<std::uint64_t>();
        s.bytes += sums[i].at("bytes").get<std::uint64_t>();
        s.timed += sums[i].at("timed_operations").get<std::uint64_t>();
        for (const char* key : {"operations", "bytes", "timed_operations"}) {
          result_.compared.push_back({std::string("sums.") + key, p / key});
        }
      }
    }
    std::set<std::pair<std::string, std::string>> keys;
    for (const auto& s : want) keys.insert(s.first);
    for (const auto& s : got) keys.insert(s.first);
    rank_ = -1;
    for (const auto& key : keys) {
      comm_ = key.first;
      op_ = key.second;
      const Sum& w = want[key];
      const Sum& g = got[key];
      if (w.operations != g.operations) {
        difference("sums.operations", std::to_string(w.operations), std::to_string(g.operations));
      }
      if (w.bytes != g.bytes)
        difference("sums.bytes", std::to_string(w.bytes), std::to_string(g.bytes));
      if (w.timed != g.timed)
        difference("sums.timed_operations", std::to_string(w.timed), std::to_string(g.timed));
    }
  }

  const ReplayedFolder& replayed_;
  const json& answer_;
  const json& expected_;
  Limits& limits_;
  LimitContext where_;
  Comparison result_;

  // The communicator and operation at hand.
  int rank_ = -1;
  std::string comm_;
  std::string op_;
  std::uint32_t nranks_ = 0;
  std::uint32_t mask_ = 0;
  std::optional<std::uint32_t> communicator_id_;
  std::optional<std::size_t> self_sent_;  // line of the first send to itself, ...
  std::int64_t self_plan_ = kNoHandle;    // ... and its plan
  std::vector<OperationFacts> facts_;
  std::set<std::size_t> claimed_, claimed_network_;
};

}  // namespace

Comparison compare(const ReplayedFolder& replayed, const json& expected, Limits& limits) {
  return Comparer(replayed, expected, limits).run();
}

std::string to_line(const Difference& d) {
  std::string line = d.folder;
  if (d.rank >= 0) line += " rank " + std::to_string(d.rank);
  if (!d.comm.empty()) line += " comm " + d.comm;
  if (!d.op.empty()) line += " " + d.op;
  return line + ": " + d.field + " expected " + d.expected + ", got " + d.got;
}

}  // namespace ncclscope::cli

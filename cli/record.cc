// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope record`: operations as agents receive them, into archive segments of one's own. What
// the API does not tell (books, progress, ends of communicators) is not in them.
//   Thread: one per agent; each has writers of its own.
#include <signal.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>

#include "archive/format.h"
#include "archive/writer.h"
#include "cli/agents.h"
#include "cli/archive_commands.h"
#include "cli/commands.h"
#include "cli/ending_signals.h"
#include "cli/text.h"
#include "proto/model/operation.h"
#include "proto/wire/encode.h"
#include "proto/wire/names.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;

constexpr std::chrono::seconds kFlushEvery{1};
constexpr std::chrono::seconds kLookEvery{10};  // for what is known of jobs and communicators

struct RecordOptions {
  AgentOptions agents;
  std::string job;
  std::string output;
  std::string duration;
  bool include_held = false;
};

std::string utc_name() {
  const std::time_t now = std::time(nullptr);
  std::tm parts{};
  gmtime_r(&now, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return text.data();
}

/// For file names.
std::string safe(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '_' || (c == '.' && !out.empty());
    out += plain ? c : '_';
  }
  return out.empty() ? "_" : out.substr(0, 100);
}

std::int64_t epoch_now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

template <typename Enum>
Enum value_named(const std::string& text, std::size_t count) {
  for (std::size_t i = 1; i < count; ++i) {
    if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return Enum{};
}
std::uint8_t reason_named(const std::string& text) {
  for (std::size_t i = 1; i < wire::kNamedUntimedReasons; ++i) {
    if (wire::name(static_cast<wire::UntimedReason>(i)) == text)
      return static_cast<std::uint8_t>(i);
  }
  return 0;
}

/// The record as the plugin sent it, as far as the API tells it. Times are since the epoch: in what
/// is recorded, a process's CLOCK_MONOTONIC is that.
wire::Operation to_record(const v1::Operation& from) {
  namespace flags = wire::operation_flags;
  wire::Operation o{};
  wire::set_header(o, wire::RecordType::kOperation);
  o.communicator = static_cast<std::uint16_t>(from.communicator_id());
  o.function = static_cast<std::uint8_t>(
      value_named<model::Function>(from.collective(), model::kFunctionCount));
  o.datatype = static_cast<std::uint8_t>(
      value_named<model::DataType>(from.datatype(), model::kDataTypeCount));
  o.algorithm_protocol = static_cast<std::uint8_t>(
      static_cast<unsigned>(
          value_named<model::Algorithm>(from.algorithm(), model::kAlgorithmCount)) |
      static_cast<unsigned>(value_named<model::Protocol>(from.protocol(), model::kProtocolCount))
          << 4);
  o.untimed_reason = reason_named(from.untimed_reason());
  o.channels = static_cast<std::uint8_t>(from.channels());
  o.channels_seen = static_cast<std::uint8_t>(from.channels_seen());
  const auto timing = from.timing() == "gpu"             ? wire::TimingSource::kGpu
                      : from.timing() == "host_callback" ? wire::TimingSource::kHostCallback
                                                         : wire::TimingSource::kNone;
  unsigned bits = static_cast<unsigned>(timing);
  const auto set = [&bits](bool is, std::uint16_t flag) { bits |= is ? flag : 0u; };
  set(from.complete(), flags::kComplete);
  set(from.graph(), flags::kGraph);
  set(from.api_seen(), flags::kApiSeen);
  set(from.task_seen(), flags::kTaskSeen);
  set(from.copy_engine(), flags::kCopyEngine);
  set(from.warmup(), flags::kWarmup);
  set(from.task_seen() && !from.copy_engine() && !from.channels_known(), flags::kChannelsUnknown);
  set(from.sequence_known(), flags::kSequenceKnown);
  set(from.bytes_ambiguous(), flags::kBytesAmbiguous);
  o.flags = static_cast<std::uint16_t>(bits);
  const bool p2p = model::is_point_to_point(static_cast<model::Function>(o.function));
  o.root_or_peer = p2p ? from.peer() : from.root();
  o.index = static_cast<std::uint32_t>(from.index());
  o.sequence = static_cast<std::uint32_t>(from.sequence());
  o.count_plan = wire::pack_count_plan(from.count(), static_cast<std::uint16_t>(from.plan()));
  o.api_time_ns = static_cast<std::uint64_t>(from.api_time_ns());
  o.gpu_start_ns = from.gpu_start_ns();
  const std::int64_t delay_ns =
      std::max<std::int64_t>(0, from.enqueue_time_ns() - from.api_time_ns());
  o.duration_enqueue =
      wire::pack_duration_enqueue(from.duration_ns(), static_cast<std::uint64_t>(delay_ns) / 1000);
  return o;
}

wire::NetworkPhases to_record(const v1::NetworkPhases& from) {
  wire::NetworkPhases n{};
  wire::set_header(n, wire::RecordType::kNetworkPhases);
  n.communicator = static_cast<std::uint16_t>(from.communicator_id());
  n.index = static_cast<std::uint32_t>(from.index());
  n.is_send = from.is_send() ? 1 : 0;
  n.is_p2p = from.is_p2p() ? 1 : 0;
  n.peer = from.peer();
  n.bytes = from.bytes();
  n.steps = from.steps();
  n.steps_incomplete = from.steps_incomplete();
  for (int i = 0; i < 3 && i < from.phase_ns_size(); ++i) n.phase_ns[i] = from.phase_ns(i);
  return n;
}

wire::ChannelDetail to_record(const v1::ChannelDetail& from) {
  wire::ChannelDetail c{};
  wire::set_header(c, wire::RecordType::kChannelDetail);
  c.communicator = static_cast<std::uint16_t>(from.communicator_id());
  c.index = static_cast<std::uint32_t>(from.index());
  c.channel = static_cast<std::uint8_t>(from.channel());
  c.is_p2p = from.is_p2p() ? 1 : 0;
  c.flags = from.rejected() ? 1 : 0;
  c.gpu_start_ns = from.gpu_start_ns();
  c.gpu_stop_ns = from.gpu_stop_ns();
  c.host_start_ns = static_cast<std::uint64_t>(from.host_start_ns());
  c.host_stop_ns = static_cast<std::uint64_t>(from.host_stop_ns());
  return c;
}

/// What is recorded, over all agents.
struct Totals {
  std::uint64_t segments = 0, operations = 0, bytes = 0, skipped = 0;
};

std::string text_of(const Totals& totals) {
  return std::to_string(totals.operations) + " operations in " + std::to_string(totals.segments) +
         (totals.segments == 1 ? " segment, " : " segments, ") + format_bytes(totals.bytes);
}

/// What one agent sends, in a segment per job.
class Recorder {
 public:
  Recorder(const Agent& agent, const RecordOptions& options) : agent_(agent), options_(options) {}

  /// Until the stream ends. False, and an error was printed: it did not go well.
  bool run(grpc::ClientContext& context, const std::atomic<bool>& ended) {
    if (!agent_.node(node_)) return false;
    look();
    v1::TailOperationsRequest request;
    request.set_job_id(options_.job);
    request.set_include_held(options_.include_held);
    request.set_follow(true);
    const auto reader = agent_.stub().TailOperations(&context, request);
    v1::TailOperationsResponse response;
    bool good = true;
    while (good && reader->Read(&response)) good = take(response);
    if (!good) context.TryCancel();
    const grpc::Status status = reader->Finish();
    if (good && !ended) {
      good = agent_.check(status);
      if (status.ok()) {
        std::fprintf(stderr, "ncclscope: agent at %s ended the stream: it is stopping\n",
                     agent_.address().c_str());
      }
    }
    const std::lock_guard lock(mutex_);
    for (auto& [job, segment] : segments_) {
      if (segment.writer) good = check(segment.writer->finish()) && good;
    }
    return good;
  }
  /// From another thread: what has come is written, however slowly it comes.
  void flush() {
    const std::lock_guard lock(mutex_);
    for (auto& [job, segment] : segments_) {
      if (segment.writer) static_cast<void>(check(segment.writer->flush()));
    }
  }
  void report() const {
    for (const auto& [job, segment] : segments_) {
      if (!segment.writer) continue;
      std::printf("%s: %llu operations, %s\n", segment.writer->path().c_str(),
                  static_cast<unsigned long long>(segment.writer->operations()),
                  format_bytes(segment.writer->bytes()).c_str());
    }
    if (segments_.empty())
      std::printf("%s: no operations came%s\n", printable(node_).c_str(),
                  std::string(own_jobs_note()).c_str());
    if (gaps_ > 0) {
      std::printf(
          "%s: at least %llu records were skipped: the agent keeps the newest tail_records "
          "only, and this program was too slow\n",
          printable(node_).c_str(), static_cast<unsigned long long>(gaps_.load()));
    }
  }
  [[nodiscard]] bool has_gaps() const { return gaps_ > 0; }
  /// Adds what was written so far, and what is missing at least. Any thread.
  void add_to(Totals& totals) {
    const std::lock_guard lock(mutex_);
    for (const auto& [job, segment] : segments_) {
      if (!segment.writer) continue;
      ++totals.segments;
      totals.operations += segment.writer->operations();
      totals.bytes += segment.writer->bytes();
    }
    totals.skipped += gaps_;
  }

 private:
  using Key = std::tuple<std::uint64_t, std::uint32_t, std::string>;
  struct Segment {
    std::unique_ptr<archive::Writer> writer;
    std::map<std::uint64_t, std::uint32_t> processes;  // by session
    std::map<Key, std::uint32_t> communicators;
  };

  bool check(const archive::Status& status) const {
    if (status.ok()) return true;
    std::fprintf(stderr, "ncclscope record: %s\n", status.message().c_str());
    return false;
  }
  /// What the agent knows of jobs and communicators.
  void look() {
    looked_ = std::chrono::steady_clock::now();
    v1::GetSnapshotRequest request;
    request.set_job_id(options_.job);
    if (!agent_.call(&v1::AgentService::Stub::GetSnapshot, request, snapshot_)) return;
    v1::GetBooksRequest books;
    books.set_job_id(options_.job);
    static_cast<void>(agent_.call(&v1::AgentService::Stub::GetBooks, books, books_));
  }
  [[nodiscard]] const v1::JobSnapshot* job_of(const std::string& id) const {
    for (const v1::JobSnapshot& job : snapshot_.jobs()) {
      if (job.job().job_id() == id) return &job;
    }
    return nullptr;
  }
  [[nodiscard]] bool is_described(const std::string& job, const std::string& comm,
                                  std::int32_t rank) const {
    const v1::JobSnapshot* known = job_of(job);
    for (int i = 0; known != nullptr && i < known->communicators_size(); ++i) {
      const v1::Communicator& communicator = known->communicators(i);
      if (communicator.comm() != comm) continue;
      return std::any_of(communicator.ranks().begin(), communicator.ranks().end(),
                         [rank](const v1::Rank& r) { return r.rank() == rank; });
    }
    return false;
  }
  /// Operations come at once, what they belong to with the agent's next snapshot: a description is
  /// written once, so it is waited for. Not for ever: what is folded is never described.
  template <typename Message>
  void look_if_new(const Message& message) {
    using namespace std::chrono_literals;
    const auto known = segments_.find(message.job_id());
    if (known != segments_.end() && known->second.communicators.contains(key_of(message))) {
      if (std::chrono::steady_clock::now() - looked_ > kLookEvery) look();
      return;
    }
    const auto deadline = std::chrono::steady_clock::now() + 3s;
    while (!is_described(message.job_id(), message.comm(), message.rank()) &&
           std::chrono::steady_clock::now() < deadline) {
      look();
      if (is_described(message.job_id(), message.comm(), message.rank())) return;
      std::this_thread::sleep_for(50ms);
    }
  }

  Segment* segment(const std::string& job_id) {
    Segment& segment = segments_[job_id];
    if (segment.writer) return &segment;
    const v1::JobSnapshot* known = job_of(job_id);
    archive::Job job;
    job.job_id = job_id;
    job.node = node_;
    job.producer = "ncclscope record " NCCLSCOPE_VERSION;
    if (known != nullptr) {
      const v1::Job& from = known->job();
      job.cluster = from.cluster();
      job.user = from.user();
      job.partition = from.partition();
      job.account = from.account();
      job.job_name = from.job_name();
      job.array_task = from.array_task();
      job.run = from.run();
      job.kubernetes_namespace = from.namespace_();
      job.pod = from.pod();
      job.identity_source = from.identity_source();
    }
    job.uid = ::geteuid() == 0 ? -1 : static_cast<std::int64_t>(::geteuid());
    const fs::path path =
        fs::path(options_.output) /
        (safe(job_id) + "-" + safe(node_) + "-" + utc_name() + "-" + std::to_string(::getpid()) +
         "-" + std::to_string(segments_.size()) + archive::kExtension);
    archive::Writer::Options options;
    options.now_ns = epoch_now_ns();
    options.writer = static_cast<std::uint64_t>(::getpid());
    archive::Status status;
    segment.writer = archive::Writer::create(path, options, status);
    if (!segment.writer) {
      static_cast<void>(check(status));
      return nullptr;
    }
    segment.writer->set_job(job);
    return &segment;
  }

  template <typename Message>
  [[nodiscard]] static Key key_of(const Message& message) {
    return {message.session_id(), message.communicator_id(), message.comm()};
  }
  template <typename Message>
  std::uint32_t communicator(Segment& segment, const Message& from) {
    const Key key = key_of(from);
    if (const auto it = segment.communicators.find(key); it != segment.communicators.end())
      return it->second;
    const auto [process, fresh] = segment.processes.try_emplace(from.session_id(), 0);
    archive::Communicator about;
    about.id = static_cast<std::uint16_t>(from.communicator_id());
    about.comm = from.comm();
    about.rank = from.rank();
    archive::Process of;
    of.session_id = from.session_id();
    of.pid = from.pid();
    of.hostname = node_;
    for (const v1::ProcessBooks& books : books_.processes()) {
      if (books.session_id() != from.session_id()) continue;
      of.plugin_version = books.plugin_version();
      of.nccl_version = books.nccl_version();
      of.interface_version = books.interface_version();
    }
    if (const v1::JobSnapshot* job = job_of(from.job_id())) {
      for (const v1::Communicator& known : job->communicators()) {
        if (known.comm() != from.comm()) continue;
        about.hash_known = known.hash_known();
        about.name = known.name();
        about.dimension = known.dimension();
        about.nranks = known.nranks();
        about.nnodes = known.nnodes();
        for (const v1::Rank& rank : known.ranks()) {
          if (rank.rank() != from.rank() || rank.pid() != from.pid()) continue;
          about.gpu = rank.gpu_known() ? static_cast<std::int32_t>(rank.gpu()) : -1;
          about.gpu_uuid = rank.gpu_uuid();
          about.pci_bus_id = rank.pci_bus_id();
          of.global_rank = rank.global_rank();
          of.local_rank = rank.local_rank();
        }
      }
    }
    about.cuda_device = about.gpu;  // tells the process's GPUs apart, no more
    if (fresh) process->second = segment.writer->add_process(of);
    const std::uint32_t id = segment.writer->add_communicator(process->second, about);
    segment.communicators.emplace(key, id);
    return id;
  }

  template <typename Message>
  bool keep(const Message& message) {
    look_if_new(message);
    const std::lock_guard lock(mutex_);
    Segment* to = segment(message.job_id());
    if (to == nullptr) return false;
    const std::uint32_t id = communicator(*to, message);
    if constexpr (std::is_same_v<Message, v1::Operation>) {
      return check(to->writer->add(id, message.record_index(), to_record(message), 0));
    } else {
      return check(to->writer->add(id, message.record_index(), to_record(message)));
    }
  }
  bool take(const v1::TailOperationsResponse& response) {
    if (response.skipped() > gaps_) {
      if (gaps_ == 0) {
        std::fprintf(stderr, "ncclscope: %s: too slow for the agent at %s, records were skipped\n",
                     printable(node_).c_str(), agent_.address().c_str());
      }
      gaps_ = response.skipped();
    }
    switch (response.record_case()) {
      case v1::TailOperationsResponse::kOperation:
        return keep(response.operation());
      case v1::TailOperationsResponse::kNetwork:
        return keep(response.network());
      case v1::TailOperationsResponse::kChannel:
        return keep(response.channel());
      default:
        return true;
    }
  }

  const Agent& agent_;
  const RecordOptions& options_;
  std::string node_;
  std::chrono::steady_clock::time_point looked_;
  v1::GetSnapshotResponse snapshot_;
  v1::GetBooksResponse books_;
  std::atomic<std::uint64_t> gaps_ = 0;
  std::mutex mutex_;                         // of what follows
  std::map<std::string, Segment> segments_;  // by job
};

using Recorders = std::vector<std::unique_ptr<Recorder>>;

Totals totals_of(const Recorders& recorders) {
  Totals totals;
  for (const auto& recorder : recorders) recorder->add_to(totals);
  return totals;
}

/// How far it is, on a terminal.
void show_progress(const Recorders& recorders) {
  const Totals totals = totals_of(recorders);
  std::fprintf(stderr, "\r\033[Krecording: %s%s", text_of(totals).c_str(),
               totals.skipped > 0 ? ", with gaps" : "");
}

/// The last line: what there is, what is missing and why.
void tell_books(const Recorders& recorders) {
  const Totals totals = totals_of(recorders);
  std::string missing = "nothing was skipped";
  if (totals.skipped > 0)
    missing = "at least " + std::to_string(totals.skipped) +
              " records are missing: this program was too slow for the agents";
  std::fprintf(stderr, "recorded %s; %s\n", text_of(totals).c_str(), missing.c_str());
}

int record(const RecordOptions& options, std::optional<double> seconds) {
  std::error_code error;
  fs::create_directories(options.output, error);
  if (error) {
    std::fprintf(stderr, "ncclscope record: %s: cannot be made: %s\n", options.output.c_str(),
                 error.message().c_str());
    return kUsage;
  }
  const std::vector<Agent> agents = connect(options.agents);
  Recorders recorders;
  std::vector<std::unique_ptr<grpc::ClientContext>> contexts;
  for (const Agent& agent : agents) {
    recorders.push_back(std::make_unique<Recorder>(agent, options));
    contexts.push_back(std::make_unique<grpc::ClientContext>());
  }
  std::atomic<bool> ended = false;
  std::atomic<std::size_t> running = agents.size();
  std::atomic<bool> failed = false;
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < agents.size(); ++i) {
    threads.emplace_back([&, i] {
      if (!recorders[i]->run(*contexts[i], ended)) failed = true;
      --running;
    });
  }
  const sigset_t signals = ending_signals();
  const bool terminal = ::isatty(STDERR_FILENO) == 1;
  const auto begin = std::chrono::steady_clock::now();
  auto flushed = begin;
  while (running > 0) {
    const timespec moment{0, 100'000'000};
    const bool signalled = sigtimedwait(&signals, nullptr, &moment) > 0;
    const auto now = std::chrono::steady_clock::now();
    if (now - flushed >= kFlushEvery) {
      flushed = now;
      for (const auto& recorder : recorders) recorder->flush();
      if (terminal) show_progress(recorders);
    }
    const bool over = seconds && std::chrono::duration<double>(now - begin).count() >= *seconds;
    if (!signalled && !over) continue;
    ended = true;
    for (const auto& context : contexts) context->TryCancel();
    break;
  }
  for (std::thread& thread : threads) thread.join();
  if (terminal) std::fputs("\r\033[K", stderr);
  bool gaps = false;
  for (const auto& recorder : recorders) {
    recorder->report();
    gaps = gaps || recorder->has_gaps();
  }
  tell_books(recorders);
  return failed ? kUnreachable : gaps ? kNegative : kSuccess;
}

}  // namespace

void register_record(CLI::App& app) {
  auto options = std::make_shared<RecordOptions>();
  CLI::App* command =
      app.add_subcommand("record", "Keep operations as agents receive them, in files of your own");
  add_agent_option(*command, options->agents);
  command->add_option("--job", options->job, "Only this job (default: all that you may see)")
      ->type_name("ID");
  command->add_option("--output", options->output, "Folder to write archive segments (*.ncsa) to")
      ->required()
      ->type_name("DIR");
  command
      ->add_option("--seconds", options->duration,
                   "End after so long (30, 90s, 5m, 1h; default: when interrupted)")
      ->type_name("TIME");
  command->add_flag("--held", options->include_held,
                    "Begin with the operations that the agents still hold");
  command->footer(
      "One segment per agent and job, for `ncclscope replay` and `ncclscope report`. What has come "
      "is on disk within\n"
      "a second or two. Books, progress and ends of communicators are not recorded: the agent's "
      "own "
      "archive\n"
      "(archive_directory) has them, and never falls behind unnoticed.\n"
      "Exit status: 0 all was recorded; 1 with gaps; 2 wrong arguments; 3 an agent was not reached "
      "or failed, or\n"
      "the disk did.");
  command->callback([options] {
    std::optional<double> seconds;
    if (!options->duration.empty()) {
      seconds = parse_duration(options->duration);
      if (!seconds)
        throw CLI::ValidationError(
            "--seconds", options->duration + ": wanted a number, with s, m or h behind it");
    }
    const sigset_t signals = ending_signals();
    pthread_sigmask(SIG_BLOCK, &signals, nullptr);
    if (const int status = record(*options, seconds); status != kSuccess)
      throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli

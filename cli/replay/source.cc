// SPDX-License-Identifier: Apache-2.0
#include "cli/replay/source.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cstring>
#include <stdexcept>
#include <string_view>

#include "archive/format.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;

/// One record of a batch, as bytes.
struct Item {
  std::uint64_t index = 0;
  std::uint64_t time_ns = 0;
  const archive::Communicator* communicator = nullptr;
  std::span<const std::byte> bytes;
};

template <typename Record>
std::span<const std::byte> bytes_of(const Record& record) {
  return {reinterpret_cast<const std::byte*>(&record), sizeof record};
}

/// When the operation was over, on its process's clock, as well as it is known.
std::uint64_t end_of(const archive::OperationRow& row) {
  std::uint64_t end = wire::enqueue_time_ns_of(row.record);
  const archive::Source& source = *row.source;
  const std::uint64_t duration = row.duration_ns();
  if (duration == 0) return end;
  if (wire::timing_of(row.record) == wire::TimingSource::kHostCallback)
    return std::max(end, row.record.gpu_start_ns + duration);
  if (!source.gpu_clock_offset_ns) return end;
  const std::uint64_t error =
      source.gpu_clock_error_ns == archive::Source::kUnknownError ? 0 : source.gpu_clock_error_ns;
  const std::uint64_t stop = row.record.gpu_start_ns + duration +
                             static_cast<std::uint64_t>(*source.gpu_clock_offset_ns) + error;
  // Clocks that were related wrongly must not send a replay into the next century.
  constexpr std::uint64_t kLongest = 24ull * 3600 * 1'000'000'000;
  return stop > end && stop - end < kLongest ? stop : end;
}

void sort_by_due(std::vector<ReplayedFrame>& frames, std::size_t from) {
  std::stable_sort(
      frames.begin() + static_cast<std::ptrdiff_t>(from), frames.end(),
      [](const ReplayedFrame& a, const ReplayedFrame& b) { return a.due_ns < b.due_ns; });
}

}  // namespace

// ---- archives
// ------------------------------------------------------------------------------------

ReplayedSession& ArchiveTrack::session(const archive::Source& source, std::uint64_t first_index) {
  std::unique_ptr<ReplayedSession>& found = sessions_[source.process->session_id];
  if (!found) {
    found = std::make_unique<ReplayedSession>();
    found->id = random_id();
    found->name = "process " + std::to_string(source.process->pid) + " of " + source.job->node;
    found->before = found->last = first_index == 0 ? 0 : first_index - 1;
    make_hello(*source.job, *source.process, job_.empty() ? source.job->job_id : job_, *found);
  }
  return *found;
}

void ArchiveTrack::make_frames(const archive::Batch& batch, std::vector<ReplayedFrame>& out) {
  struct Rows {
    const archive::Source* source = nullptr;
    std::vector<Item> items;
    std::vector<Item> state;
  };
  std::map<std::uint64_t, Rows> processes;  // by session
  const auto rows_of = [&processes](const archive::Source& source) -> Rows& {
    Rows& rows = processes[source.process->session_id];
    rows.source = &source;
    return rows;
  };
  for (const auto& row : batch.operations) {
    rows_of(*row.source)
        .items.push_back(
            {row.record_index, end_of(row), row.source->communicator, bytes_of(row.record)});
  }
  const auto take = [&](const auto& rows) {
    for (const auto& row : rows) {
      rows_of(*row.source)
          .items.push_back({row.record_index, 0, row.source->communicator, bytes_of(row.record)});
    }
  };
  take(batch.network);
  take(batch.channels);
  take(batch.finalizes);
  for (const auto& row : batch.progress) {
    rows_of(*row.source)
        .state.push_back({0, row.record.time_ns, row.source->communicator, bytes_of(row.record)});
  }
  for (const auto& row : batch.books)
    rows_of(*row.source).state.push_back({1, row.record.time_ns, nullptr, bytes_of(row.record)});

  const std::size_t from = out.size();
  for (auto& process : processes) {
    auto& rows = process.second;  // clang takes no structured binding in a lambda
    std::stable_sort(rows.items.begin(), rows.items.end(),
                     [](const Item& a, const Item& b) { return a.index < b.index; });
    ReplayedSession& of = session(*rows.source, rows.items.empty() ? 0 : rows.items[0].index);
    FrameMaker maker(of, out);
    std::uint64_t time_ns = of.last_time_ns;
    // A finalize ends its communicator: what is told of it goes before.
    std::size_t told = 0;
    const auto tell_state = [&](std::uint64_t until_ns) {
      for (; told < rows.state.size() && rows.state[told].time_ns <= until_ns; ++told) {
        const Item& state = rows.state[told];
        if (state.index == 1) of.has_books = true;
        maker.add_state(state.communicator, state.bytes, std::max(time_ns, state.time_ns));
      }
    };
    std::stable_sort(rows.state.begin(), rows.state.end(),
                     [](const Item& a, const Item& b) { return a.time_ns < b.time_ns; });
    for (const Item& item : rows.items) {
      time_ns = std::max(time_ns, item.time_ns);
      if (static_cast<wire::RecordType>(item.bytes[0]) == wire::RecordType::kCommunicatorFinalize) {
        wire::CommunicatorFinalize finalize{};
        std::memcpy(&finalize, item.bytes.data(), sizeof finalize);
        time_ns = std::max(time_ns, finalize.time_ns);
        tell_state(finalize.time_ns);
      }
      maker.add(*item.communicator, item.index, item.bytes, time_ns);
    }
    tell_state(~std::uint64_t{0});
  }
  sort_by_due(out, from);
}

bool ArchiveTrack::next(std::vector<ReplayedFrame>& out, SourceNotes& notes) {
  for (;;) {
    if (!reader_) {
      if (segments_.empty()) return false;
      archive::Status status;
      reader_ = archive::Reader::open(segments_.front(), status);
      if (!reader_) throw std::runtime_error(status.message());
      segments_.pop_front();
    }
    if (const archive::Batch* batch = reader_->next()) {
      make_frames(*batch, out);
      if (!out.empty()) return true;
      continue;
    }
    if (!reader_->status().ok()) throw std::runtime_error(reader_->status().message());
    if (reader_->truncated()) {
      notes.lines.push_back(reader_->path().string() +
                            ": ends without an end block; read up to offset " +
                            std::to_string(reader_->offset()));
    }
    reader_.reset();
  }
}

std::vector<ReplayedSession*> ArchiveTrack::sessions() {
  std::vector<ReplayedSession*> out;
  for (auto& [id, session] : sessions_) out.push_back(session.get());
  return out;
}

// ---- Inspector logs
// ------------------------------------------------------------------------------

struct InspectorTrack::Communicator {
  archive::Communicator about;
  std::uint32_t collectives = 0, p2p = 0;  // next index
};

struct InspectorTrack::Process {
  ReplayedSession session;
  std::map<std::string, Communicator> communicators;  // by id and rank
  std::uint64_t index = 0;
  std::uint64_t free_ns = 0;  // when the operation before was over
};

InspectorTrack::InspectorTrack(fs::path file, std::string job)
    : file_(std::move(file)), job_(std::move(job)) {}
InspectorTrack::~InspectorTrack() = default;

namespace {

model::Function function_of(std::string_view text) {
  for (std::size_t i = 1; i < model::kFunctionCount; ++i) {
    const auto function = static_cast<model::Function>(i);
    if (name(function) == text) return function;
  }
  return text == "All2All" ? model::Function::kAllToAll : model::Function::kUnknown;
}
template <typename Enum>
Enum value_named(std::string_view text, std::size_t count) {
  for (std::size_t i = 1; i < count; ++i) {
    if (name(static_cast<Enum>(i)) == text) return static_cast<Enum>(i);
  }
  return Enum{};
}

/// "0x7f3c" as 16 hex digits; as it is, if it is no such number.
std::string comm_of(const std::string& id, bool& known) {
  std::uint64_t hash = 0;
  const char* end = id.data() + id.size();
  known = id.starts_with("0x") && id.size() > 2 &&
          std::from_chars(id.data() + 2, end, hash, 16).ptr == end && hash != 0;
  if (!known) return id;
  std::string text(16, '0');
  for (std::size_t i = 0; i < 16; ++i) text[15 - i] = "0123456789abcdef"[hash >> (4 * i) & 0xFu];
  return text;
}

}  // namespace

void InspectorTrack::add(const inspector_log::Performance& operation, Makers& makers,
                         std::vector<ReplayedFrame>& out) {
  const inspector_log::Context& context = *operation.context;
  std::unique_ptr<Process>& process = processes_[{context.hostname, context.pid}];
  if (!process) {
    process = std::make_unique<Process>();
    ReplayedSession& session = process->session;
    session.id = random_id();
    session.name = "process " + std::to_string(context.pid) + " of " + context.hostname;
    archive::Process about;
    about.pid = context.pid;
    about.hostname = context.hostname;
    about.program = "NCCL Inspector " + context.version;
    make_hello({}, about, job_, session);
  }
  Process& p = *process;
  constexpr std::size_t kMostCommunicators = 1024;
  const std::string key = context.id + "/" + std::to_string(context.rank);
  auto it = p.communicators.find(key);
  if (it == p.communicators.end()) {
    if (p.communicators.size() >= kMostCommunicators) {
      ++skipped_;
      return;
    }
    const auto id = static_cast<std::uint16_t>(p.communicators.size());
    it = p.communicators.emplace(key, Communicator{}).first;
    archive::Communicator& about = it->second.about;
    about.id = id;
    about.comm = comm_of(context.id, about.hash_known);
    about.name = context.comm_name;
    about.nranks = static_cast<std::uint32_t>(std::max(context.n_ranks, 0));
    about.nnodes = static_cast<std::uint32_t>(std::max(context.nnodes, 0));
    about.rank = context.rank;
    about.init_time_ns = 1;
  }
  Communicator& communicator = it->second;
  const auto ns_of = [](std::int64_t us) {
    return static_cast<std::uint64_t>(std::max<std::int64_t>(us, 0)) * 1000;
  };
  const std::uint64_t duration = ns_of(operation.exec_time_us);
  const std::uint64_t written = std::max<std::uint64_t>(ns_of(operation.dump_timestamp_us), 1);
  std::uint64_t start = written > duration ? written - duration : 1;
  if (operation.kernel_start_us > 0) {
    start = ns_of(operation.kernel_start_us);
  } else if (operation.enqueued_us > 0) {
    start = ns_of(operation.enqueued_us);
  } else {
    start = std::max(start, p.free_ns);  // one after another, as far as is known
  }
  p.free_ns = std::max(p.free_ns, start + duration);

  wire::Operation o{};
  wire::set_header(o, wire::RecordType::kOperation);
  o.communicator = communicator.about.id;
  o.function = static_cast<std::uint8_t>(function_of(operation.operation));
  o.datatype = static_cast<std::uint8_t>(model::DataType::kInt8);
  const auto algorithm = value_named<model::Algorithm>(operation.algorithm, model::kAlgorithmCount);
  const auto protocol = value_named<model::Protocol>(operation.protocol, model::kProtocolCount);
  o.algorithm_protocol = static_cast<std::uint8_t>(static_cast<unsigned>(algorithm) |
                                                   static_cast<unsigned>(protocol) << 4);
  const bool timed = duration > 0;
  const bool gpu = timed && operation.timing_source != "kernel_cpu" &&
                   operation.timing_source != "collective_cpu";
  const auto timing = gpu     ? wire::TimingSource::kGpu
                      : timed ? wire::TimingSource::kHostCallback
                              : wire::TimingSource::kNone;
  o.flags = static_cast<std::uint16_t>(
      static_cast<unsigned>(timing) | wire::operation_flags::kComplete |
      wire::operation_flags::kTaskSeen | wire::operation_flags::kChannelsUnknown |
      wire::operation_flags::kSequenceKnown);
  o.untimed_reason = static_cast<std::uint8_t>(gpu ? wire::UntimedReason::kNone
                                                   : wire::UntimedReason::kNotCarried);
  o.root_or_peer = operation.point_to_point ? operation.peer : -1;
  o.index = operation.point_to_point ? communicator.p2p++ : communicator.collectives++;
  o.sequence = static_cast<std::uint32_t>(operation.sequence);
  const std::int64_t bytes = std::max<std::int64_t>(operation.message_bytes, 0);
  o.count_plan = wire::pack_count_plan(static_cast<std::uint64_t>(bytes), 0);
  o.api_time_ns = operation.enqueued_us > 0 ? ns_of(operation.enqueued_us) : start;
  o.gpu_start_ns = timed ? start : 0;
  o.duration_enqueue = wire::pack_duration_enqueue(duration, 0);
  std::unique_ptr<FrameMaker>& maker = makers[&p];
  if (!maker) maker = std::make_unique<FrameMaker>(p.session, out);
  maker->add(communicator.about, ++p.index, {reinterpret_cast<const std::byte*>(&o), sizeof o},
             start + duration);
}

bool InspectorTrack::next(std::vector<ReplayedFrame>& out, SourceNotes& notes) {
  using inspector_log::LineParser;
  using inspector_log::LineReader;
  constexpr std::size_t kOperations = 2048;
  if (over_) return false;
  // Opened when it is its turn: there may be thousands.
  if (!reader_) {
    reader_ = std::make_unique<LineReader>(file_.string());
    parser_ = std::make_unique<LineParser>();
  }
  Makers makers;
  std::string_view line;
  for (std::size_t taken = 0; taken < kOperations && !over_;) {
    const LineReader::Next next = reader_->next(line);
    if (next == LineReader::Next::kFailed) throw std::runtime_error(reader_->error());
    if (next == LineReader::Next::kEnd) {
      over_ = true;
      break;
    }
    switch (parser_->parse(line)) {
      case LineParser::Kind::kPerformance:
        add(parser_->performance(), makers, out);
        ++taken;
        break;
      case LineParser::Kind::kBad:
        if (next != LineReader::Next::kCut) {
          throw std::runtime_error(file_.string() + ":" + std::to_string(reader_->line_number()) +
                                   ": " + parser_->error());
        }
        over_ = cut_ = true;
        break;
      default:
        break;
    }
  }
  makers.clear();  // finishes their frames
  sort_by_due(out, 0);
  if (over_) note_end(notes);
  return !over_ || !out.empty();
}

void InspectorTrack::note_end(SourceNotes& notes) {
  const std::string place = file_.string() + ":" + std::to_string(reader_->line_number()) + ": ";
  if (cut_) notes.lines.push_back(place + "the last line is not complete, it was left out");
  if (reader_->compressed_data_cut() && !cut_)
    notes.lines.push_back(place + "the compressed data ends in the middle");
  if (parser_->announced_left() > 0 && !cut_) {
    notes.lines.push_back(place + std::to_string(parser_->announced_left()) +
                          " lines that were announced are missing at the end");
  }
  if (parser_->dropped_by_writer() > 0) {
    notes.lines.push_back(file_.string() + ": the Inspector itself lost " +
                          std::to_string(parser_->dropped_by_writer()) + " operations");
  }
  if (skipped_ > 0) {
    notes.lines.push_back(file_.string() + ": " + std::to_string(skipped_) +
                          " operations of communicators beyond 1,024 were left out");
  }
  reader_.reset();
  parser_.reset();
}

std::vector<ReplayedSession*> InspectorTrack::sessions() {
  std::vector<ReplayedSession*> out;
  for (auto& [key, process] : processes_) out.push_back(&process->session);
  return out;
}

// ---- finding them
// --------------------------------------------------------------------------------

namespace {

bool is_segment_name(const std::string& name) {
  return name.ends_with(archive::kExtension) || name.ends_with(archive::kPartExtension);
}

/// As the Inspector calls its logs, and as people pack them.
bool is_inspector_log_name(std::string_view name) {
  if (name.ends_with(".gz")) name.remove_suffix(3);
  return name.ends_with(".log") || name.ends_with(".jsonl");
}

/// Segments of one agent are called alike but for time and number.
std::string writer_of(const fs::path& segment) {
  const std::string name = segment.filename().string();
  const std::size_t time = name.rfind('-', name.rfind('-', name.rfind('-') - 1) - 1);
  return (segment.parent_path() / name.substr(0, time == std::string::npos ? name.size() : time))
      .string();
}

}  // namespace

std::vector<std::unique_ptr<ReplayTrack>> open_tracks(const fs::path& path,
                                                      const std::string& job) {
  std::vector<fs::path> files;
  std::error_code error;
  if (fs::is_directory(path, error)) {
    fs::recursive_directory_iterator it(path, error);
    for (; !error && it != fs::recursive_directory_iterator(); it.increment(error)) {
      const std::string name = it->path().filename().string();
      if (is_segment_name(name) || is_inspector_log_name(name)) files.push_back(it->path());
    }
    if (error) throw std::runtime_error(path.string() + ": cannot be read: " + error.message());
    std::sort(files.begin(), files.end());
  } else {
    files.push_back(path);
  }
  std::map<std::string, std::vector<fs::path>> writers;
  std::vector<std::unique_ptr<ReplayTrack>> tracks;
  for (const fs::path& file : files) {
    if (is_segment_name(file.filename().string())) {
      writers[writer_of(file)].push_back(file);
    } else {
      // Inspector's lines do not tell the job.
      tracks.push_back(std::make_unique<InspectorTrack>(file, job.empty() ? "inspector" : job));
    }
  }
  for (auto& [writer, segments] : writers)
    tracks.push_back(std::make_unique<ArchiveTrack>(std::move(segments), job));
  if (tracks.empty()) {
    throw std::runtime_error(path.string() +
                             ": holds no segments of an archive (*.ncsa), no Inspector logs "
                             "(*.log, *.jsonl, also .gz) and no recording (rank<r>.jsonl.gz)");
  }
  return tracks;
}

}  // namespace ncclscope::cli

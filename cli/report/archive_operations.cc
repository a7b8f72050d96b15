// SPDX-License-Identifier: Apache-2.0
//
// Segments of the agent's archive as rows of `operations`. What the columns mean for them stands in
// docs/parquet-schema.md.
//
// Operations of one kernel launch (a plan of NCCL's) that ran together share their GPU stamps, so
// each shows the duration of the whole. As in the agent's metrics, an item's own time is the
// whole's times its share of the bus bytes: then bytes / time is the bandwidth that the launch
// reached. Column `fused` says how many shared it.
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "archive/reader.h"
#include "cli/report/classification.h"
#include "cli/report/reading.h"
#include "proto/model/bandwidth.h"
#include "proto/wire/names.h"

namespace ncclscope::cli::report {
namespace {

using archive::OperationRow;

constexpr double kNsPerSecond = 1e9;

/// What an operation took for itself.
struct OwnTime {
  double seconds = 0;  // 0 = not known
  std::uint32_t fused = 1;
};

double bus_bytes(const OperationRow& row) {
  return static_cast<double>(row.bytes()) *
         model::bus_factor(row.function(), row.source->communicator->nranks);
}

/// "2.28.9" of 22809, "2.9.6" of 20906; empty for 0.
std::string nccl_version_text(std::uint32_t version) {
  if (version == 0) return {};
  return std::to_string(version / 10000) + "." + std::to_string(version / 100 % 100) + "." +
         std::to_string(version % 100);
}

/// Divides the time of operations of one plan that overlap; `rows` are of one source and plan.
void share_time(const std::vector<OperationRow>& all, std::vector<std::uint32_t>& rows,
                std::vector<OwnTime>& times) {
  if (rows.size() < 2) return;
  std::sort(rows.begin(), rows.end(), [&](std::uint32_t a, std::uint32_t b) {
    return all[a].record.gpu_start_ns < all[b].record.gpu_start_ns;
  });
  for (std::size_t begin = 0; begin < rows.size();) {
    const std::uint64_t start = all[rows[begin]].record.gpu_start_ns;
    std::uint64_t stop = start;
    double bytes = 0;
    std::size_t end = begin;
    while (end < rows.size() && (end == begin || all[rows[end]].record.gpu_start_ns < stop)) {
      stop = std::max(stop, all[rows[end]].record.gpu_start_ns + all[rows[end]].duration_ns());
      bytes += bus_bytes(all[rows[end]]);
      ++end;
    }
    const auto count = static_cast<std::uint32_t>(end - begin);
    for (std::size_t i = begin; count > 1 && i < end; ++i) {
      const double share = bytes > 0 ? bus_bytes(all[rows[i]]) / bytes : 1.0 / count;
      times[rows[i]] = {static_cast<double>(stop - start) / kNsPerSecond * share, count};
    }
    begin = end;
  }
}

std::vector<OwnTime> own_times(const std::vector<OperationRow>& rows) {
  std::vector<OwnTime> times(rows.size());
  struct OpenPlan {
    std::uint16_t plan = 0;
    std::vector<std::uint32_t> rows;
  };
  std::unordered_map<const archive::Communicator*, OpenPlan>
      open;  // rows of a plan follow each other in their communicator
  for (std::uint32_t i = 0; i < rows.size(); ++i) {
    const OperationRow& row = rows[i];
    times[i].seconds = static_cast<double>(row.duration_ns()) / kNsPerSecond;
    const std::uint16_t plan = wire::plan_of(row.record);
    OpenPlan& current = open[row.source->communicator];
    if (plan != current.plan) {
      share_time(rows, current.rows, times);
      current.rows.clear();
      current.plan = plan;
    }
    if (plan != 0 && wire::timing_of(row.record) == wire::TimingSource::kGpu &&
        row.duration_ns() > 0)
      current.rows.push_back(i);
  }
  for (auto& [communicator, current] : open) share_time(rows, current.rows, times);
  return times;
}

/// What is the same for all rows of a source.
struct SourceTexts {
  TextId cluster{}, step{}, node{}, gpu{}, communicator{}, name{}, dimension{},
      communication_class{}, nccl{}, plugin{};
};

class ArchiveStream : public OperationStream {
 public:
  ArchiveStream(const Input& input, StringPool& pool, ReadAccount& account, PathsSeen& paths)
      : input_(input),
        pool_(pool),
        account_(account),
        paths_(paths),
        source_(pool.intern("archive")),
        file_(pool.intern(input.name)) {
    archive::Status status;
    reader_ = archive::Reader::open(input.path, status);
    counts_.files = 1;
    if (reader_ == nullptr) damaged(status.message());
  }

  bool fill(OperationBatch& writer) override {
    while (reader_ != nullptr && !writer.full()) {
      if (batch_ == nullptr || next_row_ == batch_->operations.size()) {
        if (!next_batch()) break;
        continue;
      }
      write(batch_->operations[next_row_], times_[next_row_], writer);
      ++next_row_;
    }
    if (writer.full() && reader_ != nullptr) return true;
    account_.advance(input_.bytes - told_bytes_);
    account_.add(counts_);
    paths_.add(seen_);
    return false;
  }

 private:
  void damaged(const std::string& message) {
    account_.tell(message);
    ++counts_.bad_files;
  }

  bool next_batch() {
    batch_ = reader_->next();
    next_row_ = 0;
    texts_.clear();
    const std::uint64_t offset = std::min(reader_->offset(), input_.bytes);
    account_.advance(offset - told_bytes_);
    told_bytes_ = offset;
    if (batch_ != nullptr) {
      times_ = own_times(batch_->operations);
      see_paths(*batch_);
      return true;
    }
    if (!reader_->status().ok()) damaged(reader_->status().message());
    if (reader_->status().ok() && reader_->truncated()) {
      ++counts_.cut_files;
      account_.tell(input_.path + ": has no end block: its writer was killed, or is still at work");
    }
    return false;
  }

  const SourceTexts& texts_of(const archive::Source& source) {
    auto [known, is_new] = texts_.try_emplace(&source);
    SourceTexts& texts = known->second;
    if (!is_new) return texts;
    const archive::Communicator& communicator = *source.communicator;
    texts.cluster = pool_.intern(source.job->cluster);
    texts.step = pool_.intern(source.process->step);
    texts.node = pool_.intern(node_of(source));
    texts.gpu = pool_.intern(communicator.gpu_uuid);
    texts.communicator = pool_.intern(communicator_text(communicator));
    texts.name = pool_.intern(communicator.name);
    texts.dimension = pool_.intern(communicator.dimension);
    texts.communication_class =
        pool_.intern(communication_class(communicator.nranks, communicator.nnodes));
    texts.nccl = pool_.intern(nccl_version_text(source.process->nccl_version));
    texts.plugin = pool_.intern(source.process->plugin_version);
    return texts;
  }

  void see_paths(const archive::Batch& batch) {
    for (const archive::Source& source : batch.sources) (void)seen_of(source);
    for (const archive::NetworkRow& row : batch.network) {
      SeenOfCommunicator* seen = seen_of(*row.source);
      if (seen == nullptr || row.record.steps == 0) continue;
      seen->add_network_rank(row.source->communicator->rank);
      if (row.record.is_send != 0) seen->network_bytes += row.record.bytes;
    }
  }

  /// Null for work that a process does for others, whose communicator is not known.
  SeenOfCommunicator* seen_of(const archive::Source& source) {
    const archive::Communicator& communicator = *source.communicator;
    if (communicator.id == wire::kNoCommunicator || communicator.rank < 0) return nullptr;
    auto& [key, seen] = *seen_.try_emplace({input_.job, communicator_text(communicator)}).first;
    seen.add_rank(communicator.rank);
    if (!source.job->node.empty()) seen.nodes.insert(source.job->node);
    return &seen;
  }

  static const std::string& node_of(const archive::Source& source) {
    return source.job->node.empty() ? source.process->hostname : source.job->node;
  }

  /// As Inspector writes a hash: 0x, no leading zeros. What is no hash stays as it is.
  static std::string communicator_text(const archive::Communicator& communicator) {
    std::uint64_t hash = 0;
    const char* end = communicator.comm.data() + communicator.comm.size();
    const auto [rest, error] = std::from_chars(communicator.comm.data(), end, hash, 16);
    if (!communicator.hash_known || error != std::errc() || rest != end) return communicator.comm;
    std::string digits(16, '0');
    const auto [last, failed] =
        std::to_chars(digits.data(), digits.data() + digits.size(), hash, 16);
    digits.resize(failed == std::errc() ? static_cast<std::size_t>(last - digits.data()) : 0);
    return "0x" + digits;
  }

  void write_source(const archive::Source& source, OperationBatch& writer) {
    const SourceTexts& texts = texts_of(source);
    const archive::Communicator& communicator = *source.communicator;
    writer.text(ColumnId::kSource, source_);
    writer.text(ColumnId::kFile, file_);
    writer.text(ColumnId::kCluster, texts.cluster);
    writer.integer(ColumnId::kRun, source.job->run);
    writer.text(ColumnId::kStep, texts.step);
    writer.text(ColumnId::kNode, texts.node);
    if (source.process->pid > 0) writer.integer(ColumnId::kPid, source.process->pid);
    writer.text(ColumnId::kGpu, texts.gpu);
    writer.text(ColumnId::kCommunicator, texts.communicator);
    writer.text(ColumnId::kCommunicatorName, texts.name);
    if (communicator.rank >= 0) writer.integer(ColumnId::kRank, communicator.rank);
    if (communicator.nranks > 0) writer.integer(ColumnId::kRanks, communicator.nranks);
    if (communicator.nnodes > 0) writer.integer(ColumnId::kNodes, communicator.nnodes);
    writer.text(ColumnId::kDimension, texts.dimension);
    writer.text(ColumnId::kCommunicationClass, texts.communication_class);
    writer.text(ColumnId::kNcclVersion, texts.nccl);
    writer.text(ColumnId::kPluginVersion, texts.plugin);
  }

  void write(const OperationRow& row, const OwnTime& time, OperationBatch& writer) {
    write_source(*row.source, writer);
    const wire::Operation& record = row.record;
    writer.text(ColumnId::kCollective, pool_text(name(row.function())));
    // Point-to-point operations have no number of NCCL's: their own index counts them.
    const bool point_to_point = model::is_point_to_point(row.function());
    if (row.has(wire::operation_flags::kSequenceKnown))
      writer.integer(ColumnId::kSequence, record.sequence);
    else if (point_to_point)
      writer.integer(ColumnId::kSequence, record.index);
    if (row.algorithm() != model::Algorithm::kUnknown)
      writer.text(ColumnId::kAlgorithm, pool_text(name(row.algorithm())));
    if (row.protocol() != model::Protocol::kUnknown)
      writer.text(ColumnId::kProtocol, pool_text(name(row.protocol())));
    if (row.datatype() != model::DataType::kUnknown)
      writer.text(ColumnId::kDatatype, pool_text(name(row.datatype())));
    if (record.root_or_peer >= 0 && point_to_point)
      writer.integer(ColumnId::kPeer, record.root_or_peer);
    if (record.root_or_peer >= 0 && model::is_rooted(row.function()))
      writer.integer(ColumnId::kRoot, record.root_or_peer);
    if (record.channels > 0) writer.integer(ColumnId::kChannels, record.channels);
    writer.integer(
        ColumnId::kRankBytes,
        static_cast<std::int64_t>(wire::count_of(record) * model::element_bytes(row.datatype())));
    if (row.bytes_complete())
      writer.integer(ColumnId::kBytes, static_cast<std::int64_t>(row.bytes()));
    write_times(row, time, writer);
    writer.end_row();
    ++counts_.operations;
  }

  void write_times(const OperationRow& row, const OwnTime& time, OperationBatch& writer) {
    const std::int64_t enqueued = row.enqueue_epoch_ns();
    const auto start = row.start_epoch_ns();
    const auto duration = static_cast<std::int64_t>(row.duration_ns());
    if (enqueued > 0) writer.integer(ColumnId::kEnqueuedNs, enqueued);
    if (start) {
      writer.integer(ColumnId::kStartNs, *start);
      writer.integer(ColumnId::kEndNs, *start + duration);
      if (enqueued > 0)
        writer.number(
            ColumnId::kQueueSeconds,
            static_cast<double>(std::max<std::int64_t>(*start - enqueued, 0)) / kNsPerSecond);
    }
    if (start || enqueued > 0)
      writer.integer(ColumnId::kTimeNs, start ? *start + duration : enqueued);
    const wire::TimingSource timing = wire::timing_of(row.record);
    std::string_view timing_text = wire::name(timing);
    const std::string_view reason =
        wire::name(static_cast<wire::UntimedReason>(row.record.untimed_reason));
    if (timing == wire::TimingSource::kNone && !reason.empty()) timing_text = reason;
    writer.text(ColumnId::kTiming, pool_text(timing_text));
    if (timing == wire::TimingSource::kNone || time.seconds <= 0) return;
    writer.number(ColumnId::kSeconds, time.seconds);
    if (time.fused > 1) writer.integer(ColumnId::kFused, time.fused);
    if (!row.bytes_complete() || row.bytes() == 0) return;
    const double algbw = static_cast<double>(row.bytes()) / time.seconds;
    const double factor = model::bus_factor(row.function(), row.source->communicator->nranks);
    writer.number(ColumnId::kAlgbw, algbw);
    if (factor > 0 || row.source->communicator->nranks == 1)
      writer.number(ColumnId::kBusbw, algbw * factor);
  }

  /// Names of enums: few, and constants of the program.
  TextId pool_text(std::string_view constant) {
    auto [known, is_new] = constants_.try_emplace(constant.data());
    if (is_new) known->second = pool_.intern(constant);
    return known->second;
  }

  const Input& input_;
  StringPool& pool_;
  ReadAccount& account_;
  PathsSeen& paths_;
  std::unique_ptr<archive::Reader> reader_;
  const archive::Batch* batch_ = nullptr;
  std::size_t next_row_ = 0;
  std::vector<OwnTime> times_;
  ReadCounts counts_;
  PathsSeen::Seen seen_;
  std::uint64_t told_bytes_ = 0;
  TextId source_, file_;
  std::unordered_map<const archive::Source*, SourceTexts> texts_;  // of the batch
  std::unordered_map<const char*, TextId> constants_;
};

}  // namespace

std::unique_ptr<OperationStream> open_archive(const Input& input, StringPool& pool,
                                              ReadAccount& account, PathsSeen& paths) {
  return std::make_unique<ArchiveStream>(input, pool, account, paths);
}

}  // namespace ncclscope::cli::report

// SPDX-License-Identifier: Apache-2.0
//
// Lines of NCCL Inspector as rows of `operations`. What the columns mean for them stands in
// docs/parquet-schema.md.
#include <array>
#include <cmath>
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "cli/inspector_log/line_parser.h"
#include "cli/inspector_log/line_reader.h"
#include "cli/report/classification.h"
#include "cli/report/reading.h"

namespace ncclscope::cli::report {
namespace {

using inspector_log::Context;
using inspector_log::LineParser;
using inspector_log::LineReader;
using inspector_log::Performance;

/// Ours for theirs; others stay as they are.
std::string_view operation_name(std::string_view inspector) {
  return inspector == "All2All" ? "AlltoAll" : inspector;
}

std::string_view timing_name(std::string_view inspector) {
  if (inspector == "kernel_gpu") return "gpu";
  if (inspector == "kernel_cpu") return "host_callback";
  if (inspector == "collective_cpu") return "host";
  return inspector;
}

/// Our plugin says in its lines whose they are; archives tell its version alone.
std::string_view plugin_version(std::string_view git_rev) {
  constexpr std::string_view kOurs = "ncclscope-";
  return git_rev.starts_with(kOurs) ? git_rev.substr(kOurs.size()) : git_rev;
}

/// Sizes of these are per rank; nccl-tests counts the whole.
bool size_is_per_rank(std::string_view operation) {
  return operation == "AllGather" || operation == "ReduceScatter" || operation == "AllGatherV" ||
         operation == "AlltoAll";
}

/// Equal; without a call where they are as short as names of NCCL.
bool same(std::string_view a, std::string_view b) {
  constexpr std::size_t kWord = sizeof(std::uint64_t);
  const std::size_t size = a.size();
  if (size != b.size()) return false;
  const auto differ = [&](std::size_t at, auto word) {
    auto other = word;
    std::memcpy(&word, a.data() + at, sizeof word);
    std::memcpy(&other, b.data() + at, sizeof other);
    return word ^ other;
  };
  if (size > 2 * kWord) return a == b;
  if (size >= kWord)
    return (differ(0, std::uint64_t{}) | differ(size - kWord, std::uint64_t{})) == 0;
  constexpr std::size_t kHalf = sizeof(std::uint32_t);
  if (size >= kHalf)
    return (differ(0, std::uint32_t{}) | differ(size - kHalf, std::uint32_t{})) == 0;
  return a == b;
}

/// Few texts that occur again and again, as NCCL's names do.
class TextCache {
 public:
  TextCache(StringPool& pool, std::string_view (*rename)(std::string_view))
      : pool_(pool), rename_(rename) {}

  TextId of(std::string_view text) {
    // They follow each other as in the last step, usually.
    Known& last = known_[last_];
    if (!same(known_[last.next].text, text)) last.next = find(text);
    last_ = last.next;
    return known_[last_].id;
  }

 private:
  struct Known {
    std::string text;
    TextId id{};
    std::size_t next = 0;  // which came after it
  };

  std::size_t find(std::string_view text) {
    for (std::size_t i = 0; i < size_; ++i) {
      if (known_[i].text == text) return i;
    }
    const std::size_t slot = size_ < known_.size() ? size_++ : replaced_++ % known_.size();
    known_[slot].text = text;
    known_[slot].id = pool_.intern(rename_(text));
    return slot;
  }

  StringPool& pool_;
  std::string_view (*rename_)(std::string_view);
  std::array<Known, 16> known_;
  std::size_t size_ = 0, replaced_ = 0, last_ = 0;
};

std::string_view unchanged(std::string_view text) {
  return text;
}

/// What is the same for all rows of a communicator's rank.
struct ContextTexts {
  TextId node{}, communicator{}, name{}, communication_class{}, version{};
};

class InspectorStream : public OperationStream {
 public:
  InspectorStream(const Input& input, StringPool& pool, ReadAccount& account)
      : input_(input),
        pool_(pool),
        account_(account),
        reader_(input.path),
        source_(pool.intern("inspector")),
        file_(pool.intern(input.name)),
        step_(pool.intern(input.step)) {}

  bool fill(OperationBatch& writer) override {
    const bool more = read(writer);
    account_.advance(reader_.file_bytes() - told_bytes_);
    told_bytes_ = reader_.file_bytes();
    if (!more) close();
    return more;
  }

 private:
  bool read(OperationBatch& writer) {
    std::string_view line;
    while (!writer.full()) {
      const LineReader::Next next = reader_.next(line);
      if (next == LineReader::Next::kEnd) return false;
      if (next == LineReader::Next::kFailed) {
        account_.tell(reader_.error());
        ++counts_.bad_files;
        return false;
      }
      ++counts_.lines;
      switch (parser_.parse(line)) {
        case LineParser::Kind::kPerformance:
          write(parser_.performance(), writer);
          break;
        case LineParser::Kind::kOther:
          break;
        case LineParser::Kind::kBad:
          if (next == LineReader::Next::kCut)
            return cut("the last line is cut: its text is left out");
          ++counts_.bad_lines;
          account_.tell(place() + parser_.error());
          break;
      }
    }
    return true;
  }

  std::string place() const {
    return input_.path + ":" + std::to_string(reader_.line_number()) + ": ";
  }

  bool cut(const std::string& what) {
    cut_ = true;
    account_.tell(place() + what);
    return false;
  }

  /// The end of the file: what was announced and never came, compressed data that just stops.
  void close() {
    if (reader_.compressed_data_cut() && !cut_) cut("the compressed data ends in the middle");
    if (parser_.announced_left() > 0 && !cut_)
      cut(std::to_string(parser_.announced_left()) +
          " lines that dump_stats announced are missing at the end");
    counts_.files = 1;
    counts_.cut_files = cut_ ? 1 : 0;
    counts_.lost_by_writer = static_cast<std::uint64_t>(parser_.dropped_by_writer());
    account_.add(counts_);
  }

  const ContextTexts& texts_of(const Context* context) {
    if (parser_.forgotten() != forgotten_) {
      forgotten_ = parser_.forgotten();
      contexts_.clear();
      last_context_ = nullptr;
    }
    if (context == last_context_) return *last_texts_;
    auto [known, is_new] = contexts_.try_emplace(context);
    ContextTexts& texts = known->second;
    if (is_new) {
      texts.node = pool_.intern(context->hostname);
      texts.communicator = pool_.intern(context->id);
      texts.name = pool_.intern(context->comm_name);
      texts.communication_class =
          pool_.intern(communication_class(context->n_ranks, context->nnodes));
      texts.version = pool_.intern(plugin_version(context->git_rev));
    }
    last_context_ = context;
    last_texts_ = &texts;
    return texts;
  }

  void write_context(const Context& context, OperationBatch& writer) {
    const ContextTexts& texts = texts_of(&context);
    writer.text(ColumnId::kSource, source_);
    writer.text(ColumnId::kFile, file_);
    writer.text(ColumnId::kStep, step_);
    writer.text(ColumnId::kNode, texts.node);
    if (context.pid >= 0) writer.integer(ColumnId::kPid, context.pid);
    writer.text(ColumnId::kCommunicator, texts.communicator);
    writer.text(ColumnId::kCommunicatorName, texts.name);
    if (context.rank >= 0) writer.integer(ColumnId::kRank, context.rank);
    if (context.n_ranks > 0) writer.integer(ColumnId::kRanks, context.n_ranks);
    if (context.nnodes > 0) writer.integer(ColumnId::kNodes, context.nnodes);
    writer.text(ColumnId::kCommunicationClass, texts.communication_class);
    writer.text(ColumnId::kPluginVersion, texts.version);
  }

  void write(const Performance& operation, OperationBatch& writer) {
    const Context& context = *operation.context;
    write_context(context, writer);
    writer.text(ColumnId::kCollective, operations_.of(operation.operation));
    if (operation.sequence >= 0) writer.integer(ColumnId::kSequence, operation.sequence);
    writer.text(ColumnId::kAlgorithm, algorithms_.of(operation.algorithm));
    writer.text(ColumnId::kProtocol, protocols_.of(operation.protocol));
    if (operation.point_to_point && operation.peer >= 0)
      writer.integer(ColumnId::kPeer, operation.peer);
    if (operation.channels >= 0) writer.integer(ColumnId::kChannels, operation.channels);
    if (operation.message_bytes >=
        0) {  // of types that Inspector does not know it writes -1 per element
      const bool per_rank =
          !operation.point_to_point && context.n_ranks > 0 && size_is_per_rank(operation.operation);
      writer.integer(ColumnId::kRankBytes, operation.message_bytes);
      writer.integer(ColumnId::kBytes, operation.message_bytes * (per_rank ? context.n_ranks : 1));
    }
    writer.text(ColumnId::kTiming, timings_.of(operation.timing_source));
    write_times(operation, writer);
    writer.end_row();
    ++counts_.operations;
  }

  static void write_times(const Performance& operation, OperationBatch& writer) {
    constexpr std::int64_t kNsPerUs = 1000;
    const std::int64_t time_us =
        operation.kernel_stop_us > 0 ? operation.kernel_stop_us : operation.dump_timestamp_us;
    if (time_us > 0) writer.integer(ColumnId::kTimeNs, time_us * kNsPerUs);
    if (operation.enqueued_us > 0)
      writer.integer(ColumnId::kEnqueuedNs, operation.enqueued_us * kNsPerUs);
    if (operation.kernel_start_us > 0) {
      writer.integer(ColumnId::kStartNs, operation.kernel_start_us * kNsPerUs);
      if (operation.enqueued_us > 0)
        writer.number(ColumnId::kQueueSeconds,
                      static_cast<double>(operation.kernel_start_us - operation.enqueued_us) / 1e6);
    }
    if (operation.kernel_stop_us > 0)
      writer.integer(ColumnId::kEndNs, operation.kernel_stop_us * kNsPerUs);
    if (operation.exec_time_us < 0) return;
    writer.number(ColumnId::kSeconds, static_cast<double>(operation.exec_time_us) / 1e6);
    // Inspector writes 0 for operations that have no bandwidth in its book, and makes one of a size
    // that it does not know, which no link has.
    if (operation.message_bytes < 0 || operation.exec_time_us == 0 ||
        !std::isfinite(operation.algbw_gbs) || operation.algbw_gbs <= 0)
      return;
    writer.number(ColumnId::kAlgbw, operation.algbw_gbs * 1e9);
    if (std::isfinite(operation.busbw_gbs))
      writer.number(ColumnId::kBusbw, operation.busbw_gbs * 1e9);
  }

  const Input& input_;
  StringPool& pool_;
  ReadAccount& account_;
  LineReader reader_;
  LineParser parser_;
  ReadCounts counts_;
  bool cut_ = false;
  std::uint64_t told_bytes_ = 0;
  TextId source_, file_, step_;
  TextCache operations_{pool_, operation_name}, algorithms_{pool_, unchanged},
      protocols_{pool_, unchanged}, timings_{pool_, timing_name};
  std::unordered_map<const Context*, ContextTexts> contexts_;
  std::uint64_t forgotten_ = 0;
  const Context* last_context_ = nullptr;
  const ContextTexts* last_texts_ = nullptr;
};

}  // namespace

std::unique_ptr<OperationStream> open_inspector_log(const Input& input, StringPool& pool,
                                                    ReadAccount& account) {
  return std::make_unique<InspectorStream>(input, pool, account);
}

}  // namespace ncclscope::cli::report

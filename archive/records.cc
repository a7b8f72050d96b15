// SPDX-License-Identifier: Apache-2.0
//
// Encoder and decoder walk the rows in the same order with the same expectations (Model below):
// most columns hold the difference between what came and what was expected. All arithmetic is
// modulo 2^64, so that a hostile file can make it wrong but not undefined.
#include "archive/records.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "archive/varint.h"
#include "proto/wire/decode.h"

namespace ncclscope::archive {
namespace {

// Columns of operations.
enum OperationColumn : std::uint8_t {
  kSource = 1,
  kShape,
  kRecordIndex,
  kIndex,
  kSequence,
  kPlan,
  kCall,
  kEnqueue,
  kStartAfterProcess,  // two ways to expect a start: a block has
  kStartAfterSource,   // the one that fits it better
  kDuration,
  kOperationColumns,
};
// Columns of shapes.
enum ShapeColumn : std::uint8_t {
  kFunction = 1,
  kDatatype,
  kAlgorithmProtocol,
  kUntimedReason,
  kChannels,
  kChannelsSeen,
  kFlags,
  kRootOrPeer,
  kCount,
  kKnown,
  kShapeColumns,
};
// Columns of other records.
constexpr std::uint8_t kRowSource = 1;
constexpr std::uint8_t kRowIndex = 2;
constexpr std::uint8_t kFirstWord = 16;  // and one more for each word
static_assert(kFirstWord + sizeof(wire::Books) / 8 < kMaxColumns);
constexpr std::uint32_t kMaxWordsInSection = 1u << 20;
// The writer begins another block at kMaxRows / 8 of them.
static_assert(kMaxRows / 8 * (sizeof(wire::Books) / 8) <= kMaxWordsInSection);

/// What a record knows: absent times have no place in the columns.
constexpr std::uint64_t kKnowsCall = 1;
constexpr std::uint64_t kKnowsStart = 2;

struct Shape {
  std::uint64_t fixed = 0;  // function to channels_seen, flags: 8 bytes
  std::uint64_t peer = 0;   // root or peer, and above it what is known
  std::uint64_t count = 0;

  bool operator==(const Shape&) const = default;

  [[nodiscard]] std::uint64_t hash() const {
    std::uint64_t h = fixed * 0x9E3779B97F4A7C15u ^ std::rotl(peer * 0xC2B2AE3D27D4EB4Fu, 23) ^
                      std::rotl(count * 0x165667B19E3779F9u, 41);
    h ^= h >> 32;
    return h * 0x9E3779B97F4A7C15u >> 20;
  }
};

// From function to channels_seen.
constexpr std::size_t kShapeOffset = offsetof(wire::Operation, function);
constexpr std::size_t kShapeBytes = 6;
static_assert(offsetof(wire::Operation, channels_seen) + 1 == kShapeOffset + kShapeBytes);

std::uint64_t known_of(const wire::Operation& o) {
  return (o.api_time_ns != 0 ? kKnowsCall : 0) | (o.gpu_start_ns != 0 ? kKnowsStart : 0);
}

Shape shape_of(const wire::Operation& o) {
  Shape s;
  std::memcpy(&s.fixed, reinterpret_cast<const std::byte*>(&o) + kShapeOffset, kShapeBytes);
  s.fixed |= std::uint64_t{o.flags} << 48;
  s.peer = static_cast<std::uint32_t>(o.root_or_peer) | known_of(o) << 32;
  s.count = wire::count_of(o);
  return s;
}
/// The shapes of a block, each once, in the order in which they came.
class ShapeTable {
 public:
  std::uint32_t find_or_add(const Shape& shape) {
    if ((shapes_.size() + 1) * 2 > places_.size()) grow();
    const std::size_t mask = places_.size() - 1;
    std::size_t at = shape.hash() & mask;
    while (places_[at] != 0) {
      if (shapes_[places_[at] - 1] == shape) return places_[at] - 1;
      at = (at + 1) & mask;
    }
    shapes_.push_back(shape);
    places_[at] = static_cast<std::uint32_t>(shapes_.size());
    return places_[at] - 1;
  }
  [[nodiscard]] const std::vector<Shape>& shapes() const { return shapes_; }

 private:
  void grow() {
    places_.assign(std::max<std::size_t>(64, places_.size() * 2), 0);
    const std::size_t mask = places_.size() - 1;
    for (std::size_t i = 0; i < shapes_.size(); ++i) {
      std::size_t at = shapes_[i].hash() & mask;
      while (places_[at] != 0) at = (at + 1) & mask;
      places_[at] = static_cast<std::uint32_t>(i + 1);
    }
  }
  std::vector<Shape> shapes_;
  std::vector<std::uint32_t> places_;
};

/// Where the rows of one process begin.
struct Base {
  std::uint64_t record_index = 0, call = 0, start = 0;
};

/// What is expected of the next row. `take` is told each row as it truly was. Times are expected
/// where those before end, and no better: whatever else one might expect of them destroys the grid
/// that GPU clocks count in (32 ns, often), which costs more than it gains.
class Model {
 public:
  explicit Model(std::size_t sources) : sources_(sources) {}

  void begin(const Base& base) {
    record_index_ = base.record_index - 1;
    call_ = base.call;
    stop_ = base.start;
  }

  struct Expected {
    std::uint64_t record_index;
    std::uint32_t index, sequence;
    std::uint16_t plan;
    std::uint64_t call;           // when the process's last call was enqueued
    std::uint64_t process_start;  // when its last kernel stopped
    std::uint64_t source_start;   // when that of this source did
  };
  [[nodiscard]] Expected expect(std::uint32_t source, bool p2p, std::uint8_t function) const {
    const PerSource& s = sources_[source];
    return {record_index_ + 1,
            s.index[p2p ? 1 : 0],
            s.sequence[function % model::kFunctionCount],
            s.plan,
            call_,
            stop_,
            s.stop != 0 ? s.stop : stop_};
  }
  struct Actual {
    std::uint64_t record_index;
    std::uint32_t index, sequence;
    std::uint16_t plan;
    std::uint64_t call, enqueue, start, duration;  // ns, enqueue - call in us; 0 = none
  };
  void take(std::uint32_t source, bool p2p, std::uint8_t function, const Actual& a) {
    PerSource& s = sources_[source];
    record_index_ = a.record_index;
    s.index[p2p ? 1 : 0] = a.index + 1;
    s.sequence[function % model::kFunctionCount] = a.sequence + 1;
    s.plan = a.plan;
    if (a.call != 0) call_ = a.call + a.enqueue * 1000;
    if (a.start != 0) stop_ = s.stop = a.start + a.duration;
  }

 private:
  struct PerSource {
    std::uint32_t index[2] = {};  // expected next: collectives, point-to-point
    std::uint32_t sequence[model::kFunctionCount] = {};
    std::uint16_t plan = 0;
    std::uint64_t stop = 0;
  };
  std::vector<PerSource> sources_;
  std::uint64_t record_index_ = 0, call_ = 0, stop_ = 0;
};

template <typename Number>
std::uint64_t apart(Number actual, Number expected) {
  using Signed = std::make_signed_t<Number>;
  return zigzag(static_cast<Signed>(static_cast<Number>(actual - expected)));
}
template <typename Number>
Number actual_of(Number expected, std::uint64_t apart) {
  return static_cast<Number>(expected + static_cast<Number>(unzigzag(apart)));
}

// Byte by byte, without a carry from one to the next: a word that holds several small numbers stays
// one of small differences.
constexpr std::uint64_t kTop = 0x8080808080808080u;
std::uint64_t bytes_apart(std::uint64_t a, std::uint64_t b) {
  return ((a | kTop) - (b & ~kTop)) ^ ((a ^ ~b) & kTop);
}
std::uint64_t bytes_sum(std::uint64_t a, std::uint64_t b) {
  return ((a & ~kTop) + (b & ~kTop)) ^ ((a ^ b) & kTop);
}

/// Room for a section's head; finish() writes it once the length is known.
class SectionWriter {
 public:
  SectionWriter(Section type, std::vector<std::byte>& out) : out_(out) {
    out_.push_back(static_cast<std::byte>(type));
    out_.insert(out_.end(), 7, std::byte{0});
    begin_ = out_.size();
  }
  void finish() {
    const auto length = static_cast<std::uint32_t>(out_.size() - begin_);
    std::memcpy(out_.data() + begin_ - sizeof length, &length, sizeof length);
  }

 private:
  std::vector<std::byte>& out_;
  std::size_t begin_;
};

std::uint64_t bits_of(std::span<const std::uint64_t> values) {
  std::uint64_t bits = 0;
  for (const std::uint64_t v : values) bits += static_cast<std::uint64_t>(std::bit_width(v));
  return bits;
}

void put_shapes(const std::vector<Shape>& shapes, ColumnWriter& columns,
                std::vector<std::byte>& out) {
  std::vector<std::uint64_t> values(shapes.size());
  const auto put = [&](std::uint8_t id, auto&& value_of) {
    for (std::size_t i = 0; i < shapes.size(); ++i) values[i] = value_of(shapes[i]);
    columns.put(id, values, out);
  };
  put_varint(out, shapes.size());
  for (std::uint8_t byte = 0; byte < kShapeBytes; ++byte) {
    put(static_cast<std::uint8_t>(kFunction + byte),
        [&](const Shape& s) { return s.fixed >> (8 * byte) & 0xFFu; });
  }
  put(kFlags, [](const Shape& s) { return s.fixed >> 48; });
  put(kRootOrPeer, [](const Shape& s) {
    return zigzag(static_cast<std::int32_t>(static_cast<std::uint32_t>(s.peer)));
  });
  put(kCount, [](const Shape& s) { return s.count; });
  put(kKnown, [](const Shape& s) { return s.peer >> 32; });
  ColumnWriter::end(out);
}

}  // namespace

// ---- encoder
// -------------------------------------------------------------------------------------

RecordsEncoder::RecordsEncoder(int zstd_level) : columns_(zstd_level) {}

void RecordsEncoder::encode_operations(const PendingBlock& block, std::size_t rows,
                                       std::vector<std::byte>& out) {
  SectionWriter section(Section::kOperations, out);
  scratch_.resize(kOperationColumns);
  for (auto& column : scratch_) column.resize(rows);
  ShapeTable shapes;
  std::vector<Base> bases;
  std::vector<std::uint32_t>& shape_of_row = shape_of_row_;
  shape_of_row.clear();
  std::size_t processes = 0;
  for (const PendingProcess& process : block.processes) {
    if (process.operations.empty()) continue;
    ++processes;
    for (const PendingOperation& row : process.operations)
      shape_of_row.push_back(shapes.find_or_add(shape_of(row.record)));
  }
  put_varint(out, processes);
  std::size_t row = 0;
  Model model(block.sources.size());
  for (const PendingProcess& process : block.processes) {
    if (process.operations.empty()) continue;
    const PendingOperation& first = process.operations.front();
    const Base base{first.record_index, first.record.api_time_ns, first.record.gpu_start_ns};
    put_varint(out, process.operations.size());
    put_varint(out, base.record_index);
    put_varint(out, base.call);
    put_varint(out, base.start);
    model.begin(base);
    for (const PendingOperation& pending : process.operations) {
      const wire::Operation& o = pending.record;
      const std::uint32_t shape = shape_of_row[row];
      const bool p2p = model::is_point_to_point(static_cast<model::Function>(o.function));
      const Model::Expected e = model.expect(pending.source, p2p, o.function);
      const Model::Actual a{pending.record_index, o.index,
                            o.sequence,           wire::plan_of(o),
                            o.api_time_ns,        o.duration_enqueue >> 44,
                            o.gpu_start_ns,       wire::duration_ns_of(o)};
      scratch_[kSource][row] = pending.source;
      scratch_[kShape][row] = shape;
      scratch_[kRecordIndex][row] = apart(a.record_index, e.record_index);
      scratch_[kIndex][row] = apart(a.index, e.index);
      scratch_[kSequence][row] = apart(a.sequence, e.sequence);
      scratch_[kPlan][row] = apart(a.plan, e.plan);
      scratch_[kCall][row] = a.call != 0 ? apart(a.call, e.call) : 0;
      scratch_[kEnqueue][row] = a.enqueue;
      scratch_[kStartAfterProcess][row] = a.start != 0 ? apart(a.start, e.process_start) : 0;
      scratch_[kStartAfterSource][row] = a.start != 0 ? apart(a.start, e.source_start) : 0;
      scratch_[kDuration][row] = a.duration;
      model.take(pending.source, p2p, o.function, a);
      ++row;
    }
  }
  put_shapes(shapes.shapes(), columns_, out);
  const bool after_source =
      bits_of(scratch_[kStartAfterSource]) < bits_of(scratch_[kStartAfterProcess]);
  put_varint(out, after_source ? 1 : 0);
  for (std::uint8_t id = 1; id < kOperationColumns; ++id) {
    if (id == (after_source ? kStartAfterProcess : kStartAfterSource)) continue;
    columns_.put(id, scratch_[id], out);
  }
  ColumnWriter::end(out);
  section.finish();
}

template <std::size_t Words>
void RecordsEncoder::encode_words(Section type, const std::vector<PendingRow<Words>>& rows,
                                  std::size_t sources, std::vector<std::byte>& out) {
  if (rows.empty()) return;
  SectionWriter section(type, out);
  put_varint(out, Words);
  put_varint(out, rows.size());
  std::vector<std::uint64_t> values(rows.size());
  for (std::size_t i = 0; i < rows.size(); ++i) values[i] = rows[i].source;
  columns_.put(kRowSource, values, out);
  std::uint64_t before = 0;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    values[i] = apart(rows[i].record_index, before);
    before = rows[i].record_index;
  }
  columns_.put(kRowIndex, values, out);
  std::vector<std::uint64_t> last(sources);
  for (std::size_t word = 0; word < Words; ++word) {
    std::fill(last.begin(), last.end(), 0);
    for (std::size_t i = 0; i < rows.size(); ++i) {
      values[i] = bytes_apart(rows[i].words[word], last[rows[i].source]);
      last[rows[i].source] = rows[i].words[word];
    }
    columns_.put(static_cast<std::uint8_t>(kFirstWord + word), values, out);
  }
  ColumnWriter::end(out);
  section.finish();
}

void RecordsEncoder::encode(const PendingBlock& block, std::vector<std::byte>& out,
                            std::uint32_t& rows) {
  SectionWriter section(Section::kSources, out);
  put_varint(out, block.sources.size());
  for (const PendingSource& source : block.sources) {
    const ClockBounds& clock = source.clock;
    put_varint(out, source.communicator);
    put_varint(out, (clock.lower ? 1u : 0u) | (clock.upper ? 2u : 0u));
    if (clock.lower) put_varint(out, zigzag(*clock.lower));
    if (clock.upper) put_varint(out, zigzag(*clock.upper));
  }
  section.finish();
  std::size_t operations = 0;
  for (const PendingProcess& process : block.processes) operations += process.operations.size();
  if (operations > 0) encode_operations(block, operations, out);
  const std::size_t sources = block.sources.size();
  encode_words(Section::kNetwork, block.network, sources, out);
  encode_words(Section::kChannels, block.channels, sources, out);
  encode_words(Section::kFinalizes, block.finalizes, sources, out);
  encode_words(Section::kProgress, block.progress, sources, out);
  encode_words(Section::kBooks, block.books, sources, out);
  rows = static_cast<std::uint32_t>(operations + block.network.size() + block.channels.size() +
                                    block.finalizes.size() + block.progress.size() +
                                    block.books.size());
}

// ---- decoder
// -------------------------------------------------------------------------------------

bool RecordsDecoder::decode_sources(Cursor in, const Lookup& lookup, Batch& batch) {
  const std::uint32_t count = in.varint32(kMaxSources);
  if (count > in.left()) return false;  // each takes at least a byte
  batch.sources.resize(count);
  for (Source& source : batch.sources) {
    const std::uint32_t communicator = in.varint32(~0u);
    const std::uint64_t flags = in.varint();
    std::optional<std::int64_t> lower;
    std::optional<std::int64_t> upper;
    if ((flags & 1) != 0) lower = unzigzag(in.varint());
    if ((flags & 2) != 0) upper = unzigzag(in.varint());
    if (!in.ok() || !lookup(communicator, source)) return false;
    source.gpu_clock_offset_ns = lower;
    if (lower && upper && *upper >= *lower) {
      source.gpu_clock_error_ns =
          static_cast<std::uint64_t>(*upper) - static_cast<std::uint64_t>(*lower);
    }
  }
  return in.ok();
}

bool RecordsDecoder::decode_operations(Cursor in, Batch& batch) {
  struct Run {
    std::uint32_t rows;
    Base base;
  };
  const std::uint32_t processes = in.varint32(kMaxRows);
  if (processes > in.left()) return false;
  std::vector<Run> runs(processes);
  std::size_t rows = 0;
  for (Run& run : runs) {
    run.rows = in.varint32(kMaxRows);
    run.base.record_index = in.varint();
    run.base.call = in.varint();
    run.base.start = in.varint();
    rows += run.rows;
  }
  const std::uint32_t shape_count = in.varint32(kMaxRows);
  if (!in.ok() || rows > kMaxRows || shape_count > rows || !columns_.read(in, shape_count))
    return false;
  std::vector<Shape> shapes(shape_count);
  for (std::size_t i = 0; i < shapes.size(); ++i) {
    Shape& s = shapes[i];
    for (std::uint8_t byte = 0; byte < kShapeBytes; ++byte)
      s.fixed |= (columns_.at(kFunction + byte, i) & 0xFFu) << (8 * byte);
    s.fixed |= columns_.at(kFlags, i) << 48;
    const auto peer = static_cast<std::uint32_t>(unzigzag(columns_.at(kRootOrPeer, i)));
    s.peer = peer | columns_.at(kKnown, i) << 32;
    s.count = columns_.at(kCount, i);
    if (s.count > wire::kMaxCount) return false;
  }
  const bool after_source = in.varint() != 0;
  if (!in.ok() || !columns_.read(in, rows)) return false;
  batch.operations.resize(rows);
  Model model(batch.sources.size());
  std::size_t row = 0;
  for (const Run& run : runs) {
    model.begin(run.base);
    for (std::uint32_t i = 0; i < run.rows; ++i, ++row) {
      const std::uint64_t source = columns_.at(kSource, row);
      const std::uint64_t shape = columns_.at(kShape, row);
      if (source >= batch.sources.size() || shape >= shapes.size()) return false;
      const Shape& s = shapes[shape];
      OperationRow& out = batch.operations[row];
      out.source = &batch.sources[source];
      wire::Operation& o = out.record;
      o = {};
      o.header.type = static_cast<std::uint8_t>(wire::RecordType::kOperation);
      o.header.words = sizeof o / 8;
      o.communicator = out.source->communicator->id;
      std::memcpy(reinterpret_cast<std::byte*>(&o) + kShapeOffset, &s.fixed, kShapeBytes);
      o.flags = static_cast<std::uint16_t>(s.fixed >> 48);
      o.root_or_peer = static_cast<std::int32_t>(static_cast<std::uint32_t>(s.peer));
      const std::uint64_t known = s.peer >> 32;
      const bool p2p = model::is_point_to_point(static_cast<model::Function>(o.function));
      const auto source_place = static_cast<std::uint32_t>(source);
      const Model::Expected e = model.expect(source_place, p2p, o.function);
      Model::Actual a{};
      a.record_index = actual_of(e.record_index, columns_.at(kRecordIndex, row));
      a.index = actual_of(e.index, columns_.at(kIndex, row));
      a.sequence = actual_of(e.sequence, columns_.at(kSequence, row));
      a.plan = actual_of(e.plan, columns_.at(kPlan, row));
      if ((known & kKnowsCall) != 0) a.call = actual_of(e.call, columns_.at(kCall, row));
      a.enqueue = columns_.at(kEnqueue, row) & wire::kMaxEnqueueUs;
      if ((known & kKnowsStart) != 0) {
        a.start = after_source ? actual_of(e.source_start, columns_.at(kStartAfterSource, row))
                               : actual_of(e.process_start, columns_.at(kStartAfterProcess, row));
      }
      a.duration = columns_.at(kDuration, row) & wire::kMaxDurationNs;
      model.take(source_place, p2p, o.function, a);
      out.record_index = a.record_index;
      o.index = a.index;
      o.sequence = a.sequence;
      o.count_plan = wire::pack_count_plan(s.count, a.plan);
      o.api_time_ns = a.call;
      o.gpu_start_ns = a.start;
      o.duration_enqueue = wire::pack_duration_enqueue(a.duration, a.enqueue);
    }
  }
  return true;
}

template <typename Row>
bool RecordsDecoder::decode_words(Cursor in, const std::vector<Source>& sources,
                                  std::vector<Row>& rows) {
  using Record = decltype(Row::record);
  const std::uint32_t words = in.varint32(kMaxRecordWords);
  const std::uint32_t count = in.varint32(kMaxRows);
  if (!in.ok() || words * std::uint64_t{8} < wire::kFirstBytes<Record> ||
      words * std::uint64_t{count} > kMaxWordsInSection || !columns_.read(in, count)) {
    return false;
  }
  rows.resize(count);
  std::uint64_t index = 0;
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t source = columns_.at(kRowSource, i);
    if (source >= sources.size()) return false;
    rows[i].source = &sources[source];
    rows[i].record = {};
    index = actual_of(index, columns_.at(kRowIndex, i));
    if constexpr (requires { rows[i].record_index; }) rows[i].record_index = index;
  }
  std::vector<std::uint64_t> last(sources.size());
  const std::size_t known = std::min<std::size_t>(words, sizeof(Record) / 8);
  for (std::size_t word = 0; word < known; ++word) {
    std::fill(last.begin(), last.end(), 0);
    for (std::size_t i = 0; i < count; ++i) {
      std::uint64_t& value = last[static_cast<std::size_t>(rows[i].source - sources.data())];
      value = bytes_sum(value, columns_.at(kFirstWord + word, i));
      std::memcpy(reinterpret_cast<std::byte*>(&rows[i].record) + 8 * word, &value, sizeof value);
    }
  }
  return true;
}

bool RecordsDecoder::decode(std::span<const std::byte> payload, const Lookup& lookup,
                            Batch& batch) {
  batch.operations.clear();
  batch.network.clear();
  batch.channels.clear();
  batch.finalizes.clear();
  batch.progress.clear();
  batch.books.clear();
  batch.sources.clear();
  unsigned seen = 0;
  Cursor in(payload);
  while (!in.at_end()) {
    const std::uint8_t type = in.byte();
    in.bytes(3);
    const std::span<const std::byte> length_bytes = in.bytes(sizeof(std::uint32_t));
    if (!in.ok()) return false;
    std::uint32_t length = 0;
    std::memcpy(&length, length_bytes.data(), sizeof length);
    const std::span<const std::byte> body = in.bytes(length);
    if (!in.ok()) return false;
    // Each kind once: rows point into `sources`, which must not be made anew.
    if (type < 32) {
      if ((seen & (1u << type)) != 0) return false;
      seen |= 1u << type;
    }
    const Cursor section(body);
    bool good = true;
    switch (static_cast<Section>(type)) {
      case Section::kSources:
        good = decode_sources(section, lookup, batch);
        break;
      case Section::kOperations:
        good = decode_operations(section, batch);
        break;
      case Section::kNetwork:
        good = decode_words(section, batch.sources, batch.network);
        break;
      case Section::kChannels:
        good = decode_words(section, batch.sources, batch.channels);
        break;
      case Section::kFinalizes:
        good = decode_words(section, batch.sources, batch.finalizes);
        break;
      case Section::kProgress:
        good = decode_words(section, batch.sources, batch.progress);
        break;
      case Section::kBooks:
        good = decode_words(section, batch.sources, batch.books);
        break;
      default:
        break;  // of a later version
    }
    if (!good) return false;
  }
  return true;
}

}  // namespace ncclscope::archive

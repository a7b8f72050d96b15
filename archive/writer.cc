// SPDX-License-Identifier: Apache-2.0
#include "archive/writer.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "archive/clock.h"
#include "archive/crc32c.h"
#include "archive/format.h"
#include "archive/records.h"

namespace ncclscope::archive {
namespace {

/// Rows that a record counts as, so that no section grows beyond its limit.
constexpr std::uint32_t kProgressWeight = 2;
constexpr std::uint32_t kBooksWeight = 8;
/// Below it planes are not compressed by themselves, but the block is as a whole.
constexpr std::uint32_t kRowsOfSmallBlock = 1024;

std::string error_text(const std::string& what, const std::filesystem::path& path, int error) {
  return path.string() + ": " + what + ": " +
         std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe enough
}

}  // namespace

struct Writer::State {
  explicit State(const Options& options) : encoder(options.zstd_level) {}
  ~State() {
    if (fd >= 0) ::close(fd);
  }

  struct CommunicatorState {
    std::uint32_t process = 0;
    std::size_t clock = 0;    // place in clocks
    std::uint32_t place = 0;  // in block.sources, if `serial` is that of the block
    std::uint64_t serial = 0;
    std::size_t group = 0;  // likewise in block.processes, if it has operations
  };
  struct ProcessState {
    std::uint64_t serial = 0;
    std::size_t group = 0;  // place in block.processes
  };
  struct GpuState {
    std::uint32_t process;
    std::int32_t device;
    HostClock clock;
  };

  std::filesystem::path final_path, path;
  int fd = -1;
  Status failed;
  RecordsEncoder encoder;
  std::uint32_t blocks = 0;
  std::uint64_t bytes = 0, operations = 0;
  std::vector<std::byte> contexts;  // not yet written
  std::uint32_t new_contexts = 0;
  std::vector<ProcessState> processes;
  std::vector<CommunicatorState> communicators;
  std::vector<GpuState> clocks;
  PendingBlock block;
  std::size_t groups = 0;  // of block.processes that are in use
  std::uint64_t serial = 1;
  std::uint32_t weight = 0;  // of the pending rows
  std::vector<std::byte> payload, packed;

  Status fail(std::string message) {
    failed = Status(std::move(message));
    return failed;
  }
  Status write_all(std::span<const std::byte> what) {
    const std::uint64_t begin = bytes;
    while (!what.empty()) {
      const ssize_t written = ::write(fd, what.data(), what.size());
      if (written < 0 && errno == EINTR) continue;
      if (written <= 0) {
        const int error = written < 0 ? errno : ENOSPC;
        // Whole blocks only, as far as that is still possible: the reader copes with less.
        if (::ftruncate(fd, static_cast<off_t>(begin)) == 0) bytes = begin;
        return fail(error_text("cannot write at offset " + std::to_string(begin), path, error));
      }
      bytes += static_cast<std::uint64_t>(written);
      what = what.subspan(static_cast<std::size_t>(written));
    }
    return {};
  }
  Status write_block(BlockType type, std::span<const std::byte> raw, std::uint32_t rows,
                     bool compress) {
    packed.assign(sizeof(BlockHeader), std::byte{0});
    Codec codec = Codec::kStored;
    if (compress) {
      encoder.columns().compress(raw, packed);
      codec = Codec::kZstd;
    }
    if (packed.size() == sizeof(BlockHeader) || packed.size() - sizeof(BlockHeader) >= raw.size()) {
      packed.resize(sizeof(BlockHeader));
      packed.insert(packed.end(), raw.begin(), raw.end());
      codec = Codec::kStored;
    }
    BlockHeader header{};
    header.magic = kBlockMagic;
    header.type = static_cast<std::uint8_t>(type);
    header.codec = static_cast<std::uint8_t>(codec);
    header.number = blocks++;
    header.stored_bytes = static_cast<std::uint32_t>(packed.size() - sizeof header);
    header.raw_bytes = static_cast<std::uint32_t>(raw.size());
    header.rows = rows;
    header.payload_crc = crc32c(std::span(packed).subspan(sizeof header));
    header.header_crc =
        crc32c({reinterpret_cast<const std::byte*>(&header), offsetof(BlockHeader, header_crc)});
    std::memcpy(packed.data(), &header, sizeof header);
    return write_all(packed);
  }
  Status write_contexts() {
    if (contexts.empty()) return {};
    Status status = write_block(BlockType::kContext, contexts, new_contexts, true);
    contexts.clear();
    new_contexts = 0;
    return status;
  }
  /// Descriptions may come in any number between two flushes.
  void context_added() {
    constexpr std::size_t kContextBytes = 1u << 20;
    ++new_contexts;
    if (failed.ok() && contexts.size() >= kContextBytes) static_cast<void>(write_contexts());
  }
  /// Place of the communicator among the block's sources.
  std::uint32_t source(std::uint32_t communicator) {
    CommunicatorState& c = communicators[communicator];
    if (c.serial != serial) {
      c.serial = serial;
      c.place = static_cast<std::uint32_t>(block.sources.size());
      block.sources.push_back({communicator, c.process, {}});
      ProcessState& process = processes[c.process];
      if (process.serial != serial) {
        process.serial = serial;
        process.group = groups++;
        if (block.processes.size() < groups) block.processes.emplace_back();
      }
      c.group = process.group;
    }
    return c.place;
  }
  template <std::size_t Words, typename Record>
  Status add_row(std::vector<PendingRow<Words>>& rows, std::uint32_t communicator,
                 std::uint64_t record_index, const Record& record, std::uint32_t weighs) {
    static_assert(sizeof(Record) == Words * 8);
    if (Status s = make_room(weighs); !s.ok()) return s;
    PendingRow<Words>& row = rows.emplace_back();
    row.source = source(communicator);
    row.record_index = record_index;
    std::memcpy(row.words, &record, sizeof record);
    return {};
  }
  Status make_room(std::uint32_t weighs) {
    if (!failed.ok()) return failed;
    if (weight + weighs > kMaxRows) {
      if (Status s = flush(); !s.ok()) return s;
    }
    weight += weighs;
    return {};
  }
  std::size_t clock_of(std::uint32_t process, std::int32_t device) {
    for (std::size_t i = 0; i < clocks.size(); ++i) {
      if (clocks[i].process == process && clocks[i].device == device) return i;
    }
    clocks.push_back({process, device, {}});
    return clocks.size() - 1;
  }
  Status flush();
};

Status Writer::State::flush() {
  if (!failed.ok()) return failed;
  if (Status s = write_contexts(); !s.ok()) return s;
  if (weight == 0) return {};
  for (PendingSource& source : block.sources) {
    source.clock = clocks[communicators[source.communicator].clock].clock.bounds();
  }
  payload.clear();
  std::uint32_t rows = 0;
  encoder.encode(block, payload, rows);
  Status status = write_block(BlockType::kRecords, payload, rows, weight < kRowsOfSmallBlock);
  block.sources.clear();
  for (PendingProcess& process : block.processes) process.operations.clear();
  block.network.clear();
  block.channels.clear();
  block.finalizes.clear();
  block.progress.clear();
  block.books.clear();
  groups = 0;
  weight = 0;
  ++serial;
  return status;
}

Writer::Writer(std::unique_ptr<State> state) : state_(std::move(state)) {}
Writer::~Writer() = default;

std::unique_ptr<Writer> Writer::create(const std::filesystem::path& path, const Options& options,
                                       Status& status) {
  auto state = std::make_unique<State>(options);
  state->final_path = path;
  state->path = path.string() + ".part";
  std::error_code error;
  if (std::filesystem::exists(path, error)) {
    status = Status(path.string() + ": is there already");
    return nullptr;
  }
  state->fd = ::open(state->path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW,
                     options.mode);
  if (state->fd < 0) {
    status = Status(error_text("cannot be created", state->path, errno));
    return nullptr;
  }
  if (::fchmod(state->fd, options.mode) != 0) {
    status = Status(error_text("cannot set its mode", state->path, errno));
    return nullptr;
  }
  FileHeader header{};
  header.magic = kFileMagic;
  header.major = kMajorVersion;
  header.minor = kMinorVersion;
  header.header_bytes = sizeof header;
  header.created_ns = options.now_ns;
  header.writer = options.writer;
  header.segment = options.segment;
  header.crc = crc32c({reinterpret_cast<const std::byte*>(&header), offsetof(FileHeader, crc)});
  status = state->write_all({reinterpret_cast<const std::byte*>(&header), sizeof header});
  if (!status.ok()) return nullptr;
  return std::unique_ptr<Writer>(new Writer(std::move(state)));
}

void Writer::set_job(const Job& job) {
  encode(job, state_->contexts);
  state_->context_added();
}

std::uint32_t Writer::add_process(const Process& process) {
  const auto id = static_cast<std::uint32_t>(state_->processes.size());
  state_->processes.emplace_back();
  describe_process(id, process);
  return id;
}

void Writer::describe_process(std::uint32_t id, const Process& process) {
  encode(id, process, state_->contexts);
  state_->context_added();
}

std::uint32_t Writer::add_communicator(std::uint32_t process, const Communicator& communicator) {
  const auto id = static_cast<std::uint32_t>(state_->communicators.size());
  State::CommunicatorState& made = state_->communicators.emplace_back();
  made.process = process;
  made.clock = state_->clock_of(process, communicator.cuda_device);
  describe_communicator(id, communicator);
  return id;
}

void Writer::describe_communicator(std::uint32_t id, const Communicator& communicator) {
  encode(id, state_->communicators[id].process, communicator, state_->contexts);
  state_->context_added();
}

Status Writer::add(std::uint32_t communicator, std::uint64_t record_index,
                   const wire::Operation& record, std::uint64_t sent_ns) {
  State& s = *state_;
  if (Status status = s.make_room(1); !status.ok()) return status;
  const std::uint32_t place = s.source(communicator);
  const State::CommunicatorState& c = s.communicators[communicator];
  s.block.processes[c.group].operations.push_back({place, record_index, record});
  ++s.operations;
  const std::uint64_t duration = wire::duration_ns_of(record);
  if (wire::timing_of(record) == wire::TimingSource::kGpu && duration != 0 &&
      (record.flags & wire::operation_flags::kGraph) == 0) {
    const bool call = (record.flags & wire::operation_flags::kApiSeen) != 0;
    s.clocks[c.clock].clock.observe(call ? record.api_time_ns : 0, record.gpu_start_ns,
                                    record.gpu_start_ns + duration, sent_ns);
  }
  return {};
}

Status Writer::add(std::uint32_t communicator, std::uint64_t record_index,
                   const wire::NetworkPhases& record) {
  return state_->add_row(state_->block.network, communicator, record_index, record, 1);
}
Status Writer::add(std::uint32_t communicator, std::uint64_t record_index,
                   const wire::ChannelDetail& record) {
  return state_->add_row(state_->block.channels, communicator, record_index, record, 1);
}
Status Writer::add(std::uint32_t communicator, std::uint64_t record_index,
                   const wire::CommunicatorFinalize& record) {
  return state_->add_row(state_->block.finalizes, communicator, record_index, record, 1);
}
Status Writer::add(std::uint32_t communicator, const wire::Progress& record) {
  return state_->add_row(state_->block.progress, communicator, 0, record, kProgressWeight);
}
Status Writer::add(std::uint32_t communicator, const wire::Books& record) {
  return state_->add_row(state_->block.books, communicator, 0, record, kBooksWeight);
}

Status Writer::flush() {
  return state_->flush();
}

Status Writer::finish() {
  State& s = *state_;
  if (Status status = s.flush(); !status.ok()) return status;
  if (Status status = s.write_block(BlockType::kEnd, {}, 0, false); !status.ok()) return status;
  if (::fsync(s.fd) != 0) return s.fail(error_text("cannot reach the disk", s.path, errno));
  if (::rename(s.path.c_str(), s.final_path.c_str()) != 0)
    return s.fail(error_text("cannot be renamed to " + s.final_path.string(), s.path, errno));
  s.path = s.final_path;
  // The name must outlive the machine too. Where directories cannot be synchronised it is left to
  // the file system.
  const std::filesystem::path parent =
      s.final_path.has_parent_path() ? s.final_path.parent_path() : std::filesystem::path(".");
  const int directory = ::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (directory >= 0) {
    static_cast<void>(::fsync(directory));
    ::close(directory);
  }
  s.failed = Status(s.path.string() + ": is complete, nothing can be added");
  return {};
}

std::uint32_t Writer::pending_rows() const {
  return state_->weight;
}
std::uint64_t Writer::bytes() const {
  return state_->bytes;
}
std::uint64_t Writer::operations() const {
  return state_->operations;
}
const std::filesystem::path& Writer::path() const {
  return state_->path;
}

}  // namespace ncclscope::archive

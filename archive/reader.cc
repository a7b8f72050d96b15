// SPDX-License-Identifier: Apache-2.0
#include "archive/reader.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <deque>
#include <optional>
#include <system_error>
#include <unordered_map>
#include <utility>

#include "archive/crc32c.h"
#include "archive/format.h"
#include "archive/records.h"

namespace ncclscope::archive {
namespace {

std::string system_text(const std::filesystem::path& path, const std::string& what, int error) {
  return path.string() + ": " + what + ": " +
         std::strerror(error);  // NOLINT(concurrency-mt-unsafe): glibc's is thread-safe enough
}

/// How many bytes a read gave; -1 = error. Less than asked for only at the end of the file.
ssize_t read_fully(int fd, std::span<std::byte> out) {
  std::size_t have = 0;
  while (have < out.size()) {
    const ssize_t got = ::read(fd, out.data() + have, out.size() - have);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return -1;
    if (got == 0) break;
    have += static_cast<std::size_t>(got);
  }
  return static_cast<ssize_t>(have);
}

}  // namespace

struct Reader::State final : public ContextSink {
  ~State() override {
    if (fd >= 0) ::close(fd);
  }

  std::filesystem::path path;
  int fd = -1;
  std::uint64_t offset = 0;  // of the next block
  std::uint32_t blocks = 0;
  std::uint64_t operations = 0;
  Status status;
  bool ended = false;  // by an end block
  bool truncated = false;
  bool over = false;
  RecordsDecoder decoder;
  Batch batch;
  std::vector<std::byte> stored, raw;

  // Replaced descriptions stay: rows that were given may still be in use.
  std::deque<Job> jobs;
  std::deque<Process> process_values;
  std::deque<Communicator> communicator_values;
  struct CommunicatorEntry {
    const Communicator* value;
    std::uint32_t process;
  };
  std::unordered_map<std::uint32_t, const Process*> processes;
  std::unordered_map<std::uint32_t, CommunicatorEntry> communicators;
  std::uint64_t context_bytes = 0;
  std::uint64_t contexts = 0;

  bool job(Job value) override {
    jobs.push_back(std::move(value));
    return ++contexts <= kMaxContexts;
  }
  bool process(std::uint32_t id, Process value) override {
    process_values.push_back(std::move(value));
    processes[id] = &process_values.back();
    return ++contexts <= kMaxContexts;
  }
  bool communicator(std::uint32_t id, std::uint32_t process, Communicator value) override {
    if (!processes.contains(process)) return false;
    communicator_values.push_back(std::move(value));
    communicators[id] = {&communicator_values.back(), process};
    return ++contexts <= kMaxContexts;
  }
  bool look_up(std::uint32_t communicator, Source& out) const {
    const auto it = communicators.find(communicator);
    if (it == communicators.end()) return false;
    out.communicator = it->second.value;
    out.process_number = it->second.process;
    out.process = processes.at(it->second.process);
    out.job = &jobs.back();
    return true;
  }

  void refuse(const std::string& what) {
    status = Status(path.string() + ": at offset " + std::to_string(offset) + ": " + what);
    over = true;
  }
  void cut() {
    truncated = true;
    over = true;
  }
  [[nodiscard]] bool read_header();
  /// True where a block was read into `raw` (or is the end).
  [[nodiscard]] bool read_block(BlockHeader& header);
  [[nodiscard]] bool rest_is_zero(std::uint64_t from);
};

/// A machine that went down may leave zeros where data had not been written yet.
bool Reader::State::rest_is_zero(std::uint64_t from) {
  std::array<std::byte, 65536> bytes;
  if (::lseek(fd, static_cast<off_t>(from), SEEK_SET) < 0) return false;
  for (;;) {
    const ssize_t got = read_fully(fd, bytes);
    if (got < 0) return false;
    const auto end = bytes.begin() + got;
    if (std::any_of(bytes.begin(), end, [](std::byte b) { return b != std::byte{0}; }))
      return false;
    if (static_cast<std::size_t>(got) < bytes.size()) return true;
  }
}

bool Reader::State::read_header() {
  FileHeader header{};
  const ssize_t got = read_fully(fd, {reinterpret_cast<std::byte*>(&header), sizeof header});
  if (got < 0) {
    status = Status(system_text(path, "cannot be read", errno));
    return false;
  }
  const auto have = static_cast<std::size_t>(got);
  const std::size_t magic = std::min(have, header.magic.size());
  if (!std::equal(header.magic.begin(), header.magic.begin() + static_cast<std::ptrdiff_t>(magic),
                  kFileMagic.begin())) {
    refuse(
        "not a segment of an ncclscope archive (its first bytes should be 89 4E 43 53 41 0D 0A "
        "1A)");
    return false;
  }
  if (have < sizeof header) {
    cut();  // its writer was killed at once
    return true;
  }
  if (header.major != kMajorVersion) {
    refuse("version " + std::to_string(header.major) + "." + std::to_string(header.minor) +
           " of the archive format; this program reads version " + std::to_string(kMajorVersion));
    return false;
  }
  const std::uint32_t crc =
      crc32c({reinterpret_cast<const std::byte*>(&header), offsetof(FileHeader, crc)});
  constexpr std::uint32_t kMaxHeaderBytes = 4096;
  if (crc != header.crc || header.header_bytes < sizeof header ||
      header.header_bytes > kMaxHeaderBytes) {
    refuse("the file's header is damaged");
    return false;
  }
  offset = header.header_bytes;
  if (::lseek(fd, static_cast<off_t>(offset), SEEK_SET) < 0) {
    status = Status(system_text(path, "cannot be read", errno));
    return false;
  }
  return true;
}

bool Reader::State::read_block(BlockHeader& header) {
  ssize_t got = read_fully(fd, {reinterpret_cast<std::byte*>(&header), sizeof header});
  if (got < 0) {
    status = Status(system_text(path, "cannot be read at offset " + std::to_string(offset), errno));
    over = true;
    return false;
  }
  if (static_cast<std::size_t>(got) < sizeof header) {
    if (!ended) {
      cut();
    } else if (got > 0) {
      refuse("bytes behind the end block");
    }
    over = true;
    return false;
  }
  const std::uint32_t crc =
      crc32c({reinterpret_cast<const std::byte*>(&header), offsetof(BlockHeader, header_crc)});
  if (ended) {
    refuse("bytes behind the end block");
    return false;
  }
  if (header.magic != kBlockMagic || crc != header.header_crc) {
    if (header.magic == 0 && rest_is_zero(offset)) {
      cut();
    } else {
      refuse("no block begins here: the file is damaged");
    }
    return false;
  }
  if (header.number != blocks) {
    refuse("block " + std::to_string(header.number) + " where block " + std::to_string(blocks) +
           " should be: a part of the file is missing");
    return false;
  }
  if (header.stored_bytes > kMaxStoredBytes || header.raw_bytes > kMaxRawBytes ||
      header.rows > std::max(kMaxRows, kMaxContexts)) {
    refuse("a block of " + std::to_string(header.stored_bytes) + " bytes (" +
           std::to_string(header.raw_bytes) + " once decompressed); at most " +
           std::to_string(kMaxRawBytes) + " are allowed");
    return false;
  }
  stored.resize(header.stored_bytes);
  got = read_fully(fd, stored);
  if (got < 0) {
    status = Status(system_text(path, "cannot be read at offset " + std::to_string(offset), errno));
    over = true;
    return false;
  }
  if (static_cast<std::size_t>(got) < stored.size()) {
    cut();
    return false;
  }
  if (crc32c(stored) != header.payload_crc) {
    // Likewise, the last block may have been written in part.
    if (rest_is_zero(offset + sizeof header + header.stored_bytes)) {
      cut();
    } else {
      refuse("block " + std::to_string(header.number) + " is damaged (its checksum does not fit)");
    }
    return false;
  }
  const auto codec = static_cast<Codec>(header.codec);
  const bool known = codec == Codec::kStored || codec == Codec::kZstd;
  raw.resize(header.raw_bytes);
  bool good = known;
  if (codec == Codec::kStored) {
    good = stored.size() == raw.size();
    if (good) raw.swap(stored);
  } else if (known) {
    good = decoder.columns().decompress(stored, raw);
  }
  if (!good) {
    refuse(known ? "block " + std::to_string(header.number) + " cannot be decompressed"
                 : "block " + std::to_string(header.number) + " has the unknown codec " +
                       std::to_string(header.codec));
    return false;
  }
  return true;
}

Reader::Reader(std::unique_ptr<State> state) : state_(std::move(state)) {}
Reader::~Reader() = default;

std::unique_ptr<Reader> Reader::open(const std::filesystem::path& path, Status& status) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->jobs.emplace_back();
  state->fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (state->fd < 0) {
    status = Status(system_text(path, "cannot be opened", errno));
    return nullptr;
  }
  struct stat about {};
  if (::fstat(state->fd, &about) != 0 || !S_ISREG(about.st_mode)) {
    status = Status(path.string() + ": is no regular file");
    return nullptr;
  }
  if (!state->read_header()) {
    status = state->status;
    return nullptr;
  }
  status = Status();
  return std::unique_ptr<Reader>(new Reader(std::move(state)));
}

const Batch* Reader::next() {
  State& s = *state_;
  while (!s.over) {
    BlockHeader header{};
    if (!s.read_block(header)) break;
    const std::uint64_t end = s.offset + sizeof header + header.stored_bytes;
    switch (static_cast<BlockType>(header.type)) {
      case BlockType::kContext:
        s.context_bytes += s.raw.size();
        if (s.context_bytes > kMaxContextBytes || !decode_contexts(s.raw, s)) {
          s.refuse("block " + std::to_string(header.number) +
                   " does not hold descriptions of jobs, processes and communicators");
        }
        break;
      case BlockType::kRecords: {
        const auto lookup = [&s](std::uint32_t id, Source& out) { return s.look_up(id, out); };
        if (!s.decoder.decode(s.raw, lookup, s.batch)) {
          s.refuse("block " + std::to_string(header.number) + " does not hold records");
          break;
        }
        ++s.blocks;
        s.offset = end;
        s.operations += s.batch.operations.size();
        return &s.batch;
      }
      case BlockType::kEnd:
        s.ended = true;
        break;
      default:
        break;  // of a later version
    }
    if (s.over) break;
    ++s.blocks;
    s.offset = end;
  }
  return nullptr;
}

const Status& Reader::status() const {
  return state_->status;
}
bool Reader::truncated() const {
  return state_->truncated;
}
std::uint64_t Reader::offset() const {
  return state_->offset;
}
const Job& Reader::job() const {
  return state_->jobs.back();
}
const std::filesystem::path& Reader::path() const {
  return state_->path;
}
std::uint64_t Reader::operations() const {
  return state_->operations;
}

Status find_segments(const std::filesystem::path& path, std::vector<std::filesystem::path>& out) {
  std::error_code error;
  if (!std::filesystem::is_directory(path, error)) {
    if (error && error != std::errc::not_a_directory)
      return Status(path.string() + ": cannot be read: " + error.message());
    out.push_back(path);
    return {};
  }
  std::vector<std::filesystem::path> found;
  std::filesystem::recursive_directory_iterator it(path, error);
  for (; !error && it != std::filesystem::recursive_directory_iterator(); it.increment(error)) {
    const std::string name = it->path().filename().string();
    if (name.ends_with(kExtension) || name.ends_with(kPartExtension)) found.push_back(it->path());
  }
  if (error) return Status(path.string() + ": cannot be read: " + error.message());
  std::sort(found.begin(), found.end());
  out.insert(out.end(), found.begin(), found.end());
  return {};
}

}  // namespace ncclscope::archive

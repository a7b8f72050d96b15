// SPDX-License-Identifier: Apache-2.0
#include "agent/archive/segment_store.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <utility>
#include <vector>

#include "agent/base/log.h"

namespace ncclscope::agent {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSuffix = ".ncsa";
constexpr std::string_view kPart = ".part";
constexpr std::string_view kLock = ".lock";
constexpr std::int64_t kSecond = 1'000'000'000;

std::string utc_name(std::int64_t epoch_ns) {
  const std::time_t seconds = epoch_ns / kSecond;
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  std::array<char, 32> text{};
  std::strftime(text.data(), text.size(), "%Y%m%dT%H%M%SZ", &parts);
  return text.data();
}

std::string hex8(std::uint64_t value) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%08x", static_cast<unsigned>(value & 0xFFFFFFFFu));
  return text.data();
}

std::uint64_t fnv1a(std::string_view text) {
  std::uint64_t hash = 0xCBF29CE484222325u;
  for (const char c : text) hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001B3u;
  return hash;
}

Status make_folder(const fs::path& path, unsigned mode) {
  if (::mkdir(path.c_str(), mode) == 0) {
    // Whatever the umask. Only of what we made: the administrator's folders stay as they are.
    if (::chmod(path.c_str(), mode) != 0)
      return Status::system(concat("archive: cannot set the mode of ", path.string()));
    return {};
  }
  if (errno != EEXIST) return Status::system(concat("archive: cannot make ", path.string()));
  struct stat about {};
  if (::lstat(path.c_str(), &about) != 0 || !S_ISDIR(about.st_mode))
    return Status(ErrorCode::kSystem, concat("archive: ", path.string(), " is no folder"));
  return {};
}

}  // namespace

std::string file_name_of(std::string_view text) {
  constexpr std::size_t kMost = 120;  // so that a segment's whole name stays below 255
  constexpr char kHex[] = "0123456789ABCDEF";
  // No job is called as the lock of a node: it would be in the way of that node's agent.
  const std::size_t lock = text.ends_with(kLock) ? text.size() - kLock.size() : text.size();
  std::string out;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    const bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
                       c == '-' || c == '_' || (c == '.' && !out.empty() && i != lock);
    if (plain) {
      out += c;
    } else {
      const auto byte = static_cast<unsigned char>(c);
      out += '%';
      out += kHex[byte >> 4];
      out += kHex[byte & 0xF];
    }
  }
  if (out.empty()) return "%";
  if (out.size() > kMost) out = out.substr(0, kMost - 9) + "%" + hex8(fnv1a(text));
  return out;
}

Result<SegmentStore> SegmentStore::create(const Options& options) {
  SegmentStore store(options);
  store.prefix_ = file_name_of(options.node) + "-";
  std::error_code error;
  fs::create_directories(options.directory.parent_path(), error);
  if (Status s = make_folder(options.directory, store.folder_mode()); !s.ok()) return s;
  if (Status s = store.lock(); !s.ok()) return s;
  if (Status s = store.look(); !s.ok()) return s;
  return store;
}

Status SegmentStore::lock() {
  const fs::path path = options_.directory / concat(file_name_of(options_.node), kLock);
  lock_.reset(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock_.valid()) return Status::system(concat("archive: cannot open ", path.string()));
  if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return Status(
        ErrorCode::kInUse,
        concat("archive: ", path.string(), " is held by another agent that calls its node ",
               options_.node, "; give each a name or an archive_directory of its own"));
  }
  return {};
}

Status SegmentStore::look() {
  std::error_code error;
  std::vector<Segment> found;
  fs::directory_iterator jobs(options_.directory, error);
  for (; !error && jobs != fs::directory_iterator(); jobs.increment(error)) {
    std::error_code ignored;
    if (!jobs->is_directory(ignored) || jobs->is_symlink(ignored)) continue;
    fs::directory_iterator files(jobs->path(), ignored);
    for (; !ignored && files != fs::directory_iterator(); files.increment(ignored)) {
      const std::string name = files->path().filename().string();
      if (!name.starts_with(prefix_)) continue;
      const bool part = name.ends_with(kPart);
      std::string_view whole = name;
      if (part) whole.remove_suffix(kPart.size());
      struct stat about {};
      if (!whole.ends_with(kSuffix) || ::lstat(files->path().c_str(), &about) != 0 ||
          !S_ISREG(about.st_mode)) {
        continue;
      }
      Segment segment;
      segment.path = files->path();
      // Without an end block: a reader sees that it was cut.
      const fs::path complete = jobs->path() / whole;
      if (part && ::rename(segment.path.c_str(), complete.c_str()) == 0) segment.path = complete;
      segment.job = jobs->path().filename().string();
      segment.bytes = static_cast<std::uint64_t>(about.st_size);
      segment.written_ns = about.st_mtim.tv_sec * kSecond + about.st_mtim.tv_nsec;
      found.push_back(std::move(segment));
    }
  }
  if (error) {
    return Status(ErrorCode::kSystem, concat("archive: cannot read ", options_.directory.string(),
                                             ": ", error.message()));
  }
  std::sort(found.begin(), found.end(), [](const Segment& a, const Segment& b) {
    return std::tie(a.written_ns, a.path) < std::tie(b.written_ns, b.path);
  });
  for (Segment& segment : found) {
    bytes_of_job_[segment.job] += segment.bytes;
    total_ += segment.bytes;
    segments_.push_back(std::move(segment));
  }
  return {};
}

Result<fs::path> SegmentStore::next(std::string_view job_id, std::int64_t now_ns) {
  Segment segment;
  segment.job = file_name_of(job_id);
  const fs::path folder = options_.directory / segment.job;
  if (Status s = make_folder(folder, folder_mode()); !s.ok()) return s;
  std::array<char, 24> number{};
  std::snprintf(number.data(), number.size(), "%06llu", static_cast<unsigned long long>(number_++));
  const fs::path path = folder / concat(prefix_, utc_name(now_ns), "-", hex8(options_.instance),
                                        "-", std::string(number.data()), kSuffix);
  segment.path = path;
  segment.written_ns = now_ns;
  segment.open = true;
  segments_.push_back(std::move(segment));
  return path;
}

SegmentStore::Segments::iterator SegmentStore::find(const fs::path& path) {
  // The newest ones are asked for.
  const auto it = std::find_if(segments_.rbegin(), segments_.rend(),
                               [&](const Segment& s) { return s.path == path; });
  return it == segments_.rend() ? segments_.end() : std::prev(it.base());
}

void SegmentStore::grown(const fs::path& path, std::uint64_t bytes) {
  const auto it = find(path);
  if (it == segments_.end()) return;
  bytes_of_job_[it->job] += bytes - it->bytes;
  total_ += bytes - it->bytes;
  it->bytes = bytes;
}

void SegmentStore::finished(const fs::path& path, std::uint64_t bytes, std::int64_t now_ns,
                            bool there) {
  grown(path, bytes);
  const auto it = find(path);
  if (it == segments_.end()) return;
  it->open = false;
  it->written_ns = now_ns;
  if (!there) it->path += kPart;
  // Behind all that were written to before.
  segments_.splice(segments_.end(), segments_, it);
}

bool SegmentStore::remove(Segments::iterator it, Reason reason) {
  std::error_code error;
  fs::remove(it->path, error);
  if (error) {
    // Forgotten all the same: else it would be tried, and fail, for ever.
    ++failures_;
    log_error(concat("archive: cannot delete ", it->path.string(), ": ", error.message()));
  } else {
    ++deleted_[static_cast<std::size_t>(reason)];
  }
  total_ -= it->bytes;
  std::uint64_t& of_job = bytes_of_job_[it->job];
  of_job -= it->bytes;
  const bool last = std::none_of(segments_.begin(), segments_.end(),
                                 [&](const Segment& s) { return &s != &*it && s.job == it->job; });
  if (last) {
    bytes_of_job_.erase(it->job);
    fs::remove(it->path.parent_path(), error);  // fails where another node has segments
  }
  segments_.erase(it);
  return !error;
}

void SegmentStore::enforce(std::int64_t now_ns) {
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto at = it++;
    if (!at->open && now_ns - at->written_ns > options_.age_ns) remove(at, Reason::kAge);
  }
  for (auto it = segments_.begin(); it != segments_.end();) {
    const auto at = it++;
    if (!at->open && bytes_of_job_[at->job] > options_.job_bytes) remove(at, Reason::kJob);
  }
  for (auto it = segments_.begin(); it != segments_.end() && total_ > options_.total_bytes;) {
    const auto at = it++;
    if (!at->open) remove(at, Reason::kTotal);
  }
}

}  // namespace ncclscope::agent

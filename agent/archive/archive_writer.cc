// SPDX-License-Identifier: Apache-2.0
#include "agent/archive/archive_writer.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

namespace ncclscope::agent {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kRetryNs = 10 * kSecond;
constexpr std::uint64_t kIdleNs = 30 * kSecond;  // then its segment is completed
constexpr std::uint64_t kEnforceNs = kSecond;

template <typename Record>
Record record_of(const ArchiveChunk::Record& from) {
  static_assert(sizeof(Record) == sizeof from.bytes);
  Record record;
  std::memcpy(&record, from.bytes, sizeof record);
  return record;
}

}  // namespace

struct ArchiveWriter::JobFile {
  std::string job_id;
  std::unique_ptr<archive::Writer> writer;  // null: given up for now
  std::filesystem::path path;               // as it will be called
  std::shared_ptr<const archive::Job> job;  // as it was described last
  std::uint64_t opened_ns = 0;
  std::uint64_t pending_ns = 0;  // when the oldest pending record came; 0 = none is pending
  std::uint64_t used_ns = 0;     // when a record came last
  std::uint64_t retry_ns = 0;
  std::uint64_t flushed_operations = 0;
  std::uint64_t flushed_bytes = 0;
  std::uint64_t dropped = 0;  // operations, since it was given up
  // Ids in the segment, by serial of the description.
  std::unordered_map<std::uint64_t, std::uint32_t> processes, communicators;
};

ArchiveWriter::ArchiveWriter(SegmentStore store, ArchiveStats& stats, const Clock& clock,
                             Options options)
    : store_(std::move(store)), stats_(stats), clock_(clock), options_(options) {
  publish();
}
ArchiveWriter::~ArchiveWriter() = default;

/// The job's segment, opened if need be.
ArchiveWriter::JobFile* ArchiveWriter::open(const archive::Job& job) {
  std::unique_ptr<JobFile>& entry = jobs_[job.job_id];
  if (!entry) {
    entry = std::make_unique<JobFile>();
    entry->job_id = job.job_id;
  }
  JobFile& file = *entry;
  const std::uint64_t now = clock_.monotonic_ns();
  file.used_ns = now;
  if (file.writer) return &file;
  if (now < file.retry_ns) return &file;
  make_room_for_open();
  Result<std::filesystem::path> path = store_.next(job.job_id, clock_.realtime_ns());
  if (!path.ok()) {
    give_up(file, path.status().message());
    return &file;
  }
  archive::Writer::Options options;
  options.zstd_level = options_.zstd_level;
  options.mode = store_.file_mode();
  options.writer = options_.instance;
  options.now_ns = clock_.realtime_ns();
  archive::Status status;
  file.path = path.value();
  file.writer = archive::Writer::create(file.path, options, status);
  if (!file.writer) {
    give_up(file, status.message());
    return &file;
  }
  if (file.dropped > 0) {
    log_info(concat("archive: job ", file.job_id, " is kept again; ", file.dropped,
                    " operations were lost meanwhile"));
  }
  store_.grown(file.path, file.writer->bytes());
  file.dropped = 0;
  file.opened_ns = now;
  file.pending_ns = 0;
  file.flushed_operations = 0;
  file.flushed_bytes = 0;
  file.job.reset();
  file.processes.clear();
  file.communicators.clear();
  return &file;
}

void ArchiveWriter::make_room_for_open() {
  for (;;) {
    JobFile* oldest = nullptr;
    std::size_t count = 0;
    for (auto& [id, file] : jobs_) {
      if (!file->writer) continue;
      ++count;
      if (oldest == nullptr || file->used_ns < oldest->used_ns) oldest = file.get();
    }
    if (count < options_.max_open) return;
    complete(*oldest);
  }
}

void ArchiveWriter::give_up(JobFile& file, const std::string& why) {
  errors_.log(clock_.monotonic_ns(), LogLevel::kError,
              concat("archive: job ", file.job_id, " is not kept for now: ", why));
  if (file.writer) {
    const std::uint64_t lost = file.writer->operations() - file.flushed_operations;
    stats_.dropped_disk += lost;
    file.dropped += lost;
  }
  if (!file.path.empty()) {
    store_.finished(file.path, file.writer ? file.writer->bytes() : 0, clock_.realtime_ns(), false);
  }
  file.writer.reset();
  file.path.clear();
  file.retry_ns = clock_.monotonic_ns() + kRetryNs;
}

ArchiveWriter::Target ArchiveWriter::target(const ArchivedSource& source) {
  JobFile* file = open(*source.process->job);
  if (!file->writer) return {file, 0};
  archive::Writer& writer = *file->writer;
  if (file->job != source.process->job) {
    file->job = source.process->job;
    writer.set_job(*file->job);
  }
  const auto known = file->communicators.find(source.serial);
  if (known != file->communicators.end()) return {file, known->second};
  const ArchivedProcess& process = *source.process;
  auto [it, fresh] = file->processes.try_emplace(process.serial, 0);
  if (fresh) it->second = writer.add_process(process.process);
  const std::uint32_t id = writer.add_communicator(it->second, source.communicator);
  file->communicators.emplace(source.serial, id);
  return {file, id};
}

void ArchiveWriter::take(const ArchiveChunk& chunk) {
  std::vector<Target> targets;
  targets.reserve(chunk.sources.size());
  for (const auto& source : chunk.sources) targets.push_back(target(*source));
  const std::uint64_t now = clock_.monotonic_ns();
  const auto write = [&](std::uint32_t place, bool operation, auto&& add) {
    Target& to = targets[place];
    // Completed for the sake of others, which takes more jobs in a chunk than may be open.
    if (!to.job->writer && now >= to.job->retry_ns) to = target(*chunk.sources[place]);
    if (!to.job->writer) {
      if (operation) {
        ++stats_.dropped_disk;
        ++to.job->dropped;
      }
      return;
    }
    if (to.job->pending_ns == 0) to.job->pending_ns = chunk.begun_ns;
    to.job->used_ns = now;
    const archive::Status status = add(*to.job->writer, to.communicator);
    if (!status.ok()) give_up(*to.job, status.message());
  };
  for (const ArchiveChunk::Record& record : chunk.records) {
    const bool operation = record.type == wire::RecordType::kOperation;
    write(record.source, operation, [&](archive::Writer& to, std::uint32_t id) {
      switch (record.type) {
        case wire::RecordType::kOperation:
          return to.add(id, record.index, record_of<wire::Operation>(record), record.sent_ns);
        case wire::RecordType::kNetworkPhases:
          return to.add(id, record.index, record_of<wire::NetworkPhases>(record));
        case wire::RecordType::kChannelDetail:
          return to.add(id, record.index, record_of<wire::ChannelDetail>(record));
        default:
          return to.add(id, record.index, record_of<wire::CommunicatorFinalize>(record));
      }
    });
  }
  for (const auto& progress : chunk.progress) {
    write(progress.first, false,
          [&](archive::Writer& to, std::uint32_t id) { return to.add(id, progress.second); });
  }
  for (const auto& books : chunk.books) {
    write(books.first, false,
          [&](archive::Writer& to, std::uint32_t id) { return to.add(id, books.second); });
  }
  std::size_t pending = 0;
  JobFile* largest = nullptr;
  for (auto& [id, file] : jobs_) {
    if (!file->writer) continue;
    pending += file->writer->pending_rows();
    if (largest == nullptr || file->writer->pending_rows() > largest->writer->pending_rows())
      largest = file.get();
  }
  if (pending > options_.max_pending_rows) flush(*largest);
}

void ArchiveWriter::flush(JobFile& file) {
  const archive::Status status = file.writer->flush();
  if (!status.ok()) {
    give_up(file, status.message());
    return;
  }
  file.pending_ns = 0;
  stats_.operations += file.writer->operations() - file.flushed_operations;
  stats_.written_bytes += file.writer->bytes() - file.flushed_bytes;
  file.flushed_operations = file.writer->operations();
  file.flushed_bytes = file.writer->bytes();
  store_.grown(file.path, file.writer->bytes());
}

void ArchiveWriter::complete(JobFile& file) {
  flush(file);
  if (!file.writer) return;
  const archive::Status status = file.writer->finish();
  if (!status.ok()) {
    give_up(file, status.message());
    return;
  }
  stats_.written_bytes += file.writer->bytes() - file.flushed_bytes;
  store_.finished(file.path, file.writer->bytes(), clock_.realtime_ns(), true);
  file.writer.reset();
  file.path.clear();
}

void ArchiveWriter::tick() {
  const std::uint64_t now = clock_.monotonic_ns();
  for (auto it = jobs_.begin(); it != jobs_.end();) {
    JobFile& file = *it->second;
    if (file.writer && file.pending_ns != 0 &&
        now + options_.margin_ns >= file.pending_ns + options_.flush_ns) {
      flush(file);
    }
    if (file.writer &&
        (now - file.opened_ns >= options_.segment_ns || now - file.used_ns >= kIdleNs ||
         file.writer->bytes() >= options_.segment_bytes)) {
      complete(file);
    }
    const bool forgotten = !file.writer && now >= file.retry_ns && now - file.used_ns >= kIdleNs;
    it = forgotten ? jobs_.erase(it) : std::next(it);
  }
  if (now - enforced_ns_ >= kEnforceNs) {
    enforced_ns_ = now;
    store_.enforce(clock_.realtime_ns());
  }
  publish();
}

void ArchiveWriter::finish() {
  for (auto& [id, file] : jobs_) {
    if (file->writer) complete(*file);
  }
  store_.enforce(clock_.realtime_ns());
  publish();
}

void ArchiveWriter::publish() {
  stats_.stored_bytes = store_.bytes();
  stats_.segments = store_.segments();
  for (std::size_t i = 0; i < SegmentStore::kReasons; ++i)
    stats_.deleted[i] = store_.deleted(static_cast<SegmentStore::Reason>(i));
}

}  // namespace ncclscope::agent

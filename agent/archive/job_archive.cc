// SPDX-License-Identifier: Apache-2.0
#include "agent/archive/job_archive.h"

#include <pthread.h>
#include <signal.h>

#include <condition_variable>
#include <mutex>
#include <thread>
#include <utility>

#include "agent/base/log.h"

namespace ncclscope::agent {

/// What the thread works on. Both hold it: nobody can know when a disk that hangs comes back.
struct JobArchive::Shared {
  Shared(SegmentStore store, const Clock& clock, const Options& options)
      : queue(options.max_chunks),
        writer(std::move(store), stats, clock, options.writer),
        wake(options.wake) {}

  void run() {
    while (!queue.done()) {
      if (std::unique_ptr<ArchiveChunk> chunk = queue.pop(wake)) {
        writer.take(*chunk);
        queue.give_back(std::move(chunk));
      }
      writer.tick();
    }
    writer.finish();
    const std::lock_guard lock(mutex);
    ended = true;
    at_end.notify_all();
  }

  ArchiveQueue queue;
  ArchiveStats stats;
  ArchiveWriter writer;
  const std::chrono::milliseconds wake;
  std::mutex mutex;
  std::condition_variable at_end;
  bool ended = false;  // guarded by mutex
};

Result<std::unique_ptr<JobArchive>> JobArchive::create(Aggregator& aggregator, const Clock& clock,
                                                       const Options& options) {
  Result<SegmentStore> store = SegmentStore::create(options.store);
  if (!store.ok()) return store.status();
  std::unique_ptr<JobArchive> made(new JobArchive());
  made->shared_ = std::make_shared<Shared>(std::move(store).value(), clock, options);
  made->limit_bytes_ = options.store.total_bytes;
  made->sink_ = std::make_unique<ArchiveSink>(aggregator, made->shared_->queue,
                                              made->shared_->stats, clock, options.sink);
  // Signals are the main thread's.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_BLOCK, &all, &before);
  std::thread([shared = made->shared_] {
    pthread_setname_np(pthread_self(), "archive");
    shared->run();
  }).detach();  // stop() waits for its end, with a limit
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
  return made;
}

JobArchive::~JobArchive() {
  stop(std::chrono::milliseconds(0));
}

ArchiveCounts JobArchive::counts() const {
  ArchiveCounts counts = shared_->stats.counts();
  counts.limit_bytes = limit_bytes_;
  return counts;
}

void JobArchive::stop(std::chrono::milliseconds patience) {
  if (std::exchange(stopped_, true)) return;
  sink_->flush();
  shared_->queue.close();
  std::unique_lock lock(shared_->mutex);
  if (!shared_->at_end.wait_for(lock, patience, [this] { return shared_->ended; })) {
    log_error("archive: the disk does not take the last operations; its segments stay *.part");
  }
}

}  // namespace ncclscope::agent

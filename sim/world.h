// SPDX-License-Identifier: Apache-2.0
// The memory that all processes of one emulated job share: virtual or real time, wait words, and
// the meeting places of communicators. One World per simulation; created by the parent, opened by
// name in rank processes (or anonymous, for one process). Times are int64 nanoseconds on
// CLOCK_MONOTONIC's scale. Creation and opening throw std::system_error; everything else cannot
// fail.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace ncclscope::sim {

inline constexpr std::int64_t kNever = INT64_MAX;

enum class Pace { kRealTime, kAsFastAsPossible };

struct WorldLayout;  // what lies in the shared memory
struct CommBoard;
struct PairBoard;

/// Shared memory of one simulation. Threads that take part in virtual time are *actors*: while any
/// actor runs, virtual time stands still; when all wait, it jumps to the earliest wake-up.
class World {
 public:
  /// `arena_bytes`: room for communicators' meeting places (sparse). The memory has no name in the
  /// file system: it goes with the last process that maps it, however that process ended.
  static std::shared_ptr<World> create(Pace pace, std::size_t arena_bytes = std::size_t{64} << 20);
  /// `path`: what path() said in the process that created the world and still holds it.
  static std::shared_ptr<World> open(const std::string& path);
  ~World();
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  /// Where another process of the same user opens this memory; only of a created world.
  std::string path() const;
  Pace pace() const;

  std::int64_t now() const;
  /// CLOCK_REALTIME minus CLOCK_MONOTONIC when the world was made: GPU timers resemble Unix time.
  std::int64_t epoch_offset() const;

  // Actors. A slot is reserved before the thread exists, so that time cannot slip away in between.
  int reserve_actor(int owner);
  void adopt_actor(int slot);  ///< the calling thread becomes this actor
  void release_actor();        ///< the calling thread is no actor any more
  /// Takes all actors of a dead process out of the reckoning.
  void drop_owner(int owner);

  void sleep_until(std::int64_t t);

  // Wait words: read the version, check the condition, wait for a newer version.
  std::uint32_t new_word();
  std::uint32_t version(std::uint32_t word) const;
  /// Returns when the word's version is no longer `seen` or `deadline` has come.
  void wait(std::uint32_t word, std::uint32_t seen, std::int64_t deadline = kNever);
  void notify(std::uint32_t word);

  /// Waits until `ready()`; false when `deadline` came first.
  template <typename Ready>
  bool wait_for(std::uint32_t word, std::int64_t deadline, Ready ready) {
    for (;;) {
      const std::uint32_t seen = version(word);
      if (ready()) return true;
      if (now() >= deadline) return false;
      wait(word, seen, deadline);
    }
  }

  // Meeting places.
  CommBoard* comm_board(std::uint64_t key, int n_ranks);
  PairBoard* pair_board(std::uint64_t key);
  /// Broadcast flag: the simulation is to end now. Wakes all waits on words.
  void request_stop();
  bool stop_requested() const;
  /// Agreement on the last step: a rank asks before each step whether to begin it. Once one rank
  /// finds that time is up, all ranks end at the same step. `last` is the number of steps at most.
  bool begin_step(std::int64_t step, std::int64_t end_time, std::int64_t last);
  std::int64_t steps_begun() const;
  /// Counts of operations completed, for progress reports: all ranks together.
  std::atomic<std::uint64_t>& completed_operations();

 private:
  World(void* memory, std::size_t bytes, int fd);
  void* allocate(std::size_t bytes);
  void advance_locked();
  void lock() const;
  void unlock() const;

  WorldLayout* layout_;
  std::size_t bytes_;
  int fd_;  // of the memory where it was created, else -1
};

/// A thread that is an actor of the world's time. join() is a wait in that time.
class SimThread {
 public:
  SimThread() = default;
  SimThread(std::shared_ptr<World> world, int owner, const char* name, std::function<void()> body);
  SimThread(SimThread&&) noexcept = default;
  SimThread& operator=(SimThread&&) noexcept;
  ~SimThread();
  void join();
  bool joinable() const { return thread_.joinable(); }

 private:
  struct Done;
  std::shared_ptr<World> world_;
  std::shared_ptr<Done> done_;
  std::thread thread_;
};

inline constexpr int kBoardDepth = 32;

/// Where the ranks of one communicator tell each other when their kernels start.
class Meeting {
 public:
  Meeting(std::shared_ptr<World> world, std::uint64_t comm_key, int n_ranks, int rank);

  /// Blocks until all ranks have called it, `stop()` or the deadline; false if not all came.
  bool join_all(std::int64_t deadline, const std::function<bool()>& stop);

  /// Tells that this rank starts its collective batch number `index`. Waits while others are more
  /// than kBoardDepth batches behind. False: gave up because of `stop`.
  struct Arrival {
    std::int64_t start = 0;
    std::int64_t extra =
        0;  ///< ns by which this rank's GPU or link slows the operation; kNever: stuck
    std::uint64_t signature = 0;
  };
  bool post(std::uint64_t index, const Arrival& arrival, const std::function<bool()>& stop);
  /// Waits for the start of `rank` for batch `index`. False: gave up because of `stop`.
  bool await(int rank, std::uint64_t index, Arrival* out, const std::function<bool()>& stop);
  /// Same without waiting.
  bool peek(int rank, std::uint64_t index, Arrival* out) const;

  /// One transfer between two ranks; `sender` says which half is told. Halves are counted per pair.
  bool post_pair(int source, int target, std::uint64_t index, bool sender, std::int64_t start,
                 const std::function<bool()>& stop);
  bool await_pair(int source, int target, std::uint64_t index, bool sender, std::int64_t* start,
                  const std::function<bool()>& stop);

  void wake();  ///< makes waiting calls look at `stop` again
  std::uint32_t word() const;

 private:
  PairBoard* pair(int source, int target);

  std::shared_ptr<World> world_;
  std::uint64_t key_;
  CommBoard* board_;
  int n_ranks_;
  int rank_;
  std::mutex pairs_mutex_;
  std::vector<std::pair<std::uint64_t, PairBoard*>> pairs_;
};

}  // namespace ncclscope::sim

// SPDX-License-Identifier: Apache-2.0
// Shared memory of a simulation: see world.h. Real time uses futexes on the wait words alone;
// virtual time keeps all actors in one table under one robust process-shared mutex, and the last
// actor that goes to wait moves the clock.
#include "sim/world.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <system_error>

#include "sim/virtual_clock.h"

namespace ncclscope::sim {
namespace {

constexpr std::uint64_t kMagic = 0x6e63636c73696d31;  // "ncclsim1"
constexpr int kMaxActors = 4096;
constexpr std::uint32_t kWords = 16384;
constexpr std::uint32_t kMaxComms = 4096;
constexpr std::uint32_t kMaxPairs = 65536;
constexpr int kPairDepth = 16;

static_assert(std::atomic<std::int64_t>::is_always_lock_free);
static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

std::int64_t real_clock(clockid_t id) {
  timespec ts{};
  ::syscall(SYS_clock_gettime, id, &ts);
  return std::int64_t{ts.tv_sec} * 1000000000 + ts.tv_nsec;
}

void futex_wait(std::atomic<std::uint32_t>* word, std::uint32_t expected, std::int64_t timeout_ns) {
  timespec ts{};
  timespec* timeout = nullptr;
  if (timeout_ns != kNever) {
    if (timeout_ns <= 0) return;
    ts.tv_sec = timeout_ns / 1000000000;
    ts.tv_nsec = timeout_ns % 1000000000;
    timeout = &ts;
  }
  ::syscall(SYS_futex, word, FUTEX_WAIT, expected, timeout, nullptr, 0);
}

void futex_wake(std::atomic<std::uint32_t>* word, int count) {
  ::syscall(SYS_futex, word, FUTEX_WAKE, count, nullptr, nullptr, 0);
}

enum ActorState : std::int32_t { kFree = 0, kRunning = 1, kWaiting = 2 };

struct Actor {
  std::int32_t state;
  std::int32_t owner;
  std::uint32_t word;  // kWords: sleeps on time only
  std::int64_t wake_at;
  std::atomic<std::uint32_t> go;
};

struct WordState {
  std::atomic<std::uint32_t> version;
  std::atomic<std::uint32_t> waiters;
};

}  // namespace

struct RankSlot {
  std::atomic<std::int64_t> start[kBoardDepth];
  std::atomic<std::int64_t> extra[kBoardDepth];
  std::atomic<std::uint64_t> signature[kBoardDepth];
  std::atomic<std::uint64_t> posted;
  std::uint32_t word;  // moves when this rank posts: only who waits for it wakes
};

struct CommBoard {
  std::uint64_t key;
  std::int32_t n_ranks;
  std::uint32_t word;
  std::atomic<std::int32_t> joined;
  RankSlot* ranks(void* base) {
    return reinterpret_cast<RankSlot*>(static_cast<char*>(base) + offset);
  }
  std::uint64_t offset;
};

struct PairBoard {
  std::uint64_t key;
  std::uint32_t word;
  std::atomic<std::uint64_t> posted[2];
  std::atomic<std::int64_t> start[2][kPairDepth];
};

struct WorldLayout {
  std::atomic<std::uint64_t> magic;
  std::uint64_t bytes;
  Pace pace;
  std::int64_t epoch_offset;
  pthread_mutex_t mutex;
  std::atomic<std::int64_t> virtual_now;
  std::int32_t running;
  std::int32_t actor_limit;  // slots ever used
  std::atomic<std::uint32_t> next_word;
  std::atomic<std::int32_t> stop;
  std::atomic<std::uint64_t> completed;
  std::atomic<std::int64_t> steps_begun;
  std::atomic<std::int64_t> final_step;  // 0: nobody has found that time is up
  std::uint64_t arena_used;
  std::uint32_t n_comms;
  Actor actors[kMaxActors];
  WordState words[kWords];
  std::uint64_t comm_offsets[kMaxComms];
  std::atomic<std::uint64_t> pair_offsets[kMaxPairs];
};

namespace {
thread_local int tls_actor = -1;
}

World::World(void* memory, std::size_t bytes, int fd)
    : layout_(static_cast<WorldLayout*>(memory)), bytes_(bytes), fd_(fd) {
  if (pace() == Pace::kAsFastAsPossible)
    set_virtual_time_source(&layout_->virtual_now, epoch_offset());
}

std::shared_ptr<World> World::create(Pace pace, std::size_t arena_bytes) {
  const std::size_t bytes = sizeof(WorldLayout) + arena_bytes;
  const int fd = ::memfd_create("ncclscope-simulation", MFD_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "memfd_create");
  void* memory = MAP_FAILED;
  if (::ftruncate(fd, static_cast<off_t>(bytes)) == 0) {
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  if (memory == MAP_FAILED) {
    const int saved = errno;
    ::close(fd);
    throw std::system_error(saved, std::generic_category(), "memory of the simulation");
  }
  auto* layout = static_cast<WorldLayout*>(memory);  // fresh pages are zero, as all members need
  layout->bytes = bytes;
  layout->pace = pace;
  layout->epoch_offset = real_clock(CLOCK_REALTIME) - real_clock(CLOCK_MONOTONIC);
  layout->virtual_now.store(real_clock(CLOCK_MONOTONIC));
  pthread_mutexattr_t attr;
  ::pthread_mutexattr_init(&attr);
  ::pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  ::pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  ::pthread_mutex_init(&layout->mutex, &attr);
  ::pthread_mutexattr_destroy(&attr);
  layout->next_word.store(1);
  layout->magic.store(kMagic);
  return std::shared_ptr<World>(new World(memory, bytes, fd));
}

std::shared_ptr<World> World::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (fd < 0) throw std::system_error(errno, std::generic_category(), "open " + path);
  struct stat st {};
  void* memory = MAP_FAILED;
  std::size_t bytes = 0;
  if (::fstat(fd, &st) == 0 && st.st_size > 0) {
    bytes = static_cast<std::size_t>(st.st_size);
    memory = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, fd, 0);
  }
  const int saved = errno;
  ::close(fd);
  if (memory == MAP_FAILED) throw std::system_error(saved, std::generic_category(), "mmap " + path);
  auto* layout = static_cast<WorldLayout*>(memory);
  if (bytes < sizeof(WorldLayout) || layout->magic.load() != kMagic || layout->bytes != bytes) {
    ::munmap(memory, bytes);
    throw std::system_error(EINVAL, std::generic_category(),
                            path + " is not the memory of a simulation of this version");
  }
  return std::shared_ptr<World>(new World(memory, bytes, -1));
}

World::~World() {
  if (pace() == Pace::kAsFastAsPossible) set_virtual_time_source(nullptr, 0);
  ::munmap(layout_, bytes_);
  if (fd_ >= 0) ::close(fd_);
}

std::string World::path() const {
  return "/proc/" + std::to_string(::getpid()) + "/fd/" + std::to_string(fd_);
}

Pace World::pace() const {
  return layout_->pace;
}
std::int64_t World::epoch_offset() const {
  return layout_->epoch_offset;
}

std::int64_t World::now() const {
  if (layout_->pace == Pace::kRealTime) return real_clock(CLOCK_MONOTONIC);
  return layout_->virtual_now.load(std::memory_order_acquire);
}

void World::lock() const {
  if (::pthread_mutex_lock(&layout_->mutex) == EOWNERDEAD) {
    ::pthread_mutex_consistent(&layout_->mutex);  // the table is consistent between any two stores
  }
}
void World::unlock() const {
  ::pthread_mutex_unlock(&layout_->mutex);
}

int World::reserve_actor(int owner) {
  lock();
  int slot = 0;
  while (slot < kMaxActors && layout_->actors[slot].state != kFree) ++slot;
  if (slot == kMaxActors) {
    unlock();
    throw std::system_error(EAGAIN, std::generic_category(), "more than 4096 emulated threads");
  }
  Actor& actor = layout_->actors[slot];
  actor.state = kRunning;
  actor.owner = owner;
  actor.wake_at = kNever;
  actor.go.store(0);
  ++layout_->running;
  layout_->actor_limit = std::max(layout_->actor_limit, slot + 1);
  unlock();
  return slot;
}

void World::adopt_actor(int slot) {
  tls_actor = slot;
}

void World::release_actor() {
  if (tls_actor < 0) return;
  lock();
  Actor& actor = layout_->actors[tls_actor];
  if (actor.state == kRunning) --layout_->running;
  actor.state = kFree;
  advance_locked();
  unlock();
  tls_actor = -1;
}

void World::drop_owner(int owner) {
  lock();
  for (int i = 0; i < layout_->actor_limit; ++i) {
    Actor& actor = layout_->actors[i];
    if (actor.state == kFree || actor.owner != owner) continue;
    if (actor.state == kRunning) --layout_->running;
    actor.state = kFree;
  }
  advance_locked();
  unlock();
}

void World::advance_locked() {
  if (layout_->pace == Pace::kRealTime || layout_->running > 0) return;
  std::int64_t earliest = kNever;
  for (int i = 0; i < layout_->actor_limit; ++i) {
    const Actor& actor = layout_->actors[i];
    if (actor.state == kWaiting) earliest = std::min(earliest, actor.wake_at);
  }
  if (earliest == kNever) return;  // all wait for somebody outside the reckoning
  if (earliest > layout_->virtual_now.load()) layout_->virtual_now.store(earliest);
  for (int i = 0; i < layout_->actor_limit; ++i) {
    Actor& actor = layout_->actors[i];
    if (actor.state != kWaiting || actor.wake_at > earliest) continue;
    actor.state = kRunning;
    ++layout_->running;
    actor.go.store(1);
    futex_wake(&actor.go, 1);
  }
}

void World::sleep_until(std::int64_t t) {
  if (layout_->pace == Pace::kRealTime) {
    if (t == kNever) t = now() + std::int64_t{3600} * 1000000000;
    timespec ts{};
    ts.tv_sec = t / 1000000000;
    ts.tv_nsec = t % 1000000000;
    while (::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, nullptr) == EINTR) {
    }
    return;
  }
  if (t <= now()) return;
  wait(kWords, 0, t);
}

std::uint32_t World::new_word() {
  // Words are shared after wrapping around; a shared word only causes needless wake-ups.
  return layout_->next_word.fetch_add(1) % kWords;
}

std::uint32_t World::version(std::uint32_t word) const {
  return layout_->words[word].version.load(std::memory_order_acquire);
}

void World::wait(std::uint32_t word, std::uint32_t seen, std::int64_t deadline) {
  if (layout_->pace == Pace::kRealTime) {
    WordState& state = layout_->words[word];
    state.waiters.fetch_add(1);
    if (state.version.load() == seen) {
      futex_wait(&state.version, seen, deadline == kNever ? kNever : deadline - now());
    }
    state.waiters.fetch_sub(1);
    return;
  }
  lock();
  if (word != kWords && layout_->words[word].version.load() != seen) {
    unlock();
    return;
  }
  if (tls_actor < 0) {  // a thread outside the reckoning: polls
    unlock();
    timespec ts{0, 200000};
    ::nanosleep(&ts, nullptr);
    return;
  }
  Actor& actor = layout_->actors[tls_actor];
  actor.word = word;
  actor.wake_at = deadline;
  actor.go.store(0);
  actor.state = kWaiting;
  --layout_->running;
  advance_locked();
  unlock();
  while (actor.go.load(std::memory_order_acquire) == 0) futex_wait(&actor.go, 0, kNever);
}

void World::notify(std::uint32_t word) {
  WordState& state = layout_->words[word];
  if (layout_->pace == Pace::kRealTime) {
    state.version.fetch_add(1);
    if (state.waiters.load() > 0) futex_wake(&state.version, INT32_MAX);
    return;
  }
  lock();
  state.version.fetch_add(1);
  for (int i = 0; i < layout_->actor_limit; ++i) {
    Actor& actor = layout_->actors[i];
    if (actor.state != kWaiting || actor.word != word) continue;
    actor.state = kRunning;
    ++layout_->running;
    actor.go.store(1);
    futex_wake(&actor.go, 1);
  }
  unlock();
}

void* World::allocate(std::size_t bytes) {
  const std::size_t aligned = (bytes + 63) & ~std::size_t{63};
  const std::size_t begin = (sizeof(WorldLayout) + 63) & ~std::size_t{63};
  if (begin + layout_->arena_used + aligned > bytes_) throw std::bad_alloc();
  char* memory = reinterpret_cast<char*>(layout_) + begin + layout_->arena_used;
  layout_->arena_used += aligned;
  return memory;
}

CommBoard* World::comm_board(std::uint64_t key, int n_ranks) {
  lock();
  char* base = reinterpret_cast<char*>(layout_);
  CommBoard* board = nullptr;
  for (std::uint32_t i = 0; i < layout_->n_comms && board == nullptr; ++i) {
    auto* candidate = reinterpret_cast<CommBoard*>(base + layout_->comm_offsets[i]);
    if (candidate->key == key) board = candidate;
  }
  if (board == nullptr && layout_->n_comms < kMaxComms) {
    try {
      board = static_cast<CommBoard*>(allocate(sizeof(CommBoard)));
      board->key = key;
      board->n_ranks = n_ranks;
      board->word = new_word();
      void* ranks = allocate(sizeof(RankSlot) * static_cast<std::size_t>(n_ranks));
      board->offset =
          static_cast<std::uint64_t>(static_cast<char*>(ranks) - reinterpret_cast<char*>(board));
      layout_->comm_offsets[layout_->n_comms++] =
          static_cast<std::uint64_t>(reinterpret_cast<char*>(board) - base);
    } catch (...) {
      unlock();
      throw;
    }
  }
  unlock();
  if (board == nullptr) {
    throw std::system_error(ENOSPC, std::generic_category(), "more than 4096 communicators");
  }
  return board;
}

PairBoard* World::pair_board(std::uint64_t key) {
  char* base = reinterpret_cast<char*>(layout_);
  for (std::uint32_t probe = 0; probe < kMaxPairs; ++probe) {
    auto& cell = layout_->pair_offsets[(key + probe) % kMaxPairs];
    std::uint64_t offset = cell.load(std::memory_order_acquire);
    if (offset == 0) {
      lock();
      offset = cell.load();
      if (offset == 0) {
        try {
          auto* pair = static_cast<PairBoard*>(allocate(sizeof(PairBoard)));
          pair->key = key;
          pair->word = new_word();
          offset = static_cast<std::uint64_t>(reinterpret_cast<char*>(pair) - base);
          cell.store(offset, std::memory_order_release);
        } catch (...) {
          unlock();
          throw;
        }
      }
      unlock();
    }
    auto* pair = reinterpret_cast<PairBoard*>(base + offset);
    if (pair->key == key) return pair;
  }
  throw std::system_error(ENOSPC, std::generic_category(), "more than 65536 communicating pairs");
}

void World::request_stop() {
  layout_->stop.store(1);
  const std::uint32_t used = std::min(layout_->next_word.load(), kWords);
  for (std::uint32_t word = 0; word < used; ++word) notify(word);
}

bool World::begin_step(std::int64_t step, std::int64_t end_time, std::int64_t last) {
  if (step >= last || stop_requested()) return false;
  std::int64_t begun = layout_->steps_begun.load();
  while (begun < step + 1 && !layout_->steps_begun.compare_exchange_weak(begun, step + 1)) {
  }
  std::int64_t final_step = layout_->final_step.load();
  if (final_step == 0 && now() >= end_time) {
    // Ranks are at most a step apart here; two more steps reach everybody.
    layout_->final_step.compare_exchange_strong(final_step, layout_->steps_begun.load() + 2);
    final_step = layout_->final_step.load();
  }
  return final_step == 0 || step < final_step;
}

std::int64_t World::steps_begun() const {
  return layout_->steps_begun.load();
}

bool World::stop_requested() const {
  return layout_->stop.load(std::memory_order_relaxed) != 0;
}
std::atomic<std::uint64_t>& World::completed_operations() {
  return layout_->completed;
}

// ---------------------------------------------------------------------------------------------

struct SimThread::Done {
  std::atomic<bool> finished{false};
  std::uint32_t word = 0;
};

SimThread::SimThread(std::shared_ptr<World> world, int owner, const char* name,
                     std::function<void()> body)
    : world_(std::move(world)), done_(std::make_shared<Done>()) {
  done_->word = world_->new_word();
  const int slot = world_->reserve_actor(owner);
  thread_ = std::thread([w = world_, d = done_, slot, label = std::string(name).substr(0, 15),
                         run = std::move(body)] {
    w->adopt_actor(slot);
    ::pthread_setname_np(::pthread_self(), label.empty() ? "app" : label.c_str());
    run();
    d->finished.store(true);
    w->notify(d->word);
    w->release_actor();
  });
}

SimThread& SimThread::operator=(SimThread&& other) noexcept {
  if (this != &other) {
    join();
    world_ = std::move(other.world_);
    done_ = std::move(other.done_);
    thread_ = std::move(other.thread_);
  }
  return *this;
}

SimThread::~SimThread() {
  join();
}

void SimThread::join() {
  if (!thread_.joinable()) return;
  world_->wait_for(done_->word, kNever, [this] { return done_->finished.load(); });
  thread_.join();
}

// ---------------------------------------------------------------------------------------------

Meeting::Meeting(std::shared_ptr<World> world, std::uint64_t comm_key, int n_ranks, int rank)
    : world_(std::move(world)),
      key_(comm_key),
      board_(world_->comm_board(comm_key, n_ranks)),
      n_ranks_(n_ranks),
      rank_(rank) {}

std::uint32_t Meeting::word() const {
  return board_->word;
}
void Meeting::wake() {
  world_->notify(board_->word);
  for (int r = 0; r < n_ranks_; ++r) world_->notify(board_->ranks(board_)[r].word);
  std::lock_guard guard(pairs_mutex_);
  for (auto& [key, pair] : pairs_) world_->notify(pair->word);
}

bool Meeting::join_all(std::int64_t deadline, const std::function<bool()>& stop) {
  board_->joined.fetch_add(1);
  world_->notify(board_->word);
  bool stopped = false;
  const bool ready = world_->wait_for(board_->word, deadline, [&] {
    if (board_->joined.load() >= n_ranks_) return true;
    stopped = stop && stop();
    return stopped;
  });
  return ready && !stopped;
}

bool Meeting::post(std::uint64_t index, const Arrival& arrival, const std::function<bool()>& stop) {
  RankSlot* ranks = board_->ranks(board_);
  for (int r = 0; r < n_ranks_ && index >= kBoardDepth; ++r) {
    // A rank that posted batch i has read everything before i.
    bool stopped = false;
    world_->wait_for(ranks[r].word, kNever, [&] {
      if (ranks[r].posted.load(std::memory_order_acquire) + kBoardDepth > index + 1) return true;
      stopped = r != rank_ && stop();
      return stopped || r == rank_;
    });
    if (stopped) return false;
  }
  RankSlot& mine = ranks[rank_];
  mine.start[index % kBoardDepth].store(arrival.start, std::memory_order_relaxed);
  mine.extra[index % kBoardDepth].store(arrival.extra, std::memory_order_relaxed);
  mine.signature[index % kBoardDepth].store(arrival.signature, std::memory_order_relaxed);
  mine.posted.store(index + 1, std::memory_order_release);
  world_->notify(mine.word);
  return true;
}

bool Meeting::peek(int rank, std::uint64_t index, Arrival* out) const {
  const RankSlot& slot = board_->ranks(board_)[rank];
  if (slot.posted.load(std::memory_order_acquire) <= index) return false;
  out->start = slot.start[index % kBoardDepth].load(std::memory_order_relaxed);
  out->extra = slot.extra[index % kBoardDepth].load(std::memory_order_relaxed);
  out->signature = slot.signature[index % kBoardDepth].load(std::memory_order_relaxed);
  return true;
}

bool Meeting::await(int rank, std::uint64_t index, Arrival* out,
                    const std::function<bool()>& stop) {
  bool stopped = false;
  world_->wait_for(board_->ranks(board_)[rank].word, kNever, [&] {
    if (peek(rank, index, out)) return true;
    stopped = stop();
    return stopped;
  });
  return !stopped;
}

PairBoard* Meeting::pair(int source, int target) {
  std::uint64_t key = key_ ^ (static_cast<std::uint64_t>(static_cast<std::uint32_t>(source)) << 32 |
                              static_cast<std::uint32_t>(target));
  key *= 0x9e3779b97f4a7c15;
  key ^= key >> 29;
  key |= 1;
  std::lock_guard guard(pairs_mutex_);
  for (auto& [known, board] : pairs_) {
    if (known == key) return board;
  }
  PairBoard* board = world_->pair_board(key);
  pairs_.emplace_back(key, board);
  return board;
}

bool Meeting::post_pair(int source, int target, std::uint64_t index, bool sender,
                        std::int64_t start, const std::function<bool()>& stop) {
  PairBoard* board = pair(source, target);
  const int half = sender ? 0 : 1;
  bool stopped = false;
  world_->wait_for(board->word, kNever, [&] {
    const bool room = board->posted[1 - half].load(std::memory_order_acquire) + kPairDepth > index;
    stopped = !room && stop();
    return room || stopped;
  });
  if (stopped) return false;
  board->start[half][index % kPairDepth].store(start, std::memory_order_relaxed);
  board->posted[half].store(index + 1, std::memory_order_release);
  world_->notify(board->word);
  return true;
}

bool Meeting::await_pair(int source, int target, std::uint64_t index, bool sender,
                         std::int64_t* start, const std::function<bool()>& stop) {
  PairBoard* board = pair(source, target);
  const int half = sender ? 0 : 1;
  bool stopped = false;
  world_->wait_for(board->word, kNever, [&] {
    if (board->posted[half].load(std::memory_order_acquire) > index) return true;
    stopped = stop();
    return stopped;
  });
  if (stopped) return false;
  *start = board->start[half][index % kPairDepth].load(std::memory_order_relaxed);
  return true;
}

}  // namespace ncclscope::sim

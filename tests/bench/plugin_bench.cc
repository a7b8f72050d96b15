// SPDX-License-Identifier: Apache-2.0
// What the plugin costs on NCCL's threads, through the table of the shared object as it ships:
// default mask, sender running, an agent connected (another process). The cost of reading the timer
// is subtracted. The sender looks every 5 ms instead of every 100 ms: a flood then goes on without
// waiting for the agent to count it, and the sender disturbs more often. A benchmark fails if the
// agent did not count exactly the operations that were driven.
#include <benchmark/benchmark.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>
#include <x86intrin.h>

#include <algorithm>
#include <memory>
#include <numeric>
#include <vector>

#include "plugin/tables.h"
#include "tests/support/plugin_driver.h"
#include "tests/support/stub_agent.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/plugin/governor_rig.h"

extern "C" int ncclGetVersion(int* version) {
  *version = 22809;
  return 0;
}

namespace ncclscope::tests {
namespace {

/// An agent in a process of its own that publishes how many operations it has counted.
class AgentProcess {
 public:
  struct Shared {
    std::atomic<bool> ready, stop;
    std::atomic<std::uint64_t> operations, bytes, lost;
    std::atomic<std::uint64_t> seen, callback_ns;  // of the newest books, seen written last
  };
  AgentProcess() {
    const std::string socket = directory_ / "agent.sock";
    setenv("NCCLSCOPE_SOCKET", socket.c_str(), 1);
    setenv("NCCLSCOPE_SENDER_INTERVAL_MS", "5", 1);
    // A flood is far over the default budget: the governor would make everything cheaper.
    setenv("NCCLSCOPE_OVERHEAD_BUDGET", "1", 1);
    shared_ = static_cast<Shared*>(
        mmap(nullptr, sizeof(Shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0));
    new (shared_) Shared{};
    child_ = fork();
    if (child_ == 0) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      StubAgent::Behaviour behaviour;
      behaviour.keep_records = false;
      {
        StubAgent agent(socket, behaviour);
        shared_->ready.store(true);
        while (!shared_->stop.load()) {
          shared_->operations.store(agent.operation_count());
          shared_->bytes.store(agent.bytes());
          shared_->lost.store(agent.lost());
          for (const auto& [session, books] : agent.books()) {
            shared_->callback_ns.store(books.callback_ns);
            shared_->seen.store(books.seen);
          }
          usleep(500);
        }
      }
      _exit(0);
    }
    while (!shared_->ready.load()) usleep(1000);
  }
  ~AgentProcess() {
    shared_->stop.store(true);
    waitpid(child_, nullptr, 0);
  }
  AgentProcess(const AgentProcess&) = delete;
  AgentProcess& operator=(const AgentProcess&) = delete;

  std::uint64_t operations() const { return shared_->operations.load(); }
  std::uint64_t bytes() const { return shared_->bytes.load(); }
  /// What the plugin estimates of its own time, once its books tell of `n` operations; -1 = never.
  double callback_ns(std::uint64_t n) const {
    const std::uint64_t deadline = gpu_now_ns() + 20'000'000'000;
    while (shared_->seen.load() != n && gpu_now_ns() < deadline) usleep(1000);
    return shared_->seen.load() == n ? static_cast<double>(shared_->callback_ns.load()) : -1;
  }
  /// Spins: a core that sleeps between measurements comes back slow and with cold caches.
  bool wait_for(std::uint64_t n) const {
    const std::uint64_t deadline = gpu_now_ns() + 20'000'000'000;
    while (operations() < n && gpu_now_ns() < deadline) _mm_pause();
    return operations() >= n;
  }

 private:
  const tests::TemporaryDirectory directory_;
  Shared* shared_ = nullptr;
  pid_t child_ = -1;
};

// The usual pair around a short section: nothing earlier runs into it, and it is complete when the
// end is read.
std::uint64_t begin_ticks() {
  _mm_lfence();
  return __rdtsc();
}
std::uint64_t end_ticks() {
  unsigned cpu = 0;
  const std::uint64_t t = __rdtscp(&cpu);
  _mm_lfence();
  return t;
}

struct Timer {
  double ns_per_tick;
  std::uint64_t overhead;  // ticks of an empty measurement, median
  Timer() {
    const std::uint64_t t0 = gpu_now_ns(), c0 = begin_ticks();
    usleep(50'000);
    const std::uint64_t t1 = gpu_now_ns(), c1 = end_ticks();
    ns_per_tick = static_cast<double>(t1 - t0) / static_cast<double>(c1 - c0);
    std::vector<std::uint64_t> empty(10'001);
    for (auto& e : empty) {
      const std::uint64_t a = begin_ticks();
      e = end_ticks() - a;
    }
    std::nth_element(empty.begin(), empty.begin() + 5'000, empty.end());
    overhead = empty[5'000];
  }
  double ns(std::uint64_t d) const {
    return d <= overhead ? 0.0 : static_cast<double>(d - overhead) * ns_per_tick;
  }
};

double percentile(std::vector<std::uint64_t>& samples, double p) {
  const auto at = static_cast<std::ptrdiff_t>(p * static_cast<double>(samples.size() - 1));
  std::nth_element(samples.begin(), samples.begin() + at, samples.end());
  return static_cast<double>(samples[static_cast<std::size_t>(at)]);
}

/// One process loads the plugin once; all benchmarks share the communicators.
struct World {
  std::unique_ptr<AgentProcess> agent = std::make_unique<AgentProcess>();
  Timer timer;
  std::vector<DrivenCommunicator> communicators;
  std::uint64_t driven = 0;
  std::uint64_t gpu = gpu_now_ns() + 3'600'000'000'000;
  std::uint64_t seq = 0;

  World() {
    const auto* table = load_table<nccl::ProfilerV5>(NCCLSCOPE_PLUGIN_PATH, 5);
    for (std::uint64_t i = 0; i < 64; ++i)
      communicators.emplace_back(table, 1000 + i, 8, 0, "bench");
    usleep(300'000);
  }
  static World& get() {
    static World* world = new World;
    return *world;
  }
  static void end() { get().agent.reset(); }

  /// An operation's channels report; not measured.
  void complete(const DrivenCommunicator& c, void* task, unsigned channels) {
    gpu += 10'000;
    c.complete(task, channels, gpu, gpu + 5'000);
    ++driven;
  }
  bool settle(benchmark::State& state) {
    if (agent->wait_for(driven) && agent->operations() == driven) return true;
    const std::string text = "agent counted " + std::to_string(agent->operations()) + " of " +
                             std::to_string(driven) + " operations";
    state.SkipWithError(text.c_str());
    return false;
  }
};

void sweep_caches() {
  static std::vector<std::uint64_t> memory(64 * 1024 * 1024 / 8);
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < memory.size(); i += 8) sum += ++memory[i];
  benchmark::DoNotOptimize(sum);
}

/// startEvent(Coll) with all fields and its stopEvent, over 64 live communicators.
void launch_pair(benchmark::State& state, unsigned pairs, bool cold) {
  World& w = World::get();
  std::vector<std::uint64_t> samples;
  samples.reserve(pairs);
  constexpr unsigned kBatch = 512;
  std::vector<std::pair<const DrivenCommunicator*, void*>> open;
  for (auto _ : state) {
    while (samples.size() < pairs) {
      open.clear();
      for (unsigned i = 0; i < kBatch && samples.size() < pairs; ++i) {
        const DrivenCommunicator& c = w.communicators[i % w.communicators.size()];
        void* group = c.start_group_api();
        void* api = c.start_coll_api(group, "AllReduce", 1'000'000, "ncclBfloat16");
        c.stop(api);
        void* plan = c.start_plan();
        auto d = DrivenCommunicator::blank(nccl::kColl, api, 0);
        d.coll.seq_number = w.seq++;
        d.coll.func = "AllReduce";
        d.coll.count = 1'000'000;
        d.coll.datatype = "ncclBfloat16";
        d.coll.n_channels = 1;
        d.coll.n_warps = 16;
        d.coll.algo = "RING";
        d.coll.proto = "SIMPLE";
        d.coll.parent_group = plan;
        void* handle = nullptr;
        if (cold) sweep_caches();
        const std::uint64_t a = begin_ticks();
        c.table()->start_event(c.context(), &handle, &d);
        c.table()->stop_event(handle);
        const std::uint64_t b = end_ticks();
        samples.push_back(b - a);
        c.stop(plan);
        c.stop(group);
        open.emplace_back(&c, handle);
      }
      for (auto& [c, handle] : open) w.complete(*c, handle, 1);
      if (samples.size() % (8 * kBatch) == 0 && !w.settle(state)) return;
    }
  }
  if (!w.settle(state)) return;
  state.counters["p50_ns"] = w.timer.ns(static_cast<std::uint64_t>(percentile(samples, 0.5)));
  state.counters["p99_ns"] = w.timer.ns(static_cast<std::uint64_t>(percentile(samples, 0.99)));
  state.counters["p999_ns"] = w.timer.ns(static_cast<std::uint64_t>(percentile(samples, 0.999)));
}
void LaunchPair(benchmark::State& state) {
  launch_pair(state, 1'000'000, false);
}
void LaunchPairColdCaches(benchmark::State& state) {
  launch_pair(state, 300, true);
}
BENCHMARK(LaunchPair)->Iterations(1)->Unit(benchmark::kMillisecond);
BENCHMARK(LaunchPairColdCaches)->Iterations(1)->Unit(benchmark::kMillisecond);

std::uint64_t thread_cpu_ns() {
  timespec t{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
  return static_cast<std::uint64_t>(t.tv_sec) * 1'000'000'000u +
         static_cast<std::uint64_t>(t.tv_nsec);
}

/// What the driver itself costs: the same calls into a table that does nothing. NCCL pays that with
/// any plugin.
const nccl::ProfilerV5* empty_table() {
  static nccl::ProfilerV5 table = {
      "empty",
      [](void** context, std::uint64_t, int*, const char*, int, int, int, nccl::DebugLogger) {
        *context = context;
        return nccl::kSuccess;
      },
      [](void* context, void** handle, nccl::DescrV5*) {
        *handle = context;
        return nccl::kSuccess;
      },
      [](void*) { return nccl::kSuccess; },
      [](void*, nccl::EventState, nccl::StateArgsV5*) { return nccl::kSuccess; },
      [](void*) { return nccl::kSuccess; }};
  return &table;
}

/// The 58 calls of an AllReduce of 16 channels on one node, record written: CPU time of the calling
/// thread, less the driver's own.
void SixteenChannelAllReduce(benchmark::State& state) {
  World& w = World::get();
  constexpr unsigned kBatch = 256, kBatches = 400;
  std::vector<std::uint64_t> samples, empty;
  std::vector<DrivenCommunicator> nothing;
  for (std::uint64_t i = 0; i < 4; ++i) nothing.emplace_back(empty_table(), i, 8, 0);
  const auto batch = [&w](const std::vector<DrivenCommunicator>& communicators) {
    const std::uint64_t a = thread_cpu_ns();
    for (unsigned i = 0; i < kBatch; ++i) {
      w.gpu += 10'000;
      communicators[i % 4].all_reduce(1'000'000, 16, w.gpu, w.gpu + 5'000, w.seq++);
    }
    return (thread_cpu_ns() - a) / kBatch;
  };
  for (auto _ : state) {
    for (unsigned b = 0; b < kBatches; ++b) {
      samples.push_back(batch(w.communicators));
      empty.push_back(batch(nothing));
      w.driven += kBatch;
      if (b % 16 == 15 && !w.settle(state)) return;
    }
  }
  if (!w.settle(state)) return;
  state.counters["driver_ns"] = percentile(empty, 0.5);
  state.counters["cpu_ns"] = percentile(samples, 0.5) - percentile(empty, 0.5);
  state.counters["cpu_p99_ns"] = percentile(samples, 0.99) - percentile(empty, 0.5);
}
BENCHMARK(SixteenChannelAllReduce)->Iterations(1)->Unit(benchmark::kMillisecond);

/// What the plugin believes its calls take, beside what they take: CPU time of the calling thread
/// over the same calls, less the driver's own.
void OwnTimeEstimate(benchmark::State& state) {
  World& w = World::get();
  constexpr unsigned kBatch = 256, kBatches = 800;
  std::vector<DrivenCommunicator> nothing;
  for (std::uint64_t i = 0; i < 4; ++i) nothing.emplace_back(empty_table(), i, 8, 0);
  const auto batch_ns = [&w](const std::vector<DrivenCommunicator>& communicators) {
    const std::uint64_t begin_ns = thread_cpu_ns();
    for (unsigned i = 0; i < kBatch; ++i) {
      w.gpu += 10'000;
      communicators[i % 4].all_reduce(1'000'000, 16, w.gpu, w.gpu + 5'000, w.seq++);
    }
    return static_cast<double>(thread_cpu_ns() - begin_ns);
  };
  double true_ns = 0;
  const double before_ns = w.agent->callback_ns(w.driven);
  for (auto _ : state) {
    for (unsigned b = 0; b < kBatches; ++b) {
      true_ns += batch_ns(w.communicators) - batch_ns(nothing);
      w.driven += kBatch;
      if (b % 16 == 15 && !w.settle(state)) return;
    }
  }
  const double after_ns = w.agent->callback_ns(w.driven);
  if (before_ns < 0 || after_ns < 0) return state.SkipWithError("the books do not tell of all");
  const double estimated_ns = after_ns - before_ns;
  constexpr double kOperations = kBatch * kBatches;
  state.counters["true_ns"] = true_ns / kOperations;
  state.counters["estimated_ns"] = estimated_ns / kOperations;
  state.counters["estimated_by_true"] = estimated_ns / true_ns;
  state.counters["off_by_factor"] = std::max(estimated_ns / true_ns, true_ns / estimated_ns);
}
BENCHMARK(OwnTimeEstimate)->Iterations(1)->Unit(benchmark::kMillisecond);

/// The time over the budget after a tenfold burst, the longest of several loads before it, on the
/// clock that the governor is told.
void GovernorBurst(benchmark::State& state) {
  double worst_seconds = 0;
  for (auto _ : state) {
    for (int percent = 20; percent <= 100; percent += 5) {
      plugin::GovernorRig rig;
      rig.load_at_budget_share(percent / 100.0);
      rig.run(60);
      worst_seconds = std::max(worst_seconds, rig.seconds_to_recover(10.0));
    }
  }
  state.counters["worst_seconds"] = worst_seconds;
}
BENCHMARK(GovernorBurst)->Iterations(1)->Unit(benchmark::kMillisecond);

void SixteenChannelAllReduceColdCaches(benchmark::State& state) {
  World& w = World::get();
  std::vector<std::uint64_t> samples;
  for (auto _ : state) {
    for (unsigned i = 0; i < 300; ++i) {
      w.gpu += 10'000;
      sweep_caches();
      const std::uint64_t a = begin_ticks();
      w.communicators[i % 4].all_reduce(1'000'000, 16, w.gpu, w.gpu + 5'000, w.seq++);
      samples.push_back(end_ticks() - a);
      ++w.driven;
    }
  }
  if (!w.settle(state)) return;
  state.counters["p50_ns"] = w.timer.ns(static_cast<std::uint64_t>(percentile(samples, 0.5)));
}
BENCHMARK(SixteenChannelAllReduceColdCaches)->Iterations(1)->Unit(benchmark::kMillisecond);

/// Bytes on the socket for each operation of steady traffic, frame headers and state included.
void WireBytes(benchmark::State& state) {
  World& w = World::get();
  for (auto _ : state) {
    if (!w.settle(state)) return;
    usleep(1'500'000);  // only heartbeats are left
    const std::uint64_t bytes = w.agent->bytes(), before = w.driven;
    for (unsigned b = 0; b < 40; ++b) {
      for (unsigned i = 0; i < 1'000; ++i) {
        w.gpu += 10'000;
        w.communicators[i % 4].all_reduce(1'000'000, 1, w.gpu, w.gpu + 5'000, w.seq++);
      }
      w.driven += 1'000;
      usleep(50'000);
    }
    if (!w.settle(state)) return;
    state.counters["bytes_per_operation"] =
        static_cast<double>(w.agent->bytes() - bytes) / static_cast<double>(w.driven - before);
  }
  state.counters["record_bytes"] = sizeof(wire::Operation);
}
BENCHMARK(WireBytes)->Iterations(1)->Unit(benchmark::kMillisecond);

/// Rings, slabs and tables of a rank with 64 communicators.
void Memory(benchmark::State& state) {
  for (auto _ : state) {
    state.counters["bytes_per_rank"] =
        static_cast<double>(sizeof(plugin::Lane) + 64 * sizeof(plugin::Communicator));
  }
}
BENCHMARK(Memory)->Iterations(1);

}  // namespace
}  // namespace ncclscope::tests

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 2;
  benchmark::RunSpecifiedBenchmarks();
  ncclscope::tests::World::end();
  return 0;
}

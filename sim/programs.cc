// SPDX-License-Identifier: Apache-2.0
// The recorded programs: see programs.h. Each is a function that plays one process; most are lists
// of calls. Counts, order and groups are those of the recordings' expected.json.
#include "sim/programs.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <memory>

#include "sim/host.h"

namespace ncclscope::sim {
namespace {

using nccl::Datatype;

constexpr std::int64_t kMs = 1000000;

std::vector<std::size_t> sizes(std::initializer_list<std::size_t> list) {
  return list;
}

/// One process of a program at work.
struct Player {
  std::shared_ptr<World> world;
  Host* host = nullptr;
  int process = 0;
  int n = 0;  ///< ranks of the main communicator
  std::vector<int> nodes;
  Comm* comm = nullptr;
  Stream* stream = nullptr;
  std::uint64_t hashes = 0;

  CommConfig config(const std::string& name, std::vector<int> members, std::uint64_t salt,
                    int self) const {
    CommConfig c;
    c.hash = (salt + 1) * 0x9e3779b97f4a7c15 ^ 0x5bd1e995;
    c.name = name;
    c.shape.n_ranks = static_cast<int>(members.size());
    std::map<int, int> count;
    for (const int member : members) {
      const int node = nodes[static_cast<std::size_t>(member)];
      c.shape.max_local_ranks = std::max(c.shape.max_local_ranks, ++count[node]);
    }
    for (const int member : members) {
      const int node = nodes[static_cast<std::size_t>(member)];
      c.shape.node_of_rank.push_back(
          static_cast<int>(std::distance(count.begin(), count.find(node))));
    }
    c.shape.n_nodes = static_cast<int>(count.size());
    c.shape.rank =
        static_cast<int>(std::find(members.begin(), members.end(), self) - members.begin());
    return c;
  }
  std::vector<int> everybody() const {
    std::vector<int> all;
    for (int r = 0; r < n; ++r) all.push_back(r);
    return all;
  }
  void begin(bool blocking = true) {
    CommConfig c = config("dp_group", everybody(), 0, process);
    c.blocking = blocking;
    comm = host->comm_init_rank(c);
    if (!blocking) host->comm_wait_ready(comm);
    stream = host->stream_create();
  }
  void issue(Comm* on, Func func, std::size_t count, Datatype type = nccl::kFloat32, int root = 0,
             int peer = 0) {
    Call call;
    call.func = func;
    call.count = count;
    call.datatype = type;
    call.root = root;
    call.peer = peer;
    call.send_buffer = &hashes;
    host->call(on, stream, call);
  }
  void sync() { host->stream_synchronize(stream); }
  void one(Func func, std::size_t count, Datatype type = nccl::kFloat32, int root = 0,
           int peer = 0) {
    issue(comm, func, count, type, root, peer);
    sync();
  }
  void all_reduce(std::size_t count) { one(Func::kAllReduce, count); }
  void group(const std::function<void()>& body) {
    host->group_start();
    body();
    host->group_end();
    sync();
  }
  void composite(Func func, std::size_t count, int root = 0) {
    Call call;
    call.func = func;
    call.count = count;
    call.root = root;
    call.send_buffer = &hashes;
    host->call_composite(comm, stream, call);
    sync();
  }
  void copy_engine(Func func, std::size_t count, Datatype type = nccl::kFloat32, int root = 0) {
    Call call;
    call.func = func;
    call.count = count;
    call.datatype = type;
    call.root = root;
    call.send_buffer = &hashes;
    call.copy_engine = true;
    host->call(comm, stream, call);
  }
  /// All-to-all as the program writes it where the release has no call for it.
  void all_to_all_by_hand(std::size_t count) {
    group([&] {
      for (int peer = 0; peer < n; ++peer) {
        issue(comm, Func::kSend, count, nccl::kFloat32, 0, peer);
        issue(comm, Func::kRecv, count, nccl::kFloat32, 0, peer);
      }
    });
  }
  void sleep(std::int64_t ns) { world->sleep_until(world->now() + ns); }
  void destroy(Comm* which) { host->comm_destroy(which); }
};

struct Program {
  const char* name;
  int processes;
  int ranks;
  std::vector<int> nodes;
  std::function<void(Player&)> play;
  int channels = 2;
  std::int64_t kernel_ns = 200000;
  bool allgatherv = true;
};

void plain_all_reduce(Player& p) {
  p.begin();
  for (const std::size_t count : sizes({1000, 100000, 250000, 100000, 7})) p.all_reduce(count);
  p.destroy(p.comm);
}

void late(Player& p, int late_rank, std::size_t count) {
  p.begin();
  for (int i = 0; i < 6; ++i) {
    if (i > 0 && p.process == late_rank) p.sleep(40 * kMs);
    p.all_reduce(count);
  }
  p.destroy(p.comm);
}

void grouped_broadcasts(Player& p) {
  p.group([&] {
    p.issue(p.comm, Func::kBroadcast, 3000, nccl::kFloat32, 0);
    p.issue(p.comm, Func::kBroadcast, 3500, nccl::kFloat32, 1);
    p.issue(p.comm, Func::kBroadcast, 4000, nccl::kFloat32, 2);
  });
}

/// `abort`: the proxy thread can never drain after an AllGatherV kernel.
void broadcast_groups(Player& p, bool abort) {
  p.begin();
  p.all_reduce(1000);
  for (int i = 0; i < 3; ++i) {
    grouped_broadcasts(p);
    p.all_reduce(1000);
  }
  p.group([&] {
    p.issue(p.comm, Func::kAllReduce, 2000);
    p.issue(p.comm, Func::kBroadcast, 900, nccl::kFloat32, 1);
    p.issue(p.comm, Func::kAllReduce, 2100);
  });
  p.all_reduce(64);
  if (abort) {
    p.sleep(200 * kMs);
    p.host->comm_abort(p.comm);
  } else {
    p.destroy(p.comm);
  }
}

void split(Player& p, bool shared_name) {
  p.begin();
  p.all_reduce(3000);
  std::vector<int> members;
  for (int r = p.process % 2; r < p.n; r += 2) members.push_back(r);
  // The recordings show a proxy thread of the child's own in both variants.
  Comm* child =
      p.host->comm_split(p.comm,
                         p.config(shared_name ? "dp_group" : "tp_group", members,
                                  static_cast<std::uint64_t>(1 + p.process % 2), p.process),
                         false);
  for (int i = 0; i < (shared_name ? 3 : 2); ++i) {
    p.issue(child, Func::kAllReduce, 2000);
    p.sync();
    if (shared_name) {
      p.one(Func::kAllGather, 1000);
    } else {
      p.all_reduce(1000);
    }
  }
  if (shared_name) {
    p.group([&] {
      p.issue(p.comm, Func::kAllReduce, 400);
      p.issue(child, Func::kAllReduce, 300);
    });
  }
  p.destroy(child);
  p.all_reduce(3000);
  p.destroy(p.comm);
}

void one_thread(Player& p) {
  std::vector<Comm*> comms;
  std::vector<Stream*> streams;
  p.host->group_start();
  for (int rank = 0; rank < p.n; ++rank) {
    comms.push_back(p.host->comm_init_rank(p.config("dp_group", p.everybody(), 0, rank)));
  }
  p.host->group_end();
  for (int rank = 0; rank < p.n; ++rank) streams.push_back(p.host->stream_create());
  for (const std::size_t count : sizes({1000, 30000, 1000})) {
    p.host->group_start();
    for (int rank = 0; rank < p.n; ++rank) {
      p.stream = streams[static_cast<std::size_t>(rank)];
      p.issue(comms[static_cast<std::size_t>(rank)], Func::kAllReduce, count);
    }
    p.host->group_end();
    for (Stream* stream : streams) p.host->stream_synchronize(stream);
  }
  for (Comm* comm : comms) p.destroy(comm);
}

void three_threads(Player& p) {
  std::vector<SimThread> threads;
  for (int rank = 0; rank < p.n; ++rank) {
    threads.emplace_back(p.world, p.process, "", [&p, rank] {
      Player own = p;
      own.comm = own.host->comm_init_rank(own.config("dp_group", own.everybody(), 0, rank));
      own.stream = own.host->stream_create();
      own.all_reduce(1000);
      own.all_reduce(50000);
      own.one(Func::kAllGather, 1000);
      own.all_reduce(1000);
      own.destroy(own.comm);
    });
  }
  for (SimThread& thread : threads) thread.join();
}

const std::vector<Program>& programs() {
  static const std::vector<int> one{0, 0, 0, 0, 0, 0, 0, 0};
  static const std::vector<int> each{0, 1, 2};
  static const std::vector<Program> list = {
      {"allreduce2-net", 2, 2, each, plain_all_reduce},
      {"allreduce2-shm", 2, 2, one, plain_all_reduce},
      {"allreduce4-net2", 4, 4, {0, 0, 1, 1}, plain_all_reduce},
      {"allreduce8-shm", 8, 8, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(10000);
         p.all_reduce(1000);
         p.one(Func::kAllGather, 500);
         p.destroy(p.comm);
       }},
      {"allgather2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.one(Func::kAllGather, 5000);
         p.one(Func::kAllGather, 33333, nccl::kFloat16);
         p.one(Func::kAllGather, 12, nccl::kFloat64);
         p.one(Func::kAllGather, 5000);
         p.destroy(p.comm);
       }},
      {"reducescatter3-net", 3, 3, each,
       [](Player& p) {
         p.begin();
         p.one(Func::kReduceScatter, 5000);
         p.one(Func::kReduceScatter, 60000);
         p.one(Func::kReduceScatter, 999, nccl::kBfloat16);
         p.one(Func::kReduceScatter, 5000);
         p.destroy(p.comm);
       }},
      {"broadcast3-shm", 3, 3, one,
       [](Player& p) {
         // The recordings of other releases have AllReduces in between.
         const Release release = p.host->options().profiler.release;
         const bool mixed = release.minor != 28;
         p.begin();
         p.one(Func::kBroadcast, 5000);
         if (mixed) p.all_reduce(1000);
         p.one(Func::kBroadcast, 5000, nccl::kFloat32, 2);
         p.one(Func::kBroadcast, 777, nccl::kInt64, 1);
         if (mixed) p.all_reduce(1000);
         p.one(Func::kBroadcast, 100000);
         if (mixed) p.all_reduce(1000);
         p.destroy(p.comm);
       }},
      {"bcast2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.one(Func::kBroadcast, 5000);
         p.one(Func::kBroadcast, 60000, nccl::kFloat32, 1);
         p.all_reduce(1000);
         p.destroy(p.comm);
       }},
      {"bcastgroup3-shm", 3, 3, one,
       [](Player& p) {
         const Release release = p.host->options().profiler.release;
         broadcast_groups(p, release.has_allgatherv() && p.host->options().hazards.allgatherv);
       }},
      {"bcastgroup3-long", 3, 3, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(1000);
         grouped_broadcasts(p);
         for (int i = 0; i < 80; ++i) p.all_reduce(1000);
         p.sleep(200 * kMs);
         p.host->comm_abort(p.comm);
       }},
      {"reduce2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.one(Func::kReduce, 5000);
         p.one(Func::kReduce, 20000, nccl::kFloat32, 1);
         p.one(Func::kReduce, 333, nccl::kInt32, 1);
         p.destroy(p.comm);
       }},
      {"group2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         for (int i = 0; i < 3; ++i) {
           p.group([&] {
             p.issue(p.comm, Func::kAllReduce, 1000);
             p.issue(p.comm, Func::kAllReduce, 200000);
             p.issue(p.comm, Func::kBroadcast, 5000, nccl::kFloat32, 1);
             p.issue(p.comm, Func::kReduceScatter, 3000);
             p.issue(p.comm, Func::kAllGather, 700);
             p.issue(p.comm, Func::kAllReduce, 1000);
           });
         }
         p.group([&] {
           p.host->group_start();
           p.issue(p.comm, Func::kAllReduce, 64);
           p.host->group_end();
           p.issue(p.comm, Func::kAllReduce, 65);
         });
         p.group([] {});
         p.all_reduce(66);
         p.destroy(p.comm);
       }},
      {"sendrecv3-net", 3, 3, each,
       [](Player& p) {
         p.begin();
         for (const std::size_t count : sizes({1000, 100000, 50, 100000})) {
           p.group([&] {
             p.issue(p.comm, Func::kSend, count, nccl::kFloat32, 0, (p.process + 1) % 3);
             p.issue(p.comm, Func::kRecv, count, nccl::kFloat32, 0, (p.process + 2) % 3);
           });
         }
         p.destroy(p.comm);
       }},
      {"pingpong2-shm", 2, 2, one,
       [](Player& p) {
         p.begin();
         bool send = p.process == 0;
         for (const std::size_t count : sizes({1000, 1000, 40000, 40000, 8, 8})) {
           p.one(send ? Func::kSend : Func::kRecv, count, nccl::kFloat32, 0, 1 - p.process);
           send = !send;
         }
         p.destroy(p.comm);
       }},
      {"alltoall3-shm", 3, 3, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(100);
         for (const std::size_t count : sizes({3000, 3000, 20000})) {
           if (p.host->options().profiler.release.has_alltoall_api()) {
             p.composite(Func::kAlltoAll, count);
           } else {
             p.all_to_all_by_hand(count);
           }
         }
         p.all_reduce(1000);
         p.all_reduce(50000);
         p.all_reduce(1000);
         p.destroy(p.comm);
       }},
      {"alltoall2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.all_reduce(100);
         p.all_to_all_by_hand(2500);
         p.all_reduce(1000);
         p.all_reduce(1000);
         p.destroy(p.comm);
       }},
      {"gatherscatter3-shm", 3, 3, one,
       [](Player& p) {
         p.begin();
         p.composite(Func::kGather, 1000, 1);
         p.composite(Func::kScatter, 1000, 2);
         p.all_reduce(500);
         p.destroy(p.comm);
       }},
      {"selfinplace2-shm", 2, 2, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(100);
         p.group([&] {
           for (const Func func : {Func::kSend, Func::kRecv}) {
             Call call;
             call.func = func;
             call.count = 500;
             call.peer = p.process;
             call.send_buffer = &p.hashes;
             call.recv_buffer = &p.hashes;
             p.host->call(p.comm, p.stream, call);
           }
           p.issue(p.comm, Func::kSend, 600, nccl::kFloat32, 0, 1 - p.process);
           p.issue(p.comm, Func::kRecv, 600, nccl::kFloat32, 0, 1 - p.process);
         });
         p.all_reduce(100);
         p.destroy(p.comm);
       }},
      {"mixed2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.all_reduce(100);
         p.group([&] {
           p.issue(p.comm, Func::kSend, 3000, nccl::kFloat32, 0, 1 - p.process);
           p.issue(p.comm, Func::kRecv, 3000, nccl::kFloat32, 0, 1 - p.process);
           p.issue(p.comm, Func::kAllReduce, 4000);
           p.issue(p.comm, Func::kAllGather, 50);
         });
         p.all_reduce(100);
         p.destroy(p.comm);
       }},
      {"split4-shm", 4, 4, one, [](Player& p) { split(p, true); }},
      {"splitshare4-shm", 4, 4, one, [](Player& p) { split(p, false); }},
      {"abort2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.all_reduce(3000);
         p.all_reduce(3000);
         if (p.process == 0) p.issue(p.comm, Func::kAllReduce, 50000);
         p.sleep(300 * kMs);
         p.host->comm_abort(p.comm);
       }},
      {"abortstuck2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         // Whatever is in the stream before it never lets the kernel begin.
         p.host->compute(p.stream, 600 * kMs);
         p.issue(p.comm, Func::kAllReduce, 100000);
         p.sleep(300 * kMs);
         p.host->comm_abort(p.comm);
       }},
      {"nonblocking2-net", 2, 2, each,
       [](Player& p) {
         p.begin(false);
         for (const std::size_t count : sizes({1000, 40000, 1000})) {
           p.issue(p.comm, Func::kAllReduce, count);
           p.host->comm_wait_ready(p.comm);
           p.sync();
         }
         p.host->group_start();
         p.issue(p.comm, Func::kAllReduce, 500);
         p.issue(p.comm, Func::kAllReduce, 600);
         p.host->group_end();
         p.host->comm_wait_ready(p.comm);
         p.sync();
         p.destroy(p.comm);
       }},
      {"single1", 1, 1, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(1000);
         p.destroy(p.comm);
       }},
      {"reinit2-shm", 2, 2, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(1000);
         p.all_reduce(1000);
         p.destroy(p.comm);
         p.comm = p.host->comm_init_rank(p.config("second", p.everybody(), 7, p.process));
         p.all_reduce(4000);
         p.one(Func::kAllGather, 400);
         p.destroy(p.comm);
       }},
      {"late3-net", 3, 3, each, [](Player& p) { late(p, 1, 20000); }},
      {"late4-net2", 4, 4, {0, 0, 1, 1}, [](Player& p) { late(p, 3, 8000); }},
      {"slow3-shm", 3, 3, one,
       [](Player& p) {
         if (p.process == 2) p.host->conditions().kernel_extra_ns = 20 * kMs;
         p.begin();
         for (int i = 0; i < 6; ++i) p.all_reduce(20000);
         p.destroy(p.comm);
       }},
      {"threads3", 1, 3, one, three_threads},
      {"onethread2", 1, 2, one, one_thread},
      {"many2-shm", 2, 2, one,
       [](Player& p) {
         p.begin();
         for (int i = 0; i < 200; ++i) p.issue(p.comm, Func::kAllReduce, 64);
         p.sync();
         p.destroy(p.comm);
       },
       2, 20000},
      {"manysync2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         for (int i = 0; i < 60; ++i) p.all_reduce(64);
         p.destroy(p.comm);
       },
       2, 20000},
      {"chan8-shm", 2, 2, one,
       [](Player& p) {
         p.begin();
         p.all_reduce(2000000);
         p.all_reduce(100);
         p.all_reduce(2000000);
         p.group([&] {
           p.issue(p.comm, Func::kAllReduce, 100000);
           p.issue(p.comm, Func::kAllReduce, 700000);
           p.issue(p.comm, Func::kAllReduce, 50);
         });
         p.destroy(p.comm);
       },
       8},
      {"closure2-net", 2, 2, each,
       [](Player& p) {
         p.begin();
         p.all_reduce(1000);
         p.group([&] {
           p.issue(p.comm, Func::kAllReduce, 500);
           p.issue(p.comm, Func::kAllReduce, 600);
         });
         p.destroy(p.comm);
       }},
      {"ce2-p2p", 2, 2, one,
       [](Player& p) {
         p.begin();
         p.copy_engine(Func::kAllGather, 1000);
         p.copy_engine(Func::kAlltoAll, 2000);
         p.copy_engine(Func::kGather, 500, nccl::kFloat32, 1);
         p.copy_engine(Func::kScatter, 700);
         p.copy_engine(Func::kAllGather, 3000, nccl::kBfloat16);
         p.copy_engine(Func::kAllGather, 300000);
         p.copy_engine(Func::kAlltoAll, 999, nccl::kUint8);
         p.sync();
         p.destroy(p.comm);
       }},
  };
  return list;
}

const Program* find_program(const std::string& name) {
  for (const Program& program : programs()) {
    if (name == program.name) return &program;
  }
  return nullptr;
}

int to_int(const std::string& text) {
  int value = -1;
  std::from_chars(text.data(), text.data() + text.size(), value);
  return value;
}

}  // namespace

std::vector<std::string> program_names() {
  std::vector<std::string> names;
  for (const Program& program : programs()) names.emplace_back(program.name);
  return names;
}

int program_processes(const std::string& name) {
  const Program* program = find_program(name);
  return program != nullptr ? program->processes : 0;
}

int program_main(int argc, char** argv) {
  std::map<std::string, std::string> arguments;
  for (int i = 1; i + 1 < argc; i += 2) arguments[argv[i]] = argv[i + 1];
  const Program* program = find_program(arguments["--program"]);
  std::string error;
  const Release release = parse_release(arguments["--release"], &error);
  if (program == nullptr || !error.empty()) {
    std::fprintf(stderr, "ncclscope-sim-rank: %s\n",
                 program == nullptr
                     ? ("program " + arguments["--program"] + " is not known").c_str()
                     : error.c_str());
    return 1;
  }
  try {
    std::shared_ptr<World> world = World::open(arguments["--world"]);
    ::pthread_setname_np(::pthread_self(), "main");
    world->adopt_actor(to_int(arguments["--actor"]));
    HostOptions options;
    options.world = world;
    options.owner = to_int(arguments["--process"]);
    options.profiler.release = release;
    if (const char* plugin = std::getenv("NCCL_PROFILER_PLUGIN")) options.profiler.plugin = plugin;
    options.tuning.channels = program->channels;
    options.tuning.p2p_channels = program->channels;
    options.tuning.force_algo = static_cast<int>(Algo::kRing);
    options.tuning.force_proto = static_cast<int>(Proto::kSimple);
    // 2.30 rates the emulated links of one node higher.
    const bool one_node =
        std::all_of(program->nodes.begin(), program->nodes.begin() + program->ranks,
                    [&](int node) { return node == program->nodes.front(); });
    options.tuning.ring_threads = release.at_least(30) && one_node ? 512 : 256;
    options.tuning.p2p_net_parts_grow = !release.at_least(30);
    options.tuning.least_channel_traffic = release.at_least(30) ? 32768 : 16384;
    if (const char* order = std::getenv("NCCLSCOPE_SIM_GROUP_ORDER")) {
      options.group_latest_first = std::string(order) != "earliest";
    }
    options.hardware.fixed_kernel_ns = program->kernel_ns;
    if (const char* enabled = std::getenv("NCCL_ALLGATHERV_ENABLE")) {
      options.hazards.allgatherv = std::string(enabled) != "0";
    }
    {
      Host host(options);
      Player player;
      player.world = world;
      player.host = &host;
      player.process = options.owner;
      player.n = program->ranks;
      player.nodes = program->nodes;
      program->play(player);
      host.exit_process();
    }
    world->release_actor();
    return 0;
  } catch (const std::exception& e) {
    std::fprintf(stderr, "ncclscope-sim-rank: program %s: %s\n", program->name, e.what());
    return 1;
  }
}

}  // namespace ncclscope::sim

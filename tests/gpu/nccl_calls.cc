// SPDX-License-Identifier: Apache-2.0
//
// Makes real NCCL calls on one GPU and prints one JSON line per call: what was called and how long
// CUDA events say it took. tests/gpu/check.py compares these lines with what the agent was told by
// the plugin.
//   Processes: one per rank. Rank 0 writes NCCL's unique id to --id-file, the others wait for it
//   (30 s). Units: bytes are the message size S as nccl-tests counts it; event_ns is the stream
//   time between two CUDA events. Fails: any CUDA or NCCL error ends the process with 1 and a line
//   on stderr.
#include <cuda_runtime_api.h>
#include <nccl.h>
#include <unistd.h>

#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <functional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

namespace {

struct Options {
  int rank = 0;
  int ranks = 1;
  int device = 0;
  int iterations = 5;
  std::size_t max_bytes = std::size_t{64} << 20;
  std::string id_file;
  bool self_sends = false;
};

[[noreturn]] void fail(const std::string& what) {
  std::fprintf(stderr, "ncclscope-gpu-nccl: %s\n", what.c_str());
  std::exit(1);
}

void check(cudaError_t result, const char* what) {
  if (result != cudaSuccess) fail(std::string(what) + ": " + cudaGetErrorString(result));
}

void check(ncclResult_t result, const char* what) {
  if (result != ncclSuccess) fail(std::string(what) + ": " + ncclGetErrorString(result));
}

template <typename T>
T number(std::string_view option, std::string_view text) {
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size()) {
    fail(std::string(option) + " wants a number, not '" + std::string(text) + "'");
  }
  return value;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string_view name = argv[i];
    if (name == "--self-sends") {
      options.self_sends = true;
      continue;
    }
    if (i + 1 >= argc) fail(std::string(name) + " wants a value");
    const std::string_view value = argv[++i];
    if (name == "--rank") {
      options.rank = number<int>(name, value);
    } else if (name == "--ranks") {
      options.ranks = number<int>(name, value);
    } else if (name == "--device") {
      options.device = number<int>(name, value);
    } else if (name == "--iterations") {
      options.iterations = number<int>(name, value);
    } else if (name == "--max-bytes") {
      options.max_bytes = number<std::size_t>(name, value);
    } else if (name == "--id-file") {
      options.id_file = value;
    } else {
      fail("unknown option '" + std::string(name) +
           "'; known: --rank --ranks --device --iterations --max-bytes --id-file --self-sends");
    }
  }
  if (options.id_file.empty()) fail("--id-file is needed: a path that all ranks share");
  if (options.rank < 0 || options.rank >= options.ranks) {
    fail("--rank " + std::to_string(options.rank) + " is not below --ranks " +
         std::to_string(options.ranks));
  }
  return options;
}

ncclUniqueId exchange_id(const Options& options) {
  ncclUniqueId id{};
  const std::string& path = options.id_file;
  if (options.rank == 0) {
    check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    const std::string partial = path + ".partial";
    std::ofstream(partial, std::ios::binary).write(id.internal, sizeof id.internal);
    if (std::rename(partial.c_str(), path.c_str()) != 0) fail("cannot write " + path);
    return id;
  }
  for (int tries = 0; tries < 300; ++tries) {
    std::ifstream file(path, std::ios::binary);
    if (file && file.read(id.internal, sizeof id.internal)) return id;
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  fail("rank 0 did not write " + path + " within 30 s");
}

/// One operation that a call is expected to be reported as.
struct Expected {
  const char* collective;
  std::size_t count;  // as passed to NCCL, elements of float
  std::size_t bytes;  // S
  int peer = -1;
  int root = -1;
};

struct Call {
  std::string name;
  std::vector<Expected> operations;
  std::function<void()> issue;
};

class Runner {
 public:
  explicit Runner(const Options& options) : options_(options) {
    check(cudaSetDevice(options.device), "cudaSetDevice");
    check(cudaStreamCreate(&stream_), "cudaStreamCreate");
    check(cudaEventCreate(&begin_), "cudaEventCreate");
    check(cudaEventCreate(&end_), "cudaEventCreate");
    const std::size_t room =
        options.max_bytes + sizeof(float) * static_cast<std::size_t>(options.ranks);
    check(cudaMalloc(&send_, room), "cudaMalloc");
    check(cudaMalloc(&receive_, room), "cudaMalloc");
    check(cudaMemset(send_, 0, room), "cudaMemset");
    check(ncclCommInitRank(&communicator_, options.ranks, exchange_id(options), options.rank),
          "ncclCommInitRank");
  }
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;
  ~Runner() {
    ncclCommDestroy(communicator_);
    cudaFree(send_);
    cudaFree(receive_);
  }

  void run_all() {
    for (std::size_t bytes = 8; bytes <= options_.max_bytes; bytes *= 8) {
      for (int iteration = 0; iteration < options_.iterations; ++iteration) {
        for (const Call& call : calls(bytes)) time(call, iteration);
      }
    }
    // Last, since NCCL's work counters drift after a send to itself: later operations have no
    // trustworthy GPU time.
    if (options_.self_sends) time(all_to_all(std::size_t{1} << 20, true), 0);
  }

 private:
  static void* at(void* base, std::size_t elements) { return static_cast<float*>(base) + elements; }

  std::vector<Call> calls(std::size_t bytes) {
    const auto ranks = static_cast<std::size_t>(options_.ranks);
    const std::size_t count = bytes / sizeof(float);
    const std::size_t part = count / ranks == 0 ? 1 : count / ranks;
    const std::size_t whole = part * ranks * sizeof(float);
    const int last = options_.ranks - 1;
    std::vector<Call> list;
    list.push_back({"AllReduce", {{"AllReduce", count, bytes}}, [=, this] { all_reduce(count); }});
    list.push_back({"AllGather", {{"AllGather", part, whole}}, [=, this] { all_gather(part); }});
    list.push_back({"ReduceScatter", {{"ReduceScatter", part, whole}}, [=, this] {
                      check(ncclReduceScatter(send_, receive_, part, ncclFloat, ncclSum,
                                              communicator_, stream_),
                            "ncclReduceScatter");
                    }});
    list.push_back(
        {"Broadcast", {{"Broadcast", count, bytes, -1, last}}, [=, this] {
           check(ncclBroadcast(send_, receive_, count, ncclFloat, last, communicator_, stream_),
                 "ncclBroadcast");
         }});
    list.push_back(
        {"Reduce", {{"Reduce", count, bytes, -1, 0}}, [=, this] {
           check(ncclReduce(send_, receive_, count, ncclFloat, ncclSum, 0, communicator_, stream_),
                 "ncclReduce");
         }});
    list.push_back({"Group", {{"AllReduce", count, bytes}, {"AllGather", part, whole}}, [=, this] {
                      check(ncclGroupStart(), "ncclGroupStart");
                      all_reduce(count);
                      all_gather(part);
                      check(ncclGroupEnd(), "ncclGroupEnd");
                    }});
    if (options_.ranks > 1) {
      const int to = (options_.rank + 1) % options_.ranks;
      const int from = (options_.rank + options_.ranks - 1) % options_.ranks;
      list.push_back(
          {"SendRecv", {{"Send", count, bytes, to}, {"Recv", count, bytes, from}}, [=, this] {
             check(ncclGroupStart(), "ncclGroupStart");
             check(ncclSend(send_, count, ncclFloat, to, communicator_, stream_), "ncclSend");
             check(ncclRecv(receive_, count, ncclFloat, from, communicator_, stream_), "ncclRecv");
             check(ncclGroupEnd(), "ncclGroupEnd");
           }});
      list.push_back(all_to_all(bytes, false));
    }
    return list;
  }

  Call all_to_all(std::size_t bytes, bool with_self) {
    const auto ranks = static_cast<std::size_t>(options_.ranks);
    const std::size_t part = bytes / sizeof(float) / ranks == 0 ? 1 : bytes / sizeof(float) / ranks;
    Call call{with_self ? "AllToAllWithSelf" : "AllToAll", {}, {}};
    std::vector<int> peers;
    for (int peer = 0; peer < options_.ranks; ++peer) {
      if (peer == options_.rank && !with_self) continue;
      peers.push_back(peer);
      call.operations.push_back({"Send", part, part * sizeof(float), peer});
      call.operations.push_back({"Recv", part, part * sizeof(float), peer});
    }
    call.issue = [this, peers, part] {
      check(ncclGroupStart(), "ncclGroupStart");
      for (const int peer : peers) {
        const std::size_t offset = part * static_cast<std::size_t>(peer);
        check(ncclSend(at(send_, offset), part, ncclFloat, peer, communicator_, stream_),
              "ncclSend");
        check(ncclRecv(at(receive_, offset), part, ncclFloat, peer, communicator_, stream_),
              "ncclRecv");
      }
      check(ncclGroupEnd(), "ncclGroupEnd");
    };
    return call;
  }

  void all_reduce(std::size_t count) {
    check(ncclAllReduce(send_, receive_, count, ncclFloat, ncclSum, communicator_, stream_),
          "ncclAllReduce");
  }
  void all_gather(std::size_t part) {
    check(ncclAllGather(send_, receive_, part, ncclFloat, communicator_, stream_), "ncclAllGather");
  }

  void time(const Call& call, int iteration) {
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    const auto wall = std::chrono::system_clock::now().time_since_epoch();
    check(cudaEventRecord(begin_, stream_), "cudaEventRecord");
    call.issue();
    check(cudaEventRecord(end_, stream_), "cudaEventRecord");
    check(cudaEventSynchronize(end_), "cudaEventSynchronize");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, begin_, end_), "cudaEventElapsedTime");
    std::printf(
        "{\"call\":\"%s\",\"rank\":%d,\"ranks\":%d,\"pid\":%ld,\"iteration\":%d,\"time_ns\":%lld,"
        "\"event_ns\":%lld,"
        "\"operations\":[",
        call.name.c_str(), options_.rank, options_.ranks, static_cast<long>(getpid()), iteration,
        static_cast<long long>(std::chrono::nanoseconds(wall).count()),
        static_cast<long long>(static_cast<double>(milliseconds) * 1e6));
    const char* separator = "";
    for (const Expected& operation : call.operations) {
      std::printf("%s{\"collective\":\"%s\",\"count\":%zu,\"bytes\":%zu,\"peer\":%d,\"root\":%d}",
                  separator, operation.collective, operation.count, operation.bytes, operation.peer,
                  operation.root);
      separator = ",";
    }
    std::printf("]}\n");
  }

  Options options_;
  ncclComm_t communicator_ = nullptr;
  cudaStream_t stream_ = nullptr;
  cudaEvent_t begin_ = nullptr, end_ = nullptr;
  void* send_ = nullptr;
  void* receive_ = nullptr;
};

}  // namespace

int main(int argc, char** argv) {
  const Options options = parse(argc, argv);
  Runner(options).run_all();
  return 0;
}

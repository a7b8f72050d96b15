// SPDX-License-Identifier: Apache-2.0
//
// An NCCL without GPUs, under NVIDIA's name, for ncclscope-probe-worker: ranks of several processes
// exchange their buffers through a file that all map. Operations are done when the group ends; all
// of a group are of one kind, as the probe has them. From the environment:
//   FAKE_NCCL_DIR    where the file is made (default /tmp)
//   FAKE_NCCL_FAULT  "wrong": rank 0 receives one element that is wrong; "init-fails"; "hang":
//                    AllGathers wait until they are aborted; "crash": AllGathers end the process
//   FAKE_NCCL_HUNG_RANK  only this rank does so (default: all)
#include <fcntl.h>
#include <nccl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

namespace {

constexpr std::size_t kRoomOfRank = std::size_t{4} << 20;
constexpr int kMostRanks = 64;

/// At the beginning of the file.
struct Meeting {
  std::atomic<int> arrived, round;
};

std::string variable(const char* name, const char* otherwise) {
  const char* value = std::getenv(name);
  return value == nullptr ? otherwise : value;
}

}  // namespace

struct ncclComm {
  char* map;
  int rank, ranks;
  std::atomic<bool> aborted{false};

  Meeting& meeting() const { return *reinterpret_cast<Meeting*>(map); }
  char* room(int of) const { return map + 4096 + static_cast<std::size_t>(of) * kRoomOfRank; }
  bool faulty(const char* fault) const {
    const std::string only = variable("FAKE_NCCL_HUNG_RANK", "");
    return variable("FAKE_NCCL_FAULT", "") == fault && (only.empty() || std::stoi(only) == rank);
  }
};

namespace {

enum class Kind { kJoin, kAllReduce, kAllGather, kReduceScatter, kSend, kReceive };

struct Call {
  Kind kind;
  ncclComm* communicator;
  const void* from;
  void* to;
  std::size_t count;
  int peer;
};

thread_local int depth = 0;
thread_local std::vector<Call> calls;

/// Waits for all ranks, of which `here` come together.
void meet(const ncclComm& communicator, int here) {
  Meeting& meeting = communicator.meeting();
  const int round = meeting.round.load();
  if (meeting.arrived.fetch_add(here) + here == communicator.ranks) {
    meeting.arrived.store(0);
    meeting.round.fetch_add(1);
    return;
  }
  while (meeting.round.load() == round && !communicator.aborted.load()) ::usleep(50);
}

void give(const Call& call, int ranks) {
  const auto n = static_cast<std::size_t>(ranks);
  std::size_t bytes = call.count * sizeof(float);
  if (call.kind == Kind::kReduceScatter) bytes *= n;
  std::size_t offset = 0;
  if (call.kind == Kind::kSend) offset = static_cast<std::size_t>(call.peer) * bytes;
  if (call.kind == Kind::kJoin || call.kind == Kind::kReceive) return;
  if (offset + bytes > kRoomOfRank) std::abort();
  std::memcpy(call.communicator->room(call.communicator->rank) + offset, call.from, bytes);
}

void sum(const Call& call, std::size_t first) {
  auto* out = static_cast<float*>(call.to);
  for (std::size_t i = 0; i < call.count; ++i) {
    float total = 0;
    for (int r = 0; r < call.communicator->ranks; ++r)
      total += reinterpret_cast<const float*>(call.communicator->room(r))[first + i];
    out[i] = total;
  }
}

void take(const Call& call) {
  const ncclComm& c = *call.communicator;
  const std::size_t bytes = call.count * sizeof(float);
  const auto rank = static_cast<std::size_t>(c.rank);
  switch (call.kind) {
    case Kind::kAllReduce:
      sum(call, 0);
      break;
    case Kind::kReduceScatter:
      sum(call, rank * call.count);
      break;
    case Kind::kAllGather:
      for (int r = 0; r < c.ranks; ++r)
        std::memcpy(static_cast<char*>(call.to) + static_cast<std::size_t>(r) * bytes, c.room(r),
                    bytes);
      break;
    case Kind::kReceive:
      std::memcpy(call.to, c.room(call.peer) + rank * bytes, bytes);
      break;
    default:
      return;
  }
  if (c.faulty("wrong") && c.rank == 0) static_cast<float*>(call.to)[0] += 1;
}

void misbehave(const Call& call) {
  if (call.kind != Kind::kAllGather) return;
  if (call.communicator->faulty("crash")) std::abort();
  while (call.communicator->faulty("hang") && !call.communicator->aborted.load()) ::usleep(1000);
}

ncclResult_t run() {
  std::vector<Call> now;
  now.swap(calls);
  if (now.empty()) return ncclSuccess;
  std::vector<const ncclComm*> here;
  for (const Call& call : now) {
    misbehave(call);
    bool known = false;
    for (const ncclComm* c : here) known = known || c == call.communicator;
    if (!known) here.push_back(call.communicator);
    give(call, call.communicator->ranks);
  }
  const ncclComm& any = *here.front();
  meet(any, static_cast<int>(here.size()));
  for (const Call& call : now) take(call);
  meet(any, static_cast<int>(here.size()));
  return any.aborted.load() ? ncclInternalError : ncclSuccess;
}

ncclResult_t add(const Call& call) {
  calls.push_back(call);
  return depth == 0 ? run() : ncclSuccess;
}

}  // namespace

// NOLINTBEGIN(readability-identifier-naming): NVIDIA's names
extern "C" {
ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}
const char* ncclGetErrorString(ncclResult_t result) {
  return result == ncclSuccess ? "no error" : "an error of the stand-in";
}
const char* ncclGetLastError(ncclComm_t) {
  return "the stand-in was told to fail";
}
ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  std::memset(id, 0, sizeof *id);
  const std::string name = variable("FAKE_NCCL_DIR", "/tmp") + "/fake-nccl-XXXXXX";
  if (name.size() >= sizeof id->internal) return ncclInternalError;
  std::memcpy(id->internal, name.c_str(), name.size());
  const int file = ::mkstemp(id->internal);
  if (file < 0) return ncclSystemError;
  const bool grown = ::ftruncate(file, 4096 + kMostRanks * static_cast<off_t>(kRoomOfRank)) == 0;
  ::close(file);
  return grown ? ncclSuccess : ncclSystemError;
}
ncclResult_t ncclCommInitRank(ncclComm_t* communicator, int ranks, ncclUniqueId id, int rank) {
  if (variable("FAKE_NCCL_FAULT", "") == "init-fails") return ncclSystemError;
  const int file = ::open(id.internal, O_RDWR | O_CLOEXEC);
  if (file < 0 || ranks > kMostRanks) return ncclInvalidArgument;
  void* map =
      ::mmap(nullptr, 4096 + kMostRanks * kRoomOfRank, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  ::close(file);
  if (map == MAP_FAILED) return ncclSystemError;
  *communicator = new ncclComm{static_cast<char*>(map), rank, ranks, {}};
  return add({Kind::kJoin, *communicator, nullptr, nullptr, 0, 0});
}
ncclResult_t ncclCommDestroy(ncclComm_t communicator) {
  ::munmap(communicator->map, 4096 + kMostRanks * kRoomOfRank);
  delete communicator;
  return ncclSuccess;
}
ncclResult_t ncclCommAbort(ncclComm_t communicator) {
  std::fprintf(stderr, "stand-in NCCL: rank %d is aborted\n", communicator->rank);
  communicator->aborted.store(true);
  return ncclSuccess;
}
ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}
ncclResult_t ncclGroupStart() {
  ++depth;
  return ncclSuccess;
}
ncclResult_t ncclGroupEnd() {
  return --depth == 0 ? run() : ncclSuccess;
}
ncclResult_t ncclAllReduce(const void* from, void* to, std::size_t count, ncclDataType_t,
                           ncclRedOp_t, ncclComm_t communicator, cudaStream_t) {
  return add({Kind::kAllReduce, communicator, from, to, count, 0});
}
ncclResult_t ncclAllGather(const void* from, void* to, std::size_t count, ncclDataType_t,
                           ncclComm_t communicator, cudaStream_t) {
  return add({Kind::kAllGather, communicator, from, to, count, 0});
}
ncclResult_t ncclReduceScatter(const void* from, void* to, std::size_t count, ncclDataType_t,
                               ncclRedOp_t, ncclComm_t communicator, cudaStream_t) {
  return add({Kind::kReduceScatter, communicator, from, to, count, 0});
}
ncclResult_t ncclSend(const void* from, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t communicator, cudaStream_t) {
  return add({Kind::kSend, communicator, from, nullptr, count, peer});
}
ncclResult_t ncclRecv(void* to, std::size_t count, ncclDataType_t, int peer,
                      ncclComm_t communicator, cudaStream_t) {
  return add({Kind::kReceive, communicator, nullptr, to, count, peer});
}
}
// NOLINTEND(readability-identifier-naming)

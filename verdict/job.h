// SPDX-License-Identifier: Apache-2.0
//
// What a verdict is made of: who is where in a job, what was measured in a window of time, and how
// far everybody is now. Filled by the command line from agents, by benchmarks from models, by tests
// from recordings. Plain data: rates are per second of the window, times in seconds. Things are
// named by their index in Job.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ncclscope::verdict {

inline constexpr std::uint32_t kNone = std::numeric_limits<std::uint32_t>::max();

/// Collectives that no rank can leave before all have come. Only these tell who is late: a root or
/// a sender leaves early without being late.
enum class Collective : std::uint8_t { kAllReduce, kAllGather, kReduceScatter, kAllToAll };
inline constexpr std::size_t kCollectives = 4;
/// From NCCL's name; none if it does not synchronise all ranks.
[[nodiscard]] std::optional<Collective> synchronising(std::string_view name);
[[nodiscard]] std::string_view name(Collective collective);

struct Gpu {
  std::string node;
  std::int32_t index = -1;  // on the node, -1 = unknown
  std::string global_rank;  // empty = unknown
  std::int64_t pid = -1;  // of a process that uses it, -1 = unknown; names it if nothing else does
};

struct Communicator {
  std::string comm;  // 16 hex digits
  std::string name;
  std::string dimension;     // tp, pp, dp, ep, cp, ...; empty = unknown
  std::uint32_t nranks = 0;  // 0 = unknown
  std::uint32_t nnodes = 0;
};

/// A rank of a communicator. (communicator, rank) occurs once.
struct Member {
  std::uint32_t communicator = kNone;
  std::uint32_t gpu = kNone;
  std::int32_t rank = -1;
};

struct Job {
  std::string job_id;
  std::vector<Gpu> gpus;
  std::vector<Communicator> communicators;
  std::vector<Member> members;
};

// ---- a window of time
// ----------------------------------------------------------------------------

/// Of one member in one collective, per second. First operations and fused batches left out, as in
/// ncclscope_rank_collective_*.
struct CollectiveRates {
  std::uint32_t member = kNone;
  Collective collective{};
  double operations = 0;
  double seconds = 0;
  double bus_bytes = 0;
};

/// Of one size and algorithm of a communicator's collective, over its members: how much of the time
/// they make up.
struct ShapeRates {
  std::uint32_t communicator = kNone;
  Collective collective{};
  std::string size, algorithm;
  double busy_seconds = 0;
};

/// Sampled network phases of one direction of a GPU, per second.
struct NetworkRates {
  double seconds = 0;  // send: on the wire; receive: waiting for data
  double bytes = 0;
  /// Waiting for the other side. Send: for room at the receiver; receive: for its own GPU to take
  /// what has come.
  double blocked_seconds = 0;
  double operations = 0;
};

/// A GPU sends to another one over the network.
struct NetworkPeers {
  std::uint32_t from = kNone, to = kNone;
};

struct GpuRates {
  /// In Recv and in collectives that do not synchronise all ranks (Broadcast, ...): who is behind a
  /// late one in a ring waits there, too.
  double other_seconds = 0;
  double queue_seconds = 0;     // GPU start - enqueue, over queue_operations
  double queue_operations = 0;  // per second, those of which it is known
  double calls = 0;             // collectives that were enqueued, per second
  NetworkRates send, receive;
};

struct Window {
  double seconds = 0;
  std::vector<CollectiveRates> collectives;
  std::vector<ShapeRates> shapes;
  std::vector<GpuRates> gpus;       // as Job::gpus
  std::vector<NetworkPeers> peers;  // as far as known
  /// Communicators with a collective of which operations came, and none has a GPU time: what their
  /// members wait in it is not known.
  std::vector<std::uint32_t> untimed;
  std::vector<double> coverage;        // as Job::communicators: recorded / seen, the least
  std::optional<double> step_seconds;  // mean
};

// ---- now
// -----------------------------------------------------------------------------------------

enum class MemberState : std::uint8_t {
  kRunning,
  kFinalized,
  kVanished,  // its process ended without an end of the communicator
  kLost,      // known from before, and not reported any more
};

/// How far a member is. Counts are since the communicator's init, of collectives; equal counts mean
/// the same operation on all ranks.
struct Progress {
  MemberState state = MemberState::kRunning;
  std::uint64_t enqueued = 0, started = 0, completed = 0;
  std::uint64_t p2p_enqueued = 0, p2p_started = 0, p2p_completed = 0;
  double inflight_seconds = 0;    // age of the oldest unfinished operation, 0 = none
  double sample_age_seconds = 0;  // since the process last said so
  std::uint64_t signature = 0;    // of the oldest unfinished collective, 0 = none
  double idle_seconds = 0;        // since it last called anything
  /// The last of the collectives (Sends, Receives) that count as completed may be running: where
  /// GPU times are not asked for, nobody sees them end.
  bool collective_ends_unknown = false, p2p_ends_unknown = false;
  bool last_waits_for_all = false;    // its last collective ends nowhere before all have called it
  std::uint64_t calls_signature = 0;  // of its last calls; comparable where `enqueued` is equal,
                                      // 0 = unknown
};

struct Standing {
  std::vector<Progress> progress;    // as Job::members
  std::vector<double> coverage;      // as Job::communicators
  double longest_ended_seconds = 0;  // the longest wait of the job that ended by itself
  bool agents_missing = false;       // some agents did not answer: who is not reported may be well
};

}  // namespace ncclscope::verdict

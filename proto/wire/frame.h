// SPDX-License-Identifier: Apache-2.0
//
// The binary frame protocol between plugin and agent: layout of every frame and record.
// proto/README.md is the same as prose, byte by byte. Little-endian, fixed-size PODs, pinned by
// static_assert. Rules of growth: a record type's body only grows at its end; readers use what they
// know and skip the rest; unknown types are skipped by length; enum values are appended; another
// major version is refused.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>

namespace ncclscope::wire {

static_assert(std::endian::native == std::endian::little,
              "the wire is little-endian and is not swapped");

inline constexpr std::uint32_t kMagic = 0x4653434Eu;  // bytes "NCSF"
inline constexpr std::uint8_t kMajorVersion = 1;
inline constexpr std::size_t kMaxFrameBytes = 32 * 1024;
inline constexpr std::size_t kMaxRecordBytes = 255 * 8;
inline constexpr std::size_t kMaxStringBytes =
    128;  // longer strings are cut by the writer, refused by the reader
inline constexpr std::size_t kMaxCommNameBytes = 64;
inline constexpr std::uint16_t kNoCommunicator = 0xFFFF;  // work done for another process (PXN)

/// Starts every packet. Indexed records of the frame (Operation, NetworkPhases, ChannelDetail,
/// CommunicatorFinalize) have indexes first_index, first_index + 1, ... in order of appearance.
struct FrameHeader {
  std::uint32_t magic;
  std::uint8_t major;
  std::uint8_t header_bytes;  // 32; larger values are skipped over
  std::uint16_t flags;        // 0
  std::uint32_t frame_bytes;  // whole packet, this header included
  std::uint16_t record_count;
  std::uint16_t reserved;
  std::uint64_t first_index;   // of the first indexed record; 0 if the frame has none
  std::uint64_t send_time_ns;  // CLOCK_MONOTONIC of the sender
};
static_assert(sizeof(FrameHeader) == 32 && alignof(FrameHeader) == 8);

enum class RecordType : std::uint8_t {
  // plugin -> agent, metadata and state (not indexed; resent after a reconnect; latest wins)
  kHello = 1,
  kCommunicatorInit = 2,
  kProgress = 3,
  kBooks = 4,
  kNeighbours = 5,
  kGoodbye = 6,
  kEnvironment = 7,
  // plugin -> agent, indexed: kept until acknowledged, counted once
  kCommunicatorFinalize = 16,
  kOperation = 17,
  kNetworkPhases = 18,
  kChannelDetail = 19,
  // agent -> plugin
  kWelcome = 64,
  kAck = 65,
  kSetDetail = 66,
  kRefuse = 67,
  kHelloAgain = 68,
};
[[nodiscard]] constexpr bool is_indexed(std::uint8_t type) noexcept {
  return type >= 16 && type < 64;
}

/// Starts every record. Length counts 8-byte words, this header included (1..255).
struct RecordHeader {
  std::uint8_t type;
  std::uint8_t words;
};

// ---- capability bits (Hello and Welcome) ----
inline constexpr std::uint64_t kCapabilityNetworkPhases = 1u << 0;
inline constexpr std::uint64_t kCapabilityChannelDetail = 1u << 1;
inline constexpr std::uint64_t kCapabilitySetDetail = 1u << 2;

// ---- plugin -> agent ----
/// First record of a connection; followed by strings (see StringKey) up to the record's end.
struct Hello {
  RecordHeader header;
  std::uint16_t interface_version;  // 1..7: which ncclProfiler_vN NCCL took
  std::uint32_t nccl_version;       // ncclGetVersion's number (22809 = 2.28.9), 0 = unknown
  std::uint64_t capabilities;
  std::uint64_t session_id;          // random, one per load of the plugin in a process (not 0)
  std::uint64_t next_index;          // next record index to be sent first time; all below
                                     // acknowledged_index + 1 are done
  std::uint64_t acknowledged_index;  // highest index some agent has acknowledged
  std::uint64_t agent_instance;      // whose acknowledgement that was, 0 = none yet
  std::uint64_t start_time_ns;       // CLOCK_MONOTONIC at the first init
  std::int64_t realtime_offset_ns;   // CLOCK_REALTIME - CLOCK_MONOTONIC now
  std::uint32_t pid;                 // as the process sees itself (its pid namespace)
  std::uint32_t uid;
  std::uint32_t string_bytes;  // length of the strings that follow, padding excluded
  std::uint32_t reserved;
};
static_assert(sizeof(Hello) == 80);

/// A string in Hello or CommunicatorInit: {u16 key, u16 length, bytes}, padded to 4 bytes.
struct StringHeader {
  std::uint16_t key;
  std::uint16_t bytes;
};
enum class StringKey : std::uint16_t {
  // process
  kPluginVersion = 1,
  kHostname = 2,
  kExecutable = 3,  // basename of the program
  // claims from the environment (never proof)
  kSlurmJobId = 16,
  kSlurmStepId = 17,
  kSlurmProcId = 18,
  kSlurmLocalId = 19,
  kSlurmNodeId = 20,
  kSlurmArrayJobId = 21,
  kSlurmArrayTaskId = 22,
  kSlurmHetJobId = 23,
  kSlurmHetJobOffset = 24,
  kSlurmJobName = 25,
  kSlurmJobUser = 26,
  kSlurmJobPartition = 27,
  kSlurmJobAccount = 28,
  kSlurmClusterName = 29,
  kSlurmdNodeName = 30,
  kSlurmRestartCount = 31,
  kSlurmNumTasks = 32,
  kSlurmNumNodes = 33,
  kSlurmHetSize = 34,  // components of a heterogeneous job
  kRank = 40,
  kLocalRank = 41,
  kWorldSize = 42,
  kJobName = 43,       // NCCLSCOPE_JOB_NAME
  kPodName = 44,       // NCCLSCOPE_POD_NAME or HOSTNAME inside Kubernetes
  kPodNamespace = 45,  // NCCLSCOPE_POD_NAMESPACE
  kNodeName = 46,      // NCCLSCOPE_NODE_NAME
  // what the plugin saw of its process
  kRdmaDevices = 56,  // RDMA devices it has open, as a decimal number; left out where not known
  // communicator
  kCommunicatorName = 64,
  kGpuPciBusId = 65,  // "0000:3b:00.0", lower case
  kGpuUuid = 66,      // "GPU-..." as dcgm-exporter writes it
  // environment
  kVariable = 72,      // "NAME=value", as far as it fits into a string, ...
  kVariableMore = 73,  // ... and what follows, once or several times
};

/// The NCCL_* variables that the process had at its first init, those of nccl.conf files included
/// (NCCL puts them into the environment); followed by strings. As many records as it takes, in the
/// frame of Hello: the one with kEnvironmentEnd ends the list.
struct Environment {
  RecordHeader header;
  std::uint16_t flags;         // kEnvironment...
  std::uint32_t string_bytes;  // length of the strings that follow, padding excluded
};
static_assert(sizeof(Environment) == 8);
inline constexpr std::uint16_t kEnvironmentEnd = 1u << 0;
/// Variables, or ends of values, were left out: too many, too long, or by their name a secret.
inline constexpr std::uint16_t kEnvironmentCut = 1u << 1;
inline constexpr std::size_t kMaxVariables = 64;       // of a process
inline constexpr std::size_t kMaxVariableBytes = 512;  // name, '=' and value
inline constexpr std::size_t kMaxEnvironmentRecords = 4;

inline constexpr std::uint16_t kCommHashKnown =
    1u << 0;  // else `hash` is 0 and the communicator is known by its session only
inline constexpr std::uint16_t kCommRanksKnown = 1u << 1;  // nranks and nnodes
inline constexpr std::uint16_t kCommRankKnown = 1u << 2;
inline constexpr std::uint16_t kCommParentShared = 1u << 3;  // reserved

/// Describes a communicator (one rank of it). May come again with more flags once more is known.
struct CommunicatorInit {
  RecordHeader header;
  std::uint16_t communicator;  // id used by this session's records
  std::uint16_t flags;         // kComm...Known
  std::uint16_t reserved;
  std::uint64_t hash;  // NCCL's commHash / commId
  std::uint32_t nranks;
  std::uint32_t nnodes;
  std::int32_t rank;           // in this communicator
  std::int32_t cuda_device;    // ordinal in the process, -1 = unknown
  std::uint64_t init_time_ns;  // CLOCK_MONOTONIC
  std::uint32_t string_bytes;
  std::uint32_t reserved2;
};
static_assert(sizeof(CommunicatorInit) == 48);

/// Where a communicator is now. Absolute since init: a lost sample is closed by the next one.
struct Progress {
  RecordHeader header;
  std::uint16_t communicator;
  std::uint16_t flags;  // kProgress...
  std::uint16_t reserved;
  std::uint64_t time_ns;               // CLOCK_MONOTONIC of this sample
  std::uint64_t collectives_enqueued;  // number of collectives called
  std::uint64_t collectives_started;   // of which the GPU started (or completed)
  std::uint64_t collectives_completed;
  std::uint64_t p2p_enqueued;
  std::uint64_t p2p_started;
  std::uint64_t p2p_completed;
  std::uint64_t seen;            // operations that came to the plugin, all kinds
  std::uint64_t recorded;        // operation records written
  std::uint64_t dropped;         // operations that no record will tell of
  std::uint64_t oldest_index;    // index of the oldest operation that has not completed, ~0 = none
  std::uint64_t oldest_time_ns;  // its API call, CLOCK_MONOTONIC
  std::uint64_t oldest_signature;  // 48 bits: operation, size, datatype, root; 0 = none
};
static_assert(sizeof(Progress) == 112);
inline constexpr std::uint16_t kProgressOldestStarted =
    1u << 0;  // the GPU started the oldest operation
inline constexpr std::uint16_t kProgressOldestOnNetwork =
    1u << 1;  // its proxy operations are in progress
inline constexpr std::uint16_t kProgressOldestIsP2p = 1u << 2;
inline constexpr std::uint16_t kProgressTimesUntrusted =
    1u << 3;  // GPU times of this communicator are no longer trusted
inline constexpr std::uint16_t kProgressFinalized = 1u << 4;
/// The last of the collectives (point-to-point operations) that count as completed may be running:
/// NCCL reports no kernels of them, so they count from their launch.
inline constexpr std::uint16_t kProgressCollectiveEndsUnknown = 1u << 5;
inline constexpr std::uint16_t kProgressP2pEndsUnknown = 1u << 6;

/// Why an operation has no record. Order is the order in Books::dropped.
enum class DropReason : std::uint8_t {
  kNoOperationSlot = 0,    // too many operations in flight
  kCommunicatorTable = 1,  // too many communicators
  kRingBusy = 2,           // a stalled writer held the slot
  kOverwritten = 3,        // ring full: the oldest unacknowledged record gave way
  kAbandoned = 4,          // its communicator went away while a callback held it
  kDisabled = 5,           // detail "low"/governor: counted, not recorded
};
inline constexpr std::size_t kDropReasonCount = 8;

/// Why an operation has no GPU time. Order is the order in Books::untimed.
enum class UntimedReason : std::uint8_t {
  kNone = 0,        // it has GPU time
  kNotCarried = 1,  // the interface or the mask gives no GPU time
  kApiOnly = 2,     // only the API call was reported (symmetric kernel, hidden Broadcast, ...)
  kCopyEngine = 3,
  kCounterDrift = 4,    // stamps of other work (self send, grouped Broadcasts)
  kTimingRejected = 5,  // stop <= start, or overlaps earlier work of the channel
  kLost = 6,            // channel reports are missing
  kUnfinished = 7,      // closed by finalize, abort or exit before it completed
  kSelf = 8,            // send or receive to itself: no kernel report exists
  kNotAsked = 9,        // NCCL was not asked for it: sampling, detail "low" or the governor
};
inline constexpr std::size_t kUntimedReasonCount = 16;

/// The plugin's books. All counters absolute since the session began.
/// seen = recorded + dropped[..without overwritten] + open;  recorded = acknowledged + pending +
/// overwritten
struct Books {
  RecordHeader header;
  std::uint16_t flags;
  std::uint32_t mask;     // activation mask in force
  std::uint64_t time_ns;  // CLOCK_MONOTONIC
  std::int64_t realtime_offset_ns;
  std::uint64_t seen;             // operations
  std::uint64_t recorded;         // operation records written to the ring
  std::uint64_t open;             // operations in flight
  std::uint64_t records_written;  // all indexed records (operations, phases, detail, finalize) =
                                  // highest index
  std::uint64_t records_overwritten;  // of those, lost in the ring before they were acknowledged
  std::uint64_t dropped[kDropReasonCount];  // operations, by DropReason; [kOverwritten] counts
                                            // operation records only
  std::uint64_t untimed[kUntimedReasonCount];
  std::uint64_t events[16];        // callbacks by event type bit 0..15 (start calls)
  std::uint64_t stops_unmatched;   // stop or record of a handle that is not alive
  std::uint64_t children_dropped;  // kernel-channel, proxy and step events without a slot
  std::uint64_t callback_ns;       // estimated own time on NCCL's and the application's threads
  std::uint64_t callbacks;         // startEvent calls, all types
  std::uint64_t sender_cpu_ns;     // CPU time of the sender thread
  std::uint64_t frames_sent;
  std::uint64_t connects;
  std::uint8_t detail;  // DetailLevel in force
  std::uint8_t
      governor;  // 0 = nothing lowered, 1 = network off, 2 = kernel slices, 3 = counters only
  std::uint8_t detail_asked;  // DetailLevel; higher than `detail` where the governor has lowered it
  std::uint8_t network;       // network phases of: 0 nothing, 1 sampled operations, 2 all
  std::uint32_t communicators;  // alive
  // ---- 448 bytes: its first published length ----
  std::uint32_t kernel_slice;      // GPU times for one block of operations in so many, 0 = for none
  std::uint32_t governor_changes;  // of the governor's step
  std::uint64_t governor_since_ns;  // CLOCK_MONOTONIC of the last one, 0 = never
  double governor_trigger_ratio;    // own time / wall time that made the last lowering
  double recent_ratio;              // own time / wall time over about a second, busiest thread
  double budget_ratio;              // what the governor holds it to
  double nccl_cost_ratio;           // blocks of operations with GPU times last longer by this, ...
  double nccl_cost_error;           // ... give or take (standard error), ...
  std::uint64_t nccl_cost_blocks;   // ... from so many comparisons; 0 or 1: nothing is known
  // ---- 512 bytes: its second ----
  // Files that the process writes itself (NCCL Inspector's): operations that are in them, and ...
  std::uint64_t file_lines;
  std::uint64_t file_lines_late;      // ... that are not: the files took too long
  std::uint64_t file_lines_failed;    // ... the file system refused them
  std::uint64_t file_records_missed;  // records of any kind lost in the ring before they were read
};
inline constexpr std::size_t kBooksFirstBytes = 448;
inline constexpr std::size_t kBooksSecondBytes = 512;
static_assert(kBooksFirstBytes == 64 + 8 * (kDropReasonCount + kUntimedReasonCount + 16 + 7) + 8);
static_assert(offsetof(Books, file_lines) == kBooksSecondBytes);
static_assert(sizeof(Books) == kBooksSecondBytes + 32);
static_assert(offsetof(Books, kernel_slice) == kBooksFirstBytes);

/// Ring or tree neighbours of a communicator as seen in ProxyOp, once per peer and direction.
struct Neighbours {
  RecordHeader header;
  std::uint16_t communicator;
  std::uint16_t count;  // peers that follow: {i32 peer, u8 is_send, u8 channel_count, u16 0}
  std::uint16_t reserved;
};
static_assert(sizeof(Neighbours) == 8);
struct Neighbour {
  std::int32_t peer;
  std::uint8_t is_send;
  std::uint8_t channels;
  std::uint16_t reserved;
};
static_assert(sizeof(Neighbour) == 8);

/// The process is leaving in good order; Books before it are final.
struct Goodbye {
  RecordHeader header;
  std::uint16_t reason;  // 0 = process exit
  std::uint32_t reserved;
};
static_assert(sizeof(Goodbye) == 8);

// ---- operation record ----
enum class TimingSource : std::uint8_t { kNone = 0, kGpu = 1, kHostCallback = 2 };

namespace operation_flags {
inline constexpr std::uint16_t kTimingMask = 0x3;  // TimingSource
inline constexpr std::uint16_t kComplete =
    1u << 2;  // all channel reports came (where they exist), or none were to come
inline constexpr std::uint16_t kGraph = 1u << 3;  // CUDA graph replay
inline constexpr std::uint16_t kApiSeen =
    1u << 4;  // api_time_ns is the API call, else the task's start
inline constexpr std::uint16_t kTaskSeen =
    1u << 5;  // a Coll/P2p event came (algorithm, protocol, channels valid)
inline constexpr std::uint16_t kCopyEngine = 1u << 6;
inline constexpr std::uint16_t kWarmup =
    1u << 7;  // among the first operations of its communicator (3 collectives or 3 p2p)
inline constexpr std::uint16_t kChannelsUnknown =
    1u << 8;  // `channels` is an upper bound or unknown (old interfaces, CollNet)
inline constexpr std::uint16_t kSequenceKnown = 1u << 9;
inline constexpr std::uint16_t kSymmetric = 1u << 10;
inline constexpr std::uint16_t kTypeFromApi =
    1u << 11;  // datatype is the caller's; count is in elements of it
inline constexpr std::uint16_t kBytesAmbiguous =
    1u << 12;  // datatype code is ambiguous (interface v1: Float64 may be 8-bit)
}  // namespace operation_flags

/// One operation of one rank. 56 bytes. Indexed.
struct Operation {
  RecordHeader header;
  std::uint16_t communicator;
  std::uint8_t function;            // model::Function
  std::uint8_t datatype;            // model::DataType
  std::uint8_t algorithm_protocol;  // low nibble model::Algorithm, high nibble model::Protocol
  std::uint8_t untimed_reason;      // UntimedReason
  std::uint8_t channels;            // promised by NCCL
  std::uint8_t channels_seen;       // that reported start and stop
  std::uint16_t flags;              // operation_flags
  std::int32_t root_or_peer;        // root (rooted collectives), peer (p2p), else -1
  std::uint32_t
      index;  // low 32 bits of the communicator's operation index (0-based; p2p counted apart)
  std::uint32_t sequence;     // low 32 bits of NCCL's sequence number
  std::uint64_t count_plan;   // bits 0..47 count in elements, 48..63 plan (group) id, 0 = none
  std::uint64_t api_time_ns;  // CLOCK_MONOTONIC
  std::uint64_t
      gpu_start_ns;  // GPU clock (timing kGpu) or CLOCK_MONOTONIC (kHostCallback), 0 = none
  std::uint64_t duration_enqueue;  // bits 0..43 duration in ns, 44..63 enqueue - api in
                                   // microseconds (saturating)
};
static_assert(sizeof(Operation) == 56 && alignof(Operation) == 8);

inline constexpr std::uint64_t kMaxCount = (std::uint64_t{1} << 48) - 1;
inline constexpr std::uint64_t kMaxDurationNs =
    (std::uint64_t{1} << 44) - 1;  // 4.8 hours, saturating
inline constexpr std::uint64_t kMaxEnqueueUs = (std::uint64_t{1} << 20) - 1;  // 1.05 s, saturating

[[nodiscard]] constexpr std::uint64_t pack_count_plan(std::uint64_t count,
                                                      std::uint16_t plan) noexcept {
  return (count > kMaxCount ? kMaxCount : count) | (std::uint64_t{plan} << 48);
}
[[nodiscard]] constexpr std::uint64_t pack_duration_enqueue(
    std::uint64_t duration_ns, std::uint64_t enqueue_delay_us) noexcept {
  const std::uint64_t d = duration_ns > kMaxDurationNs ? kMaxDurationNs : duration_ns;
  const std::uint64_t e = enqueue_delay_us > kMaxEnqueueUs ? kMaxEnqueueUs : enqueue_delay_us;
  return d | (e << 44);
}
[[nodiscard]] constexpr std::uint64_t count_of(const Operation& o) noexcept {
  return o.count_plan & kMaxCount;
}
[[nodiscard]] constexpr std::uint16_t plan_of(const Operation& o) noexcept {
  return static_cast<std::uint16_t>(o.count_plan >> 48);
}
[[nodiscard]] constexpr std::uint64_t duration_ns_of(const Operation& o) noexcept {
  return o.duration_enqueue & kMaxDurationNs;
}
[[nodiscard]] constexpr std::uint64_t enqueue_time_ns_of(const Operation& o) noexcept {
  return o.api_time_ns + (o.duration_enqueue >> 44) * 1000;
}
[[nodiscard]] constexpr TimingSource timing_of(const Operation& o) noexcept {
  return static_cast<TimingSource>(o.flags & operation_flags::kTimingMask);
}

/// Network phases of one direction of one operation (sums over its channels and steps). 56 bytes.
/// Indexed. send: phase[0] gpu_wait (8->20), [1] peer_wait (20->9), [2] wire (9->stop) receive:
/// phase[0] data_wait (10->11), [1] flush (11->12), [2] gpu_wait (12->stop)
struct NetworkPhases {
  RecordHeader header;
  std::uint16_t communicator;  // kNoCommunicator: done for another process (PXN)
  std::uint32_t index;         // operation index, as in Operation
  std::uint8_t is_send;
  std::uint8_t is_p2p;
  std::uint16_t channels;  // proxy operations summed
  std::int32_t peer;       // of the first channel
  std::uint64_t bytes;
  std::uint32_t steps;
  std::uint32_t steps_incomplete;  // started again or never stopped
  std::uint64_t phase_ns[3];
};
static_assert(sizeof(NetworkPhases) == 56);

/// Per-channel times of an operation, at detail "full". 56 bytes. Indexed.
struct ChannelDetail {
  RecordHeader header;
  std::uint16_t communicator;
  std::uint32_t index;
  std::uint8_t channel;
  std::uint8_t is_p2p;
  std::uint8_t flags;  // bit 0: rejected
  std::uint8_t function;
  std::uint32_t reserved;
  std::uint64_t gpu_start_ns;
  std::uint64_t gpu_stop_ns;
  std::uint64_t host_start_ns;  // CLOCK_MONOTONIC of the callbacks
  std::uint64_t host_stop_ns;
  std::uint64_t reserved2;
};
static_assert(sizeof(ChannelDetail) == 56);

/// A communicator's end: its final numbers. 56 bytes. Indexed.
struct CommunicatorFinalize {
  RecordHeader header;
  std::uint16_t communicator;
  std::uint32_t unfinished;  // operations closed by the finalize
  std::uint64_t time_ns;
  std::uint64_t collectives_enqueued;
  std::uint64_t collectives_completed;
  std::uint64_t p2p_enqueued;
  std::uint64_t p2p_completed;
  std::uint64_t seen;
};
static_assert(sizeof(CommunicatorFinalize) == 56);

// ---- agent -> plugin ----
struct Welcome {
  RecordHeader header;
  std::uint16_t reserved;
  std::uint32_t reserved2;
  std::uint64_t agent_instance;  // random per agent start, not 0
  std::uint64_t highest_index;   // of this session's records this agent instance holds, 0 = none
  std::uint64_t capabilities;
};
static_assert(sizeof(Welcome) == 32);

struct Ack {
  RecordHeader header;
  std::uint16_t reserved;
  std::uint32_t reserved2;
  std::uint64_t index;  // all records up to this one are counted
};
static_assert(sizeof(Ack) == 16);

enum class DetailLevel : std::uint8_t { kNormal = 0, kLow = 1, kFull = 2 };
struct SetDetail {
  RecordHeader header;
  std::uint8_t level;         // DetailLevel
  std::uint8_t network;       // 1: network phases of every operation
  std::uint32_t duration_ms;  // then back to normal; 0 = until told otherwise
};
static_assert(sizeof(SetDetail) == 8);

enum class RefuseReason : std::uint16_t {
  kOther = 0,
  kVersion = 1,
  kMalformed = 2,
  kNoHello = 3,
  kQuota = 4,
  kShutdown = 5,
};
struct Refuse {
  RecordHeader header;
  std::uint16_t reason;  // RefuseReason
  std::uint8_t major;    // the agent's major version
  std::uint8_t reserved[3];
};
static_assert(sizeof(Refuse) == 8);

/// The agent has restarted and kept the connection: it knows nothing of it. The answer is a Hello,
/// as on a new connection; what was sent before is resent from Welcome.highest_index on.
struct HelloAgain {
  RecordHeader header;
  std::uint8_t reserved[6];
};
static_assert(sizeof(HelloAgain) == 8);

}  // namespace ncclscope::wire

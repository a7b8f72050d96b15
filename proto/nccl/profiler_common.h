// SPDX-License-Identifier: Apache-2.0
// What all versions of NCCL's profiler plugin interface share: result codes, event type bits, event
// states, the logger type, the strings and numeric codes of descriptors, payloads of network
// events. Declared by this project from the documented binary interface; NCCL's headers are not
// needed. Plain data and constexpr tables, libc only; nothing here can fail.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

/// Pins offset and size of a direct member.
#define NCCLSCOPE_NCCL_PIN(type, member, offset, size)                                \
  static_assert(offsetof(type, member) == (offset) && sizeof(type::member) == (size), \
                #type "::" #member)
/// Pins a field of a nested struct; the offset counts from the start of `type`.
#define NCCLSCOPE_NCCL_PIN_IN(type, member, nested, field, offset, size)              \
  static_assert(offsetof(type, member) + offsetof(type::nested, field) == (offset) && \
                    sizeof(type::nested::field) == (size) &&                          \
                    std::is_same_v<decltype(type::member), type::nested>,             \
                #type "::" #member "." #field)

namespace ncclscope::nccl {

/// ncclResult_t. NCCL looks only at what `init` returns.
enum Result : std::int32_t {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

/// ncclDebugLogLevel.
enum LogLevel : std::int32_t {
  kLogNone = 0,
  kLogVersion = 1,
  kLogWarn = 2,
  kLogInfo = 3,
  kLogAbort = 4,
  kLogTrace = 5,
};

/// Subsystem flags of the logger.
inline constexpr unsigned long kSubsysInit = 0x1;
inline constexpr unsigned long kSubsysEnv = 0x80;
inline constexpr unsigned long kSubsysProfile = 0x4000;

using DebugLogger = void (*)(LogLevel level, unsigned long flags, const char* file, int line,
                             const char* format, ...);

/// Event type bits: values of `type` in descriptors and of the activation mask.
enum EventType : std::uint32_t {
  kGroup = 0x1,
  kColl = 0x2,
  kP2p = 0x4,
  kProxyOp = 0x8,
  kProxyStep = 0x10,
  kProxyCtrl = 0x20,
  kKernelCh = 0x40,       // v3
  kNetPlugin = 0x80,      // v3
  kGroupApi = 0x100,      // v5
  kCollApi = 0x200,       // v5
  kP2pApi = 0x400,        // v5
  kKernelLaunch = 0x800,  // v5
  kCeColl = 0x1000,       // v6
  kCeSync = 0x2000,       // v6
  kCeBatch = 0x4000,      // v6
  kKernelPhase = 0x8000,  // v7
};

/// States of `recordEventState`. 0-7 exist in v1-v3 only; 19 and above from v4 on.
enum EventState : std::uint32_t {
  kProxyOpSendPosted = 0,
  kProxyOpSendRemFifoWait = 1,
  kProxyOpSendTransmitted = 2,
  kProxyOpSendDone = 3,
  kProxyOpRecvPosted = 4,
  kProxyOpRecvReceived = 5,
  kProxyOpRecvTransmitted = 6,
  kProxyOpRecvDone = 7,
  kProxyStepSendGpuWait = 8,
  kProxyStepSendWait = 9,
  kProxyStepRecvWait = 10,
  kProxyStepRecvFlushWait = 11,
  kProxyStepRecvGpuWait = 12,
  kProxyCtrlIdle = 13,
  kProxyCtrlActive = 14,
  kProxyCtrlSleep = 15,
  kProxyCtrlWakeup = 16,
  kProxyCtrlAppend = 17,
  kProxyCtrlAppendEnd = 18,
  kProxyOpInProgress = 19,      // v4
  kProxyStepSendPeerWait = 20,  // v4
  kNetPluginUpdate = 21,        // v4
  kKernelChStop = 22,           // v4
  kGroupStartApiStop = 23,      // v5
  kGroupEndApiStart = 24,       // v5
  kCeCollStart = 25,            // defined in v6, never sent
  kCeCollComplete = 26,
  kCeSyncStart = 27,
  kCeSyncComplete = 28,
  kCeBatchStart = 29,
  kCeBatchComplete = 30,
  kKernelPhaseStop = 31,  // v7
};

/// Number of channels a communicator can have; channel ids are below it.
inline constexpr int kMaxChannels = 64;

/// Strings of `func`, and NCCL's numeric codes of v1 for the first eight.
inline constexpr const char* kFuncCodesV1[] = {
    "Broadcast", "Reduce", "AllGather", "ReduceScatter", "AllReduce", "SendRecv", "Send", "Recv"};
inline constexpr const char* kFuncNames[] = {
    "AllGather",     "AllReduce", "AlltoAll", "Broadcast", "Gather",    "Recv",   "Reduce",
    "ReduceScatter", "Scatter",   "SendRecv", "Send",      "PutSignal", "Signal", "WaitSignal"};

/// Strings of `algo` and `proto`, indexed by NCCL's numeric code (v1 sends the code).
inline constexpr const char* kAlgoNames[] = {
    "TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT"};
inline constexpr const char* kProtoNames[] = {"LL", "LL128", "SIMPLE"};
inline constexpr const char* kUnknownName = "Unknown";

/// One element type: NCCL's numeric code is the index in kDatatypes.
struct DatatypeInfo {
  const char* profiler_name;  ///< what descriptors say
  std::uint8_t bytes;
};
/// ncclDataType_t in order. NCCL has no name for uint8 in profiler events: it says "Unknown".
inline constexpr DatatypeInfo kDatatypes[] = {
    {"ncclInt8", 1},    {"Unknown", 1},      {"ncclInt32", 4},      {"ncclUint32", 4},
    {"ncclInt64", 8},   {"ncclUint64", 8},   {"ncclFloat16", 2},    {"ncclFloat32", 4},
    {"ncclFloat64", 8}, {"ncclBfloat16", 2}, {"ncclFloat8e4m3", 1}, {"ncclFloat8e5m2", 1}};
enum Datatype : std::uint8_t {
  kInt8 = 0,
  kUint8 = 1,
  kInt32 = 2,
  kUint32 = 3,
  kInt64 = 4,
  kUint64 = 5,
  kFloat16 = 6,
  kFloat32 = 7,
  kFloat64 = 8,
  kBfloat16 = 9,
  kFloat8e4m3 = 10,
  kFloat8e5m2 = 11,
};

/// Payloads behind `net_plugin.data`; `id` = transport | version.
inline constexpr std::int64_t kNetIbV1 = 0x10000 | 1;
inline constexpr std::int64_t kNetSocketV1 = 0x20000 | 1;
struct NetIbDescrV1 {
  struct Qp {
    std::int32_t device;
    std::uint64_t wr_id;
    std::int32_t opcode;
    std::int32_t qp_num;
    std::size_t length;
  };
  std::uint8_t type;  ///< 1: queue pair
  Qp qp;
};
struct NetSocketDescrV1 {
  struct Sock {
    std::int32_t fd;
    std::int32_t op;
    std::size_t length;
  };
  std::uint8_t type;  ///< 1: socket
  Sock sock;
};
NCCLSCOPE_NCCL_PIN(NetIbDescrV1, type, 0, 1);
NCCLSCOPE_NCCL_PIN_IN(NetIbDescrV1, qp, Qp, device, 8, 4);
NCCLSCOPE_NCCL_PIN_IN(NetIbDescrV1, qp, Qp, wr_id, 16, 8);
NCCLSCOPE_NCCL_PIN_IN(NetIbDescrV1, qp, Qp, opcode, 24, 4);
NCCLSCOPE_NCCL_PIN_IN(NetIbDescrV1, qp, Qp, qp_num, 28, 4);
NCCLSCOPE_NCCL_PIN_IN(NetIbDescrV1, qp, Qp, length, 32, 8);
static_assert(sizeof(NetIbDescrV1) == 40);
NCCLSCOPE_NCCL_PIN(NetSocketDescrV1, type, 0, 1);
NCCLSCOPE_NCCL_PIN_IN(NetSocketDescrV1, sock, Sock, fd, 8, 4);
NCCLSCOPE_NCCL_PIN_IN(NetSocketDescrV1, sock, Sock, op, 12, 4);
NCCLSCOPE_NCCL_PIN_IN(NetSocketDescrV1, sock, Sock, length, 16, 8);
static_assert(sizeof(NetSocketDescrV1) == 24);
static_assert(sizeof(Result) == 4 && sizeof(EventState) == 4 && sizeof(LogLevel) == 4);

}  // namespace ncclscope::nccl

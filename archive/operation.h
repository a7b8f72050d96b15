// SPDX-License-Identifier: Apache-2.0
//
// Records as a reader gives them: the plugin's own record (proto/wire/frame.h), and whose it is.
//   Times: nanoseconds. Those of records are CLOCK_MONOTONIC of their process, GPU times the GPU's
//   clock; the *_epoch_ns() below bring them to the Unix epoch.
//   Life:  communicators, processes and jobs live as long as the reader; sources as long as the
//   batch.
#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>

#include "archive/context.h"
#include "proto/model/bandwidth.h"
#include "proto/model/operation.h"
#include "proto/wire/frame.h"

namespace ncclscope::archive {

/// A communicator (one rank of it) as it was known when the records were written.
struct Source {
  const Communicator* communicator = nullptr;
  const Process* process = nullptr;
  const Job* job = nullptr;
  std::uint32_t process_number = 0;  // in the file: equal for records of one process
  /// CLOCK_MONOTONIC - GPU clock; the truth is at most gpu_clock_error_ns more. A start that is
  /// brought to the host's clock with it is thus never too late.
  std::optional<std::int64_t> gpu_clock_offset_ns;
  static constexpr std::uint64_t kUnknownError = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t gpu_clock_error_ns = kUnknownError;

  /// A CLOCK_MONOTONIC time of the process since the epoch; 0 stays 0.
  [[nodiscard]] std::int64_t epoch_ns(std::uint64_t monotonic_ns) const noexcept {
    if (monotonic_ns == 0) return 0;
    return static_cast<std::int64_t>(monotonic_ns +
                                     static_cast<std::uint64_t>(process->realtime_offset_ns));
  }
};

struct OperationRow {
  const Source* source = nullptr;
  std::uint64_t record_index = 0;  // among all indexed records of the process
  wire::Operation record{};

  [[nodiscard]] model::Function function() const noexcept {
    return static_cast<model::Function>(record.function);
  }
  [[nodiscard]] model::DataType datatype() const noexcept {
    return static_cast<model::DataType>(record.datatype);
  }
  [[nodiscard]] model::Algorithm algorithm() const noexcept {
    return static_cast<model::Algorithm>(record.algorithm_protocol & 0xFu);
  }
  [[nodiscard]] model::Protocol protocol() const noexcept {
    return static_cast<model::Protocol>(record.algorithm_protocol >> 4u);
  }
  [[nodiscard]] bool has(std::uint16_t operation_flag) const noexcept {
    return (record.flags & operation_flag) != 0;
  }
  /// Message size S as nccl-tests counts it; a lower bound if bytes_complete() is false.
  [[nodiscard]] std::uint64_t bytes() const noexcept {
    return model::message_bytes(function(), wire::count_of(record), datatype(),
                                source->communicator->nranks);
  }
  [[nodiscard]] bool bytes_complete() const noexcept {
    return source->communicator->nranks != 0 || !model::size_needs_ranks(function());
  }
  /// First kernel's start to last kernel's stop; 0 = unknown.
  [[nodiscard]] std::uint64_t duration_ns() const noexcept {
    const bool known = wire::timing_of(record) != wire::TimingSource::kNone;
    return known ? wire::duration_ns_of(record) : 0;
  }
  [[nodiscard]] std::int64_t api_epoch_ns() const noexcept {
    return source->epoch_ns(record.api_time_ns);
  }
  /// To a microsecond.
  [[nodiscard]] std::int64_t enqueue_epoch_ns() const noexcept {
    return source->epoch_ns(wire::enqueue_time_ns_of(record));
  }
  /// Since the epoch, if the operation has a time and the GPU's clock could be related to the
  /// host's; see Source::gpu_clock_error_ns.
  [[nodiscard]] std::optional<std::int64_t> start_epoch_ns() const noexcept {
    if (duration_ns() == 0) return std::nullopt;
    const bool host = wire::timing_of(record) == wire::TimingSource::kHostCallback;
    if (!host && !source->gpu_clock_offset_ns) return std::nullopt;
    const std::uint64_t offset =
        host ? 0 : static_cast<std::uint64_t>(*source->gpu_clock_offset_ns);
    return source->epoch_ns(record.gpu_start_ns + offset);
  }
};

/// Network phases, channel details, ends of communicators.
template <typename Record>
struct IndexedRow {
  const Source* source = nullptr;
  std::uint64_t record_index = 0;
  Record record{};
};
using NetworkRow = IndexedRow<wire::NetworkPhases>;
using ChannelRow = IndexedRow<wire::ChannelDetail>;
using FinalizeRow = IndexedRow<wire::CommunicatorFinalize>;

/// Where a rank was: also the operation it had not completed, if there was one.
struct ProgressRow {
  const Source* source = nullptr;
  wire::Progress record{};
};
/// What the process said it had recorded and lost. Its source is any of its communicators'.
struct BooksRow {
  const Source* source = nullptr;
  wire::Books record{};
};

}  // namespace ncclscope::archive

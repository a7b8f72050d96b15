// SPDX-License-Identifier: Apache-2.0
//
// Writes one segment: records are gathered, and flush() makes a block of them that is whole on disk
// or not there at all. The file is called *.ncsa.part until finish() renames it.
//   Thread: one per writer.   Memory: pending rows (some 80 bytes each, at most kMaxRows of them).
//   Crash:  after flush() returned, the block outlives the end of the process, however it ends. It
//   outlives that of the machine once the kernel has written it; finish() waits for that.
//   Errors: once writing has failed the writer is of no use any more; the file holds what was
//   flushed before.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "archive/context.h"
#include "archive/status.h"
#include "proto/wire/frame.h"

namespace ncclscope::archive {

class Writer {
 public:
  struct Options {
    int zstd_level = 3;
    unsigned mode = 0600;      // of the file, whatever the umask
    std::uint64_t writer = 0;  // random, tells runs of the program apart
    std::uint32_t segment = 0;
    std::int64_t now_ns = 0;  // since the epoch
  };
  /// Creates `path` + ".part". Neither must exist. Null, and `status` says why, on failure.
  static std::unique_ptr<Writer> create(const std::filesystem::path& path, const Options& options,
                                        Status& status);
  /// Leaves the file as it is after the last flush(), under its ".part" name.
  ~Writer();
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  // ---- who --------------------------------------------------------------------------------------
  void set_job(const Job& job);
  /// New ids. The second form tells anew what is known of one; rows that are added later mean that.
  std::uint32_t add_process(const Process& process);
  std::uint32_t add_communicator(std::uint32_t process, const Communicator& communicator);
  void describe_process(std::uint32_t id, const Process& process);
  void describe_communicator(std::uint32_t id, const Communicator& communicator);

  // ---- what -------------------------------------------------------------------------------------
  // `communicator` is an id of add_communicator(). A block that is full is flushed.
  /// @param sent_ns  CLOCK_MONOTONIC of the process when it sent the record: by then the operation
  ///                 was over; 0 = unknown
  [[nodiscard]] Status add(std::uint32_t communicator, std::uint64_t record_index,
                           const wire::Operation& record, std::uint64_t sent_ns);
  [[nodiscard]] Status add(std::uint32_t communicator, std::uint64_t record_index,
                           const wire::NetworkPhases& record);
  [[nodiscard]] Status add(std::uint32_t communicator, std::uint64_t record_index,
                           const wire::ChannelDetail& record);
  [[nodiscard]] Status add(std::uint32_t communicator, std::uint64_t record_index,
                           const wire::CommunicatorFinalize& record);
  [[nodiscard]] Status add(std::uint32_t communicator, const wire::Progress& record);
  [[nodiscard]] Status add(std::uint32_t communicator, const wire::Books& record);

  /// Writes what is pending, if anything is.
  [[nodiscard]] Status flush();
  /// Flushes, writes the end block, waits for the disk and renames the file.
  [[nodiscard]] Status finish();

  [[nodiscard]] std::uint32_t pending_rows() const;
  /// Written so far.
  [[nodiscard]] std::uint64_t bytes() const;
  /// Added so far.
  [[nodiscard]] std::uint64_t operations() const;
  /// Its name now.
  [[nodiscard]] const std::filesystem::path& path() const;

 private:
  struct State;
  explicit Writer(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace ncclscope::archive

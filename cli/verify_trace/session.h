// SPDX-License-Identifier: Apache-2.0
//
// Replays folders against one private agent. Folders may run at the same time: each is a job of its
// own. Errors are thrown as std::runtime_error.
#pragma once

#include <atomic>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "cli/verify_trace/answer.h"
#include "cli/verify_trace/compare.h"
#include "cli/verify_trace/processes.h"

namespace ncclscope::cli {

struct Programs {
  std::filesystem::path plugin, agent, replayer;
};

/// Looks beside this program, in the installed layout and in the build tree. Empty paths: not
/// found.
[[nodiscard]] Programs find_programs();

/// A line to leave out, to show that its absence is noticed.
struct DroppedLine {
  std::size_t file = 0;  // index in trace_files(folder)
  std::size_t line = 0;  // index in the trace with restored handles
};

/// What a replay does beyond the plain one.
struct ReplayPlan {
  std::optional<DroppedLine> drop;
  /// By file; empty = to the end. Recorded time after which nothing happens any more.
  std::vector<std::int64_t> until_ns;
  std::int64_t shift_ns = 0;  // added to the recorded clocks
  /// Called with the job while the processes are still there, when all has been replayed and some
  /// more than a minute of recorded time has passed.
  std::function<void(const std::string& job)> look;
};

class ReplaySession {
 public:
  explicit ReplaySession(Programs programs);
  ~ReplaySession();
  ReplaySession(const ReplaySession&) = delete;
  ReplaySession& operator=(const ReplaySession&) = delete;

  /// Replays one folder and fetches the agent's answer. @param mask_mode  default, recorded
  [[nodiscard]] ReplayedFolder replay(const std::filesystem::path& folder,
                                      const std::string& mask_mode, const ReplayPlan& plan = {});
  /// Of the private agent's API.
  [[nodiscard]] std::string address() const { return "unix:" + api_.string(); }

 private:
  Programs programs_;
  TemporaryDirectory directory_;
  std::filesystem::path api_;
  std::optional<Child> agent_;
  std::optional<AgentClient> client_;
  std::atomic<std::uint64_t> next_job_{910'000};
};

/// Mask modes under which a folder says something of its own: the plugin's default mask where the
/// recording holds what that mask asks for, the recording's mask where it holds something else.
[[nodiscard]] std::vector<std::string> useful_mask_modes(const std::filesystem::path& folder,
                                                         const std::string& wanted);

}  // namespace ncclscope::cli

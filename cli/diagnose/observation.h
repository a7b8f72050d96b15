// SPDX-License-Identifier: Apache-2.0
//
// What agents (or dumps) say about one job, as the verdict wants it. Pure.
//   Rounds: all agents asked at about the same time. Rates come from two rounds, each agent's by
//   its own clock, so that agents need not be read at the same instant.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cli/diagnose/configuration.h"
#include "ncclscope/v1/agent.pb.h"
#include "verdict/job.h"

namespace ncclscope::cli {

/// One agent's answer, or why there is none.
struct Answer {
  std::string address;
  bool answered = false;
  std::string problem;  // one line, if it did not answer
  v1::GetSnapshotResponse response;
};
using Round = std::vector<Answer>;

/// Beside verdict::Member: what the table of evidence shows.
struct MemberFacts {
  std::string node;
  std::int64_t pid = 0;
  v1::RankProgress progress;
  std::string called_at;  // the line of the program that called the oldest; empty = unknown
};

struct GpuFacts {
  std::optional<double> communication_ratio;  // of the last steps
};

/// What is not known, and why.
struct Missing {
  enum class Kind : std::uint8_t {
    kAgent,        // did not answer
    kRanks,        // of a communicator: no agent that answered has them
    kSilent,       // a process that tells its agent nothing
    kVanished,     // a process that ended without an end of its communicators
    kBlind,        // an agent too old to tell how far ranks are
    kNotRecorded,  // something that the source does not tell
  };
  Kind kind{};
  std::string who, why;
};
[[nodiscard]] const char* name(Missing::Kind kind);

struct Observation {
  verdict::Job job;
  verdict::Standing standing;
  std::vector<MemberFacts> members;  // as job.members
  std::vector<GpuFacts> gpus;        // as job.gpus
  std::vector<Missing> missing;
  Configuration configuration;
  std::uint32_t asked = 0, answered = 0;
  std::uint32_t knowing = 0;  // agents that know the job
  std::int64_t time_ns = 0;   // of the newest answer, since the epoch
  std::string source;         // in words, if it is not agents

  [[nodiscard]] bool same_places(const Observation& other) const;
};

/// @param silent_seconds  from here on a running process counts as silent
[[nodiscard]] Observation observe(const Round& round, const std::string& job_id,
                                  double silent_seconds);

/// What happened between two rounds. What only one of them has, or what began anew in between, is
/// left out.
[[nodiscard]] verdict::Window window_between(const Round& first, const Round& last,
                                             const Observation& now);

/// The longest wait that was seen to end by itself.
class WaitMemory {
 public:
  void add(const Observation& now);
  [[nodiscard]] double longest_ended_seconds() const { return longest_; }

 private:
  std::map<std::string, double> before_;  // by communicator
  double longest_ = 0;
};

}  // namespace ncclscope::cli

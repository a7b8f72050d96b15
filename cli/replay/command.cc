// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope replay`: what was kept once more into an agent, as if it happened now.
#include <grpcpp/grpcpp.h>

#include <CLI/CLI.hpp>
#include <chrono>
#include <cstdio>
#include <map>
#include <memory>
#include <set>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "cli/agents.h"
#include "cli/archive_commands.h"
#include "cli/channel.h"
#include "cli/commands.h"
#include "cli/replay/publisher.h"
#include "cli/replay/recording.h"
#include "cli/replay/source.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

namespace fs = std::filesystem;

struct ReplayCommand {
  AgentOptions agents;
  std::vector<std::string> paths;
  std::string job;
  std::string pace = "full";
};

/// Times of the replay from those of the source.
class Pace {
 public:
  /// "real", "full" (0), or how many times as fast. Throws CLI::ValidationError.
  explicit Pace(const std::string& text) {
    if (text == "full") return;
    try {
      std::size_t used = 0;
      speed_ = text == "real" ? 1 : std::stod(text, &used);
      if (text != "real" && used != text.size()) speed_ = -1;
    } catch (const std::logic_error&) {
      speed_ = -1;
    }
    if (!(speed_ > 0) || speed_ > 1e6)
      throw CLI::ValidationError("--pace", text + ": wanted real, full, or how many times as fast");
  }
  [[nodiscard]] bool is_full() const { return speed_ == 0; }
  void wait_until(std::int64_t due_ns) {
    if (speed_ == 0) return;
    const auto now = std::chrono::steady_clock::now();
    if (!begun_) {
      begun_ = true;
      begin_ = now;
      first_ns_ = due_ns;
    }
    const double after = static_cast<double>(due_ns - first_ns_) / speed_;
    if (after <= 0) return;
    std::this_thread::sleep_until(begin_ + std::chrono::duration_cast<std::chrono::nanoseconds>(
                                               std::chrono::duration<double, std::nano>(after)));
  }

 private:
  double speed_ = 0;
  bool begun_ = false;
  std::chrono::steady_clock::time_point begin_;
  std::int64_t first_ns_ = 0;
};

/// Books for a source that has none: all that was sent was all there was.
wire::Books books_of(const ReplayedSession& session) {
  wire::Books books{};
  wire::set_header(books, wire::RecordType::kBooks);
  books.time_ns = session.last_time_ns;
  books.realtime_offset_ns = session.realtime_offset_ns;
  books.seen = books.recorded = session.operations;
  books.records_written = session.last;
  return books;
}

class Replay {
 public:
  explicit Replay(const ReplayCommand& command)
      : command_(command), pace_(command.pace), agents_(connect(command.agents)) {
    if (agents_.size() != 1) throw CLI::ValidationError("--agent", "a replay goes into one agent");
  }

  int run() {
    const std::shared_ptr<grpc::Channel> channel = open_channel(command_.agents);
    publisher_ = std::make_unique<Publisher>(channel);
    for (const std::string& path : command_.paths) {
      if (is_recording(path)) {
        if (!replay_recording(path, channel)) return kUnreachable;
        continue;
      }
      for (auto& track : open_tracks(path, command_.job))
        tracks_.push_back({std::move(track), {}, 0, false});
    }
    if (!(pace_.is_full() ? send_one_after_another() : send_by_time())) return kUnreachable;
    if (!check(publisher_->finish())) return kUnreachable;
    for (const std::string& note : notes_.lines)
      std::fprintf(stderr, "ncclscope replay: %s\n", printable(note).c_str());
    return print_books();
  }

 private:
  struct Ahead {
    std::unique_ptr<ReplayTrack> track;
    std::vector<ReplayedFrame> frames;
    std::size_t next = 0;
    bool over = false;
  };

  [[nodiscard]] bool check(const grpc::Status& status) { return agents_.front().check(status); }

  bool replay_recording(const fs::path& path, const std::shared_ptr<grpc::Channel>& channel) {
    const Programs programs = find_programs();
    grpc::Status status;
    const RecordingReport report = publish_recording(path, command_.job, programs, channel, status);
    if (!check(status)) return false;
    for (const std::uint64_t id : report.sessions) others_.insert(id);
    return true;
  }

  bool send_one_after_another() {
    for (Ahead& ahead : tracks_) {
      while (ahead.track->next(ahead.frames, notes_)) {
        for (const ReplayedFrame& frame : ahead.frames) {
          if (!check(publisher_->send(frame))) return false;
        }
        ahead.frames.clear();
      }
      if (!say_goodbye(*ahead.track)) return false;
    }
    return true;
  }

  /// Frames of all tracks in the order of their times.
  bool send_by_time() {
    for (;;) {
      Ahead* first = nullptr;
      for (Ahead& ahead : tracks_) {
        if (ahead.next == ahead.frames.size() && !ahead.over) {
          ahead.frames.clear();
          ahead.next = 0;
          ahead.over = !ahead.track->next(ahead.frames, notes_);
        }
        if (ahead.next == ahead.frames.size()) continue;
        if (first == nullptr ||
            ahead.frames[ahead.next].due_ns < first->frames[first->next].due_ns) {
          first = &ahead;
        }
      }
      if (first == nullptr) break;
      const ReplayedFrame& frame = first->frames[first->next++];
      pace_.wait_until(frame.due_ns);
      if (!check(publisher_->send(frame))) return false;
    }
    for (Ahead& ahead : tracks_) {
      if (!say_goodbye(*ahead.track)) return false;
    }
    return true;
  }

  bool say_goodbye(ReplayTrack& track) {
    for (ReplayedSession* session : track.sessions()) {
      std::vector<ReplayedFrame> frames;
      {
        FrameMaker maker(*session, frames);
        if (!session->has_books) {
          const wire::Books books = books_of(*session);
          maker.add_state(nullptr, {reinterpret_cast<const std::byte*>(&books), sizeof books},
                          session->last_time_ns);
        }
        wire::Goodbye goodbye{};
        wire::set_header(goodbye, wire::RecordType::kGoodbye);
        maker.add_state(nullptr, {reinterpret_cast<const std::byte*>(&goodbye), sizeof goodbye},
                        session->last_time_ns);
      }
      for (const ReplayedFrame& frame : frames) {
        if (!check(publisher_->send(frame))) return false;
      }
    }
    return true;
  }

  /// What was sent, and what the agent says it has. 0 if that is the same.
  int print_books() {
    std::map<std::uint64_t, const ReplayedSession*> sent;
    for (Ahead& ahead : tracks_) {
      for (const ReplayedSession* session : ahead.track->sessions()) sent[session->id] = session;
    }
    std::map<std::uint64_t, v1::ProcessBooks> held;
    // The books are those of the agent's last snapshot, which may be older than the last frame.
    const auto end = std::chrono::steady_clock::now() + Agent::kPatience;
    for (;;) {
      v1::GetBooksResponse response;
      if (!agents_.front().call(&v1::AgentService::Stub::GetBooks, v1::GetBooksRequest(), response))
        return kUnreachable;
      held.clear();
      for (const v1::ProcessBooks& books : response.processes()) {
        if (sent.contains(books.session_id()) || others_.contains(books.session_id()))
          held[books.session_id()] = books;
      }
      bool all = held.size() == sent.size() + others_.size();
      for (const auto& [id, books] : held) {
        const auto it = sent.find(id);
        all =
            all && books.final() && (it == sent.end() || books.highest_index() >= it->second->last);
      }
      if (all || std::chrono::steady_clock::now() > end) break;
      std::this_thread::sleep_for(std::chrono::milliseconds(50));
    }
    Table table({{"process"},
                 {"job"},
                 {"sent", Table::Align::kRight},
                 {"received", Table::Align::kRight},
                 {"lost before", Table::Align::kRight},
                 {"operations", Table::Align::kRight},
                 {"books"}});
    std::uint64_t records = 0;
    std::uint64_t operations = 0;
    bool good = held.size() == sent.size() + others_.size();
    for (const auto& [id, books] : held) {
      const auto it = sent.find(id);
      const bool same = it == sent.end() || books.records_received() == it->second->records;
      good = good && same;
      records += books.records_received();
      operations += books.operations_received();
      table.add({it == sent.end() ? "process " + std::to_string(books.pid())
                                  : printable(it->second->name),
                 printable(books.job_id()),
                 it == sent.end() ? "-" : std::to_string(it->second->records),
                 std::to_string(books.records_received()), std::to_string(books.records_lost()),
                 std::to_string(books.operations_received()),
                 !same              ? "NOT ALL RECEIVED"
                 : books.balanced() ? "balanced"
                                    : "not balanced"});
    }
    std::fputs(table.render().c_str(), stdout);
    std::printf("%zu processes, %llu records, %llu operations\n", held.size(),
                static_cast<unsigned long long>(records),
                static_cast<unsigned long long>(operations));
    if (held.size() != sent.size() + others_.size()) {
      std::printf("the agent shows %zu of %zu processes (its limits may have made them give way)\n",
                  held.size(), sent.size() + others_.size());
    }
    return good ? kSuccess : kNegative;
  }

  const ReplayCommand& command_;
  Pace pace_;
  std::vector<Agent> agents_;
  std::unique_ptr<Publisher> publisher_;
  std::vector<Ahead> tracks_;
  std::set<std::uint64_t> others_;  // sessions of recordings
  SourceNotes notes_;
};

}  // namespace

void register_replay(CLI::App& app) {
  auto options = std::make_shared<ReplayCommand>();
  CLI::App* command =
      app.add_subcommand("replay", "Send what was kept once more into an agent, through its API");
  add_agent_option(*command, options->agents);
  command
      ->add_option("path", options->paths,
                   "Archive segments (*.ncsa), Inspector logs (*.log, *.jsonl, also .gz), folders "
                   "of these, or a recording of NCCL (a folder with rank<r>.jsonl.gz)")
      ->required()
      ->type_name("PATH");
  command
      ->add_option("--job", options->job,
                   "What to call the job (default: as the archive does; inspector)")
      ->type_name("ID");
  command
      ->add_option("--pace", options->pace,
                   "real: as fast as it happened; full: as fast as the agent takes it (default); "
                   "N: N times as fast as it happened")
      ->type_name("PACE");
  command->footer(
      "The agent shows the replayed job as claimed by you: it never joins a job that the kernel "
      "proved. Times of\n"
      "operations stay what they were. At the end the books: what was sent and what the agent has. "
      "\"lost before\"\n"
      "are records that the source itself did not have. A recording is always replayed at full "
      "pace.\n"
      "Exit status: 0 all was received; 1 not all; 2 wrong arguments, or a file that is not right; "
      "3 the agent\n"
      "was not reached or refused.");
  command->callback([options] {
    int status = kSuccess;
    try {
      status = Replay(*options).run();
    } catch (const CLI::Error&) {
      throw;
    } catch (const std::runtime_error& error) {
      std::fprintf(stderr, "ncclscope replay: %s\n", printable(error.what()).c_str());
      status = kUsage;
    }
    if (status != kSuccess) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli

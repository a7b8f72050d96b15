// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope books`: the loss books of every process, and whether they balance.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/json.h"
#include "cli/text.h"

namespace ncclscope::cli {
namespace {

struct BooksOptions {
  AgentOptions agents;
  std::string job;
  bool json = false;
};

/// "12 (overwritten 8, ring_busy 4)"; "0" if there is nothing.
std::string with_reasons(const google::protobuf::RepeatedPtrField<v1::Count>& counts) {
  std::uint64_t total = 0;
  std::string reasons;
  for (const v1::Count& count : counts) {
    total += count.value();
    if (!reasons.empty()) reasons += ", ";
    reasons += printable(count.reason()) + " " + std::to_string(count.value());
  }
  return reasons.empty() ? "0" : std::to_string(total) + " (" + reasons + ")";
}

/// "99.9 %", rounded down: what is not whole never looks whole.
std::string percent(double ratio) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%.1f %%", std::floor(ratio * 1000) / 10);
  return text.data();
}

int run(const BooksOptions& options) {
  using Align = Table::Align;
  Table table({{"NODE"},
               {"JOB"},
               {"PID", Align::kRight},
               {"STATE"},
               {"SEEN", Align::kRight},
               {"RECORDED", Align::kRight},
               {"DROPPED"},
               {"OPEN", Align::kRight},
               {"WRITTEN", Align::kRight},
               {"RECEIVED", Align::kRight},
               {"EARLIER", Align::kRight},
               {"LOST", Align::kRight},
               {"PENDING", Align::kRight},
               {"BALANCED"}});
  Table gaps({{"NODE"},
              {"JOB"},
              {"COMM"},
              {"RANK", Align::kRight},
              {"PID", Align::kRight},
              {"SEEN", Align::kRight},
              {"DROPPED", Align::kRight},
              {"MISSING", Align::kRight},
              {"COVERAGE", Align::kRight}});
  nlohmann::ordered_json processes = nlohmann::ordered_json::array();
  nlohmann::ordered_json ranks = nlohmann::ordered_json::array();
  bool reached = true;
  std::size_t unbalanced = 0;
  for (const Agent& agent : connect(options.agents)) {
    v1::GetBooksRequest request;
    request.set_job_id(options.job);
    v1::GetBooksResponse response;
    if (!agent.call(&v1::AgentService::Stub::GetBooks, request, response)) {
      reached = false;
      continue;
    }
    for (const v1::ProcessBooks& p : response.processes()) {
      if (!p.balanced()) ++unbalanced;
      if (options.json) {
        nlohmann::ordered_json process = {{"node", response.node()}};
        process.update(message_json(p));
        processes.push_back(std::move(process));
        continue;
      }
      const std::uint64_t pending =
          p.records_written() - std::min(p.records_written(), p.highest_index());
      table.add({printable(response.node()), printable(p.job_id()), std::to_string(p.pid()),
                 p.state(), std::to_string(p.seen()), std::to_string(p.recorded()),
                 with_reasons(p.dropped()), std::to_string(p.open()),
                 std::to_string(p.records_written()), std::to_string(p.records_received()),
                 std::to_string(p.records_before()), std::to_string(p.records_lost()),
                 std::to_string(pending), p.balanced() ? "yes" : "NO"});
    }
    for (const v1::RankBooks& r : response.ranks()) {
      if (options.json) {
        nlohmann::ordered_json rank = {{"node", response.node()}};
        rank.update(message_json(r));
        ranks.push_back(std::move(rank));
      } else if (r.missing() > 0) {
        gaps.add({printable(response.node()), printable(r.job_id()), printable(r.comm()),
                  r.rank() < 0 ? "?" : std::to_string(r.rank()), std::to_string(r.pid()),
                  std::to_string(r.seen()), std::to_string(r.dropped()),
                  std::to_string(r.missing()), percent(r.coverage())});
      }
    }
  }
  if (options.json) {
    const nlohmann::ordered_json all = {{"processes", std::move(processes)},
                                        {"ranks", std::move(ranks)}};
    std::printf("%s\n",
                all.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
  } else if (table.rows() > 0) {
    std::fputs(table.render().c_str(), stdout);
    std::printf(
        "\noperations: seen = recorded + dropped (without overwritten) + open\n"
        "records:    written = received + earlier (by another agent) + lost + pending\n");
    if (gaps.rows() > 0)
      std::printf(
          "\noperations of which no record came (coverage is of the whole communicator, local "
          "ranks):\n%s",
          gaps.render().c_str());
    if (unbalanced > 0)
      std::printf("%zu of %zu processes do not balance\n", unbalanced, table.rows());
  } else if (reached) {
    std::printf("no processes%s\n", std::string(own_jobs_note()).c_str());
  }
  if (!reached) return kUnreachable;
  return unbalanced > 0 ? kNegative : kSuccess;
}

}  // namespace

void register_books(CLI::App& app) {
  auto options = std::make_shared<BooksOptions>();
  CLI::App* command = app.add_subcommand("books", "Show the loss books of every process");
  add_agent_option(*command, options->agents);
  command->add_option("--job", options->job, "Only this job")->type_name("ID");
  command->add_flag("--json", options->json,
                    "A JSON object with one entry for each process and each rank");
  command->footer(
      "Exit status: 0 all books balance; 1 some do not; 2 wrong arguments; 3 an agent was not "
      "reached.");
  command->callback([options] {
    if (const int status = run(*options); status != kSuccess) throw CLI::RuntimeError(status);
  });
}

}  // namespace ncclscope::cli

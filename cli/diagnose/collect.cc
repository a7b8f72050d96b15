// SPDX-License-Identifier: Apache-2.0
#include "cli/diagnose/collect.h"

#include <algorithm>
#include <atomic>
#include <thread>

#include "cli/text.h"

namespace ncclscope::cli {
namespace {

/// One line.
std::string problem_of(const grpc::Status& status, std::chrono::milliseconds deadline) {
  switch (status.error_code()) {
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      return "no answer within " + format_duration(static_cast<double>(deadline.count()) * 1e-3) +
             "; stopped, overloaded, or its node is down";
    case grpc::StatusCode::UNAVAILABLE:
      return "cannot be reached: " + printable(status.error_message());
    default:
      return printable(status.error_message());
  }
}

Answer ask(const Agent& agent, const std::string& job_id, std::chrono::milliseconds deadline) {
  Answer answer;
  answer.address = "agent at " + printable(agent.address());
  v1::GetSnapshotRequest request;
  request.set_job_id(job_id);
  request.set_with_progress(true);
  request.set_with_environments(true);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + deadline);
  const grpc::Status status = agent.stub().GetSnapshot(&context, request, &answer.response);
  answer.answered = status.ok();
  if (!status.ok()) answer.problem = problem_of(status, deadline);
  return answer;
}

}  // namespace

Round ask_all(const std::vector<Agent>& agents, const std::string& job_id,
              std::chrono::milliseconds deadline) {
  Round round(agents.size());
  std::atomic<std::size_t> next{0};
  const auto work = [&] {
    for (std::size_t i = next++; i < agents.size(); i = next++)
      round[i] = ask(agents[i], job_id, deadline);
  };
  std::vector<std::thread> threads;
  const std::size_t count = std::min(agents.size(), kMostThreads);
  threads.reserve(count);
  for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
  for (std::thread& thread : threads) thread.join();
  return round;
}

}  // namespace ncclscope::cli

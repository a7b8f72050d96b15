// SPDX-License-Identifier: Apache-2.0
//
// `ncclscope job start` and `job end`: for SLURM's prolog and epilog. A prolog that fails takes its
// node out of service, so nothing here may fail it unless --strict asks for that: whatever goes
// wrong is a warning, and there is a deadline for all of it.
#include <grpcpp/grpcpp.h>
#include <CLI/CLI.hpp>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>

#include "cli/agents.h"
#include "cli/commands.h"
#include "cli/job_report.h"
#include "cli/text.h"
#include "ncclscope/v1/agent.grpc.pb.h"

namespace ncclscope::cli {
namespace {

struct JobOptions {
  std::string agent{kDefaultAgent};
  double timeout_seconds = 2;
  bool strict = false;
  JobFlags flags;
};

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): one thread so far
  return value == nullptr ? "" : value;
}

/// The end of a command that could not do its work.
void give_up(const JobOptions& options, const std::string& why, ExitStatus status) {
  std::fprintf(stderr, "%s: %s\n",
               options.strict ? "ncclscope job" : "ncclscope job: warning (the job goes on)",
               why.c_str());
  if (options.strict) throw CLI::RuntimeError(status);
}

template <typename Request, typename Response>
grpc::Status call(const JobOptions& options,
                  grpc::Status (v1::JobService::Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                  const Request& request, Response& response) {
  keep_grpc();
  const auto stub = v1::JobService::NewStub(
      grpc::CreateChannel(target_of(options.agent), grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() +
                       std::chrono::milliseconds(static_cast<int>(options.timeout_seconds * 1e3)));
  return (stub.get()->*method)(&context, request, &response);
}

/// True, or the reason is told.
bool succeeded(const JobOptions& options, const grpc::Status& status) {
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
      return true;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      give_up(options,
              "agent at " + options.agent + ": no answer in time (--timeout); it may be overloaded",
              kUnreachable);
      return false;
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::INVALID_ARGUMENT:
      give_up(options, printable(status.error_message()), kUsage);
      return false;
    default:
      give_up(options, explain(options.agent, status), kUnreachable);
      return false;
  }
}

bool has_id(const JobOptions& options) {
  if (!job_id_of(options.flags, from_environment).empty()) return true;
  give_up(options,
          "which job? Neither --id nor SLURM_JOB_ID says; run this in SLURM's prolog or epilog, or "
          "name the job",
          kUsage);
  return false;
}

void start(const JobOptions& options) {
  if (!has_id(options)) return;
  v1::StartJobRequest request;
  if (const std::string wrong = fill_start_request(options.flags, from_environment, request);
      !wrong.empty()) {
    give_up(options, wrong, kUsage);
    return;
  }
  v1::StartJobResponse response;
  (void)succeeded(options, call(options, &v1::JobService::Stub::StartJob, request, response));
}

void end(const JobOptions& options) {
  if (!has_id(options)) return;
  v1::EndJobRequest request;
  request.set_slurm_job_id(job_id_of(options.flags, from_environment));
  v1::EndJobResponse response;
  if (succeeded(options, call(options, &v1::JobService::Stub::EndJob, request, response)) &&
      !response.known() && options.strict) {
    give_up(options, "the agent does not know job " + printable(request.slurm_job_id()), kNegative);
  }
}

void add_common(CLI::App& command, JobOptions& options) {
  command.add_option("--agent", options.agent, "The agent's API on this node: unix:/path or /path")
      ->type_name("ADDRESS")
      ->capture_default_str();
  command.add_option("--timeout", options.timeout_seconds, "Wait at most so many seconds")
      ->type_name("SECONDS")
      ->check(CLI::Range(0.01, 60.0))
      ->capture_default_str();
  command.add_flag("--strict", options.strict,
                   "Fail when the agent could not be told; without it that is a warning");
  command.add_option("--id", options.flags.id, "SLURM's number of the job [SLURM_JOB_ID]")
      ->type_name("ID");
  command.footer(
      "What is not given as a flag comes from the environment variable in brackets; what is in "
      "neither is left\n"
      "to squeue (agent's setting squeue_command) and to what the job's processes say.\n"
      "Only root, the agent's own user and members of the group ncclscope-admin may report jobs.\n"
      "Exit status: 0, also when the agent could not be told (a warning on standard error). With "
      "--strict:\n"
      "1 end of a job that the agent does not know; 2 wrong values, or not allowed; 3 the agent "
      "was "
      "not reached.\n"
      "Options that do not exist are 2 always.");
}

void add_start(CLI::App& job, const std::shared_ptr<JobOptions>& options) {
  CLI::App* command =
      job.add_subcommand("start", "Tell the agent of a job that begins on this node (prolog)");
  add_common(*command, *options);
  JobFlags& flags = options->flags;
  const auto text = [&](const char* flag, std::string& value, const char* help, const char* type) {
    command->add_option(flag, value, help)->type_name(type);
  };
  text("--user", flags.user, "Login name of the owner [SLURM_JOB_USER]", "NAME");
  text("--uid", flags.uid, "Owner's uid [SLURM_JOB_UID]", "UID");
  text("--name", flags.name, "The job's name [SLURM_JOB_NAME]", "NAME");
  text("--partition", flags.partition, "[SLURM_JOB_PARTITION]", "NAME");
  text("--account", flags.account, "[SLURM_JOB_ACCOUNT]", "NAME");
  text("--array-job", flags.array_job, "Job array it is a task of [SLURM_ARRAY_JOB_ID]", "ID");
  text("--array-task", flags.array_task, "Which task [SLURM_ARRAY_TASK_ID]", "N");
  text("--het-job", flags.het_job, "Heterogeneous job it is a part of [SLURM_HET_JOB_ID]", "ID");
  text("--het-offset", flags.het_offset, "Which part [SLURM_HET_JOB_OFFSET]", "N");
  text("--restarts", flags.restarts,
       "How often it was requeued [SLURM_RESTART_COUNT, SLURM_JOB_RESTART_COUNT]; unknown: a start "
       "after an end counts",
       "N");
  command->callback([options] { start(*options); });
}

}  // namespace

void register_job(CLI::App& app) {
  CLI::App* job = app.add_subcommand("job", "Tell the agent of SLURM jobs: for prolog and epilog");
  job->require_subcommand(1);
  job->footer(
      "In SLURM's prolog: ncclscope job start; in its epilog: ncclscope job end. See "
      "docs/slurm.md.");
  auto options = std::make_shared<JobOptions>();
  add_start(*job, options);
  CLI::App* command =
      job->add_subcommand("end", "Tell the agent that a job has ended on this node (epilog)");
  add_common(*command, *options);
  command->callback([options] { end(*options); });
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
//
// Checks who calls and what is said, then hands it on.
#include "agent/api/job_service.h"

#include <grpcpp/grpcpp.h>

#include <string>

#include "agent/base/log.h"
#include "agent/base/result.h"
#include "agent/identity/label_value.h"

namespace ncclscope::agent {
namespace {

constexpr std::size_t kMaxIdDigits = 20;  // of a 64-bit number; SLURM's have 32 bits

bool is_number(std::string_view text) {
  return !text.empty() && text.size() <= kMaxIdDigits &&
         text.find_first_not_of("0123456789") == std::string_view::npos;
}

grpc::Status wrong(std::string_view field, const std::string& value) {
  return {grpc::StatusCode::INVALID_ARGUMENT,
          concat(field, " is '", label_value(value), "'; it must be a number, such as 4711")};
}

grpc::Status is_stopping() {
  return {grpc::StatusCode::UNAVAILABLE, "the agent is stopping"};
}

}  // namespace

grpc::Status JobServiceImpl::admit(const grpc::ServerContext& context,
                                   const std::string& slurm_job_id) const {
  Caller caller;
  if (grpc::Status status = calls_.authenticate(context, Permission::kAdminister, caller);
      !status.ok())
    return status;
  if (reports_ == nullptr)
    return {grpc::StatusCode::UNIMPLEMENTED, "this agent takes no reports of jobs"};
  if (!is_number(slurm_job_id)) return wrong("slurm_job_id", slurm_job_id);
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::StartJob(grpc::ServerContext* context,
                                      const v1::StartJobRequest* request,
                                      v1::StartJobResponse* response) {
  if (grpc::Status status = admit(*context, request->slurm_job_id()); !status.ok()) return status;
  for (const auto& [field, value] : {std::pair("array_job_id", &request->array_job_id()),
                                     {"het_job_id", &request->het_job_id()},
                                     {"het_offset", &request->het_offset()},
                                     {"array_task", &request->array_task()}}) {
    if (!value->empty() && !is_number(*value)) return wrong(field, *value);
  }
  JobFacts facts;
  facts.user = label_value(request->user());
  if (request->has_uid()) facts.uid = request->uid();
  facts.job_name = label_value(request->job_name());
  facts.partition = label_value(request->partition());
  facts.account = label_value(request->account());
  facts.array_job_id = request->array_job_id();
  facts.array_task = request->array_task();
  facts.het_job_id = request->het_job_id();
  facts.het_offset = request->het_offset();
  if (request->has_restarts()) facts.restarts = request->restarts();
  const auto restarts = reports_->start(request->slurm_job_id(), facts);
  if (!restarts) return is_stopping();
  response->set_run(*restarts);
  log_debug(
      concat("job ", request->slurm_job_id(), " of ", facts.user, " begins, run ", *restarts));
  return grpc::Status::OK;
}

grpc::Status JobServiceImpl::EndJob(grpc::ServerContext* context, const v1::EndJobRequest* request,
                                    v1::EndJobResponse* response) {
  if (grpc::Status status = admit(*context, request->slurm_job_id()); !status.ok()) return status;
  const auto known = reports_->end(request->slurm_job_id());
  if (!known) return is_stopping();
  response->set_known(*known);
  log_debug(
      concat("job ", request->slurm_job_id(), " has ended", *known ? "" : "; it was not known"));
  return grpc::Status::OK;
}

}  // namespace ncclscope::agent

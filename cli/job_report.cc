// SPDX-License-Identifier: Apache-2.0
#include "cli/job_report.h"

#include <charconv>
#include <cstdint>
#include <initializer_list>
#include <limits>
#include <string_view>
#include <system_error>

#include "cli/text.h"

namespace ncclscope::cli {
namespace {

/// SLURM writes its "no value" and "infinite" (32 bits) where there is none.
bool means_nothing(std::string_view value) {
  return value == "4294967294" || value == "4294967295" || value == "N/A" || value == "(null)";
}

std::string first_of(const std::string& flag, const Environment& environment,
                     std::initializer_list<const char*> variables) {
  if (!flag.empty()) return flag;
  for (const char* variable : variables) {
    std::string value = environment(variable);
    if (!value.empty() && !means_nothing(value)) return value;
  }
  return {};
}

/// Nothing, or a whole number up to `maximum` in `out`. What is wrong, else empty.
std::string number(std::string_view what, const std::string& text, std::uint64_t maximum,
                   std::optional<std::uint64_t>& out) {
  if (text.empty()) return {};
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value > maximum)
    return std::string(what) + " is '" + printable(text) + "'; it must be a number up to " +
           std::to_string(maximum);
  out = value;
  return {};
}

}  // namespace

std::string job_id_of(const JobFlags& flags, const Environment& environment) {
  return first_of(flags.id, environment, {"SLURM_JOB_ID", "SLURM_JOBID"});
}

std::string fill_start_request(const JobFlags& flags, const Environment& environment,
                               v1::StartJobRequest& request) {
  const auto get = [&](const std::string& flag, std::initializer_list<const char*> variables) {
    return first_of(flag, environment, variables);
  };
  constexpr std::uint64_t kMax32 = std::numeric_limits<std::uint32_t>::max();
  std::optional<std::uint64_t> uid;
  std::optional<std::uint64_t> restarts;
  std::optional<std::uint64_t> array_job;
  std::optional<std::uint64_t> array_task;
  std::optional<std::uint64_t> het_job;
  std::optional<std::uint64_t> het_offset;
  for (const std::string& error : {
           number("the uid", get(flags.uid, {"SLURM_JOB_UID"}), kMax32, uid),
           number("the number of restarts",
                  get(flags.restarts, {"SLURM_RESTART_COUNT", "SLURM_JOB_RESTART_COUNT"}), kMax32,
                  restarts),
           number("the array's job id", get(flags.array_job, {"SLURM_ARRAY_JOB_ID"}), kMax32,
                  array_job),
           number("the array's task", get(flags.array_task, {"SLURM_ARRAY_TASK_ID"}), kMax32,
                  array_task),
           number("the heterogeneous job's id",
                  get(flags.het_job, {"SLURM_HET_JOB_ID", "SLURM_PACK_JOB_ID"}), kMax32, het_job),
           number("the heterogeneous job's offset",
                  get(flags.het_offset, {"SLURM_HET_JOB_OFFSET", "SLURM_PACK_JOB_OFFSET"}), kMax32,
                  het_offset),
       }) {
    if (!error.empty()) return error;
  }
  request.set_slurm_job_id(job_id_of(flags, environment));
  request.set_user(get(flags.user, {"SLURM_JOB_USER"}));
  request.set_job_name(get(flags.name, {"SLURM_JOB_NAME"}));
  request.set_partition(get(flags.partition, {"SLURM_JOB_PARTITION"}));
  request.set_account(get(flags.account, {"SLURM_JOB_ACCOUNT"}));
  if (uid) request.set_uid(static_cast<std::int64_t>(*uid));
  if (restarts) request.set_restarts(static_cast<std::uint32_t>(*restarts));
  // Jobs are numbered from 1; 0 stands for "none".
  if (array_job && *array_job > 0 && array_task) {
    request.set_array_job_id(std::to_string(*array_job));
    request.set_array_task(std::to_string(*array_task));
  }
  if (het_job && *het_job > 0) {
    request.set_het_job_id(std::to_string(*het_job));
    if (het_offset) request.set_het_offset(std::to_string(*het_offset));
  }
  return {};
}

}  // namespace ncclscope::cli

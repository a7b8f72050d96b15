// SPDX-License-Identifier: Apache-2.0
#include "cli/job_report.h"

#include <gtest/gtest.h>

#include <map>
#include <string>

namespace ncclscope::cli {
namespace {

Environment environment(std::map<std::string, std::string> variables) {
  return [variables = std::move(variables)](const char* name) {
    const auto it = variables.find(name);
    return it == variables.end() ? std::string() : it->second;
  };
}

TEST(JobReport, ComesFromTheEnvironmentOfAProlog) {
  v1::StartJobRequest request;
  EXPECT_EQ(fill_start_request({},
                               environment({{"SLURM_JOB_ID", "4711"},
                                            {"SLURM_JOB_USER", "ada"},
                                            {"SLURM_JOB_UID", "1000"},
                                            {"SLURM_JOB_PARTITION", "gpu"},
                                            {"SLURM_HET_JOB_ID", "4710"},
                                            {"SLURM_JOB_RESTART_COUNT", "2"}}),
                               request),
            "");
  EXPECT_EQ(request.slurm_job_id(), "4711");
  EXPECT_EQ(request.user(), "ada");
  EXPECT_EQ(request.uid(), 1000);
  EXPECT_EQ(request.partition(), "gpu");
  EXPECT_EQ(request.het_job_id(), "4710");
  EXPECT_EQ(request.het_offset(), "");
  EXPECT_EQ(request.restarts(), 2u);
  EXPECT_EQ(request.job_name(), "");
  EXPECT_EQ(request.array_job_id(), "");
}

TEST(JobReport, FlagsWinOverTheEnvironment) {
  JobFlags flags;
  flags.id = "12";
  flags.user = "bob";
  flags.uid = "0";
  flags.name = "train";
  flags.account = "physics";
  flags.array_job = "10";
  flags.array_task = "0";
  v1::StartJobRequest request;
  EXPECT_EQ(fill_start_request(
                flags, environment({{"SLURM_JOB_ID", "4711"}, {"SLURM_JOB_USER", "ada"}}), request),
            "");
  EXPECT_EQ(request.slurm_job_id(), "12");
  EXPECT_EQ(request.user(), "bob");
  EXPECT_TRUE(request.has_uid());
  EXPECT_EQ(request.uid(), 0);
  EXPECT_EQ(request.job_name(), "train");
  EXPECT_EQ(request.account(), "physics");
  EXPECT_EQ(request.array_job_id(), "10");
  EXPECT_EQ(request.array_task(), "0");
  EXPECT_FALSE(request.has_restarts());
}

TEST(JobReport, NoValueInSlurmsWordsIsNone) {
  v1::StartJobRequest request;
  EXPECT_EQ(fill_start_request({},
                               environment({{"SLURM_JOBID", "7"},
                                            {"SLURM_ARRAY_JOB_ID", "0"},
                                            {"SLURM_ARRAY_TASK_ID", "4294967294"},
                                            {"SLURM_HET_JOB_ID", "0"},
                                            {"SLURM_JOB_ACCOUNT", "(null)"}}),
                               request),
            "");
  EXPECT_EQ(request.slurm_job_id(), "7");
  EXPECT_EQ(request.array_job_id(), "");
  EXPECT_EQ(request.array_task(), "");
  EXPECT_EQ(request.het_job_id(), "");
  EXPECT_EQ(request.account(), "");
  EXPECT_FALSE(request.has_uid());
}

TEST(JobReport, NamesAValueThatIsNoNumber) {
  v1::StartJobRequest request;
  EXPECT_EQ(fill_start_request({}, environment({{"SLURM_JOB_UID", "ada\n"}}), request),
            "the uid is 'ada?'; it must be a number up to 4294967295");
  JobFlags flags;
  flags.restarts = "-1";
  EXPECT_NE(fill_start_request(flags, environment({}), request), "");
}

}  // namespace
}  // namespace ncclscope::cli

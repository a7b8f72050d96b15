// SPDX-License-Identifier: Apache-2.0
//
// What SLURM tells of a job after its processes have come completes the job's labels.
#include <gtest/gtest.h>

#include "agent/identity/job_table.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using testing::make_hello;
using testing::PacketBuilder;
using testing::Wire;

/// The inside of an agent whose peers' jobs are proved.
struct Node {
  Node() {
    Aggregator::Options options;
    options.agent_instance = 77;
    aggregator = std::make_unique<Aggregator>(clock, resolver, gpus, tail, options);
    Ingest::Options ingest_options;
    ingest_options.agent_instance = 77;
    ingest = std::make_unique<Ingest>(*aggregator, clock, ingest_options);
  }
  /// A process of SLURM job 7, which says its partition and nothing else.
  std::unique_ptr<Wire> open() {
    PeerIdentity peer;
    peer.pid = 100;
    peer.uid = 4242;
    peer.principal = "uid:4242";
    peer.proof.slurm_job = "7";
    auto wire = std::make_unique<Wire>(*ingest, peer);
    wire->feed(PacketBuilder()
                   .hello(make_hello(1), {{wire::StringKey::kSlurmJobId, "7"},
                                          {wire::StringKey::kSlurmJobPartition, "claimed"}})
                   .finish());
    return wire;
  }
  JobIdentity job() {
    aggregator->refresh_jobs();
    const SnapshotPtr s = aggregator->build(ingest->stats());
    EXPECT_EQ(s->jobs.size(), 1u);
    return s->jobs.at(0).identity;
  }

  FakeClock clock;
  JobTable jobs{clock, {}};
  ProofResolver resolver{"", jobs};
  GpuTable gpus{"/nonexistent"};
  OperationTail tail{100};
  std::unique_ptr<Aggregator> aggregator;
  std::unique_ptr<Ingest> ingest;
};

TEST(JobRefresh, LateFactsCompleteTheLabels) {
  Node node;
  const auto wire = node.open();
  EXPECT_EQ(node.job().job_name, "");
  EXPECT_EQ(node.job().partition, "claimed");
  EXPECT_TRUE(node.jobs.take_missed());

  JobFacts facts;
  facts.user = "ada";
  facts.job_name = "train";
  facts.partition = "gpu";
  facts.account = "physics";
  facts.restarts = 2;
  node.jobs.set_queue({{"7", facts}});
  const JobIdentity job = node.job();
  EXPECT_EQ(job.job_id, "7");
  EXPECT_EQ(job.user, "ada");
  EXPECT_EQ(job.job_name, "train");
  EXPECT_EQ(job.partition, "gpu");
  EXPECT_EQ(job.account, "physics");
  EXPECT_EQ(job.run, 2u);
}

TEST(JobRefresh, NothingIsUnlearnedWhenTheTableForgets) {
  Node node;
  const auto wire = node.open();
  JobFacts facts;
  facts.job_name = "train";
  facts.restarts = 2;
  node.jobs.start("7", facts);
  EXPECT_EQ(node.job().job_name, "train");
  node.jobs.end("7");
  node.clock.advance_ms(3'600'000);
  node.jobs.tick();
  ASSERT_FALSE(node.jobs.find("7"));
  EXPECT_EQ(node.job().job_name, "train");
  EXPECT_EQ(node.job().run, 2u);
}

TEST(JobRefresh, LateArrayTaskDoesNotRenameTheJob) {
  Node node;
  const auto wire = node.open();
  ASSERT_EQ(node.job().job_id, "7");
  JobFacts facts;
  facts.array_job_id = "5";
  facts.array_task = "1";
  node.jobs.set_queue({{"7", facts}});
  EXPECT_EQ(node.job().job_id, "7") << "series must not change their name in flight";
}

}  // namespace
}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// The gRPC API over its Unix socket, with a gateway and detail control made for the test.
#include "agent/api/api_server.h"

#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <filesystem>
#include <fstream>
#include <limits>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "ncclscope/v1/agent.grpc.pb.h"
#include "ncclscope/v1/ingest.grpc.pb.h"
#include "tests/support/recording_services.h"
#include "tests/support/temporary_directory.h"
#include "tests/unit/export/snapshot_fixture.h"

namespace ncclscope::agent {
namespace {

using std::chrono_literals::operator""ms;
using std::chrono_literals::operator""s;

/// Takes every caller for the one of the day.
class FixedAuthorizer final : public Authorizer {
 public:
  [[nodiscard]] std::optional<Caller> identify(int) const override {
    const std::lock_guard lock(mutex_);
    return caller_;
  }
  void set(std::optional<Caller> caller) {
    const std::lock_guard lock(mutex_);
    caller_ = caller;
  }

 private:
  mutable std::mutex mutex_;
  std::optional<Caller> caller_ = Caller{0, Role::kAdministrator};
};

/// Answers every frame with "got:" + frame; "end" closes the session, "push" makes it send on its
/// own.
class EchoGateway final : public IngestGateway {
 public:
  std::unique_ptr<IngestChannel> open(std::string_view origin, std::int64_t uid) override {
    if (refuse_) return nullptr;
    last_uid_ = uid;
    EXPECT_EQ(origin, "grpc uid:" + std::to_string(uid));
    ++open_;
    return std::make_unique<Channel>(*this);
  }
  std::atomic<bool> refuse_ = false;
  std::atomic<int> open_ = 0;
  std::atomic<std::int64_t> last_uid_ = -2;

 private:
  class Channel final : public IngestChannel {
   public:
    explicit Channel(EchoGateway& owner) : owner_(owner) {}
    ~Channel() override { --owner_.open_; }
    Response submit(std::string_view frame) override {
      if (frame == "push") {
        const std::lock_guard lock(mutex_);
        pushed_ = true;
        arrived_.notify_all();
        return {};
      }
      return {{"got:" + std::string(frame)}, frame == "end"};
    }
    Response take(std::chrono::milliseconds timeout) override {
      std::unique_lock lock(mutex_);
      arrived_.wait_for(lock, timeout, [this] { return pushed_; });
      if (!pushed_) return {};
      pushed_ = false;
      return {{"unasked"}, false};
    }

   private:
    EchoGateway& owner_;
    std::mutex mutex_;
    std::condition_variable arrived_;
    bool pushed_ = false;
  };
};

class Api : public ::testing::Test {
 protected:
  Api() : tail_(1024) {
    options_.socket = directory_ / "api.sock";
    store_.publish(std::make_shared<const Snapshot>(golden_snapshot()));
    start();
  }
  ~Api() override {
    tail_.close();
    server_.reset();
  }

  void start() {
    auto server = start_api_server(
        options_, {&store_, &tail_, &gateway_, &detail_, nullptr, &throughput_}, authorizer_);
    ASSERT_TRUE(server.ok()) << server.status().message();
    server_ = std::move(server).value();
  }

  /// A connection of its own, so that the caller is determined anew.
  [[nodiscard]] std::shared_ptr<grpc::Channel> connect() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return grpc::CreateCustomChannel("unix:" + options_.socket, grpc::InsecureChannelCredentials(),
                                     arguments);
  }
  [[nodiscard]] std::unique_ptr<v1::AgentService::Stub> agent() const {
    return v1::AgentService::NewStub(connect());
  }

  static void bound(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + 20s);
  }

  void append_operations(OperationTail::SourceId source, std::uint32_t first, std::uint32_t count) {
    std::vector<OperationTail::Entry> entries;
    for (std::uint32_t i = 0; i < count; ++i) {
      wire::Operation o{};
      o.function = static_cast<std::uint8_t>(model::Function::kAllReduce);
      o.datatype = static_cast<std::uint8_t>(model::DataType::kFloat32);
      o.algorithm_protocol = 2 | (3 << 4);
      o.flags = 1 | wire::operation_flags::kTaskSeen | wire::operation_flags::kSequenceKnown;
      o.root_or_peer = -1;
      o.index = first + i;
      o.sequence = first + i;
      o.count_plan = wire::pack_count_plan(250'000, 7);
      o.api_time_ns = 5'000;
      o.gpu_start_ns = 99;
      o.duration_enqueue = wire::pack_duration_enqueue(1'000'000, 2);
      OperationTail::Entry& entry = entries.emplace_back();
      entry.source = source;
      entry.type = wire::RecordType::kOperation;
      entry.record_index = first + i + 1;
      std::memcpy(entry.bytes, &o, sizeof o);
    }
    tail_.append(entries);
  }

  static TailSource source_of(std::string job_id, std::int64_t uid) {
    TailSource source;
    source.job_id = std::move(job_id);
    source.uid = uid;
    source.comm = "00c0ffee12345678";
    source.nranks = 4;
    source.rank = 1;
    source.pid = 5001;
    source.realtime_offset_ns = 1'000'000;
    return source;
  }

  const tests::TemporaryDirectory directory_;
  ApiServerOptions options_;
  SnapshotStore store_;
  OperationTail tail_;
  EchoGateway gateway_;
  tests::RecordingDetail detail_{[](const DetailRequest&) { return 3; }};
  tests::RecordingThroughput throughput_;
  std::shared_ptr<FixedAuthorizer> authorizer_ = std::make_shared<FixedAuthorizer>();
  std::unique_ptr<ApiServer> server_;
};

TEST_F(Api, SnapshotCarriesJobsCommunicatorsAndSums) {
  grpc::ClientContext context;
  bound(context);
  v1::GetSnapshotResponse response;
  const grpc::Status status = agent()->GetSnapshot(&context, {}, &response);
  ASSERT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(response.node(), "nid001");
  ASSERT_EQ(response.jobs_size(), 2);
  const v1::JobSnapshot& job = response.jobs(0);
  EXPECT_EQ(job.job().job_id(), "4711");
  EXPECT_EQ(job.job().user(), "anna");
  ASSERT_EQ(job.communicators_size(), 3);
  EXPECT_EQ(job.communicators(0).comm(), "00c0ffee12345678");
  EXPECT_EQ(job.communicators(0).ranks(1).state(), "vanished");
  EXPECT_EQ(job.communicators(1).name(), "pp\n\xEF\xBF\xBD") << "protobuf wants valid UTF-8";
  EXPECT_EQ(job.sums(0).operations(), 200u);
  EXPECT_EQ(job.sums(2).algorithm(), "");
  EXPECT_EQ(job.sums(1).operations(), 38u) << "all timings together";
  EXPECT_EQ(job.sums(1).timed_operations(), 36u);
  EXPECT_EQ(job.durations(0).counts_size(), job.durations(0).bounds_size() + 1);
  EXPECT_EQ(job.durations(0).counts(12), 200u);
  EXPECT_EQ(job.network(0).phase_seconds(2), 1.75);
}

TEST_F(Api, JobIdSelectsOneJob) {
  grpc::ClientContext context;
  bound(context);
  v1::GetSnapshotRequest request;
  request.set_job_id("ml-team/bert");
  v1::GetSnapshotResponse response;
  ASSERT_TRUE(agent()->GetSnapshot(&context, request, &response).ok());
  ASSERT_EQ(response.jobs_size(), 1);
  EXPECT_EQ(response.jobs(0).job().job_id(), "ml-team/bert");
}

TEST_F(Api, UsersSeeTheirOwnJobsOnly) {
  authorizer_->set(Caller{1001, Role::kUser});
  const auto stub = agent();
  {
    grpc::ClientContext context;
    bound(context);
    v1::GetSnapshotResponse response;
    ASSERT_TRUE(stub->GetSnapshot(&context, {}, &response).ok());
    ASSERT_EQ(response.jobs_size(), 1);
    EXPECT_EQ(response.jobs(0).job().job_id(), "4711");
  }
  {
    grpc::ClientContext context;
    bound(context);
    v1::GetProgressResponse response;
    ASSERT_TRUE(stub->GetProgress(&context, {}, &response).ok());
    EXPECT_EQ(response.ranks_size(), 4);
    for (const v1::RankProgress& rank : response.ranks()) EXPECT_EQ(rank.job_id(), "4711");
  }
  {
    grpc::ClientContext context;
    bound(context);
    v1::GetBooksResponse response;
    ASSERT_TRUE(stub->GetBooks(&context, {}, &response).ok());
    EXPECT_EQ(response.processes_size(), 3);
  }
  authorizer_->set(Caller{2002, Role::kUser});
  grpc::ClientContext context;
  bound(context);
  v1::GetSnapshotResponse response;
  ASSERT_TRUE(agent()->GetSnapshot(&context, {}, &response).ok());
  EXPECT_EQ(response.jobs_size(), 0);
}

TEST_F(Api, RefusesConnectionsOfNobody) {
  authorizer_->set(std::nullopt);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + 2s);
  v1::GetSnapshotResponse response;
  EXPECT_FALSE(agent()->GetSnapshot(&context, {}, &response).ok());
}

TEST_F(Api, ProgressSaysWhereRanksAre) {
  grpc::ClientContext context;
  bound(context);
  v1::GetProgressResponse response;
  ASSERT_TRUE(agent()->GetProgress(&context, {}, &response).ok());
  ASSERT_EQ(response.ranks_size(), 5);
  EXPECT_EQ(response.ranks(1).comm(), "00c0ffee12345678");
  EXPECT_EQ(response.ranks(1).collectives_completed(), 118u);
  EXPECT_EQ(response.ranks(1).inflight_seconds(), 61.5);
  EXPECT_FALSE(response.ranks(1).oldest_is_p2p());
  EXPECT_TRUE(response.ranks(2).oldest_is_p2p());
}

TEST_F(Api, SnapshotsCarryProgressIfAskedTo) {
  v1::GetSnapshotRequest request;
  request.set_job_id("4711");
  for (const bool with_progress : {false, true}) {
    request.set_with_progress(with_progress);
    grpc::ClientContext context;
    bound(context);
    v1::GetSnapshotResponse response;
    ASSERT_TRUE(agent()->GetSnapshot(&context, request, &response).ok());
    ASSERT_EQ(response.jobs_size(), 1);
    EXPECT_EQ(response.jobs(0).progress_size() > 0, with_progress);
    EXPECT_TRUE(response.jobs(0).communicators(0).has_coverage());
  }
}

TEST_F(Api, SnapshotsCarryEnvironmentsToTheirOwnerIfAskedTo) {
  Snapshot snapshot = golden_snapshot();
  const auto same = std::make_shared<const ProcessEnvironment>(
      ProcessEnvironment{{{"NCCL_ALGO", "Ring\x01\xFF"}, {"NCCL_X", std::string(500, 'v')}}, true});
  std::vector<ProcessSnapshot>& processes = snapshot.jobs[0].processes;
  processes[0].environment = processes[2].environment = same;
  processes[0].global_rank = "3";
  store_.publish(std::make_shared<const Snapshot>(snapshot));
  v1::GetSnapshotRequest request;
  request.set_job_id("4711");
  const auto ask = [&] {
    grpc::ClientContext context;
    bound(context);
    v1::GetSnapshotResponse response;
    EXPECT_TRUE(agent()->GetSnapshot(&context, request, &response).ok());
    return response;
  };
  EXPECT_EQ(ask().jobs(0).environments_size(), 0) << "nobody asked for them";
  request.set_with_environments(true);
  const v1::GetSnapshotResponse response = ask();
  ASSERT_EQ(response.jobs(0).environments_size(), 2);
  const v1::ProcessEnvironment& told = response.jobs(0).environments(0);
  EXPECT_TRUE(told.known());
  EXPECT_TRUE(told.cut());
  ASSERT_EQ(told.variables_size(), 2);
  EXPECT_EQ(told.variables(0).name(), "NCCL_ALGO");
  EXPECT_EQ(told.variables(0).value(), "Ring??") << "safe to show";
  EXPECT_EQ(told.variables(1).value().size(), 500u);
  ASSERT_EQ(told.processes_size(), 2);
  EXPECT_EQ(told.processes(0).global_rank(), "3");
  EXPECT_EQ(told.processes(0).state(), "connected");
  EXPECT_EQ(told.processes(0).pid(), 5001);
  EXPECT_EQ(told.processes(1).state(), "gone");
  EXPECT_FALSE(response.jobs(0).environments(1).known()) << "not the same as an empty one";
  EXPECT_EQ(response.jobs(0).environments(1).processes_size(), 1);
  authorizer_->set(Caller{2002, Role::kUser});
  EXPECT_EQ(ask().jobs_size(), 0) << "not to others";
}

TEST_F(Api, BooksSayWhetherTheyBalance) {
  Snapshot snapshot = golden_snapshot();
  ++snapshot.jobs[0].processes[0].records_received;
  store_.publish(std::make_shared<const Snapshot>(snapshot));
  grpc::ClientContext context;
  bound(context);
  v1::GetBooksResponse response;
  ASSERT_TRUE(agent()->GetBooks(&context, {}, &response).ok());
  ASSERT_EQ(response.processes_size(), 4);
  EXPECT_FALSE(response.processes(0).balanced());
  EXPECT_EQ(response.processes(0).state(), "connected");
  EXPECT_EQ(response.processes(2).state(), "gone");
  EXPECT_EQ(response.processes(0).dropped(0).reason(), "no_operation_slot");
}

TEST_F(Api, TailBeginsWithHeldOperationsAndEndsThere) {
  const OperationTail::SourceId source = tail_.add_source(source_of("4711", 1001));
  append_operations(source, 0, 600);
  grpc::ClientContext context;
  bound(context);
  v1::TailOperationsRequest request;
  request.set_include_held(true);
  const auto stub = agent();
  const auto reader = stub->TailOperations(&context, request);
  v1::TailOperationsResponse response;
  std::uint64_t expected = 0;
  while (reader->Read(&response)) EXPECT_EQ(response.operation().index(), expected++);
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(expected, 600u);
  const v1::Operation& o = response.operation();
  EXPECT_EQ(o.job_id(), "4711");
  EXPECT_EQ(o.collective(), "AllReduce");
  EXPECT_EQ(o.datatype(), "ncclFloat32");
  EXPECT_EQ(o.bytes(), 1'000'000u);
  EXPECT_TRUE(o.bytes_complete());
  EXPECT_EQ(o.algorithm(), "RING");
  EXPECT_EQ(o.protocol(), "SIMPLE");
  EXPECT_EQ(o.plan(), 7u);
  EXPECT_EQ(o.timing(), "gpu");
  EXPECT_EQ(o.api_time_ns(), 1'005'000);
  EXPECT_EQ(o.enqueue_time_ns(), 1'007'000);
  EXPECT_EQ(o.duration_ns(), 1'000'000u);
  EXPECT_DOUBLE_EQ(o.algbw(), 1e9);
  EXPECT_DOUBLE_EQ(o.busbw(), 1.5e9);
}

TEST_F(Api, TailFollowsAndCountsWhatItSkipped) {
  const OperationTail::SourceId source = tail_.add_source(source_of("4711", 1001));
  append_operations(source, 0, 1'500);  // the tail holds 1,024
  grpc::ClientContext context;
  bound(context);
  v1::TailOperationsRequest request;
  request.set_include_held(true);
  request.set_follow(true);
  const auto stub = agent();
  const auto reader = stub->TailOperations(&context, request);
  v1::TailOperationsResponse response;
  for (std::uint64_t expected = 476; expected < 1'500; ++expected) {
    ASSERT_TRUE(reader->Read(&response));
    ASSERT_EQ(response.operation().index(), expected);
  }
  append_operations(source, 1'500, 1);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.operation().index(), 1'500u);
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(Api, TailShowsOwnJobsOnly) {
  append_operations(tail_.add_source(source_of("4711", 1001)), 0, 2);
  append_operations(tail_.add_source(source_of("4712", 1002)), 100, 3);
  append_operations(tail_.add_source(source_of("4713", 1002)), 200, 4);
  authorizer_->set(Caller{1002, Role::kUser});
  const auto stub = agent();
  const auto count = [&](const std::string& job_id) {
    grpc::ClientContext context;
    bound(context);
    v1::TailOperationsRequest request;
    request.set_include_held(true);
    request.set_job_id(job_id);
    const auto reader = stub->TailOperations(&context, request);
    v1::TailOperationsResponse response;
    int records = 0;
    while (reader->Read(&response)) ++records;
    EXPECT_TRUE(reader->Finish().ok());
    return records;
  };
  EXPECT_EQ(count(""), 7);
  EXPECT_EQ(count("4712"), 3);
  EXPECT_EQ(count("4711"), 0);
}

TEST_F(Api, TailsAreBounded) {
  server_.reset();
  options_.max_tails = 2;
  start();
  const auto stub = agent();
  v1::TailOperationsRequest request;
  request.set_follow(true);
  request.set_include_held(true);
  append_operations(tail_.add_source(source_of("4711", 1001)), 0, 1);
  grpc::ClientContext first;
  grpc::ClientContext second;
  grpc::ClientContext third;
  for (grpc::ClientContext* context : {&first, &second, &third}) bound(*context);
  const auto one = stub->TailOperations(&first, request);
  const auto two = stub->TailOperations(&second, request);
  v1::TailOperationsResponse response;
  ASSERT_TRUE(one->Read(&response) && two->Read(&response));
  const auto three = stub->TailOperations(&third, request);
  EXPECT_FALSE(three->Read(&response));
  EXPECT_EQ(three->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  // Short calls still find a thread.
  grpc::ClientContext context;
  bound(context);
  v1::GetSnapshotResponse snapshot;
  EXPECT_TRUE(stub->GetSnapshot(&context, {}, &snapshot).ok());
}

TEST_F(Api, SetDetailReachesOwnProcessesOnlyUnlessAdministrator) {
  v1::SetDetailRequest request;
  request.set_job_id("4711");
  request.set_level(v1::SetDetailRequest::LEVEL_FULL);
  request.set_network_phases(true);
  request.set_duration_ms(5'000);
  v1::SetDetailResponse response;
  {
    grpc::ClientContext context;
    bound(context);
    ASSERT_TRUE(agent()->SetDetail(&context, request, &response).ok());
    EXPECT_EQ(response.processes(), 3u);
    EXPECT_EQ(detail_.last().uid, -1);
    EXPECT_EQ(detail_.last().job_id, "4711");
    EXPECT_EQ(detail_.last().level, static_cast<std::uint8_t>(wire::DetailLevel::kFull));
    EXPECT_TRUE(detail_.last().network_phases);
    EXPECT_EQ(detail_.last().duration_ms, 5'000u);
  }
  authorizer_->set(Caller{1001, Role::kUser});
  {
    grpc::ClientContext context;
    bound(context);
    ASSERT_TRUE(agent()->SetDetail(&context, request, &response).ok());
    EXPECT_EQ(detail_.last().uid, 1001);
  }
  authorizer_->set(Caller{-1, Role::kUser});
  {
    grpc::ClientContext context;
    bound(context);
    EXPECT_EQ(agent()->SetDetail(&context, request, &response).error_code(),
              grpc::StatusCode::PERMISSION_DENIED);
  }
  authorizer_->set(Caller{0, Role::kAdministrator});
  request.set_level(v1::SetDetailRequest::LEVEL_UNSPECIFIED);
  grpc::ClientContext context;
  bound(context);
  EXPECT_EQ(agent()->SetDetail(&context, request, &response).error_code(),
            grpc::StatusCode::INVALID_ARGUMENT);
}

class RecordingReports final : public JobReports {
 public:
  std::optional<std::uint32_t> start(std::string_view, const JobFacts& facts) override {
    if (stopping_) return std::nullopt;
    const std::lock_guard lock(mutex_);
    facts_ = facts;
    return 3;
  }
  std::optional<bool> end(std::string_view) override {
    if (stopping_) return std::nullopt;
    return true;
  }
  [[nodiscard]] JobFacts facts() const {
    const std::lock_guard lock(mutex_);
    return facts_;
  }
  std::atomic<bool> stopping_ = false;

 private:
  mutable std::mutex mutex_;
  JobFacts facts_;
};

TEST_F(Api, JobsAreReportedByAdministratorsOnly) {
  RecordingReports reports;
  server_.reset();
  auto server =
      start_api_server(options_, {&store_, &tail_, nullptr, nullptr, &reports}, authorizer_);
  ASSERT_TRUE(server.ok()) << server.status().message();
  v1::StartJobRequest request;
  request.set_slurm_job_id("4711");
  request.set_user("ada\n");
  request.set_account(std::string(1000, 'x'));
  const auto start = [&](v1::StartJobResponse* response) {
    grpc::ClientContext context;
    bound(context);
    return v1::JobService::NewStub(connect())->StartJob(&context, request, response);
  };
  v1::StartJobResponse response;
  ASSERT_TRUE(start(&response).ok());
  EXPECT_EQ(response.run(), 3u);
  EXPECT_EQ(reports.facts().user, "ada?");
  EXPECT_EQ(reports.facts().account.size(), 128u);
  EXPECT_EQ(reports.facts().uid, -1);
  EXPECT_EQ(reports.facts().restarts, std::nullopt);

  for (const char* id : {"", "x", "-1", "123456789012345678901", "7_1"}) {
    request.set_slurm_job_id(id);
    EXPECT_EQ(start(&response).error_code(), grpc::StatusCode::INVALID_ARGUMENT) << id;
  }
  request.set_slurm_job_id("4711");
  reports.stopping_ = true;
  EXPECT_EQ(start(&response).error_code(), grpc::StatusCode::UNAVAILABLE);
  reports.stopping_ = false;
  authorizer_->set(Caller{1001, Role::kUser});
  EXPECT_EQ(start(&response).error_code(), grpc::StatusCode::PERMISSION_DENIED);
  grpc::ClientContext context;
  bound(context);
  v1::EndJobRequest end;
  end.set_slurm_job_id("4711");
  v1::EndJobResponse ended;
  EXPECT_EQ(v1::JobService::NewStub(connect())->EndJob(&context, end, &ended).error_code(),
            grpc::StatusCode::PERMISSION_DENIED);
  server.value()->stop(0ms);
}

TEST_F(Api, AgentWithoutJobTableSaysSo) {
  v1::StartJobRequest request;
  request.set_slurm_job_id("4711");
  v1::StartJobResponse response;
  grpc::ClientContext context;
  bound(context);
  EXPECT_EQ(v1::JobService::NewStub(connect())->StartJob(&context, request, &response).error_code(),
            grpc::StatusCode::UNIMPLEMENTED);
}

TEST_F(Api, SetDetailRefusesUnknownJobsAndForeignOnesAlike) {
  v1::SetDetailRequest request;
  request.set_level(v1::SetDetailRequest::LEVEL_LOW);
  request.set_duration_ms(1'000);
  const auto ask = [&](const std::string& job) {
    grpc::ClientContext context;
    bound(context);
    v1::SetDetailResponse response;
    request.set_job_id(job);
    return agent()->SetDetail(&context, request, &response);
  };
  const grpc::Status unknown = ask("nonsense");
  EXPECT_EQ(unknown.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_NE(unknown.error_message().find("\"nonsense\""), std::string::npos)
      << unknown.error_message();
  EXPECT_TRUE(ask("4711").ok());
  authorizer_->set(Caller{4242, Role::kUser});
  EXPECT_EQ(ask("4711").error_code(), grpc::StatusCode::NOT_FOUND);
  authorizer_->set(Caller{1001, Role::kUser});
  EXPECT_TRUE(ask("4711").ok());
}

TEST_F(Api, SetDetailHasAnEnd) {
  const auto ask = [&](v1::SetDetailRequest::Level level, std::uint32_t ms, bool network = false) {
    v1::SetDetailRequest request;
    request.set_job_id("4711");
    request.set_level(level);
    request.set_duration_ms(ms);
    request.set_network_phases(network);
    grpc::ClientContext context;
    bound(context);
    v1::SetDetailResponse response;
    return agent()->SetDetail(&context, request, &response).error_code();
  };
  using R = v1::SetDetailRequest;
  EXPECT_EQ(ask(R::LEVEL_FULL, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask(R::LEVEL_LOW, 0), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask(R::LEVEL_FULL, 3'600'001), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask(R::LEVEL_FULL, 3'600'000), grpc::StatusCode::OK);
  EXPECT_EQ(ask(R::LEVEL_NORMAL, 0), grpc::StatusCode::OK);
  EXPECT_EQ(ask(R::LEVEL_NORMAL, 0, true), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask(R::LEVEL_LOW, 1'000, true), grpc::StatusCode::INVALID_ARGUMENT);
}

TEST_F(Api, ThroughputIsReportedForOwnJobsOnlyUnlessAdministrator) {
  const auto ask = [&](const std::string& job, double per_second = 91'000,
                       std::uint32_t valid_ms = 0) {
    v1::ReportThroughputRequest request;
    request.set_job_id(job);
    request.set_unit(v1::ReportThroughputRequest::UNIT_SAMPLES);
    request.set_per_second(per_second);
    request.set_valid_ms(valid_ms);
    grpc::ClientContext context;
    bound(context);
    v1::ReportThroughputResponse response;
    return agent()->ReportThroughput(&context, request, &response).error_code();
  };
  using grpc::StatusCode;
  EXPECT_EQ(ask("4711"), StatusCode::OK);
  EXPECT_EQ(throughput_.last().job_id, "4711");
  EXPECT_EQ(throughput_.last().uid, -1);
  EXPECT_EQ(throughput_.last().unit, ThroughputUnit::kSamples);
  EXPECT_EQ(throughput_.last().per_second, 91'000);
  EXPECT_EQ(throughput_.last().valid_ns, 300'000'000'000u) << "five minutes if nothing is said";
  EXPECT_EQ(ask("99999"), StatusCode::NOT_FOUND);
  EXPECT_EQ(ask(""), StatusCode::NOT_FOUND) << "never for all jobs at once";
  EXPECT_EQ(ask("4711", -1), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask("4711", std::numeric_limits<double>::quiet_NaN()), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ask("4711", 1, 3'600'001), StatusCode::INVALID_ARGUMENT);
  authorizer_->set(Caller{4242, Role::kUser});
  EXPECT_EQ(ask("4711"), StatusCode::NOT_FOUND) << "like one that does not exist";
  authorizer_->set(Caller{1001, Role::kUser});
  EXPECT_EQ(ask("4711", 5, 1'000), StatusCode::OK);
  EXPECT_EQ(throughput_.last().uid, 1001);
  EXPECT_EQ(throughput_.last().valid_ns, 1'000'000'000u);
  authorizer_->set(Caller{-1, Role::kViewer, "token:grafana"});
  EXPECT_EQ(ask("4711"), StatusCode::PERMISSION_DENIED);
}

TEST_F(Api, PublishCarriesFramesBothWays) {
  authorizer_->set(Caller{1234, Role::kUser});
  const auto stub = v1::IngestService::NewStub(connect());
  grpc::ClientContext context;
  bound(context);
  const auto stream = stub->Publish(&context);
  v1::PublishRequest request;
  v1::PublishResponse response;
  const std::string binary("\x00\xFF\x01", 3);
  for (const std::string& frame : {std::string("one"), binary}) {
    request.set_frame(frame);
    ASSERT_TRUE(stream->Write(request));
    ASSERT_TRUE(stream->Read(&response));
    EXPECT_EQ(response.frame(), "got:" + frame);
  }
  request.set_frame("push");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.frame(), "unasked");
  EXPECT_EQ(gateway_.last_uid_, 1234);
  request.set_frame("end");
  ASSERT_TRUE(stream->Write(request));
  ASSERT_TRUE(stream->Read(&response));
  EXPECT_EQ(response.frame(), "got:end");
  EXPECT_FALSE(stream->Read(&response)) << "the session has ended";
  EXPECT_TRUE(stream->Finish().ok());
  EXPECT_EQ(gateway_.open_, 0);
}

TEST_F(Api, PublishIsRefusedWhenTheAgentTakesNoMore) {
  gateway_.refuse_ = true;
  const auto stub = v1::IngestService::NewStub(connect());
  grpc::ClientContext context;
  bound(context);
  const auto stream = stub->Publish(&context);
  v1::PublishResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::UNAVAILABLE);
}

TEST_F(Api, PublishRefusesFramesThatAreFarTooLarge) {
  const auto stub = v1::IngestService::NewStub(connect());
  grpc::ClientContext context;
  bound(context);
  const auto stream = stub->Publish(&context);
  v1::PublishRequest request;
  request.set_frame(std::string(1 << 20, 'x'));
  stream->Write(request);
  v1::PublishResponse response;
  EXPECT_FALSE(stream->Read(&response));
  EXPECT_EQ(stream->Finish().error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(Api, StopEndsStreamsInTimeAndRemovesTheSocket) {
  const auto agent_stub = agent();
  grpc::ClientContext tail_context;
  bound(tail_context);
  append_operations(tail_.add_source(source_of("4711", 1001)), 0, 1);
  v1::TailOperationsRequest request;
  request.set_follow(true);
  request.set_include_held(true);
  const auto reader = agent_stub->TailOperations(&tail_context, request);
  v1::TailOperationsResponse record;
  ASSERT_TRUE(reader->Read(&record));
  const auto ingest_stub = v1::IngestService::NewStub(connect());
  grpc::ClientContext publish_context;
  bound(publish_context);
  const auto stream = ingest_stub->Publish(&publish_context);
  v1::PublishRequest frame;
  frame.set_frame("one");
  v1::PublishResponse answer;
  ASSERT_TRUE(stream->Write(frame) && stream->Read(&answer));

  const auto begin = std::chrono::steady_clock::now();
  server_->stop(10s);
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 9s) << "streams were cut, they did not end";
  EXPECT_FALSE(std::filesystem::exists(options_.socket));
  EXPECT_FALSE(reader->Read(&record));
  EXPECT_TRUE(reader->Finish().ok());
  server_->stop(10s);
}

TEST_F(Api, ManyConnectionsAreBoundedAndTheServerGoesOn) {
  std::vector<std::shared_ptr<grpc::Channel>> held;
  for (std::size_t i = 0; i < options_.max_connections + 5; ++i) {
    held.push_back(connect());
    held.back()->WaitForConnected(std::chrono::system_clock::now() + 100ms);
  }
  held.clear();
  grpc::Status status;
  for (int attempt = 0; attempt < 50; ++attempt) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + 1s);
    context.set_wait_for_ready(true);
    v1::GetSnapshotResponse response;
    status = agent()->GetSnapshot(&context, {}, &response);
    if (status.ok()) break;
  }
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST(ApiServer, NamesASocketItCannotMake) {
  const SnapshotStore store;
  const OperationTail tail(16);
  ApiServerOptions options;
  options.socket = "/nonexistent-directory/api.sock";
  const auto server = start_api_server(options, {&store, &tail, nullptr, nullptr});
  ASSERT_FALSE(server.ok());
  EXPECT_NE(server.status().message().find(options.socket), std::string::npos)
      << server.status().message();
}

}  // namespace
}  // namespace ncclscope::agent

// SPDX-License-Identifier: Apache-2.0
//
// /metrics/inspector: from records to the page, window by window.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "agent/export/inspector_endpoint.h"
#include "tests/unit/agent/rig.h"

namespace ncclscope::agent {
namespace {

using model::Function;
using ::testing::HasSubstr;
using testing::make_init;
using ::testing::Not;
using testing::OperationSpec;
using testing::PacketBuilder;
using testing::Rig;
using testing::Wire;

constexpr std::uint64_t kWindowNs = 30'000'000'000;

class InspectorPage : public ::testing::Test {
 protected:
  static Aggregator::Options options() {
    Aggregator::Options o;
    o.node = "node1";
    o.inspector_window_ns = kWindowNs;
    return o;
  }
  void start(Aggregator::Options with = options()) {
    rig_ = std::make_unique<Rig>(std::move(with));
    rig_->tick();
    plugin_ = rig_->open(9, "4711");
    plugin_->feed(PacketBuilder()
                      .init(make_init(0, 0xabc, 1, 4), {{wire::StringKey::kCommunicatorName, "dp"}})
                      .init(make_init(1, 0xdef, 1, 4), {{wire::StringKey::kCommunicatorName, "dp"}})
                      .finish());
  }
  void feed(const OperationSpec& spec, int count = 1) {
    plugin_->feed(PacketBuilder().operations(count, spec).finish(next_));
    next_ += static_cast<std::uint64_t>(count);
  }
  void end_window() {
    rig_->clock.advance_ns(kWindowNs);
    rig_->tick();
  }
  std::string page() {
    std::string out;
    StringSink sink(out);
    write_inspector_page(*rig_->snapshot(), TextFormat::kPrometheus, sink);
    return out;
  }
  static std::size_t series(const std::string& page) {
    std::size_t n = 0;
    for (std::size_t at = page.find("\nnccl_"); at != std::string::npos;
         at = page.find("\nnccl_", at + 1))
      ++n;
    return n;
  }
  /// 4 MiB over four ranks: 6 MiB over the bus.
  static OperationSpec operation(std::uint64_t duration_ns) {
    OperationSpec spec;
    spec.count = 1 << 20;
    spec.duration_ns = duration_ns;
    return spec;
  }

  std::unique_ptr<Rig> rig_;
  std::unique_ptr<Wire> plugin_;
  std::uint64_t next_ = 1;
};

TEST_F(InspectorPage, ShowsTheLastWholeWindowAndOmitsWhatHadNoOperation) {
  start();
  feed(operation(100'000));
  feed(operation(400'000));
  EXPECT_EQ(series(page()), 0u) << "the window is not over";
  end_window();
  constexpr const char* kLabels =
      R"({version="v5.1",cluster="unknown",slurm_job_id="4711",node="node1",hostname="node1",)"
      R"(gpu="GPU1",comm_name="dp",n_nodes="1",nranks="4",collective="AllReduce",)"
      R"(message_size="4-5MB",algo_proto="RING_SIMPLE"} )";
  // 62.9 and 15.7 GB/s: 31.5 between them, where the mean would be 39.3.
  EXPECT_THAT(page(), HasSubstr(std::string("\nnccl_bus_bandwidth_gbs") + kLabels + "31.457"));
  EXPECT_THAT(page(), HasSubstr(std::string("\nnccl_collective_exec_time_microseconds") + kLabels +
                                "250\n"));
  EXPECT_THAT(page(), HasSubstr("# TYPE nccl_bus_bandwidth_gbs gauge\n"));
  EXPECT_THAT(page(), HasSubstr("# HELP nccl_bus_bandwidth_gbs "));
  EXPECT_EQ(series(page()), 2u);
  end_window();
  EXPECT_EQ(series(page()), 0u) << "no operation in this one";
}

TEST_F(InspectorPage, AddsUpRanksAndCommunicatorsWithEqualLabels) {
  start();
  OperationSpec one = operation(100'000);
  OperationSpec two = operation(300'000);
  two.communicator = 1;
  feed(one);
  feed(two);
  end_window();
  EXPECT_EQ(series(page()), 2u) << page();
  EXPECT_THAT(page(), HasSubstr("algo_proto=\"RING_SIMPLE\"} 200\n"));
}

TEST_F(InspectorPage, KeepsTransfersApartAndLeavesSmallAndUntimedOperationsOut) {
  start();
  OperationSpec small = operation(100'000);
  small.count = 2047;
  feed(small);
  OperationSpec untimed = operation(100'000);
  untimed.timing = wire::TimingSource::kNone;
  feed(untimed);
  OperationSpec send = operation(100'000);
  send.function = Function::kSend;
  feed(send);
  end_window();
  EXPECT_EQ(series(page()), 2u);
  EXPECT_THAT(page(), HasSubstr(R"(nranks="4",p2p_operation="Send",message_size="4-5MB"} 41.943)"));
  EXPECT_THAT(page(), Not(HasSubstr("nccl_bus_bandwidth_gbs")));
}

TEST_F(InspectorPage, ShowsNothingOfAJobThatIsGone) {
  start();
  feed(operation(100'000));
  end_window();
  EXPECT_EQ(series(page()), 2u);
  plugin_->disconnect();
  EXPECT_EQ(series(page()), 0u);
}

TEST_F(InspectorPage, HasTheLimitsOfTheOtherPageAndCountsWhatIsBeyond) {
  Aggregator::Options few = options();
  few.series.job = 10;
  start(few);
  for (std::uint64_t n = 1; n <= 8; ++n) {
    OperationSpec spec = operation(100'000);
    spec.count = n << 20;
    feed(spec, 2);
  }
  end_window();
  EXPECT_EQ(series(page()), 10u);
  EXPECT_THAT(page(), HasSubstr("\nncclscope_inspector_left_out_operations_total 6\n"));
  // The next window has room again.
  feed(operation(100'000));
  end_window();
  EXPECT_EQ(series(page()), 2u);
}

TEST_F(InspectorPage, KeepsNothingUnlessItIsAskedTo) {
  start(Aggregator::Options{});
  feed(operation(100'000));
  end_window();
  EXPECT_EQ(series(page()), 0u);
  EXPECT_EQ(rig_->snapshot()->jobs.at(0).inspector, nullptr);
}

TEST_F(InspectorPage, IsNotMovedByNamesThatNobodyShouldHave) {
  start();
  plugin_->feed(PacketBuilder()
                    .init(make_init(2, 0x123, 1, 4),
                          {{wire::StringKey::kCommunicatorName, "a\"} 1\nx{b=\"\xFF"}})
                    .finish());
  OperationSpec spec = operation(100'000);
  spec.communicator = 2;
  feed(spec);
  end_window();
  EXPECT_EQ(series(page()), 2u) << page();
  EXPECT_THAT(page(), Not(HasSubstr("\nx{")));
}

}  // namespace
}  // namespace ncclscope::agent

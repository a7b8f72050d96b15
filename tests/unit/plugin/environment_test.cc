// SPDX-License-Identifier: Apache-2.0
//
// Which variables the plugin tells, and how they are cut into records.
#include "plugin/environment.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "proto/wire/decode.h"

namespace ncclscope::plugin {
namespace {

struct Told {
  std::vector<std::string> variables;
  std::size_t records = 0;
  bool ended = false, cut = false;
};

Told told(const std::vector<std::string>& environment, bool tell = true) {
  std::vector<const char*> pointers;
  for (const std::string& entry : environment) pointers.push_back(entry.c_str());
  pointers.push_back(nullptr);
  read_environment(pointers.data(), tell);
  std::vector<std::byte> buffer(wire::kMaxFrameBytes);
  wire::FrameWriter frame(buffer);
  add_environment(frame);
  Told result;
  wire::FrameHeader header;
  const auto take = [&](std::uint8_t type, std::span<const std::byte> record, std::uint64_t) {
    EXPECT_EQ(type, static_cast<std::uint8_t>(wire::RecordType::kEnvironment));
    EXPECT_FALSE(result.ended) << "nothing behind the end";
    wire::Environment head{};
    EXPECT_TRUE(wire::read_record(record, head));
    ++result.records;
    result.ended = (head.flags & wire::kEnvironmentEnd) != 0;
    result.cut = (head.flags & wire::kEnvironmentCut) != 0;
    return wire::read_strings(record, sizeof head, head.string_bytes,
                              [&](wire::StringKey key, std::string_view text) {
                                if (key == wire::StringKey::kVariable)
                                  result.variables.emplace_back(text);
                                else
                                  result.variables.back() += text;
                              });
  };
  EXPECT_EQ(wire::read_frame(frame.finish(0, 1), header, take), wire::DecodeError::kNone);
  return result;
}

using Variables = std::vector<std::string>;

TEST(PluginEnvironment, TellsNcclsVariablesAndNothingElse) {
  const Told t = told({"HOME=/root", "NCCL_DEBUG=INFO", "AWS_SECRET_ACCESS_KEY=x", "NCCL=1",
                       "TORCH_NCCL_X=1", "NCCL_BARE", "NCCL_IB_HCA=mlx5_0,mlx5_1", "NCCL_ALGO="});
  EXPECT_EQ(t.variables, (Variables{"NCCL_DEBUG=INFO", "NCCL_IB_HCA=mlx5_0,mlx5_1", "NCCL_ALGO="}));
  EXPECT_TRUE(t.ended);
  EXPECT_FALSE(t.cut);
}

TEST(PluginEnvironment, AnEmptyOneIsKnownToBeEmptyAndNoneIsNot) {
  const Told empty = told({"HOME=/root"});
  EXPECT_TRUE(empty.ended);
  EXPECT_EQ(empty.records, 1u);
  EXPECT_TRUE(empty.variables.empty());
  EXPECT_EQ(told({"NCCL_DEBUG=INFO"}, false).records, 0u);
  read_environment(nullptr, true);
}

TEST(PluginEnvironment, KeepsSecretsAndSaysThatSomethingIsMissing) {
  const Told t = told({"NCCL_MY_TOKEN=x", "NCCL_X_PASSWORD=x", "NCCL_CLIENT_SECRET_ID=x",
                       "NCCL_S3_CREDENTIALS=x", "NCCL_TLS_KEY=x", "NCCL_IB_PKEY=1"});
  EXPECT_EQ(t.variables, Variables{"NCCL_IB_PKEY=1"}) << "a partition's number is no secret";
  EXPECT_TRUE(t.cut);
}

TEST(PluginEnvironment, TakesTheFirstOfAName) {
  const Told t = told({"NCCL_DEBUG=INFO", "NCCL_DEBUG=WARN", "NCCL_DEBUG_FILE=/tmp/x"});
  EXPECT_EQ(t.variables, (Variables{"NCCL_DEBUG=INFO", "NCCL_DEBUG_FILE=/tmp/x"}));
}

TEST(PluginEnvironment, LongValuesTakeSeveralStringsAndAreCut) {
  for (const std::size_t bytes : {127u, 128u, 129u, 256u, 511u, 512u}) {
    const std::string variable = "NCCL_X=" + std::string(bytes - 7, 'v');
    const Told t = told({variable});
    EXPECT_EQ(t.variables, Variables{variable}) << bytes;
    EXPECT_FALSE(t.cut) << bytes;
  }
  const Told t = told({"NCCL_X=" + std::string(600, 'v')});
  EXPECT_EQ(t.variables, Variables{"NCCL_X=" + std::string(505, 'v')});
  EXPECT_TRUE(t.cut);
  EXPECT_TRUE(told({"NCCL_" + std::string(100, 'X') + "=1"}).cut);
}

TEST(PluginEnvironment, IsBoundedInCountAndBytes) {
  Variables many;
  for (int i = 0; i < 1000; ++i) many.push_back("NCCL_V" + std::to_string(i) + "=1");
  Told t = told(many);
  EXPECT_EQ(t.variables.size(), wire::kMaxVariables);
  EXPECT_TRUE(t.ended);
  EXPECT_TRUE(t.cut);
  for (std::string& variable : many) variable.resize(512, 'v');
  t = told(many);
  EXPECT_EQ(t.records, wire::kMaxEnvironmentRecords);
  EXPECT_GE(t.variables.size(), 12u);
  EXPECT_EQ(t.variables[0], many[0]);
  EXPECT_TRUE(t.cut);
  EXPECT_EQ(told({"NCCL_DEBUG=INFO"}).variables, Variables{"NCCL_DEBUG=INFO"}) << "read anew";
}

}  // namespace
}  // namespace ncclscope::plugin

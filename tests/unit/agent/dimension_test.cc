// SPDX-License-Identifier: Apache-2.0
//
// Dimensions from the names that frameworks give to their process groups, and from what is done on
// communicators without one.
#include "agent/aggregate/dimension.h"

#include <gtest/gtest.h>

#include <string_view>
#include <utility>
#include <vector>

namespace ncclscope::agent {
namespace {

using model::Function;

TEST(Dimension, KnowsTheNamesOfTheFrameworks) {
  const std::vector<std::pair<std::string_view, std::string_view>> names = {
      // Megatron
      {"TENSOR_MODEL_PARALLEL_GROUP", "tp"},
      {"PIPELINE_MODEL_PARALLEL_GROUP", "pp"},
      {"MODEL_PARALLEL_GROUP", "mp"},
      {"DATA_PARALLEL_GROUP", "dp"},
      {"DATA_PARALLEL_GROUP_WITH_CP", "dp"},
      {"INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP", "dp"},
      {"CONTEXT_PARALLEL_GROUP", "cp"},
      {"HIERARCHICAL_CONTEXT_PARALLEL_GROUPS", "cp"},
      {"EXPERT_MODEL_PARALLEL_GROUP", "ep"},
      {"EXPERT_TENSOR_PARALLEL_GROUP", "tp"},
      {"EXPERT_DATA_PARALLEL_GROUP", "dp"},
      {"EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP", ""},
      {"TENSOR_AND_DATA_PARALLEL_GROUP", ""},
      {"TENSOR_AND_CONTEXT_PARALLEL_GROUP", ""},
      {"EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP", ""},
      {"EMBEDDING_GROUP", ""},
      {"POSITION_EMBEDDING_GROUP", ""},
      {"dp_cp", "dp"},
      {"ep_dp", "dp"},
      {"tp_ep_pp", ""},
      // PyTorch's device meshes and torchtitan
      {"mesh_dp", "dp"},
      {"mesh_tp", "tp"},
      {"mesh_pp", "pp"},
      {"mesh_dp_replicate", "dp"},
      {"mesh_dp_shard", "dp"},
      {"mesh_dp_shard_cp", "dp"},
      {"mesh_fsdp", "dp"},
      {"mesh_efsdp", "dp"},
      {"mesh_cp", "cp"},
      {"mesh_ep", "ep"},
      // vLLM, DeepSpeed, emulated jobs
      {"tp:0", "tp"},
      {"pp:0", "pp"},
      {"ep_size_8", "ep"},
      {"expertParallel", "ep"},
      {"dp_group", "dp"},
      {"fsdp_group", "dp"},
      {"tp_group", "tp"},
  };
  for (const auto& [name, dimension] : names) {
    const NamedDimension found = dimension_of_name(name);
    EXPECT_TRUE(found.decided) << name;
    EXPECT_EQ(found.dimension, dimension) << name;
  }
}

TEST(Dimension, IsLeftOpenByNamesThatSayNothing) {
  for (const std::string_view name :
       {"", "default_pg", "undefined", "world", "mesh_dim_0", "mesh_default", "update", "stepper",
        "grouped", "0", "adapter", "http", "app"}) {
    EXPECT_FALSE(dimension_of_name(name).decided) << name;
  }
}

/// A pipeline stage or ring between `nranks`, seen by `rank`.
CommunicatorUse neighbours(std::uint32_t nranks, std::int32_t rank, bool back) {
  CommunicatorUse use;
  use.nranks = nranks;
  const auto next = static_cast<std::int32_t>((static_cast<std::uint32_t>(rank) + 1) % nranks);
  const auto previous =
      static_cast<std::int32_t>((static_cast<std::uint32_t>(rank) + nranks - 1) % nranks);
  for (int i = 0; i < 100; ++i) {
    use.peers.add_peer(rank, nranks, next, true);
    use.peers.add_peer(rank, nranks, back ? next : previous, false);
    if (back) {
      use.peers.add(true, false);
      use.peers.add(false, true);
    } else {
      use.peers.add(true, true);
    }
  }
  return use;
}

TEST(Dimension, TellsPipelinesFromRings) {
  for (const std::uint32_t nranks : {2u, 4u, 8u}) {
    const std::vector<CommunicatorUse> uses = {neighbours(nranks, 1, true),
                                               neighbours(nranks, 1, false)};
    const auto found = infer_dimensions(uses, 100);
    EXPECT_EQ(found[0], "pp") << nranks;
    EXPECT_EQ(found[1], "") << nranks;
  }
}

TEST(Dimension, NeedsMoreThanAPlainAllReduce) {
  CommunicatorUse use;
  use.nranks = 8;
  use.nnodes = 1;
  add_collectives(use, Function::kAllReduce, 1 << 20, 6400);  // tensor parallel, or one bucket?
  EXPECT_EQ(infer_dimensions(std::vector{use}, 100)[0], "");
  CommunicatorUse buckets = use;
  buckets.sizes.clear();
  buckets.bulk_all_reduces = 0;
  for (const std::uint64_t bytes : {1u << 20, 25u << 20, 24u << 20, 7u << 20}) {
    add_collectives(buckets, Function::kAllReduce, bytes, 100);
  }
  EXPECT_EQ(infer_dimensions(std::vector{buckets}, 100)[0], "dp");
  const auto both = infer_dimensions(std::vector{use, buckets}, 100);
  EXPECT_EQ(both[0], "tp");
  EXPECT_EQ(both[1], "dp");
  EXPECT_EQ(infer_dimensions(std::vector{use, buckets}, 5)[0], "") << "too early to tell";
}

TEST(Dimension, IsExpertOnlyWhereAllToAllsAreUneven) {
  CommunicatorUse use;
  use.nranks = 8;
  use.all_to_alls = 100;
  EXPECT_EQ(infer_dimensions(std::vector{use}, 50)[0], "") << "sequence parallel ones are even";
  use.uneven_all_to_alls = 90;
  EXPECT_EQ(infer_dimensions(std::vector{use}, 50)[0], "ep");
}

}  // namespace
}  // namespace ncclscope::agent

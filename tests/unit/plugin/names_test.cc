// SPDX-License-Identifier: Apache-2.0
#include "plugin/names.h"

#include <gtest/gtest.h>

#include <string>

#include "proto/nccl/profiler_common.h"

namespace ncclscope::plugin {
namespace {

TEST(Names, KnowsEveryFunctionThatNcclNames) {
  for (const char* name : nccl::kFuncNames) {
    EXPECT_EQ(model::name(parse_function(name)), name);
  }
}

TEST(Names, KnowsEveryDatatypeByContentNotAddress) {
  for (const auto& type : nccl::kDatatypes) {
    const std::string copy = type.profiler_name;
    const auto parsed = parse_datatype(copy.c_str());
    EXPECT_EQ(model::element_bytes(parsed), type.bytes) << copy;
    if (copy == "Unknown") continue;
    EXPECT_EQ(model::name(parsed), copy);
  }
}

TEST(Names, TakesUnknownDatatypeForUint8) {
  EXPECT_EQ(parse_datatype("Unknown"), model::DataType::kUint8);
}

TEST(Names, KnowsAlgorithmsAndProtocols) {
  for (const char* name : nccl::kAlgoNames) EXPECT_EQ(model::name(parse_algorithm(name)), name);
  for (const char* name : nccl::kProtoNames) EXPECT_EQ(model::name(parse_protocol(name)), name);
}

TEST(Names, CallsWhatItDoesNotKnowUnknown) {
  for (const char* text :
       {"", "X", "AllReduceX", "ncclFloat", "RINGS", "LL1", "SIMPL", "nccl", "AllReduc"}) {
    EXPECT_EQ(parse_function(text), model::Function::kUnknown) << text;
    EXPECT_EQ(parse_datatype(text), model::DataType::kUnknown) << text;
    EXPECT_EQ(parse_algorithm(text), model::Algorithm::kUnknown) << text;
    EXPECT_EQ(parse_protocol(text), model::Protocol::kUnknown) << text;
  }
  EXPECT_EQ(parse_function(nullptr), model::Function::kUnknown);
  EXPECT_EQ(parse_datatype(nullptr), model::DataType::kUnknown);
  EXPECT_EQ(parse_algorithm(nullptr), model::Algorithm::kUnknown);
  EXPECT_EQ(parse_protocol(nullptr), model::Protocol::kUnknown);
}

TEST(Names, ReadsTheCodesOfInterfaceOne) {
  for (std::uint8_t i = 0; i < 8; ++i)
    EXPECT_EQ(model::name(function_from_code(i)), nccl::kFuncCodesV1[i]);
  for (std::uint8_t i = 0; i < 7; ++i)
    EXPECT_EQ(model::name(algorithm_from_code(i)), nccl::kAlgoNames[i]);
  for (std::uint8_t i = 0; i < 3; ++i)
    EXPECT_EQ(model::name(protocol_from_code(i)), nccl::kProtoNames[i]);
  for (std::uint8_t i = 0; i < 12; ++i) {
    EXPECT_EQ(model::element_bytes(datatype_from_code(i)), nccl::kDatatypes[i].bytes);
  }
  EXPECT_EQ(function_from_code(200), model::Function::kUnknown);
  EXPECT_EQ(datatype_from_code(200), model::DataType::kUnknown);
  EXPECT_EQ(algorithm_from_code(7), model::Algorithm::kUnknown);
  EXPECT_EQ(protocol_from_code(3), model::Protocol::kUnknown);
}

}  // namespace
}  // namespace ncclscope::plugin

// SPDX-License-Identifier: Apache-2.0
//
// The gRPC API against its released form (proto/baseline.binpb): nothing that clients rely on may
// go or change. `buf breaking` says the same with more rules where it is installed; this needs
// protobuf only.
#include <google/protobuf/descriptor.h>
#include <google/protobuf/descriptor.pb.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <fstream>
#include <string>

#include "ncclscope/v1/agent.pb.h"
#include "ncclscope/v1/ingest.pb.h"

namespace ncclscope {
namespace {

using google::protobuf::DescriptorPool;
using google::protobuf::DescriptorProto;
using google::protobuf::EnumDescriptorProto;
using google::protobuf::FieldDescriptorProto;
using google::protobuf::FileDescriptorProto;

/// What differs, one line each; empty when `now` still serves clients of `baseline`.
std::string incompatibilities(const FileDescriptorProto& baseline, const DescriptorPool& now);

void compare_enum(const EnumDescriptorProto& old, const google::protobuf::EnumDescriptor* e,
                  std::string& out) {
  if (e == nullptr) {
    out += "enum " + old.name() + " is gone\n";
    return;
  }
  for (const auto& value : old.value()) {
    const auto* found = e->FindValueByNumber(value.number());
    if (found == nullptr || found->name() != value.name())
      out += "enum value " + value.name() + " changed\n";
  }
}

void compare_message(const DescriptorProto& old, const google::protobuf::Descriptor* m,
                     std::string& out) {
  if (m == nullptr) {
    out += "message " + old.name() + " is gone\n";
    return;
  }
  for (const FieldDescriptorProto& field : old.field()) {
    const auto* found = m->FindFieldByNumber(field.number());
    FieldDescriptorProto now;
    if (found != nullptr) found->CopyTo(&now);
    if (found == nullptr || now.name() != field.name() || now.type() != field.type() ||
        now.label() != field.label() || now.type_name() != field.type_name() ||
        now.has_oneof_index() != field.has_oneof_index())
      out += "field " + old.name() + "." + field.name() + " changed\n";
  }
  for (const DescriptorProto& nested : old.nested_type())
    compare_message(nested, m->FindNestedTypeByName(nested.name()), out);
  for (const EnumDescriptorProto& nested : old.enum_type())
    compare_enum(nested, m->FindEnumTypeByName(nested.name()), out);
}

std::string incompatibilities(const FileDescriptorProto& baseline, const DescriptorPool& now) {
  std::string out;
  const std::string package = baseline.package() + ".";
  for (const DescriptorProto& message : baseline.message_type())
    compare_message(message, now.FindMessageTypeByName(package + message.name()), out);
  for (const EnumDescriptorProto& e : baseline.enum_type())
    compare_enum(e, now.FindEnumTypeByName(package + e.name()), out);
  for (const auto& service : baseline.service()) {
    for (const auto& method : service.method()) {
      const auto* found = now.FindMethodByName(package + service.name() + "." + method.name());
      if (found == nullptr || "." + found->input_type()->full_name() != method.input_type() ||
          "." + found->output_type()->full_name() != method.output_type() ||
          found->client_streaming() != method.client_streaming() ||
          found->server_streaming() != method.server_streaming())
        out += "method " + service.name() + "." + method.name() + " changed\n";
    }
  }
  return out;
}

/// buf's image is a FileDescriptorSet with extensions of its own.
google::protobuf::FileDescriptorSet read_baseline() {
  google::protobuf::FileDescriptorSet set;
  std::ifstream file(NCCLSCOPE_SOURCE_DIR "/proto/baseline.binpb", std::ios::binary);
  EXPECT_TRUE(set.ParseFromIstream(&file)) << "proto/baseline.binpb is missing or damaged";
  return set;
}

const DescriptorPool& compiled() {
  (void)v1::PublishRequest::descriptor();  // both files are linked in
  return *v1::GetSnapshotRequest::descriptor()->file()->pool();
}

TEST(ApiBaseline, ReleasedFieldsAndMethodsAreUnchanged) {
  const auto set = read_baseline();
  EXPECT_EQ(set.file_size(), 2);
  for (const FileDescriptorProto& file : set.file())
    EXPECT_EQ(incompatibilities(file, compiled()), "") << file.name();
}

TEST(ApiBaseline, ComparisonSeesAChange) {
  auto set = read_baseline();
  for (FileDescriptorProto& file : *set.mutable_file()) {
    if (file.message_type_size() == 0) continue;
    file.mutable_message_type(0)->mutable_field(0)->set_type(FieldDescriptorProto::TYPE_SINT32);
    file.mutable_service(0)->mutable_method(0)->set_name("Removed");
    file.add_message_type()->set_name("AlsoRemoved");
    const std::string found = incompatibilities(file, compiled());
    EXPECT_EQ(std::count(found.begin(), found.end(), '\n'), 3) << found;
  }
}

}  // namespace
}  // namespace ncclscope

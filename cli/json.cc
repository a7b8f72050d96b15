// SPDX-License-Identifier: Apache-2.0
//
// Walks a message by reflection.
#include "cli/json.h"

#include <google/protobuf/descriptor.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>

namespace ncclscope::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

Json session_text(std::uint64_t id) {
  char text[17];
  std::snprintf(text, sizeof text, "%016llx", static_cast<unsigned long long>(id));
  return text;
}

/// One value: of a repeated field if index >= 0.
Json value_of(const Message& message, const FieldDescriptor& field, int index) {
  const Reflection& r = *message.GetReflection();
  const bool repeated = index >= 0;
  switch (field.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? r.GetRepeatedInt32(message, &field, index) : r.GetInt32(message, &field);
    case FieldDescriptor::CPPTYPE_INT64:
      return repeated ? r.GetRepeatedInt64(message, &field, index) : r.GetInt64(message, &field);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? r.GetRepeatedUInt32(message, &field, index) : r.GetUInt32(message, &field);
    case FieldDescriptor::CPPTYPE_UINT64: {
      const std::uint64_t value =
          repeated ? r.GetRepeatedUInt64(message, &field, index) : r.GetUInt64(message, &field);
      return field.name() == "session_id" ? session_text(value) : Json(value);
    }
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return repeated ? r.GetRepeatedDouble(message, &field, index) : r.GetDouble(message, &field);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return repeated ? r.GetRepeatedFloat(message, &field, index) : r.GetFloat(message, &field);
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? r.GetRepeatedBool(message, &field, index) : r.GetBool(message, &field);
    case FieldDescriptor::CPPTYPE_ENUM:
      return repeated ? r.GetRepeatedEnum(message, &field, index)->name()
                      : r.GetEnum(message, &field)->name();
    case FieldDescriptor::CPPTYPE_STRING:
      return repeated ? r.GetRepeatedString(message, &field, index) : r.GetString(message, &field);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return message_json(repeated ? r.GetRepeatedMessage(message, &field, index)
                                   : r.GetMessage(message, &field));
  }
  return nullptr;
}

}  // namespace

Json message_json(const Message& message) {
  Json out = Json::object();
  const Reflection& reflection = *message.GetReflection();
  const google::protobuf::Descriptor& type = *message.GetDescriptor();
  for (int i = 0; i < type.field_count(); ++i) {
    const FieldDescriptor& field = *type.field(i);
    if (field.is_repeated()) {
      Json array = Json::array();
      for (int n = 0; n < reflection.FieldSize(message, &field); ++n)
        array.push_back(value_of(message, field, n));
      out[field.name()] = std::move(array);
    } else if (field.containing_oneof() == nullptr || reflection.HasField(message, &field)) {
      out[field.name()] = value_of(message, field, -1);
    }
  }
  return out;
}

}  // namespace ncclscope::cli

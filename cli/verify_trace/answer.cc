// SPDX-License-Identifier: Apache-2.0
#include "cli/verify_trace/answer.h"

#include <google/protobuf/descriptor.h>
#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <stdexcept>

namespace ncclscope::cli {
namespace {

using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using nlohmann::json;

json field_to_json(const Message& m, const FieldDescriptor& f, int index) {
  const auto* r = m.GetReflection();
  const bool repeated = f.is_repeated();
  switch (f.cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return repeated ? r->GetRepeatedInt32(m, &f, index) : r->GetInt32(m, &f);
    case FieldDescriptor::CPPTYPE_INT64:
      return repeated ? r->GetRepeatedInt64(m, &f, index) : r->GetInt64(m, &f);
    case FieldDescriptor::CPPTYPE_UINT32:
      return repeated ? r->GetRepeatedUInt32(m, &f, index) : r->GetUInt32(m, &f);
    case FieldDescriptor::CPPTYPE_UINT64:
      return repeated ? r->GetRepeatedUInt64(m, &f, index) : r->GetUInt64(m, &f);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return repeated ? r->GetRepeatedDouble(m, &f, index) : r->GetDouble(m, &f);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return repeated ? r->GetRepeatedFloat(m, &f, index) : r->GetFloat(m, &f);
    case FieldDescriptor::CPPTYPE_BOOL:
      return repeated ? r->GetRepeatedBool(m, &f, index) : r->GetBool(m, &f);
    case FieldDescriptor::CPPTYPE_ENUM:
      return repeated ? r->GetRepeatedEnumValue(m, &f, index) : r->GetEnumValue(m, &f);
    case FieldDescriptor::CPPTYPE_STRING:
      return repeated ? r->GetRepeatedString(m, &f, index) : r->GetString(m, &f);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return to_json(repeated ? r->GetRepeatedMessage(m, &f, index) : r->GetMessage(m, &f));
  }
  return nullptr;
}

void check(const grpc::Status& status, const char* call) {
  if (status.ok()) return;
  throw std::runtime_error(std::string("agent: ") + call + " failed: " + status.error_message() +
                           " (code " + std::to_string(status.error_code()) + ")");
}

void set_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
}

}  // namespace

json to_json(const Message& message) {
  json out = json::object();
  const auto* descriptor = message.GetDescriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const FieldDescriptor& f = *descriptor->field(i);
    if (f.is_repeated()) {
      json list = json::array();
      const int n = message.GetReflection()->FieldSize(message, &f);
      for (int k = 0; k < n; ++k) list.push_back(field_to_json(message, f, k));
      out[f.name()] = std::move(list);
    } else if (f.cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE ||
               message.GetReflection()->HasField(message, &f)) {
      out[f.name()] = field_to_json(message, f, 0);
    }
  }
  return out;
}

AgentClient::AgentClient(const std::string& target) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  stub_ = v1::AgentService::NewStub(
      grpc::CreateCustomChannel(target, grpc::InsecureChannelCredentials(), arguments));
}

bool AgentClient::ready(std::chrono::milliseconds timeout) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  context.set_wait_for_ready(true);
  v1::GetBooksRequest request;
  v1::GetBooksResponse response;
  return stub_->GetBooks(&context, request, &response).ok();
}

json AgentClient::books(const std::string& job) {
  grpc::ClientContext context;
  set_deadline(context);
  v1::GetBooksRequest request;
  request.set_job_id(job);
  v1::GetBooksResponse response;
  check(stub_->GetBooks(&context, request, &response), "GetBooks");
  return to_json(response).at("processes");
}

json AgentClient::answer(const std::string& job) {
  json out;
  out["operations"] = out["network"] = out["channels"] = json::array();
  std::uint64_t skipped = 0;
  {
    grpc::ClientContext context;
    set_deadline(context);
    v1::TailOperationsRequest request;
    request.set_job_id(job);
    request.set_include_held(true);
    request.set_follow(false);
    const auto stream = stub_->TailOperations(&context, request);
    v1::TailOperationsResponse r;
    while (stream->Read(&r)) {
      skipped = std::max<std::uint64_t>(skipped, r.skipped());
      if (r.has_operation()) out["operations"].push_back(to_json(r.operation()));
      if (r.has_network()) out["network"].push_back(to_json(r.network()));
      if (r.has_channel()) out["channels"].push_back(to_json(r.channel()));
    }
    check(stream->Finish(), "TailOperations");
  }
  out["skipped"] = skipped;
  {
    grpc::ClientContext context;
    set_deadline(context);
    v1::GetProgressRequest request;
    request.set_job_id(job);
    v1::GetProgressResponse response;
    check(stub_->GetProgress(&context, request, &response), "GetProgress");
    out["progress"] = to_json(response).at("ranks");
  }
  out["books"] = books(job);
  {
    grpc::ClientContext context;
    set_deadline(context);
    v1::GetSnapshotRequest request;
    request.set_job_id(job);
    v1::GetSnapshotResponse response;
    check(stub_->GetSnapshot(&context, request, &response), "GetSnapshot");
    out["snapshot"] = to_json(response);
  }
  return out;
}

bool is_settled(const json& books, const std::vector<std::int64_t>& pids, bool final_only) {
  for (const std::int64_t pid : pids) {
    std::uint64_t written = 0;
    for (const json& b : books) {
      if (b.at("pid").get<std::int64_t>() != pid) continue;
      const auto number = [&b](const char* key) { return b.at(key).get<std::uint64_t>(); };
      const bool all_came =
          number("records_received") + number("records_lost") + number("records_before") >=
          number("records_written");
      written += number("records_written");
      const bool over = b.at("final").get<bool>() || b.at("state") == "gone";
      if (!all_came || (final_only && !over)) return false;
    }
    if (written == 0) return false;
  }
  return true;
}

}  // namespace ncclscope::cli

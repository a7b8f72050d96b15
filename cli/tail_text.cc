// SPDX-License-Identifier: Apache-2.0
#include "cli/tail_text.h"

#include <algorithm>

#include "cli/text.h"

namespace ncclscope::cli {
namespace {

void append(std::string& line, const std::string& word) {
  if (word.empty()) return;
  if (!line.empty()) line += "  ";
  line += word;
}

/// "1 step", "2 steps".
std::string counted(std::uint32_t count, const char* what) {
  return std::to_string(count) + " " + what + (count == 1 ? "" : "s");
}

/// "nid001  4711  00c0ffee12345678 r3": whose record it is.
template <typename Record>
std::string source(const std::string& node, const Record& r) {
  std::string out;
  append(out, node);
  append(out, printable(r.job_id()));
  append(out, (r.comm().empty() ? std::string("-") : printable(r.comm())) + " r" +
                  (r.rank() < 0 ? std::string("?") : std::to_string(r.rank())));
  return out;
}

std::string short_type(const std::string& datatype) {
  constexpr std::string_view kPrefix = "nccl";
  std::string out =
      printable(datatype.starts_with(kPrefix) ? datatype.substr(kPrefix.size()) : datatype);
  if (!out.empty() && out[0] >= 'A' && out[0] <= 'Z')
    out[0] = static_cast<char>(out[0] - 'A' + 'a');
  return out;
}

std::string operation_line(const std::string& node, const v1::Operation& o) {
  std::string line = format_time_of_day(o.api_time_ns());
  append(line, source(node, o));
  append(line, "#" + std::to_string(o.index()) + " " + printable(o.collective()) +
                   (o.root() >= 0   ? " root " + std::to_string(o.root())
                    : o.peer() >= 0 ? " peer " + std::to_string(o.peer())
                                    : std::string()));
  append(line, (o.bytes_complete() ? "" : ">=") + format_bytes(o.bytes()) +
                   (o.datatype().empty() ? "" : " " + short_type(o.datatype())));
  if (!o.algorithm().empty() || !o.protocol().empty())
    append(line, (o.algorithm().empty() ? "?" : o.algorithm()) + "/" +
                     (o.protocol().empty() ? "?" : o.protocol()));
  if (o.channels_known() && o.channels() > 0) append(line, counted(o.channels(), "channel"));
  if (o.duration_ns() > 0) {
    append(line, format_duration(static_cast<double>(o.duration_ns()) * 1e-9));
    if (o.busbw() > 0) append(line, "busbw " + format_bandwidth(o.busbw()));
    if (o.timing() != "gpu") append(line, "timed by " + printable(o.timing()));
  } else {
    append(line, "not timed" + (o.untimed_reason().empty() ? std::string()
                                                           : ": " + printable(o.untimed_reason())));
  }
  if (o.graph()) append(line, "graph");
  if (o.copy_engine()) append(line, "copy engine");
  if (o.warmup()) append(line, "warm-up");
  if (!o.complete()) append(line, "incomplete");
  return line;
}

std::string network_line(const std::string& node, const v1::NetworkPhases& n) {
  constexpr const char* kSend[] = {"gpu_wait", "peer_wait", "wire"};
  constexpr const char* kReceive[] = {"data_wait", "flush", "gpu_wait"};
  std::string line = format_time_of_day(0);
  append(line, source(node, n));
  append(line, "#" + std::to_string(n.index()) + (n.is_p2p() ? " p2p" : "") + " network " +
                   (n.is_send() ? "send to " : "receive from ") + std::to_string(n.peer()));
  append(line, format_bytes(n.bytes()));
  append(line, counted(n.steps(), "step"));
  for (int i = 0; i < std::min(n.phase_ns_size(), 3); ++i)
    append(line, std::string(n.is_send() ? kSend[i] : kReceive[i]) + " " +
                     format_duration(static_cast<double>(n.phase_ns(i)) * 1e-9));
  if (n.steps_incomplete() > 0)
    append(line, std::to_string(n.steps_incomplete()) + " steps incomplete");
  return line;
}

std::string channel_line(const std::string& node, const v1::ChannelDetail& c) {
  std::string line = format_time_of_day(c.host_start_ns());
  append(line, source(node, c));
  append(line, "#" + std::to_string(c.index()) + (c.is_p2p() ? " p2p" : "") + " channel " +
                   std::to_string(c.channel()));
  append(line, c.gpu_stop_ns() > c.gpu_start_ns()
                   ? format_duration(static_cast<double>(c.gpu_stop_ns() - c.gpu_start_ns()) * 1e-9)
                   : std::string("not timed"));
  if (c.rejected()) append(line, "rejected");
  return line;
}

}  // namespace

std::string tail_line(const std::string& node, const v1::TailOperationsResponse& response) {
  switch (response.record_case()) {
    case v1::TailOperationsResponse::kOperation:
      return operation_line(node, response.operation());
    case v1::TailOperationsResponse::kNetwork:
      return network_line(node, response.network());
    case v1::TailOperationsResponse::kChannel:
      return channel_line(node, response.channel());
    case v1::TailOperationsResponse::RECORD_NOT_SET:
      break;
  }
  return "";
}

}  // namespace ncclscope::cli

// SPDX-License-Identifier: Apache-2.0
// Traces in comparable form: see trace_view.h.
#include "tests/integration/sim/trace_view.h"

#include <zlib.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

namespace ncclscope::sim {
namespace {

using nlohmann::json;

std::vector<json> read_lines(const std::string& path) {
  gzFile file = gzopen(path.c_str(), "rb");  // reads plain files too
  if (file == nullptr) throw std::runtime_error(path + " cannot be opened");
  std::string text;
  char buffer[65536];
  for (int got = 0; (got = gzread(file, buffer, sizeof(buffer))) > 0;) {
    text.append(buffer, static_cast<std::size_t>(got));
  }
  gzclose(file);
  std::vector<json> lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    if (end > begin)
      lines.push_back(json::parse(text.begin() + static_cast<std::ptrdiff_t>(begin),
                                  text.begin() + static_cast<std::ptrdiff_t>(end)));
    begin = end + 1;
  }
  return lines;
}

bool is_proxy_type(const std::string& type) {
  return type == "ProxyOp" || type == "ProxyStep" || type == "KernelCh" || type == "NetPlugin";
}

struct Reader {
  TraceView view;
  std::map<int, std::string> thread_class;
  std::map<int, std::string> thread_name;
  std::map<std::string, int> class_counts;
  std::map<std::string, std::string> comm_names;  // commId -> c0, c1
  std::map<long, std::string> contexts;           // ctx -> c0r1
  std::map<long, std::string> handles;
  std::map<long, std::string> types;
  std::map<std::string, int> counters;
  std::map<long, int> reads;
  std::string own_pid;
  bool several_ranks = false;

  std::string thread(const json& line) {
    const int number = line.at("thread").get<int>();
    auto known = thread_name.find(number);
    if (known != thread_name.end()) return known->second;
    std::string role =
        line.contains("role") ? line.at("role").get<std::string>() : thread_class[number];
    if (role.rfind("NCCL", 0) == 0) role = "proxy";
    std::string name = role + " " + std::to_string(class_counts[role]++);
    thread_name[number] = name;
    return name;
  }

  std::string context(const json& line) {
    if (!line.at("ctx").is_number()) return "foreign";
    const auto found = contexts.find(line.at("ctx").get<long>());
    return found != contexts.end() ? found->second : "unknown";
  }

  std::string handle(const json& value) {
    if (value.is_null()) return "null";
    if (!value.is_number()) return "foreign";
    const auto found = handles.find(value.get<long>());
    return found != handles.end() ? found->second : "unstarted";
  }

  std::string numbered(const std::string& base) {
    return base + "#" + std::to_string(counters[base]++);
  }

  static std::string text_of(const json& value) {
    if (value.is_object() && value.contains("garbage")) return "garbage";
    return value.dump();
  }

  std::string fields(const json& line, const std::string& type) {
    static const std::set<std::string> kSkip = {
        "t",      "thread", "cb",          "role",     "h",        "ctx",
        "bit",    "parent", "stream",      "sendBuff", "recvBuff", "buff",
        "pTimer", "pid",    "parentGroup", "name",     "commHash", "data"};
    std::string out;
    for (const auto& [key, value] : line.items()) {
      if (kSkip.count(key) != 0) continue;
      // v4's adapter leaves the number of a send's channels as it lies on the stack.
      if (type == "P2p" && key == "nChannels" && view.interface == "v4" &&
          view.nccl.rfind("2.27", 0) != 0) {
        continue;
      }
      out += " " + key + "=" + text_of(value);
    }
    if (line.contains("parentGroup")) out += " parentGroup=" + handle(line.at("parentGroup"));
    if (line.contains("pid")) {
      const std::string pid = line.at("pid").dump();
      if (own_pid.empty()) own_pid = pid;
      out += pid == own_pid ? " pid=own" : " pid=other";
    }
    if (line.contains("name")) out += " name=" + line.at("name").dump();
    return out;
  }

  std::string record_text(const json& line) {
    const int state = line.at("num").get<int>();
    std::string out = "record " + line.at("state").get<std::string>();
    const json& args = line.at("args");
    const bool native = view.interface == "v4"   ? view.nccl.rfind("2.27", 0) == 0
                        : view.interface == "v5" ? view.nccl.rfind("2.28", 0) == 0
                                                 : true;
    if (state == 23 || state == 24) return out + (args.is_null() ? " NULL" : " garbage");
    if (args.is_null()) return out + " NULL";
    if (state == 19) return native ? out + " raw=" + args.at("raw").dump() : out;
    // Known at "send wait" and "flush wait"; else it is that of the latest transfer of the
    // operation.
    if ((state == 9 || state == 11) && args.contains("transSize")) {
      return out + " bytes=" + args.at("transSize").dump();
    }
    return out;
  }

  void start(const json& line) {
    const std::string type = line.at("type").get<std::string>();
    const std::string ctx = context(line);
    const std::string parent = handle(line.at("parent"));
    const bool null_handle = line.at("h").is_null();
    std::string name;
    if (type == "ProxyOp") {
      name = numbered("ProxyOp(" + parent + " ch" + line.at("channelId").dump() + " peer" +
                      line.at("peer").dump() +
                      (line.at("isSend").get<int>() != 0 ? " send" : " recv") + ")");
    } else if (type == "ProxyStep") {
      name = numbered("ProxyStep(" + parent + " " + line.at("step").dump() + ")");
    } else if (type == "KernelCh") {
      name = numbered("KernelCh(" + ctx + " " + parent + " ch" + line.at("channelId").dump() + ")");
    } else {
      name = numbered(type + "@" + ctx);
    }
    const std::string text =
        "start " + name + " parent=" + parent + " ctx=" + ctx + fields(line, type);
    if (!null_handle) {
      handles[line.at("h").get<long>()] = name;
      types[line.at("h").get<long>()] = type;
    }
    const std::string by = thread(line);
    if (!is_proxy_type(type)) {
      view.launch_threads[by].push_back(text);
      return;
    }
    view.proxy_events[name].push_back(by.substr(0, by.find(' ')) + " " + text);
    if (type == "ProxyOp") {
      view.proxy_orders["ProxyOps " + ctx + " ch" + line.at("channelId").dump() +
                        (line.at("isSend").get<int>() != 0 ? " send" : " recv")]
          .push_back(name);
    } else if (type == "ProxyStep") {
      view.proxy_orders["steps of " + parent].push_back(line.at("step").dump());
    } else if (type == "KernelCh") {
      view.kernels[name].start =
          line.contains("pTimer") ? line.at("pTimer").get<std::uint64_t>() : 0;
      // Inside one plan of sends and receives the order is free.
      const std::string plan = parent.rfind("P2p", 0) == 0 ? "p2p" : parent;
      auto& order = view.proxy_orders["kernels " + ctx + " ch" + line.at("channelId").dump()];
      if (plan != "p2p" || order.empty() || order.back() != "p2p") order.push_back(plan);
    }
  }

  void line(const json& l) {
    const std::string callback = l.at("cb").get<std::string>();
    if (callback == "load" || callback == "unload") {
      view.launch_threads[several_ranks ? "process" : thread(l)].push_back(callback);
      return;
    }
    if (callback == "init") {
      std::string comm = "c" + l.at("ctx").dump();
      if (l.contains("commId")) {
        const std::string id = l.at("commId").get<std::string>();
        auto known = comm_names.find(id);
        if (known == comm_names.end()) {
          known = comm_names.emplace(id, "c" + std::to_string(comm_names.size())).first;
        }
        comm = known->second + "r" + l.at("rank").dump();
      }
      contexts[l.at("ctx").get<long>()] = comm;
      std::string text = "init " + comm;
      for (const char* key : {"commName", "nNodes", "nranks", "rank", "maskFound", "maskSet"}) {
        if (several_ranks && std::string(key) == "maskFound") continue;
        if (l.contains(key)) text += std::string(" ") + key + "=" + l.at(key).dump();
      }
      if (several_ranks && thread_name.count(l.at("thread").get<int>()) == 0) {
        // Threads are told apart by the rank they begin with.
        const std::string role = l.contains("role") ? l.at("role").get<std::string>()
                                                    : thread_class[l.at("thread").get<int>()];
        thread_name[l.at("thread").get<int>()] = role + " of " + comm;
      }
      view.launch_threads[thread(l)].push_back(text);
      return;
    }
    if (callback == "finalize") {
      view.launch_threads[several_ranks ? "process" : thread(l)].push_back("finalize " +
                                                                           context(l));
      return;
    }
    if (callback == "start") {
      if (l.at("type") != "ProxyCtrl") start(l);
      if (l.at("type") == "ProxyCtrl" && l.at("h").is_number()) {
        types[l.at("h").get<long>()] = "ProxyCtrl";
      }
      return;
    }
    const json& h = l.at("h");
    const std::string type = h.is_number() ? types[h.get<long>()] : "";
    if (type == "ProxyCtrl") return;
    const std::string name = handle(h);
    const std::string text = callback == "stop" ? "stop" : record_text(l);
    const std::string by = thread(l);
    if (is_proxy_type(type)) {
      view.proxy_events[name].push_back(by.substr(0, by.find(' ')) + " " + text);
      if (callback == "record" && l.at("num").get<int>() == 22) {
        view.kernels[name].stop = l.at("args").at("pTimer").get<std::uint64_t>();
      }
    } else {
      view.launch_threads[by].push_back(text + " " + name);
    }
  }
};

std::string list_difference(const std::string& what, const std::vector<std::string>& a,
                            const std::vector<std::string>& b) {
  for (std::size_t i = 0; i < std::max(a.size(), b.size()); ++i) {
    const std::string left = i < a.size() ? a[i] : "(nothing)";
    const std::string right = i < b.size() ? b[i] : "(nothing)";
    if (left != right) {
      return what + ", entry " + std::to_string(i) + ":\n  recorded: " + left +
             "\n  emulated: " + right;
    }
  }
  return "";
}

std::string map_difference(const std::string& what,
                           const std::map<std::string, std::vector<std::string>>& a,
                           const std::map<std::string, std::vector<std::string>>& b) {
  for (const auto& [key, list] : a) {
    const auto other = b.find(key);
    if (other == b.end())
      return what + " " + key + " is missing in the emulation (" + list.front() + ")";
    if (std::string text = list_difference(what + " " + key, list, other->second); !text.empty()) {
      return text;
    }
  }
  for (const auto& [key, list] : b) {
    if (a.count(key) == 0) {
      return what + " " + key + " is not in the recording (" + list.front() + ")";
    }
  }
  return "";
}

}  // namespace

TraceView read_trace(const std::string& path, const TraceView* like) {
  const std::vector<json> lines = read_lines(path);
  Reader reader;
  if (like != nullptr) {
    reader.view.interface = like->interface;
    reader.view.nccl = like->nccl;
  }
  std::set<std::string> ids;
  for (const json& l : lines) {
    if (l.value("cb", "") != "init") continue;
    const std::string id = l.contains("commId") ? l.at("commId").get<std::string>() : "";
    // Several ranks of one communicator: threads race, what belongs to the process is set apart.
    if (!id.empty() && !ids.insert(id).second) reader.several_ranks = true;
  }
  std::size_t first = 0;
  if (!lines.empty() && lines.front().contains("format")) {
    const json& header = lines.front();
    reader.view.mask = header.at("mask").get<int>();
    reader.view.interface = header.at("interface").get<std::string>();
    reader.view.nccl = header.at("nccl").get<std::string>();
    reader.view.null_handles =
        header.contains("null_handle_types") && !header.at("null_handle_types").empty();
    for (const auto& [key, value] : header.at("env").items()) {
      reader.view.environment[key] = value.is_string() ? value.get<std::string>() : value.dump();
    }
    for (const auto& [number, name] : header.at("threads").items()) {
      reader.thread_class[std::stoi(number)] = name.get<std::string>();
    }
    first = 1;
  }
  for (std::size_t i = first; i < lines.size(); ++i) reader.line(lines[i]);
  if (reader.several_ranks) {
    auto& process = reader.view.launch_threads["process"];
    std::sort(process.begin(), process.end());
  }
  return reader.view;
}

std::string difference(const TraceView& recorded, const TraceView& emulated) {
  std::string text = map_difference("thread", recorded.launch_threads, emulated.launch_threads);
  if (text.empty()) text = map_difference("event", recorded.proxy_events, emulated.proxy_events);
  if (text.empty()) text = map_difference("order of", recorded.proxy_orders, emulated.proxy_orders);
  return text;
}

}  // namespace ncclscope::sim

// SPDX-License-Identifier: Apache-2.0
#include "topology/settings.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <functional>
#include <optional>
#include <set>
#include <sstream>
#include <string_view>

namespace ncclscope::topology {
namespace {

constexpr std::size_t kLongestName = 1023;

std::vector<std::string> split(const std::string& text, char separator) {
  std::vector<std::string> parts;
  std::istringstream words(text);
  for (std::string part; std::getline(words, part, separator);)
    if (!part.empty()) parts.push_back(part);
  return parts;
}

std::string lower(std::string text) {
  for (char& c : text)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  return text;
}

/// As NCCL reads numbers: base by prefix, what follows is ignored, a text is 0.
long number(const std::string& text) {
  return std::strtol(text.c_str(), nullptr, 0);
}

bool whole_number(const std::string& text) {
  char* end = nullptr;
  (void)std::strtol(text.c_str(), &end, 0);
  return !text.empty() && *end == '\0';
}

/// One list of names as NCCL_IB_HCA and NCCL_SOCKET_IFNAME have it: "^" excludes, "=" is exact.
struct NameList {
  bool exclude = false, exact = false;
  std::vector<std::string> names;  // ports cut off

  explicit NameList(std::string text) {
    if (!text.empty() && text[0] == '^') exclude = true;
    text.erase(0, exclude ? 1 : 0);
    if (!text.empty() && text[0] == '=') exact = true;
    text.erase(0, exact ? 1 : 0);
    for (const std::string& item : split(text, ','))
      names.push_back(item.substr(0, item.find(':')));
  }
  [[nodiscard]] static bool matches(const std::string& pattern, bool exactly,
                                    const std::string& name) {
    return exactly ? name == pattern : name.compare(0, pattern.size(), pattern) == 0;
  }
};

class Checker {
 public:
  Checker(const Settings& settings, const Machine& machine, Viewpoint viewpoint)
      : settings_(settings), machine_(machine), inside_(viewpoint == Viewpoint::kInside) {}

  Findings run() {
    forced_choices();
    switched_off();
    levels();
    devices();
    interfaces();
    fabric();
    resources();
    debugging();
    numbers();
    if (findings_.empty())
      findings_.push_back({"nccl-env", Level::kOk, "environment",
                           settings_.empty() ? "no NCCL_* variable is set"
                                             : std::to_string(settings_.size()) +
                                                   " NCCL_* variables, none of them harmful here",
                           "environment and nccl.conf files", ""});
    return std::move(findings_);
  }

 private:
  [[nodiscard]] std::optional<std::string> value(const std::string& name) const {
    const auto at = settings_.find(name);
    if (at == settings_.end()) return {};
    return at->second.value;
  }
  void add(const std::string& name, Level level, std::string reason, std::string fix) {
    const Setting& s = settings_.at(name);
    findings_.push_back({"nccl-env", level, name, std::move(reason),
                         name + "=" + s.value + " (" + s.source + ")", std::move(fix)});
  }

  void forced_choices() {
    if (const auto algo = value("NCCL_ALGO"); algo && !algo->empty()) {
      known_words(
          "NCCL_ALGO", *algo,
          {"tree", "ring", "collnetdirect", "collnetchain", "collnet", "nvls", "nvlstree", "pat"});
      add("NCCL_ALGO", Level::kWarning,
          "the algorithm is forced: NCCL no longer chooses by size and scale" +
              std::string(lower(*algo) == "tree"
                              ? "; with Tree alone AllGather and others have none at all"
                              : ""),
          "unset it, unless it was measured to help on this cluster with this release");
    }
    if (const auto proto = value("NCCL_PROTO"); proto && !proto->empty()) {
      known_words("NCCL_PROTO", *proto, {"ll", "ll128", "simple"});
      const std::string p = lower(*proto);
      const bool ll128 = p.find("ll128") != std::string::npos && p[0] != '^';
      add("NCCL_PROTO", ll128 ? Level::kProblem : Level::kWarning,
          ll128 ? "LL128 is forced: where NCCL does not take it by itself data can be corrupted"
          : p == "ll" ? "LL is forced: large messages reach a half of the bandwidth at most"
                      : "the protocol is forced: NCCL no longer chooses by size",
          "unset it");
    }
  }

  void known_words(const std::string& name, const std::string& text,
                   const std::set<std::string>& known) {
    for (const std::string& part : split(text, ';')) {
      const std::size_t colon = part.find(':');
      std::string list = colon == std::string::npos ? part : part.substr(colon + 1);
      if (!list.empty() && list[0] == '^') list.erase(0, 1);
      for (const std::string& word : split(list, ','))
        if (known.count(lower(word)) == 0)
          add(name, Level::kProblem, "'" + word + "' is not known: NCCL fails to initialise",
              "see NCCL's list of names");
    }
  }

  void switched_off() {
    const auto set = [&](const char* name) { return value(name) && number(*value(name)) == 1; };
    if (set("NCCL_IB_DISABLE"))
      add("NCCL_IB_DISABLE", machine_.has_rdma() ? Level::kProblem : Level::kWarning,
          machine_.has_rdma() ? "InfiniBand and RoCE are switched off although there are RDMA "
                                "devices: sockets are used between nodes"
                              : "InfiniBand and RoCE are switched off",
          "unset it");
    if (set("NCCL_P2P_DISABLE"))
      add("NCCL_P2P_DISABLE", machine_.gpus.size() > 1 ? Level::kProblem : Level::kWarning,
          "direct exchange between GPUs is switched off, NVLink too: all goes through the CPU's "
          "memory",
          "unset it");
    if (set("NCCL_SHM_DISABLE"))
      add("NCCL_SHM_DISABLE", Level::kWarning,
          "shared memory is switched off: GPUs that cannot exchange directly go through the "
          "network",
          "unset it; in containers enlarge /dev/shm instead");
    if (set("NCCL_PXN_DISABLE"))
      add("NCCL_PXN_DISABLE", Level::kWarning,
          "PXN is switched off: on rail-optimised fabrics all-to-all crosses the spine",
          "unset it");
    if (set("NCCL_IGNORE_DISABLED_P2P"))
      add("NCCL_IGNORE_DISABLED_P2P", Level::kWarning, "broken NVLinks are passed over in silence",
          "unset it");
    if (value("NCCL_DMABUF_ENABLE") && number(*value("NCCL_DMABUF_ENABLE")) == 0)
      add("NCCL_DMABUF_ENABLE", Level::kWarning,
          "dma-buf is switched off: GPUDirect RDMA needs nvidia-peermem then", "unset it");
    if (value("NCCL_CUMEM_ENABLE") && number(*value("NCCL_CUMEM_ENABLE")) == 0)
      add("NCCL_CUMEM_ENABLE", Level::kWarning,
          "without cuMem NCCL has no NVLS and no registered user buffers", "unset it");
    if (value("NCCL_NVLS_ENABLE") && number(*value("NCCL_NVLS_ENABLE")) == 0 &&
        machine_.gpus.size() > 2)
      add("NCCL_NVLS_ENABLE", Level::kWarning, "NVLink SHARP is switched off", "unset it");
  }

  void levels() {
    static const std::set<std::string> kLevels{"LOC", "NVL", "NVB", "C2C", "PIX",
                                               "PXB", "P2C", "PXN", "PHB", "SYS"};
    for (const char* name : {"NCCL_P2P_LEVEL", "NCCL_NET_GDR_LEVEL", "NCCL_NET_MERGE_LEVEL"}) {
      const auto text = value(name);
      if (!text || text->empty()) continue;
      const bool old_digits =
          whole_number(*text) && std::string_view(name) != "NCCL_NET_MERGE_LEVEL";
      const bool port = *text == "PORT" && std::string_view(name) == "NCCL_NET_MERGE_LEVEL";
      if (kLevels.count(*text) == 0 && !old_digits && !port) {
        add(name, Level::kProblem, "the value is not known and ignored in silence",
            "LOC, NVL, PIX, PXB, PHB or SYS, in capitals");
        continue;
      }
      if (std::string_view(name) == "NCCL_NET_GDR_LEVEL") gdr_level(*text);
      if (std::string_view(name) == "NCCL_P2P_LEVEL" && (*text == "LOC" || *text == "0"))
        add(name, Level::kProblem, "no GPUs exchange directly: all goes through the CPU's memory",
            "unset it");
      if (std::string_view(name) == "NCCL_P2P_LEVEL" && *text == "NVL" && no_nvlink())
        add(name, Level::kWarning,
            "GPUs exchange directly over NVLink only, and there is none: PCIe switches are not "
            "used",
            "unset it");
    }
  }

  [[nodiscard]] bool no_nvlink() const {
    if (!machine_.nvlinks_known) return false;
    return std::all_of(machine_.gpus.begin(), machine_.gpus.end(), [](const Gpu& gpu) {
      return std::all_of(gpu.nvlinks.begin(), gpu.nvlinks.end(), [](int n) { return n == 0; });
    });
  }

  void gdr_level(const std::string& text) {
    const bool off = text == "LOC" || text == "0";
    const bool everywhere = text == "SYS" || (whole_number(text) && number(text) >= 4);
    if (off)
      add("NCCL_NET_GDR_LEVEL", Level::kProblem, "GPUDirect RDMA is switched off", "unset it");
    if (everywhere)
      add("NCCL_NET_GDR_LEVEL", Level::kWarning,
          "GPUDirect RDMA is forced even between sockets, where many CPUs are slower than through "
          "memory",
          "measure both, or unset it");
  }

  void devices() {
    const auto text = value("NCCL_IB_HCA");
    if (!text || text->empty()) return;
    if (text->compare(0, 2, "=^") == 0) {
      add("NCCL_IB_HCA", Level::kProblem, "'=^' is not understood: '^' must come first",
          "write ^=" + text->substr(2));
      return;
    }
    const NameList list(*text);
    std::vector<std::string> all;
    for (const Nic& nic : machine_.nics)
      if (nic.rdma) all.push_back(nic.name);
    for (const std::string& name : list.names) {
      std::vector<std::string> found;
      for (const std::string& device : all)
        if (NameList::matches(name, list.exact, device)) found.push_back(device);
      if (found.empty())
        add("NCCL_IB_HCA", list.exclude ? Level::kWarning : Level::kProblem,
            "no RDMA device of this node is called " + name + (list.exact ? "" : " or begins so"),
            "devices here: " + joined(all));
      if (found.size() > 1 && std::find(found.begin(), found.end(), name) != found.end())
        add("NCCL_IB_HCA", Level::kWarning,
            name + " is the beginning of several names: " + joined(found) + " are all meant",
            "write = before the list for exact names");
    }
    for (const Nic& nic : machine_.nics) {
      const bool named = std::any_of(list.names.begin(), list.names.end(), [&](const auto& name) {
        return NameList::matches(name, list.exact, nic.name);
      });
      if (nic.rdma && !list.exclude && named && !nic.active())
        add("NCCL_IB_HCA", Level::kProblem, nic.name + " is named, but has no active port",
            "leave it out, or bring its port up");
    }
  }

  static std::string joined(const std::vector<std::string>& names) {
    std::string text;
    for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
    return text.empty() ? "none" : text;
  }

  void interfaces() {
    const auto text = value("NCCL_SOCKET_IFNAME");
    if (!text || text->empty()) return;
    if (text->size() == 1) {
      add("NCCL_SOCKET_IFNAME", Level::kWarning, "a value of one character is ignored", "unset it");
      return;
    }
    const NameList list(*text);
    double chosen = 0, best = 0;
    std::string chosen_name, best_name;
    bool any = false;
    for (const Interface& i : machine_.interfaces) {
      if (i.up && i.megabits > best && !i.loopback) {
        best = i.megabits;
        best_name = i.name;
      }
      const bool listed = std::any_of(list.names.begin(), list.names.end(), [&](const auto& name) {
        return NameList::matches(name, list.exact, i.name);
      });
      if (listed == list.exclude) continue;
      any = true;
      if (i.loopback && !list.exclude && machine_.has_rdma())
        add("NCCL_SOCKET_IFNAME", Level::kProblem,
            i.name + " reaches this node only: jobs of several nodes cannot start",
            "name the interface of the cluster's network");
      if (i.up && !i.loopback && i.megabits > chosen) {
        chosen = i.megabits;
        chosen_name = i.name;
      }
    }
    if (!any) {
      std::vector<std::string> all;
      for (const Interface& i : machine_.interfaces) all.push_back(i.name);
      add("NCCL_SOCKET_IFNAME", inside_ ? Level::kProblem : Level::kUnknown,
          inside_ ? "it chooses no network interface of this node: NCCL fails with \"no socket "
                    "interface found\""
                  : "it chooses none of the network interfaces that are seen here: the job has a "
                    "network namespace of its own, or NCCL finds no interface",
          "interfaces here: " + joined(all));
      return;
    }
    const bool matters = !machine_.has_rdma() ||
                         (value("NCCL_IB_DISABLE") && number(*value("NCCL_IB_DISABLE")) == 1);
    if (matters && chosen > 0 && chosen < best)
      add("NCCL_SOCKET_IFNAME", Level::kProblem,
          "data goes over " + chosen_name + " with " + std::to_string(static_cast<long>(chosen)) +
              " Mbit/s, " + best_name + " has " + std::to_string(static_cast<long>(best)),
          "name " + best_name);
  }

  void fabric() {
    const auto gid = value("NCCL_IB_GID_INDEX");
    if (gid && number(*gid) >= 0) {
      const bool ethernet =
          std::any_of(machine_.nics.begin(), machine_.nics.end(), [](const Nic& nic) {
            return nic.rdma && std::any_of(nic.ports.begin(), nic.ports.end(), [](const auto& p) {
                     return p.link_layer == "Ethernet";
                   });
          });
      add("NCCL_IB_GID_INDEX", Level::kWarning,
          ethernet
              ? "a fixed index is right only where all nodes' tables are alike; NCCL finds the "
                "index by itself since 2.21"
              : "the index matters for RoCE only, and there is none here",
          "unset it");
    }
    const auto timeout = value("NCCL_IB_TIMEOUT");
    if (timeout && number(*timeout) > 22)
      add("NCCL_IB_TIMEOUT", Level::kWarning,
          "it is an exponent (4.096 us * 2^n): a broken link is noticed only after minutes",
          "20 is the default; look for what loses packets instead");
    if (timeout && number(*timeout) > 0 && number(*timeout) < 14)
      add("NCCL_IB_TIMEOUT", Level::kWarning,
          "it is an exponent (4.096 us * 2^n): so small a value breaks connections under load",
          "20 is the default");
    const auto cross = value("NCCL_CROSS_NIC");
    if (cross && number(*cross) == 1)
      add("NCCL_CROSS_NIC", Level::kWarning,
          "rings may cross rails: on rail-optimised fabrics traffic then goes over the spine",
          "0 or 2 (the default)");
    if (inside_ && value("NCCL_TOPO_FILE") && !value("NCCL_TOPO_FILE")->empty() &&
        ::access(value("NCCL_TOPO_FILE")->c_str(), R_OK) != 0)
      add("NCCL_TOPO_FILE", Level::kProblem,
          "the file cannot be read: NCCL goes on without it, in silence",
          "correct the path; in containers mount the file");
    if (value("NCCL_NET") && lower(*value("NCCL_NET")) == "socket" && machine_.has_rdma())
      add("NCCL_NET", Level::kProblem, "sockets are forced although there are RDMA devices",
          "unset it");
  }

  void resources() {
    if (value("NCCL_MAX_NCHANNELS") && number(*value("NCCL_MAX_NCHANNELS")) > 0 &&
        number(*value("NCCL_MAX_NCHANNELS")) <= 2)
      add("NCCL_MAX_NCHANNELS", Level::kWarning, "so few channels cannot fill the links",
          "unset it");
    if (value("NCCL_MIN_NCHANNELS") && number(*value("NCCL_MIN_NCHANNELS")) > 32)
      add("NCCL_MIN_NCHANNELS", Level::kWarning,
          "so many channels take the GPU's processors from the computation", "unset it");
    if (value("NCCL_BUFFSIZE") && number(*value("NCCL_BUFFSIZE")) < 65'536)
      add("NCCL_BUFFSIZE", Level::kProblem,
          "the buffer is tiny: it is a number of bytes, suffixes such as 4M are not understood",
          "unset it, or write 4194304");
    if (value("NCCL_LAUNCH_MODE") && *value("NCCL_LAUNCH_MODE") == "GROUP")
      add("NCCL_LAUNCH_MODE", Level::kWarning,
          "launches of several GPUs in one process are serialised", "unset it");
    if (value("NCCL_CHECKS_DISABLE"))
      add("NCCL_CHECKS_DISABLE", Level::kWarning, "NCCL does not read it any more", "unset it");
  }

  void debugging() {
    const auto debug = value("NCCL_DEBUG");
    const bool loud = debug && (*debug == "INFO" || *debug == "TRACE");
    if (loud)
      add("NCCL_DEBUG", Level::kWarning, "left from debugging: it slows the start of large jobs",
          "WARN or VERSION in production");
    static const std::set<std::string> kDebug{"", "VERSION", "WARN", "INFO", "ABORT", "TRACE"};
    if (debug && kDebug.count(*debug) == 0)
      add("NCCL_DEBUG", Level::kWarning, "the value is not known and ignored",
          "VERSION, WARN, INFO, ABORT or TRACE");
    if (value("NCCL_DEBUG_SUBSYS") && (!debug || debug->empty()))
      add("NCCL_DEBUG_SUBSYS", Level::kWarning, "it does nothing without NCCL_DEBUG",
          "set NCCL_DEBUG=INFO, or unset it");
  }

  void numbers() {
    for (const char* name :
         {"NCCL_IB_DISABLE", "NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE", "NCCL_NVLS_ENABLE",
          "NCCL_IB_TIMEOUT", "NCCL_IB_GID_INDEX", "NCCL_IB_QPS_PER_CONNECTION", "NCCL_IB_TC",
          "NCCL_IB_SL", "NCCL_MIN_NCHANNELS", "NCCL_MAX_NCHANNELS", "NCCL_CROSS_NIC",
          "NCCL_NTHREADS", "NCCL_DMABUF_ENABLE", "NCCL_CUMEM_ENABLE", "NCCL_NET_GDR_READ"}) {
      const auto text = value(name);
      if (!text || text->empty() || whole_number(*text)) continue;
      add(name, Level::kProblem,
          "it is no number: NCCL reads " + std::to_string(number(*text)) + ", without a word",
          "write a whole number");
    }
  }

  const Settings& settings_;
  const Machine& machine_;
  bool inside_;
  Findings findings_;
};

}  // namespace

Settings settings_of(const std::vector<std::string>& environment) {
  Settings settings;
  for (const std::string& entry : environment) {
    const std::size_t equals = entry.find('=');
    if (equals == std::string::npos || entry.compare(0, 5, "NCCL_") != 0) continue;
    settings.emplace(entry.substr(0, equals), Setting{entry.substr(equals + 1), "environment"});
  }
  return settings;
}

Findings add_conf_file(Settings& settings, const std::string& name, const std::string& text) {
  Findings findings;
  std::istringstream lines(text);
  std::size_t line_number = 0;
  for (std::string line; std::getline(lines, line);) {
    ++line_number;
    const auto add = [&](std::string reason, std::string fix) {
      findings.push_back({"nccl-conf", Level::kWarning, name, std::move(reason),
                          "line " + std::to_string(line_number) + ": " + line, std::move(fix)});
    };
    if (line.empty() || line[0] == '#') continue;
    const std::size_t equals = line.find('=');
    if (equals == std::string::npos) {
      if (line.find_first_not_of(" \t\r") != std::string::npos)
        add("a line without '=' is ignored", "write NAME=value");
      continue;
    }
    const std::string variable = line.substr(0, std::min(equals, kLongestName));
    const std::string value = line.substr(equals + 1, kLongestName);
    if (variable.find_first_of(" \t") != std::string::npos)
      add("the name has a blank in it: NCCL sets a variable that nobody reads",
          "write NAME=value without blanks");
    if (!value.empty() && value.find_last_not_of(" \t\r") + 1 != value.size())
      add("blanks or a carriage return at the end belong to the value", "remove them (dos2unix)");
    if (!value.empty() && (value.front() == '"' || value.front() == '\''))
      add("quotes belong to the value", "remove them");
    if (value.find(" #") != std::string::npos)
      add("a comment behind a value belongs to the value", "put it on a line of its own");
    if (variable.compare(0, 5, "NCCL_") == 0) settings.emplace(variable, Setting{value, name});
  }
  return findings;
}

Findings check_settings(const Settings& settings, const Machine& machine, Viewpoint viewpoint) {
  return Checker(settings, machine, viewpoint).run();
}

}  // namespace ncclscope::topology

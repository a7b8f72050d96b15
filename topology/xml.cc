// SPDX-License-Identifier: Apache-2.0
#include "topology/xml.h"

#include <algorithm>
#include <map>
#include <set>

namespace ncclscope::topology {
namespace {

constexpr std::size_t kMaxText = 254, kMaxAttributes = 16, kMaxChildren = 128, kMaxElements = 256;
constexpr std::size_t kMaxDepth = 64;

class Parser {
 public:
  explicit Parser(std::string_view text) : text_(text) {}

  XmlDocument parse() {
    if (skip_between() && !at_end()) document_.root = element(0);
    if (document_.error.empty() && document_.root.name.empty()) fail("no element");
    if (document_.error.empty() && skip_between() && !at_end())
      fail("something follows the end of <" + document_.root.name + ">");
    return std::move(document_);
  }

 private:
  [[nodiscard]] bool at_end() const { return at_ >= text_.size(); }
  [[nodiscard]] char peek() const { return at_end() ? '\0' : text_[at_]; }
  char take() {
    const char c = peek();
    if (!at_end()) ++at_;
    if (c == '\n') ++line_;
    return c;
  }
  bool take_if(std::string_view wanted) {
    if (text_.substr(at_, wanted.size()) != wanted) return false;
    at_ += wanted.size();
    return true;
  }
  void fail(const std::string& why) {
    if (document_.error.empty()) document_.error = "line " + std::to_string(line_) + ": " + why;
  }
  [[nodiscard]] bool failed() const { return !document_.error.empty(); }

  /// White space and comments between elements; false if NCCL would stumble.
  bool skip_between() {
    while (!at_end() && !failed()) {
      const char c = peek();
      if (c == ' ' || c == '\n' || c == '\r') {
        take();
      } else if (c == '\t') {
        fail("a tab between elements, where NCCL takes only blanks and line ends");
      } else if (take_if("<!--")) {
        const std::size_t end = text_.find("-->", at_);
        if (end == std::string_view::npos) {
          fail("a comment without end");
          break;
        }
        while (at_ < end) take();
        take_if("-->");
      } else {
        break;
      }
    }
    return !failed();
  }

  static bool name_char(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-' || c == '.' || c == ':';
  }

  std::string word(const char* what) {
    std::string result;
    while (name_char(peek())) result += take();
    if (result.empty()) fail(std::string("a name of ") + what + " is missing");
    if (result.size() > kMaxText) fail(std::string("a name of ") + what + " is too long");
    return result;
  }

  std::string value() {
    const char quote = take();
    if (quote != '"' && quote != '\'') {
      fail("a value without quotes");
      return {};
    }
    std::string result;
    while (!at_end() && peek() != quote) {
      if (peek() == '\n') fail("a line break inside a value");
      result += take();
    }
    if (at_end()) fail("a value without closing quote");
    take();
    if (result.size() > kMaxText) fail("a value of more than 254 characters");
    return result;
  }

  void attributes(XmlElement& e) {
    while (!failed()) {
      const char c = peek();
      if (c == '>' || c == '/') return;
      if (c == '\n' || c == '\t' || c == '\r') {
        fail("a line break or tab inside the tag <" + e.name +
             ">, where NCCL takes only one blank between attributes");
        return;
      }
      if (c != ' ') {
        fail(at_end() ? "the text ends inside the tag <" + e.name + ">"
                      : "unexpected character inside the tag <" + e.name + ">");
        return;
      }
      take();
      if (peek() == ' ' || peek() == '/' || peek() == '>') {
        document_.warnings.push_back("line " + std::to_string(line_) +
                                     ": more than one blank in <" + e.name + ">");
        continue;
      }
      std::string name = word("an attribute");
      if (!failed() && take() != '=') fail("attribute " + name + " has no value");
      if (failed()) return;
      std::string text = value();
      if (text.find('&') != std::string::npos)
        document_.warnings.push_back("line " + std::to_string(line_) +
                                     ": NCCL knows no entities, '&' stays as it is");
      if (e.attributes.size() < kMaxAttributes) {
        e.attributes.emplace_back(std::move(name), std::move(text));
      } else {
        document_.warnings.push_back("line " + std::to_string(line_) + ": attribute " + name +
                                     " is the 17th or later of its element and dropped");
      }
    }
  }

  XmlElement element(std::size_t depth) {
    XmlElement e;
    e.line = line_;
    if (take() != '<') {
      fail("text between elements");
      return e;
    }
    if (peek() == '?' || peek() == '!') {
      fail("a prolog (<?xml ... or <!DOCTYPE ...), which NCCL does not know: leave it out");
      return e;
    }
    e.name = word("an element");
    if (++document_.elements > kMaxElements) fail("more than 256 elements");
    if (depth > kMaxDepth) fail("elements are nested too deeply");
    if (failed()) return e;
    attributes(e);
    if (failed()) return e;
    if (take_if("/>")) return e;
    if (take() != '>') {
      fail("the tag <" + e.name + "> has no end");
      return e;
    }
    while (skip_between()) {
      if (at_end()) {
        fail("the text ends before </" + e.name + ">");
        break;
      }
      if (take_if("</")) {
        const std::string closed = word("an element");
        if (!failed() && closed != e.name)
          fail("</" + closed + "> closes <" + e.name + "> of line " + std::to_string(e.line));
        if (!failed() && take() != '>') fail("</" + closed + " has no end");
        break;
      }
      if (e.children.size() == kMaxChildren) {
        fail("<" + e.name + "> has more than 128 children");
        break;
      }
      e.children.push_back(element(depth + 1));
    }
    return e;
  }

  std::string_view text_;
  std::size_t at_ = 0, line_ = 1;
  XmlDocument document_;
};

void write(const XmlElement& e, std::size_t depth, std::string& text) {
  text += std::string(2 * depth, ' ') + "<" + e.name;
  for (const auto& [name, value] : e.attributes) text += " " + name + "=\"" + value + "\"";
  if (e.children.empty()) {
    text += "/>\n";
    return;
  }
  text += ">\n";
  for (const XmlElement& child : e.children) write(child, depth + 1, text);
  text += std::string(2 * depth, ' ') + "</" + e.name + ">\n";
}

class FileCheck {
 public:
  FileCheck(const std::string& name, const Machine& machine, const Paths& paths)
      : name_(name), machine_(machine), paths_(paths) {}

  Findings run(const XmlDocument& document) {
    for (const std::string& warning : document.warnings)
      add(Level::kWarning, "NCCL drops or misreads a part of it silently", warning,
          "write it as ncclscope doctor topology --write does");
    if (document.root.name != "system" || document.root.attribute("version") != "1") {
      add(Level::kProblem, "NCCL stops at a file that is not <system version=\"1\">",
          "line 1: <" + document.root.name + " version=\"" +
              std::string(document.root.attribute("version")) + "\">",
          "begin the file with <system version=\"1\">");
      return std::move(findings_);
    }
    walk(document.root, false);
    check_machine();
    if (findings_.empty())
      findings_.push_back({"topology-file", Level::kOk, name_,
                           "NCCL can read it, and all " + std::to_string(machine_.gpus.size()) +
                               " GPUs and the RDMA devices are in it",
                           std::to_string(document.elements) + " elements", ""});
    return std::move(findings_);
  }

 private:
  void add(Level level, std::string reason, std::string evidence, std::string fix) {
    findings_.push_back(
        {"topology-file", level, name_, std::move(reason), std::move(evidence), std::move(fix)});
  }
  static std::string line(const XmlElement& e) {
    return "line " + std::to_string(e.line) + ": <" + e.name +
           (e.has("busid") ? " busid=\"" + std::string(e.attribute("busid")) + "\"" : "") + ">";
  }

  void walk(const XmlElement& e, bool below_pci) {
    if (e.name == "cpu") check_cpu(e);
    if (e.name == "pci") check_pci(e);
    for (const char* left_over : {"rank", "keep", "gdr"})
      if (e.has(left_over)) check_left_over(e, left_over);
    if (e.name == "net" && e.has("dev")) check_left_over(e, "dev");
    if (e.name == "gpu" && !below_pci)
      add(Level::kProblem, "a gpu stands outside of a pci element", line(e),
          "put it into the pci element with its busid");
    for (const XmlElement& child : e.children) walk(child, e.name == "pci");
  }

  void check_left_over(const XmlElement& e, const std::string& attribute) {
    add(Level::kWarning,
        "the attribute " + attribute + " is left from a dump: NCCL believes it here, too", line(e),
        "delete the attribute");
  }

  void check_cpu(const XmlElement& e) {
    const std::string id(e.attribute("numaid"));
    const bool known = std::any_of(machine_.numa.begin(), machine_.numa.end(),
                                   [&](const NumaNode& n) { return std::to_string(n.id) == id; });
    if (id.empty())
      add(Level::kProblem, "a cpu without numaid", line(e), "give it a numaid");
    else if (!known && !machine_.numa.empty())
      add(Level::kWarning, "NUMA node " + id + " is not on this machine",
          line(e) + "; nodes here: " + std::to_string(machine_.numa.size()),
          "numaid as in /sys/devices/system/node");
    const std::string affinity(e.attribute("affinity"));
    if (e.has("affinity") && affinity.find_first_not_of("0,") == std::string::npos)
      add(Level::kWarning, "an empty affinity: threads of NCCL are not bound", line(e),
          "affinity as in /sys/devices/system/node/node" + id + "/cpumap");
    if (e.has("familyid") != e.has("modelid"))
      add(Level::kWarning, "familyid and modelid are filled as a pair only: one is missing",
          line(e), "give both or neither");
  }

  void check_pci(const XmlElement& e) {
    const std::string address(e.attribute("busid"));
    if (!is_pci_address(address)) {
      add(Level::kProblem,
          "a busid that NCCL will never find: it compares '0000:3b:00.0' exactly, "
          "in lower case",
          line(e), "write the address with 4 digits of domain, in lower case");
      return;
    }
    if (!places_.emplace(address, e.line).second)
      add(Level::kProblem, "the busid stands there twice",
          line(e) + ", and line " + std::to_string(places_[address]), "remove one");
    classes_[address] = e.attribute("class");
    const bool leaf = std::none_of(e.children.begin(), e.children.end(),
                                   [](const XmlElement& c) { return c.name == "pci"; });
    if (leaf) return;
    const int here = machine_.find_device(address);
    const PciDevice* device = machine_.device(here);
    if (device != nullptr && !device->bridge())
      add(Level::kProblem,
          "the id of an invented switch is that of a device of this machine, whose class NCCL "
          "takes "
          "instead",
          line(e), "invent ids in a domain that does not exist, such as ffff:01:00.0");
    if (device == nullptr && (!e.has("class") || e.attribute("class") != "0x060400"))
      add(Level::kProblem, "an invented switch needs class=\"0x060400\"", line(e), "add the class");
    if (device == nullptr && (!e.has("link_speed") || !e.has("link_width")))
      add(Level::kWarning,
          "a switch without link_speed and link_width: NCCL takes 12 GB/s for its link", line(e),
          "add link_speed=\"32.0 GT/s PCIe\" and link_width=\"16\", as the hardware is");
  }

  void check_machine() {
    for (std::size_t g = 0; g < machine_.gpus.size(); ++g) {
      const std::string& address = machine_.device(machine_.gpus[g].pci)->address;
      if (places_.count(address) == 0)
        add(Level::kProblem, "GPU" + std::to_string(g) + " is not in it: NCCL places it by sysfs",
            "no pci element with busid=\"" + address + "\"", "add it below its switch");
    }
    for (std::size_t n = 0; n < machine_.nics.size(); ++n) {
      const Nic& nic = machine_.nics[n];
      if (!nic.rdma || nic.pci < 0) continue;
      const std::string& own = machine_.device(nic.pci)->address;
      const std::string single = own.substr(0, 11) + "0";
      const std::string normal = paths_.nccl_address(n);
      if (places_.count(normal) > 0) {
        if (classes_[normal].compare(0, 4, "0x02") != 0 && !classes_[normal].empty())
          add(Level::kProblem, "the class of " + nic.name + " is not that of a NIC",
              "busid=\"" + normal + "\" class=\"" + classes_[normal] + "\"",
              "class=\"0x020700\" or \"0x020000\"");
        continue;
      }
      if (places_.count(single) > 0) {
        add(Level::kWarning,
            "NCCL finds " + nic.name + " in it only with NCCL_IB_MERGE_VFS=0: else it looks for " +
                normal,
            "busid=\"" + single + "\"", "set NCCL_IB_MERGE_VFS=0 together with NCCL_TOPO_FILE");
      } else {
        add(Level::kProblem, nic.name + " is not in it: NCCL places it by sysfs",
            "no pci element with busid=\"" + normal + "\"", "add it below its switch");
      }
    }
  }

  const std::string& name_;
  const Machine& machine_;
  const Paths& paths_;
  std::map<std::string, std::size_t> places_;  // line of each busid
  std::map<std::string, std::string> classes_;
  Findings findings_;
};

}  // namespace

std::string_view XmlElement::attribute(std::string_view wanted) const {
  for (const auto& [key, value] : attributes)
    if (key == wanted) return value;
  return {};
}

bool XmlElement::has(std::string_view wanted) const {
  return std::any_of(attributes.begin(), attributes.end(),
                     [&](const auto& a) { return a.first == wanted; });
}

XmlDocument parse_xml(std::string_view text) {
  return Parser(text).parse();
}

std::string write_xml(const XmlElement& root) {
  std::string text;
  write(root, 0, text);
  return text;
}

Findings check_topology_file(const std::string& name, std::string_view text, const Machine& machine,
                             const Paths& paths) {
  const XmlDocument document = parse_xml(text);
  if (!document.error.empty())
    return {{"topology-file", Level::kProblem, name,
             "NCCL cannot read it: initialisation fails on every rank", document.error,
             "mend the file, or unset NCCL_TOPO_FILE"}};
  return FileCheck(name, machine, paths).run(document);
}

}  // namespace ncclscope::topology

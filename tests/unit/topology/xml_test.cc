// SPDX-License-Identifier: Apache-2.0
#include "topology/xml.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "tests/unit/topology/machines.h"

namespace ncclscope::topology {
namespace {

using ::testing::Contains;
using ::testing::Field;
using ::testing::HasSubstr;

std::string error_of(const std::string& text) {
  return parse_xml(text).error;
}

TEST(Xml, ReadsWhatItWrites) {
  const std::string text =
      "<system version=\"1\">\n  <cpu numaid=\"0\">\n    <pci busid=\"0000:3b:00.0\"/>\n  </cpu>\n"
      "</system>\n";
  const XmlDocument document = parse_xml(text);
  EXPECT_EQ(document.error, "");
  EXPECT_EQ(document.elements, 3U);
  EXPECT_EQ(write_xml(document.root), text);
  EXPECT_EQ(document.root.children[0].children[0].attribute("busid"), "0000:3b:00.0");
}

TEST(Xml, TakesCommentsAndSingleQuotes) {
  EXPECT_EQ(error_of("<!-- a\nb --><system version='1'><!-- c --></system><!-- d -->"), "");
}

TEST(Xml, RefusesWhatNcclsParserRefuses) {
  EXPECT_THAT(error_of("<?xml version=\"1.0\"?><system/>"), HasSubstr("prolog"));
  EXPECT_THAT(error_of("<!DOCTYPE x><system/>"), HasSubstr("prolog"));
  EXPECT_THAT(error_of("<system>\n\t<cpu/></system>"), HasSubstr("line 2: a tab"));
  EXPECT_THAT(error_of("<system\nversion=\"1\"/>"), HasSubstr("line break"));
  EXPECT_THAT(error_of("<system version=1/>"), HasSubstr("quotes"));
  EXPECT_THAT(error_of("<system>text</system>"), HasSubstr("text between elements"));
  EXPECT_THAT(error_of("<system></cpu>"), HasSubstr("</cpu> closes <system>"));
  EXPECT_THAT(error_of("<system/><system/>"), HasSubstr("follows the end"));
  EXPECT_THAT(error_of(""), HasSubstr("no element"));
  EXPECT_THAT(error_of("<system name=\"" + std::string(300, 'x') + "\"/>"), HasSubstr("254"));
}

TEST(Xml, BoundsElementsChildrenAndDepth) {
  std::string many = "<system>";
  for (int i = 0; i < 129; ++i) many += "<cpu/>";
  EXPECT_THAT(error_of(many + "</system>"), HasSubstr("128 children"));
  std::string wide = "<system>";
  for (int i = 0; i < 20; ++i) {
    wide += "<cpu>";
    for (int j = 0; j < 20; ++j) wide += "<pci/>";
    wide += "</cpu>";
  }
  EXPECT_THAT(error_of(wide + "</system>"), HasSubstr("more than 256 elements"));
  std::string deep;
  for (int i = 0; i < 100'000; ++i) deep += "<pci>";
  EXPECT_THAT(error_of(deep), HasSubstr("deeply"));
}

TEST(Xml, TellsWhatIsDroppedSilently) {
  std::string text = "<system version=\"1\" ";
  for (int i = 0; i < 17; ++i) text += " a" + std::to_string(i) + "=\"&lt;\"";
  const XmlDocument document = parse_xml(text + "/>");
  EXPECT_EQ(document.error, "");
  EXPECT_THAT(document.warnings, Contains(HasSubstr("17th or later")));
  EXPECT_THAT(document.warnings, Contains(HasSubstr("entities")));
  EXPECT_THAT(document.warnings, Contains(HasSubstr("more than one blank")));
}

TEST(Xml, CutOffAnywhereIsAnErrorAndNothingElse) {
  const std::string text =
      "<!-- c --><system version=\"1\"><cpu numaid=\"0\"><pci busid=\"a\"/></cpu></system>";
  for (std::size_t n = 0; n < text.size(); ++n)
    EXPECT_NE(error_of(text.substr(0, n)), "") << text.substr(0, n);
}

class TopologyFile : public ::testing::Test {
 protected:
  Findings check(const std::string& text) {
    return check_topology_file("t.xml", text, machine_, Paths(machine_));
  }
  static std::string file(const std::string& below) {
    return "<system version=\"1\"><cpu numaid=\"0\" affinity=\"ffffffff\">" + below +
           "</cpu></system>";
  }
  static std::string pci(const std::string& address, const std::string& more) {
    return "<pci busid=\"" + address + "\" class=\"" + more + "\"/>";
  }
  const std::string gpus_ = pci("0000:00:05.0", "0x030200") + pci("0000:00:06.0", "0x030200");
  const std::string nics_ = pci("0000:00:07.0", "0x020700") + pci("0000:00:08.0", "0x020700");
  const std::string switch_ =
      "<pci busid=\"ffff:01:00.0\" class=\"0x060400\" link_speed=\"32.0 GT/s PCIe\" "
      "link_width=\"16\">";
  Machine machine_ = machine_of("flatvm");
};

TEST_F(TopologyFile, OfAFlatVirtualMachineNeedsOneMoreVariable) {
  const Findings findings = check(file(switch_ + gpus_ + nics_ + "</pci>"));
  ASSERT_EQ(findings.size(), 2U);
  for (const Finding& f : findings) {
    EXPECT_EQ(f.level, Level::kWarning);
    EXPECT_THAT(f.reason, HasSubstr("NCCL_IB_MERGE_VFS=0"));
  }
}

TEST_F(TopologyFile, ThatIsWholeIsOk) {
  machine_.nics.clear();
  const Findings findings = check(file(switch_ + gpus_ + "</pci>"));
  ASSERT_EQ(findings.size(), 1U);
  EXPECT_EQ(findings[0].level, Level::kOk);
}

TEST_F(TopologyFile, IsCheckedAgainstTheMachine) {
  machine_.nics.clear();
  const auto reasons = [&](const std::string& text) {
    std::string all;
    for (const Finding& f : check(text)) all += f.reason + "\n";
    return all;
  };
  EXPECT_THAT(reasons("<graphs version=\"1\"/>"), HasSubstr("not <system version=\"1\">"));
  EXPECT_THAT(reasons("<system version=\"2\"/>"), HasSubstr("not <system version=\"1\">"));
  EXPECT_THAT(reasons("<system version=\"1\""), HasSubstr("initialisation fails"));
  EXPECT_THAT(reasons(file(pci("0000:00:05.0", "0x030200"))), HasSubstr("GPU1 is not in it"));
  EXPECT_THAT(reasons(file(gpus_ + pci("0000:00:06.0", "0x030200"))), HasSubstr("twice"));
  EXPECT_THAT(reasons(file(gpus_ + pci("0000:3B:00.0", "0x030200"))), HasSubstr("lower case"));
  EXPECT_THAT(reasons(file("<pci busid=\"0000:00:00.0\" class=\"0x060400\">" + gpus_ + "</pci>")),
              HasSubstr("id of an invented switch"));
  EXPECT_THAT(reasons(file("<pci busid=\"ffff:01:00.0\">" + gpus_ + "</pci>")),
              HasSubstr("needs class"));
  EXPECT_THAT(reasons("<system version=\"1\"><cpu numaid=\"7\" affinity=\"0\" familyid=\"6\">" +
                      gpus_ + "</cpu></system>"),
              ::testing::AllOf(HasSubstr("NUMA node 7"), HasSubstr("empty affinity"),
                               HasSubstr("as a pair")));
  EXPECT_THAT(reasons(file("<pci busid=\"0000:00:05.0\" class=\"0x030200\"><gpu dev=\"0\" "
                           "rank=\"0\" gdr=\"1\"/></pci>" +
                           pci("0000:00:06.0", "0x030200"))),
              ::testing::AllOf(HasSubstr("attribute rank"), HasSubstr("attribute gdr")));
}

}  // namespace
}  // namespace ncclscope::topology

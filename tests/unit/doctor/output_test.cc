// SPDX-License-Identifier: Apache-2.0
//
// What people and scripts read, against golden files. NCCLSCOPE_UPDATE_GOLDEN=1 writes them anew.
#include "cli/doctor/output.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "tests/unit/topology/machines.h"
#include "topology/checks.h"

namespace ncclscope::cli {
namespace {

using topology::Level;

DoctorReport report_of(const topology::Machine& machine) {
  return {"node01", topology::check_topology(machine, topology::Paths(machine))};
}

void expect_golden(const std::string& name, const std::string& text) {
  const std::string path = std::string(NCCLSCOPE_GOLDEN) + "/" + name;
  if (std::getenv("NCCLSCOPE_UPDATE_GOLDEN") != nullptr) std::ofstream(path) << text;
  EXPECT_EQ(text, topology::file_text(path)) << path;
}

TEST(DoctorOutput, ForPeopleIsAsItWas) {
  for (const char* name : {"onesided", "flatvm", "downgraded"}) {
    const topology::Machine machine = topology::machine_of(name);
    expect_golden(std::string("doctor-") + name + ".txt",
                  topology_text(machine, topology::Paths(machine)) + "\n" +
                      findings_text(report_of(machine), true));
  }
}

TEST(DoctorOutput, ForScriptsIsAsItWas) {
  const topology::Machine machine = topology::machine_of("multiport");
  nlohmann::ordered_json json = findings_json(report_of(machine));
  json["topology"] = topology_json(machine, topology::Paths(machine));
  expect_golden("doctor-multiport.json", json.dump(2) + "\n");
}

TEST(DoctorOutput, DoesNotSteerTerminals) {
  const DoctorReport report{"n\x1b[2J",
                            {{"nccl-env", Level::kProblem, "NCCL_\x1b", "r\a", "e\n", "f\x7f"}}};
  const std::string text = findings_text(report, false);
  EXPECT_EQ(text.find('\x1b'), std::string::npos);
  EXPECT_EQ(text.find('\a'), std::string::npos);
}

TEST(DoctorOutput, CountsWhatItDoesNotShow) {
  const DoctorReport report{"node01", {{"shm", Level::kOk, "/dev/shm", "64000 MiB", "", ""}}};
  EXPECT_EQ(findings_text(report, false),
            "node01: 0 problem, 0 warning, 0 unknown, 1 ok (--all shows these, too)\n");
}

}  // namespace
}  // namespace ncclscope::cli

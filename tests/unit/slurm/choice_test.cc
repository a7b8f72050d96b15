// SPDX-License-Identifier: Apache-2.0
//
// What the SPANK plugin decides, without SLURM: arguments, the loader's path, environments.
#include "deploy/slurm/spank/choice.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "tests/support/temporary_directory.h"

namespace ncclscope::slurm {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Pair;
using ::testing::UnorderedElementsAre;

constexpr const char* kName = "libnccl-profiler-ncclscope.so";
constexpr const char* kPath = "/usr/lib/ncclscope/libnccl-profiler-ncclscope.so";
constexpr const char* kBinds =
    "/usr/lib/ncclscope:/opt/ncclscope:ro,/run/ncclscope:/run/ncclscope:ro";
constexpr const char* kInContainer = "/opt/ncclscope/libnccl-profiler-ncclscope.so";

using Variables = std::map<std::string, std::string>;

Node whole_node() {
  return {true, true, kName};
}

/// The environment of a step that is decided for in `variables`.
Variables after(const Settings& settings, std::optional<Choice> option, const Node& node,
                Variables variables) {
  const Decision decision = decide(settings, option, node, [&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
  Variables result = variables;
  for (const Change& change : decision.changes) {
    if (change.value) {
      result[change.name] = *change.value;
    } else {
      result.erase(change.name);
    }
  }
  return result;
}

Variables on_as_it_comes() {
  return {{"NCCL_PROFILER_PLUGIN", kName},
          {"NCCLSCOPE_SPANK", "on"},
          {"APPTAINER_BIND", kBinds},
          {"SINGULARITY_BIND", kBinds},
          {"APPTAINERENV_NCCL_PROFILER_PLUGIN", kInContainer},
          {"SINGULARITYENV_NCCL_PROFILER_PLUGIN", kInContainer}};
}

TEST(SpankArguments, DefaultsAreOnAndThePackagesPaths) {
  std::vector<std::string> problems;
  const Settings settings = parse_arguments({}, problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(settings.choice, Choice::kOn);
  EXPECT_EQ(settings.plugin, kPath);
  EXPECT_EQ(settings.socket_folder, "/run/ncclscope");
  EXPECT_TRUE(settings.containers);
}

TEST(SpankArguments, AreRead) {
  std::vector<std::string> problems;
  const Settings settings = parse_arguments(
      {"default=full", "plugin=/opt/n/libx.so", "socket_dir=/run/other", "containers=off"},
      problems);
  EXPECT_THAT(problems, IsEmpty());
  EXPECT_EQ(settings.choice, Choice::kFull);
  EXPECT_EQ(settings.plugin, "/opt/n/libx.so");
  EXPECT_EQ(settings.socket_folder, "/run/other");
  EXPECT_FALSE(settings.containers);
}

TEST(SpankArguments, EachBadOneIsNamedAndHasNoEffect) {
  for (const char* bad :
       {"plugin=libx.so", "plugin=/opt/x", "plugin=/opt/lib.so", "plugin=/a,b/libx.so",
        "plugin=/a:b/libx.so", "plugin=/a b/libx.so", "plugin=", "plugin", "socket_dir=run",
        "socket_dir=/run/x/", "socket_dir=/", "socket_dir=/a\nb", "containers=yes", "colour=red",
        "", "=", "Default=on"}) {
    std::vector<std::string> problems;
    const Settings settings = parse_arguments({bad}, problems);
    EXPECT_THAT(problems, ElementsAre(HasSubstr("\"" + std::string(bad) + "\""))) << bad;
    EXPECT_EQ(settings.choice, Choice::kOn) << bad;
    EXPECT_EQ(settings.plugin, kPath) << bad;
    EXPECT_EQ(settings.socket_folder, "/run/ncclscope") << bad;
    EXPECT_TRUE(settings.containers) << bad;
  }
}

TEST(SpankArguments, ADefaultThatCannotBeReadIsOff) {
  for (const char* bad : {"default=of", "default=", "default", "default=ON"}) {
    std::vector<std::string> problems;
    EXPECT_EQ(parse_arguments({bad}, problems).choice, Choice::kOff) << bad;
    EXPECT_THAT(problems, ElementsAre(HasSubstr("taken as off"))) << bad;
  }
}

TEST(SpankChoice, IsSpelledInOneWay) {
  for (const Choice choice : {Choice::kOff, Choice::kOn, Choice::kFull})
    EXPECT_EQ(parse_choice(name_of(choice)), choice);
  for (const char* other : {"", "0", "1", "true", "Off", "on ", "fully", "yes"})
    EXPECT_EQ(parse_choice(other), std::nullopt) << other;
}

TEST(SpankDecision, OnSetsProfilerAndContainers) {
  EXPECT_EQ(after({}, std::nullopt, whole_node(), {}), on_as_it_comes());
  EXPECT_EQ(after({}, Choice::kOn, whole_node(), {}), on_as_it_comes());
}

TEST(SpankDecision, FullAsksForEveryOperation) {
  Variables expected = on_as_it_comes();
  expected["NCCLSCOPE_SPANK"] = "full";
  expected["NCCLSCOPE_DETAIL"] = "full";
  expected["NCCLSCOPE_COST_SAMPLE"] = "0";
  EXPECT_EQ(after({}, Choice::kFull, whole_node(), {}), expected);
}

TEST(SpankDecision, OffByTheUserDisablesByDefaultDoesNothing) {
  EXPECT_THAT(after({}, Choice::kOff, whole_node(), {}),
              UnorderedElementsAre(Pair("NCCLSCOPE_DISABLE", "1"), Pair("NCCLSCOPE_SPANK", "off")));
  Settings settings;
  settings.choice = Choice::kOff;
  EXPECT_THAT(after(settings, std::nullopt, whole_node(), {}), IsEmpty());
}

TEST(SpankDecision, AProfilerOfTheUserStays) {
  for (const char* profiler : {"/opt/other/libother.so", "none", ""}) {
    const Variables mine{{"NCCL_PROFILER_PLUGIN", profiler}};
    for (const std::optional<Choice> option :
         {std::optional<Choice>(), std::optional(Choice::kOn), std::optional(Choice::kFull)}) {
      Variables have = after({}, option, whole_node(), mine);
      have.erase("NCCLSCOPE_SPANK");
      EXPECT_EQ(have, mine);
    }
  }
  // Ours, set by the user: stays with off too, but does nothing.
  const Variables off =
      after({}, Choice::kOff, whole_node(), {{"NCCL_PROFILER_PLUGIN", "libmy.so"}});
  EXPECT_EQ(off.at("NCCL_PROFILER_PLUGIN"), "libmy.so");
  EXPECT_EQ(off.at("NCCLSCOPE_DISABLE"), "1");
}

TEST(SpankDecision, VariablesOfTheUserStay) {
  Variables mine{{"NCCLSCOPE_DETAIL", "low"},
                 {"NCCLSCOPE_COST_SAMPLE", "64"},
                 {"NCCLSCOPE_SOCKET", "/tmp/mine.sock"},
                 {"APPTAINERENV_NCCL_PROFILER_PLUGIN", "libmine.so"}};
  Settings settings;
  settings.socket_folder = "/run/other";
  const Variables have = after(settings, Choice::kFull, whole_node(), mine);
  for (const auto& [name, value] : mine) EXPECT_EQ(have.at(name), value) << name;
}

TEST(SpankDecision, AnotherSocketFolderIsTold) {
  Settings settings;
  settings.socket_folder = "/run/other";
  const Variables have = after(settings, Choice::kOn, whole_node(), {});
  EXPECT_EQ(have.at("NCCLSCOPE_SOCKET"), "/run/other/agent.sock");
  EXPECT_THAT(have.at("APPTAINER_BIND"), HasSubstr("/run/other:/run/other:ro"));
}

TEST(SpankDecision, AStepInsideHasWhatTheStepAroundHad) {
  for (const Choice choice : {Choice::kOff, Choice::kOn, Choice::kFull}) {
    const Variables outer = after({}, choice, whole_node(), {});
    EXPECT_EQ(after({}, std::nullopt, whole_node(), outer), outer) << name_of(choice);
  }
}

TEST(SpankDecision, AnotherChoiceInsideUndoesTheOneAround) {
  for (const Choice outer : {Choice::kOff, Choice::kOn, Choice::kFull}) {
    for (const Choice inner : {Choice::kOff, Choice::kOn, Choice::kFull}) {
      EXPECT_EQ(after({}, inner, whole_node(), after({}, outer, whole_node(), {})),
                after({}, inner, whole_node(), {}))
          << name_of(outer) << " around " << name_of(inner);
    }
  }
}

TEST(SpankDecision, WhatTheUserSetsInsideStays) {
  Variables script = after({}, Choice::kOn, whole_node(), {});
  script["NCCLSCOPE_DISABLE"] = "1";
  script["NCCLSCOPE_DETAIL"] = "full";
  script["NCCL_PROFILER_PLUGIN"] = "libmine.so";
  const Variables have = after({}, Choice::kOn, whole_node(), script);
  for (const char* name : {"NCCLSCOPE_DISABLE", "NCCLSCOPE_DETAIL", "NCCL_PROFILER_PLUGIN"})
    EXPECT_EQ(have.at(name), script.at(name)) << name;
}

TEST(SpankDecision, WithoutThePluginNothingIsSetAndOneLineSaysSo) {
  const Node bare{false, true, ""};
  const Decision decision =
      decide({}, std::nullopt, bare, [](const char*) -> const char* { return nullptr; });
  EXPECT_THAT(decision.remark, HasSubstr(kPath));
  EXPECT_THAT(after({}, std::nullopt, bare, {}), ElementsAre(Pair("NCCLSCOPE_SPANK", "on")));
  // Nor is what another node's step has set believed: that file is not here.
  EXPECT_THAT(after({}, std::nullopt, bare, on_as_it_comes()),
              ElementsAre(Pair("NCCLSCOPE_SPANK", "on")));
}

TEST(SpankDecision, WithoutTheSocketFolderContainersStillStart) {
  const Node quiet{true, false, kName};
  const Variables have = after({}, std::nullopt, quiet, on_as_it_comes());
  EXPECT_EQ(have.at("NCCL_PROFILER_PLUGIN"), kName);  // an agent may come later
  EXPECT_EQ(have.at("APPTAINER_BIND"), "/usr/lib/ncclscope:/opt/ncclscope:ro");
  EXPECT_EQ(have.at("SINGULARITY_BIND"), "/usr/lib/ncclscope:/opt/ncclscope:ro");
}

TEST(SpankDecision, BindsOfTheUserComeFirstInBothLists) {
  const std::string ours = kBinds;
  Variables have = after({}, Choice::kOn, whole_node(), {{"APPTAINER_BIND", "/a,/b:/c:ro"}});
  EXPECT_EQ(have.at("APPTAINER_BIND"), "/a,/b:/c:ro," + ours);
  EXPECT_EQ(have.at("SINGULARITY_BIND"), "/a,/b:/c:ro," + ours);
  have = after({}, Choice::kOn, whole_node(), {{"SINGULARITY_BIND", "/s"}});
  EXPECT_EQ(have.at("APPTAINER_BIND"), "/s," + ours);
  EXPECT_EQ(have.at("SINGULARITY_BIND"), "/s," + ours);
  have =
      after({}, Choice::kOn, whole_node(), {{"APPTAINER_BIND", "/a"}, {"SINGULARITY_BIND", "/s"}});
  EXPECT_EQ(have.at("APPTAINER_BIND"), "/a," + ours);
  EXPECT_EQ(have.at("SINGULARITY_BIND"), "/s," + ours);
  // Twice is once.
  EXPECT_EQ(after({}, Choice::kOn, whole_node(), have), have);
  have = after({}, Choice::kOff, whole_node(), have);
  EXPECT_EQ(have.at("APPTAINER_BIND"), "/a");
  EXPECT_EQ(have.at("SINGULARITY_BIND"), "/s");
}

TEST(SpankDecision, ContainersCanBeLeftAlone) {
  Settings settings;
  settings.containers = false;
  EXPECT_THAT(
      after(settings, Choice::kOn, whole_node(), {}),
      UnorderedElementsAre(Pair("NCCL_PROFILER_PLUGIN", kName), Pair("NCCLSCOPE_SPANK", "on")));
}

/// A machine's root with the plugin where the package puts it.
class SpankNode : public ::testing::Test {
 protected:
  SpankNode() { write(kPath, "library"); }

  void write(const std::string& path, const std::string& bytes) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::ofstream(root_ + path, std::ios::binary) << bytes;
  }
  void link(const std::string& path) {
    std::filesystem::create_directories(std::filesystem::path(root_ + path).parent_path());
    std::filesystem::create_symlink(root_ + kPath, root_ + path);
  }
  /// As the loader's cache keeps its strings: the name shares the end of the path.
  static std::string cache(const std::vector<std::string>& paths) {
    std::string bytes("glibc-ld.so.cache1.1\x02\0\0\0", 24);
    for (const std::string& path : paths) bytes += path + '\0';
    return bytes;
  }
  [[nodiscard]] Node look() const { return look_at_node({}, root_); }

  const tests::TemporaryDirectory temporary_;
  const std::string root_ = temporary_.path();
};

TEST_F(SpankNode, APluginThatTheLoaderDoesNotFindGoesByItsPath) {
  EXPECT_TRUE(look().has_plugin);
  EXPECT_EQ(look().plugin, kPath);
}

TEST_F(SpankNode, ALinkInAFolderOfTheLoaderIsEnoughForTheName) {
  link("/usr/lib/x86_64-linux-gnu/" + std::string(kName));
  EXPECT_EQ(look().plugin, kName);
}

TEST_F(SpankNode, TheLoadersCacheIsRead) {
  link("/usr/local/lib/" + std::string(kName));
  write("/etc/ld.so.cache", cache({"/usr/local/lib/libother.so",
                                   "/usr/local/lib/" + std::string(kName), "/lib/libz.so.1"}));
  EXPECT_EQ(look().plugin, kName);
}

TEST_F(SpankNode, AnotherLibraryOfThatNameMakesThePathNecessary) {
  link("/usr/lib/x86_64-linux-gnu/" + std::string(kName));
  write("/usr/local/lib/" + std::string(kName), "older");
  write("/etc/ld.so.cache", cache({"/usr/local/lib/" + std::string(kName)}));
  EXPECT_EQ(look().plugin, kPath);
}

TEST_F(SpankNode, ACacheOfRubbishIsHarmless) {
  for (const std::string& bytes :
       {std::string(), std::string(kName), "/" + std::string(kName), std::string(70000, '/'),
        std::string(4096, '\0') + "/" + kName + '\0'}) {
    write("/etc/ld.so.cache", bytes);
    EXPECT_EQ(look().plugin, kPath);
  }
}

TEST_F(SpankNode, WhatIsMissingIsMissing) {
  std::filesystem::remove(root_ + kPath);
  EXPECT_FALSE(look().has_plugin);
  EXPECT_FALSE(look().has_socket_folder);
  write("/run/ncclscope", "a file");
  EXPECT_FALSE(look().has_socket_folder);
  std::filesystem::remove(root_ + "/run/ncclscope");
  std::filesystem::create_directories(root_ + "/run/ncclscope");
  EXPECT_TRUE(look().has_socket_folder);
}

}  // namespace
}  // namespace ncclscope::slurm

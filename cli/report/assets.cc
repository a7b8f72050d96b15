// SPDX-License-Identifier: Apache-2.0
#include "cli/report/assets.h"

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <system_error>
#include <vector>

namespace ncclscope::cli::report {
namespace {

std::string from_environment(const char* name) {
  const char* value = std::getenv(name);  // NOLINT(concurrency-mt-unsafe): nobody sets variables
  return value == nullptr ? "" : value;
}

/// Where the library may be, best first: what the user says, the install, the build, the download.
std::vector<std::filesystem::path> candidates() {
  if (const std::string named = from_environment("NCCLSCOPE_ECHARTS"); !named.empty())
    return {named};
  std::vector<std::filesystem::path> out;
  std::error_code error;
  const auto program = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) {
    out.push_back(program.parent_path() / "../share/ncclscope/echarts");
    out.push_back(program.parent_path() / "echarts");
  }
  std::string cache = from_environment("XDG_CACHE_HOME");
  if (cache.empty()) cache = from_environment("HOME") + "/.cache";
  out.emplace_back(cache + "/ncclscope/echarts-" NCCLSCOPE_ECHARTS_VERSION);
  return out;
}

std::string text_of(const std::filesystem::path& file) {
  std::ifstream in(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

}  // namespace

DrawingLibrary drawing_library() {
  std::string looked;
  for (const std::filesystem::path& folder : candidates()) {
    DrawingLibrary out;
    out.folder = folder;
    out.script = text_of(folder / "echarts.min.js");
    out.licence = text_of(folder / "NOTICE") + "\n" + text_of(folder / "LICENSE");
    // Inside the page it must not end the element that holds it.
    if (!out.script.empty() && out.script.find("</script") == std::string::npos) return out;
    looked += "\n  " + folder.string();
  }
  throw AssetError(
      "Apache ECharts is needed to draw and was not found. Run scripts/fetch-echarts.sh, or set "
      "NCCLSCOPE_ECHARTS to a folder with echarts.min.js, LICENSE and NOTICE. Looked at:" +
      looked);
}

}  // namespace ncclscope::cli::report

// SPDX-License-Identifier: Apache-2.0
#include "cli/report/inputs.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <fstream>
#include <set>
#include <string_view>
#include <system_error>
#include <tuple>

#include "archive/format.h"
#include "archive/reader.h"
#include "cli/inspector_log/line_reader.h"

namespace ncclscope::cli::report {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kLogEndings[] = {".log", ".log.gz", ".jsonl", ".jsonl.gz"};

bool is_log_name(const std::string& name) {
  return std::any_of(std::begin(kLogEndings), std::end(kLogEndings), [&](std::string_view ending) {
    return name.size() > ending.size() && name.ends_with(ending);
  });
}

bool is_segment_name(const std::string& name) {
  return name.ends_with(archive::kExtension) || name.ends_with(archive::kPartExtension);
}

bool is_segment(const std::string& path) {
  std::array<char, archive::kFileMagic.size()> begin{};
  std::ifstream file(path, std::ios::binary);
  file.read(begin.data(), begin.size());
  return file &&
         std::equal(begin.begin(), begin.end(), archive::kFileMagic.begin(),
                    [](char a, unsigned char b) { return static_cast<unsigned char>(a) == b; });
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

/// Empty if `path` begins as a log of NCCL Inspector does, else why not. Lines before the first
/// good one may be damaged.
std::string why_no_log(const std::string& path, bool& traces) {
  constexpr int kLinesToTry = 20;
  constexpr std::size_t kLookBytes = std::size_t{32} << 10;
  inspector_log::LineReader reader(path, kLookBytes);
  std::string_view line;
  bool any = false;
  for (int i = 0; i < kLinesToTry; ++i) {
    const auto next = reader.next(line);
    if (next == inspector_log::LineReader::Next::kFailed) return reader.error();
    if (next == inspector_log::LineReader::Next::kEnd) break;
    any = any || !line.empty();
    const std::size_t begin = line.find_first_not_of(" \t");
    if (begin != std::string_view::npos && line[begin] == '{' &&
        line.find("\"header\"") != std::string_view::npos) {
      traces = line.find("\"event_trace_ts\"") != std::string_view::npos;
      return {};
    }
  }
  return any ? "no JSON lines of NCCL Inspector" : "empty";
}

class Finder {
 public:
  Finder(std::string job, bool one_path) : job_(std::move(job)), one_path_(one_path) {}

  void add(const std::string& given) {
    std::error_code error;
    const fs::file_status status = fs::status(given, error);
    if (!fs::exists(status))
      throw InputError(given + ": " + (error ? error.message() : "no such file or folder"));
    if (fs::is_directory(status)) return add_folder(given);
    if (!add_file(given, given, /*named=*/true))
      throw InputError(given + ": neither a log of NCCL Inspector nor a segment of an archive");
  }

  Inputs take() {
    std::sort(found_.files.begin(), found_.files.end(), [](const Input& a, const Input& b) {
      return std::tie(a.job, a.path) < std::tie(b.job, b.path);
    });
    return std::move(found_);
  }

 private:
  void add_folder(const fs::path& folder) {
    std::error_code error;
    std::vector<fs::path> paths;
    for (fs::recursive_directory_iterator at(folder, error), end; !error && at != end;
         at.increment(error)) {
      if (at->is_regular_file(error)) paths.push_back(at->path());
    }
    if (error) throw InputError(folder.string() + ": cannot be read: " + error.message());
    std::sort(paths.begin(), paths.end());
    for (const fs::path& path : paths)
      add_file(path, one_path_ ? fs::relative(path, folder, error) : path, /*named=*/false);
  }

  /// False if it is nothing of ours.
  bool add_file(const fs::path& path, const fs::path& name, bool named) {
    const bool segment_name = is_segment_name(path.filename());
    if (!named && !segment_name && !is_log_name(path.filename())) return false;
    std::error_code error;
    if (!seen_.insert(fs::canonical(path, error)).second) return true;
    const std::uint64_t bytes = fs::file_size(path, error);
    if (is_segment(path)) {
      add_segment({.kind = InputKind::kArchive,
                   .path = path,
                   .name = name,
                   .job = {},
                   .step = {},
                   .bytes = bytes});
      return true;
    }
    bool traces = false;
    const std::string reason = bytes == 0     ? "empty"
                               : segment_name ? "no segment of an archive"
                                              : why_no_log(path, traces);
    if (reason.empty()) {
      JobStep told = job_of_log(fs::absolute(path, error).lexically_normal());
      if (!job_.empty()) told.job = job_;
      add_to_job({.kind = InputKind::kInspectorLog,
                  .path = path,
                  .name = name,
                  .job = told.job,
                  .step = told.step,
                  .bytes = bytes,
                  .traces = traces});
      return true;
    }
    if (named && reason != "empty") return false;
    found_.left_out.push_back(path.string() + ": " + reason);
    return true;
  }

  /// The job is written in the first block.
  void add_segment(Input input) {
    archive::Status status;
    const auto reader = archive::Reader::open(input.path, status);
    if (reader == nullptr) {
      found_.left_out.push_back(status.message());
      return;
    }
    (void)reader->next();
    input.job = reader->job().job_id;
    add_to_job(std::move(input));
  }

  void add_to_job(Input input) {
    if (input.job.empty()) input.job = "unknown";
    found_.files.push_back(std::move(input));
  }

  std::string job_;
  bool one_path_;
  Inputs found_;
  std::set<fs::path> seen_;
};

}  // namespace

JobStep job_of_log(const std::string& path) {
  constexpr std::string_view kDefaultFolder = "nccl-inspector-";
  const fs::path file(path);
  const std::string parent = file.parent_path().filename();
  const std::string grandparent = file.parent_path().parent_path().filename();
  if (file.filename().string().find("-pid") != std::string::npos && is_number(grandparent) &&
      (is_number(parent) || parent == "batch" || parent == "interactive"))
    return {grandparent, parent};
  for (const fs::path& part : file.parent_path()) {
    const std::string name = part;
    if (name.starts_with(kDefaultFolder) && is_number(name.substr(kDefaultFolder.size())))
      return {name.substr(kDefaultFolder.size()), ""};
  }
  return {};
}

Inputs find_inputs(const std::vector<std::string>& paths, const std::string& job) {
  Finder finder(job, paths.size() == 1);
  for (const std::string& path : paths) finder.add(path);
  Inputs inputs = finder.take();
  if (!inputs.files.empty()) return inputs;
  std::string message =
      "nothing to report on: no .log, .log.gz, .jsonl or .jsonl.gz of NCCL Inspector and no "
      "archive below";
  for (const std::string& path : paths) message += " " + path;
  for (const std::string& reason : inputs.left_out) message += "\n  " + reason;
  throw InputError(message);
}

}  // namespace ncclscope::cli::report
